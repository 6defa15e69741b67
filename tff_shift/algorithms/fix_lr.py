"""FixLR: the updates of Fed-ADE with a constant learning rate.

Fed-ADE: Adaptive Learning Rate for Federated Post-adaptation under Distribution
Shift (Park, Joe, Kim, Im, Kwon; CVPR 2026, arXiv:2603.01040), Section 6.1:
FixLR(Low), FixLR(Mid) and FixLR(High) are this algorithm at 5e-6, 1e-5 and 1e-4
on images.

What leaves a client: the update of the backbone, the number of its unlabelled
examples, and the mean risk of both updates. Head and label estimates stay.
"""

import dataclasses

from tff_shift.algorithms.parts import two_phase_adaptation
from tff_shift.learning import algorithm
from tff_shift.learning import hyperparameters
from tff_shift.models import split_model

SCENARIOS = ("online_adaptation",)

RUNNING_STATISTICS = algorithm.FIXED


@dataclasses.dataclass(frozen=True)
class HParams(two_phase_adaptation.TwoPhaseHParams):
  """Hyper-parameters of FixLR."""

  learning_rate: float = hyperparameters.hparam(
    1e-5, "The clients' learning rate.", minimum=0, exclusive_minimum=True
  )


def build(
  model: split_model.SplitModel, hparams: HParams
) -> algorithm.AlgorithmSpec:
  """Builds the spec of FixLR; the initial weights are the pre-trained ones."""
  return two_phase_adaptation.build(
    model, hparams, initial_rate=hparams.learning_rate
  )
