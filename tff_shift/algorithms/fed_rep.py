"""FedRep: a shared representation, and a personal head for every client.

Exploiting Shared Representations for Personalized Federated Learning (Collins,
Hassani, Mokhtari, Shakkottai; ICML 2021, arXiv:2102.07078), Algorithm 1.

In a round a client first trains its head on the received backbone, then the
backbone with this head. Only the backbone is averaged.

What leaves a client: the update of the backbone, and the mean training loss of
its backbone steps. The head stays.

Choices:
  * The head is the last linear layer ("the last fc layer" in Appendix D of the
    FedEvolve paper), `head=classifier` the whole classifier.
  * In guidance a round has 5 steps of the head and 5 of the backbone: as many
    gradients as other methods have (`head_steps`, `local_steps`).
  * All clients start with the initial head of the run's seed, see
    `learning.algorithm`.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tff_shift.data import client_dataset
from tff_shift.learning import algorithm
from tff_shift.learning import evaluation
from tff_shift.learning import hyperparameters
from tff_shift.learning import local_training
from tff_shift.learning import randomness
from tff_shift.models import split_model

SCENARIOS = ("evolving", "guidance")

RUNNING_STATISTICS = algorithm.ONE_MODEL


@dataclasses.dataclass(frozen=True)
class HParams(hyperparameters.LocalHParams):
  """Hyper-parameters of FedRep; `local_steps` train the backbone."""

  head_steps: int = hyperparameters.hparam(
    5,
    "Local iterations for the head, before those for the backbone.",
    minimum=1,
  )
  head: str = hyperparameters.hparam(
    "last_layer",
    "What is personal: last_layer, only the last linear layer (Appendix D of"
    " the FedEvolve paper); classifier, the model's whole head.",
    choices=split_model.HEADS,
  )


def num_head_steps(
  iterations: int, data: client_dataset.ClientDataset
) -> tf.Tensor:
  """Returns the number of gradient steps for a head.

  Args:
    iterations: Steps in each domain.
    data: The client's data.

  Returns:
    An int32 scalar; 0 for a client without examples, which has no batches.
  """
  return iterations * local_training.num_domains(data)


def train_client(
  model: split_model.SplitModel,
  hparams: HParams,
  backbone,
  head,
  data: client_dataset.ClientDataset,
  round_num,
  backbone_loss: Callable[[Any, local_training.Batch], tf.Tensor] | None = None,
) -> algorithm.ClientResult:
  """Trains the head on the received backbone, then the backbone with it.

  Args:
    model: The model, cut at the personal part.
    hparams: Hyper-parameters.
    backbone: The server's backbone.
    head: The client's head.
    data: The client's data.
    round_num: The round, an int32 scalar.
    backbone_loss: `(SplitWeights, batch) -> loss` of the backbone's steps.
      None: cross-entropy.

  Returns:
    The update of the backbone, and the client's new head.
  """
  seed = randomness.fold(data.seed, randomness.Purpose.TRAIN, round_num)
  num_domains = local_training.num_domains(data)
  with_head = local_training.train_on_pool(
    model.predict,
    split_model.SplitWeights(backbone, head),
    data,
    num_head_steps(hparams.head_steps, data),
    randomness.fold(seed, 0),
    hparams,
    trainable=model.weights_of("head"),
    round_num=round_num,
  )
  steps = local_training.num_local_steps(hparams, data, round_num)
  trained = local_training.train_on_batches(
    backbone_loss or local_training.classification_loss(model.predict),
    with_head.weights,
    data,
    steps * num_domains,
    randomness.fold(seed, 1),
    hparams,
    trainable=model.weights_of("backbone"),
    round_num=round_num,
  )
  return algorithm.ClientResult(
    update=tf.nest.map_structure(
      tf.subtract, trained.weights.backbone, backbone
    ),
    client_state=trained.weights.head,
    loss=trained.loss,
  )


def build(
  model: split_model.SplitModel, hparams: HParams
) -> algorithm.AlgorithmSpec:
  """Builds the spec of FedRep; see `algorithm.AlgorithmSpec`.

  A client's state is its head; the server has no model to predict with.
  """
  model = split_model.with_head(model, hparams.head)
  return algorithm.AlgorithmSpec(
    initial_weights=model.initial_backbone,
    initial_client_state=lambda seed, weights: model.initial_head(seed),
    starts_alike=True,
    train_client=local_training.allows_padding(
      lambda backbone, head, data, round_num: train_client(
        model, hparams, backbone, head, data, round_num
      )
    ),
    predict_as_client=local_training.allows_padding(
      lambda backbone, head, _, examples: evaluation.predict(
        model, split_model.SplitWeights(backbone, head), examples.x
      )
    ),
  )
