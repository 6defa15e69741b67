"""FedPer: a shared base, and personal last layers that train with it.

Federated Learning with Personalization Layers (Arivazhagan, Aggarwal, Singh,
Choudhary; 2019, arXiv:1912.00818), Algorithms 1 and 2.

In a round a client takes the server's base layers and its own personalization
layers, and trains all of them together. The server averages the base layers.
`fed_rep` has the same parts and trains them one after the other.

What leaves a client: the update of the base layers, and the mean training loss.
The personalization layers stay.

Choices:
  * One personalization layer, the last linear one, which is the paper's choice
    for MobileNet; `head=classifier` is the model's whole head, as its K_P of
    several blocks.
  * All clients start with the initial personalization layers of the run's seed;
    the paper initializes them at random at each client. See
    `learning.algorithm`.
  * Clients have equal weights, as in all methods here. The paper weights them
    by their numbers of examples (`client_weighting=num_examples`).
"""

import dataclasses
from typing import Any

import tensorflow as tf

from tff_shift.algorithms import fed_avg
from tff_shift.learning import algorithm
from tff_shift.learning import evaluation
from tff_shift.learning import hyperparameters
from tff_shift.learning import local_training
from tff_shift.models import split_model

SCENARIOS = ("evolving", "guidance")

RUNNING_STATISTICS = algorithm.ONE_MODEL


@dataclasses.dataclass(frozen=True)
class HParams(hyperparameters.LocalHParams):
  """Hyper-parameters of FedPer."""

  head: str = hyperparameters.hparam(
    "last_layer",
    "What is personal: last_layer, only the last linear layer; classifier, the"
    " model's whole head.",
    choices=split_model.HEADS,
  )


def share(
  model: split_model.SplitModel, hparams: Any, shared: str
) -> algorithm.AlgorithmSpec:
  """Builds the spec of clients that train both parts of a model together.

  Args:
    model: The model.
    hparams: Local training, and the `head`.
    shared: The part that the server averages, `backbone` or `head`. The other
      one is the clients' state.
  """
  model = split_model.with_head(model, hparams.head)
  initial = {"backbone": model.initial_backbone, "head": model.initial_head}
  (personal,) = initial.keys() - {shared}

  def joined(weights, state) -> split_model.SplitWeights:
    return split_model.SplitWeights(**{shared: weights, personal: state})

  @local_training.allows_padding
  def train_client(weights, state, data, round_num):
    result = fed_avg.train_client(
      model, hparams, joined(weights, state), data, round_num
    )
    return algorithm.ClientResult(
      update=getattr(result.update, shared),
      client_state=tf.nest.map_structure(
        tf.add, state, getattr(result.update, personal)
      ),
      loss=result.loss,
    )

  return algorithm.AlgorithmSpec(
    initial_weights=initial[shared],
    initial_client_state=lambda seed, weights: initial[personal](seed),
    starts_alike=True,
    train_client=train_client,
    predict_as_client=local_training.allows_padding(
      lambda weights, state, _, examples: evaluation.predict(
        model, joined(weights, state), examples.x
      )
    ),
  )


def build(
  model: split_model.SplitModel, hparams: HParams
) -> algorithm.AlgorithmSpec:
  """Builds the spec of FedPer; see `algorithm.AlgorithmSpec`.

  A client's state is its personalization layers; the server has no model to
  predict with.
  """
  return share(model, hparams, "backbone")
