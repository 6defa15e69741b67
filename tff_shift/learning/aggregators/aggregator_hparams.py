"""The aggregators' names and hyper-parameters, see `aggregation`.

Does not import TensorFlow: command lines define and check their flags by it.
"""

import dataclasses

from tff_shift.learning import hyperparameters
from tff_shift.learning.aggregators import privacy_accounting

NAMES = ("mean", "robust", "dp", "secure", "compressed")

# They clip updates, or set them to zero.
BOUNDED = ("robust", "secure", "compressed")
# Less hides nothing, and the accounting of it overflows; that of more takes
# minutes or fails.
_LEAST_NOISE, _MOST_NOISE = 1e-3, 1e4

# Which aggregators a hyper-parameter means something to.
USED_BY = {
  "clipping": (*BOUNDED, "dp"),
  "clipping_norm": (*BOUNDED, "dp"),
  "zeroing": BOUNDED,
  "noise_multiplier": ("dp",),
  "dp_delta": ("dp",),
  "server_momentum": NAMES,
}


@dataclasses.dataclass(frozen=True)
class AggregatorHParams(hyperparameters.HParams):
  """What an aggregator can be told; see `USED_BY`."""

  clipping: str = hyperparameters.hparam(
    "adaptive",
    "How the norm is found that a client's whole update is clipped to:"
    " adaptive, a quantile of the norms so far; fixed, clipping_norm; none:"
    " nothing is clipped.",
    choices=("adaptive", "fixed", "none"),
  )
  clipping_norm: float = hyperparameters.hparam(
    1.0,
    "The norm of clipping=fixed. Small: all updates count alike; large: none"
    " is clipped.",
    minimum=0,
    exclusive_minimum=True,
  )
  zeroing: bool = hyperparameters.hparam(
    True,
    "Whether an update counts as zero if its largest number is far beyond"
    " those of most clients so far.",
  )
  noise_multiplier: float = hyperparameters.hparam(
    1.0,
    "Standard deviation of the noise in the sum of the updates, over the norm"
    " that they are clipped to; 0 is no noise and no privacy.",
    minimum=_LEAST_NOISE,
    maximum=_MOST_NOISE,
    or_zero=True,
  )
  dp_delta: float = hyperparameters.hparam(
    0.0,
    "The delta that epsilon is computed for; 0: one over the number of"
    " clients to the power of 1.1.",
    minimum=privacy_accounting.LEAST_DELTA,
    maximum=0.5,
    or_zero=True,
  )
  server_momentum: float = hyperparameters.hparam(
    0.0,
    "What the server adds to its weights is the mean of the updates and this"
    " share of what it added in the round before (FedAvgM).",
    minimum=0,
    maximum=0.999,
  )
