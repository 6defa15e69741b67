"""FedBN: FedAvg with personal batch normalisation.

FedBN: Federated Learning on Non-IID Features via Local Batch Normalization (Li,
Jiang, Zhang, Kamp, Dou; ICLR 2021, arXiv:2102.07623), Algorithm 1.

If clients see the same thing in different ways (cameras, hospitals), the
features of a layer have a different mean and variance at each client. Each
client therefore keeps the running statistics of its batch normalisations, and
their scale and shift; all other weights are averaged. With
`personal_norm=statistics` scale and shift are averaged too (SiloBN), with
`none` it is FedAvg.

What leaves a client: its model update without its batch normalisations, and the
mean training loss. Running statistics, scale and shift stay.

The server has no model to predict with; a client that has never taken part
starts from scale 1, shift 0 and the statistics of the initial model.
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
  """FedBN is FedAvg with another default of `personal_norm`."""

  personal_norm: str = hyperparameters.hparam(
    "all",
    "Which parts of batch normalisation are personal: all, means, variances,"
    " scale and shift (FedBN); statistics, means and variances (SiloBN); none"
    " (FedAvg).",
    choices=("none", "statistics", "all"),
    published=True,
  )


def build(
  model: split_model.SplitModel, hparams: HParams
) -> algorithm.AlgorithmSpec:
  """Builds the spec of FedBN; see `algorithm.AlgorithmSpec`."""
  return fed_avg.build(model, hparams)
