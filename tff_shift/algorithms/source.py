"""Source: the pre-trained model without adaptation.

No paper of its own. A baseline for every method of Fed-ADE: Adaptive Learning
Rate for Federated Post-adaptation under Distribution Shift (Park, Joe, Kim, Im,
Kwon; 2026), Table 1; the paper does not report it.

What leaves a client: only the counts and losses of its evaluation.
"""

import dataclasses

from tff_shift.algorithms.parts import adaptation
from tff_shift.learning import algorithm
from tff_shift.learning import evaluation
from tff_shift.learning import hyperparameters
from tff_shift.learning.aggregators import factories
from tff_shift.models import split_model

SCENARIOS = ("online_adaptation",)

RUNNING_STATISTICS = algorithm.FIXED

AGGREGATION_REQUIREMENTS = factories.AggregationRequirements(
  no_aggregation="the model does not change after training"
)


@dataclasses.dataclass(frozen=True)
class HParams(hyperparameters.HParams):
  """Source has no hyper-parameters."""


def build(
  model: split_model.SplitModel, hparams: HParams
) -> algorithm.AlgorithmSpec:
  """Builds the spec of the baseline without adaptation, without phases."""
  return algorithm.AlgorithmSpec(
    initial_weights=model.initial_weights,
    train_client=None,
    predict_as_client=lambda weights, state, data, examples: (
      evaluation.predict(model, weights, examples.x)
    ),
    examples_type=adaptation.data_type(model),
  )
