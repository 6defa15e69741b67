"""FedAvg: the server averages the clients' model updates.

Communication-Efficient Learning of Deep Networks from Decentralized Data
(McMahan, Moore, Ramage, Hampson, Agüera y Arcas; AISTATS 2017,
arXiv:1602.05629), Algorithm 1.

Each client starts from the server weights, trains on its examples of all
domains, and sends its model update; the server adds the mean.

What leaves a client: its model update, and the mean training loss.
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

SCENARIOS = ("evolving", "guidance", "dynamic_personalization")
RUNNING_STATISTICS = algorithm.ONE_MODEL


@dataclasses.dataclass(frozen=True)
class HParams(hyperparameters.LocalHParams):
  """FedAvg has only the hyper-parameters of local training."""


def train_client(
  model: split_model.SplitModel,
  hparams: hyperparameters.LocalHParams,
  weights: split_model.SplitWeights,
  data: client_dataset.ClientDataset,
  round_num,
  predict: Callable[[Any, tf.Tensor], tf.Tensor] | None = None,
  **options: Any,
) -> algorithm.ClientResult:
  """Trains the shared weights on one client's examples.

  A local iteration takes one gradient step per domain, which is one step more
  than in algorithms that step from domain to domain; batches come from the
  examples of all domains.

  Args:
    model: The model.
    hparams: Local training.
    weights: The server's weights.
    data: The client's data.
    round_num: The round, an int32 scalar.
    predict: `(weights, x) -> logits` in the loss. None: the model's.
    **options: `penalty` of `local_training.train_on_pool`, `trainable` and
      `differentiate` of `local_training.train`.

  Returns:
    The update of the weights; there is no personal state.
  """
  seed = randomness.fold(data.seed, randomness.Purpose.TRAIN, round_num)
  num_steps = local_training.num_local_steps(hparams, data, round_num)
  result = local_training.train_on_pool(
    predict or model.predict,
    weights,
    data,
    num_steps * local_training.num_domains(data),
    seed,
    hparams,
    round_num=round_num,
    **options,
  )
  return algorithm.ClientResult(
    update=tf.nest.map_structure(tf.subtract, result.weights, weights),
    client_state=(),
    loss=result.loss,
  )


def build(
  model: split_model.SplitModel, hparams: hyperparameters.LocalHParams
) -> algorithm.AlgorithmSpec:
  """Builds the spec of FedAvg; see `algorithm.AlgorithmSpec`."""
  return algorithm.AlgorithmSpec(
    initial_weights=model.initial_weights,
    train_client=local_training.allows_padding(
      lambda weights, _, data, round_num: train_client(
        model, hparams, weights, data, round_num
      )
    ),
    predict_as_client=local_training.allows_padding(
      lambda weights, _, data, examples: evaluation.predict(
        model, weights, examples.x
      )
    ),
    predict_as_server=lambda weights, _, examples: evaluation.predict(
      model, weights, examples.x
    ),
  )
