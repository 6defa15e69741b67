"""The aggregators' names and hyper-parameters, see `factories`.

This module does not import TensorFlow: command lines build their flags from it.
"""

import dataclasses

from tff_shift.learning import hyperparameters
from tff_shift.learning.aggregators import privacy_accounting

NAMES = ("mean", "robust", "dp", "dp_ftrl", "secure", "compressed")

# These aggregators add noise to a sum of clipped updates.
PRIVATE = ("dp", "dp_ftrl")
# The server does not see the updates of single clients.
HIDING = (*PRIVATE, "secure")

# These aggregators clip updates or set them to zero.
BOUNDED = ("robust", "secure", "compressed")
# Smaller values hide nothing, and their accounting overflows; the accounting of
# larger values takes minutes or fails.
_LEAST_NOISE, _MOST_NOISE = 1e-3, 1e4

# The aggregators that use a hyper-parameter.
USED_BY = {
  "clipping": (*BOUNDED, "dp"),
  "clipping_norm": (*BOUNDED, *PRIVATE),
  "zeroing": BOUNDED,
  "noise_multiplier": PRIVATE,
  "dp_delta": PRIVATE,
  "tree_restart": ("dp_ftrl",),
}


@dataclasses.dataclass(frozen=True)
class AggregatorHParams(hyperparameters.HParams):
  """Hyper-parameters of aggregators; see `USED_BY`."""

  clipping: str = hyperparameters.hparam(
    "adaptive",
    "Norm to which a client's whole update is clipped: adaptive, a quantile of"
    " the norms in earlier rounds; fixed, clipping_norm; none, no clipping.",
    choices=("adaptive", "fixed", "none"),
  )
  clipping_norm: float = hyperparameters.hparam(
    1.0,
    "Norm for clipping=fixed and dp_ftrl. Small: all updates have the same"
    " norm; large: no update is clipped.",
    minimum=0,
    exclusive_minimum=True,
  )
  zeroing: bool = hyperparameters.hparam(
    True,
    "Whether to zero an update whose largest absolute value is far above"
    " those of most clients in earlier rounds.",
  )
  noise_multiplier: float = hyperparameters.hparam(
    1.0,
    "Standard deviation of the noise in the sum of the updates (dp_ftrl: in"
    " each node of the tree), relative to the clipping norm; 0: no noise and no"
    " privacy.",
    minimum=_LEAST_NOISE,
    maximum=_MOST_NOISE,
    or_zero=True,
  )
  dp_delta: float = hyperparameters.hparam(
    0.0,
    "Delta for which epsilon is computed; 0: num_clients to the power of -1.1.",
    minimum=privacy_accounting.LEAST_DELTA,
    maximum=0.5,
    or_zero=True,
  )
  tree_restart: int = hyperparameters.hparam(
    0,
    "Number of rounds after which the tree of the noise restarts; 0: never.",
    minimum=0,
    maximum=10**9,
  )
