"""FedBN: FedAvg whose clients keep their batch normalisation.

FedBN: Federated Learning on Non-IID Features via Local Batch Normalization (Li,
Jiang, Zhang, Kamp, Dou; ICLR 2021), Algorithm 1.

Where clients see one thing in different ways (cameras, hospitals), the features
of a layer have a mean and a variance of their own at each client. So each
client keeps the running statistics of its batch normalisations, and their scale
and shift; all other weights are averaged. With `personal_norm=statistics` scale
and shift are averaged too (SiloBN), with `none` it is FedAvg.

What leaves a client: the change of all weights but those of its batch
normalisations, and the mean training loss. The server has no model to predict
with; a client that has never taken part starts from scale 1, shift 0 and the
statistics of the initial model.
"""

import dataclasses

from tff_shift.algorithms import fed_avg
from tff_shift.learning import algorithm
from tff_shift.learning import hyperparameters
from tff_shift.models import split_model

SCENARIOS = fed_avg.SCENARIOS
RUNNING_STATISTICS = algorithm.ONE_MODEL


@dataclasses.dataclass(frozen=True)
class HParams(fed_avg.HParams):
  """FedBN is FedAvg with another `personal_norm`."""

  personal_norm: str = hyperparameters.hparam(
    "all",
    "What of batch normalisation is a client's own: all, means, variances,"
    " scale and shift (FedBN); statistics, means and variances alone (SiloBN);"
    " none (FedAvg).",
    choices=("none", "statistics", "all"),
  )


def build(
  model: split_model.SplitModel, hparams: HParams
) -> algorithm.AlgorithmSpec:
  """The functions of FedBN; see `algorithm.AlgorithmSpec`."""
  return fed_avg.build(model, hparams)
