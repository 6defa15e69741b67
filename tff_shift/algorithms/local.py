"""Local: every client trains its own model; nothing is shared.

No paper of its own. The baseline of Table 15 of Federated Learning under
Evolving Distribution Shifts: no communication, no aggregation.

What leaves a client: the mean training loss. The whole model stays.
"""

import dataclasses

import tensorflow as tf

from tff_shift.algorithms import fed_avg
from tff_shift.learning import algorithm
from tff_shift.learning import evaluation
from tff_shift.learning import hyperparameters
from tff_shift.learning import local_training
from tff_shift.learning.aggregators import factories
from tff_shift.models import split_model

SCENARIOS = ("evolving", "dynamic_personalization", "guidance")

RUNNING_STATISTICS = algorithm.OWN_MODEL

AGGREGATION_REQUIREMENTS = factories.AggregationRequirements(
  no_aggregation="every client trains its own model"
)


@dataclasses.dataclass(frozen=True)
class HParams(hyperparameters.LocalHParams):
  """Local training has no further hyper-parameters."""


def build(
  model: split_model.SplitModel, hparams: HParams
) -> algorithm.AlgorithmSpec:
  """Builds the spec of local training; see `algorithm.AlgorithmSpec`.

  A client's state is its whole model; the server has none.
  """

  @local_training.allows_padding
  def train_client(weights, personal_weights, data, round_num):
    del weights  # Empty: the server has no weights.
    result = fed_avg.train_client(
      model, hparams, personal_weights, data, round_num
    )
    return algorithm.ClientResult(
      update=(),
      client_state=tf.nest.map_structure(
        tf.add, personal_weights, result.update
      ),
      loss=result.loss,
    )

  return algorithm.AlgorithmSpec(
    initial_weights=lambda seed: (),
    initial_client_state=lambda seed, weights: model.initial_weights(seed),
    train_client=train_client,
    predict_as_client=local_training.allows_padding(
      lambda _, weights, data, examples: evaluation.predict(
        model, weights, examples.x
      )
    ),
  )
