"""The norm of the aggregator's noise, compared to the updates.

Choices:
  * If the noise of a round is longer than the longest update (multiplier *
    sqrt(weights) / clients above 1), a line warns before training. It is not an
    error, because such runs show the cost of epsilon.
"""

import math
import warnings
from typing import NamedTuple

import tensorflow as tf
import tensorflow_federated as tff

from tff_shift._util import errors

_REMEDY = (
  "a smaller --noise_multiplier, more clients in a round or fewer weights may"
  " help"
)


class Noise(NamedTuple):
  """Gaussian noise in the mean of clipped updates.

  Attributes:
    multiplier: Standard deviation of the noise in each number of the sum, over
      the clipping norm.
    num_clients: The divisor of the sum.
  """

  multiplier: float
  num_clients: int


def ratio(noise: Noise | None, update_type: tff.Type) -> float:
  """Returns the norm of the noise over the norm of the longest update.

  The mean of updates of norm at most C has norm at most C. Its noise has the
  norm C * multiplier * sqrt(num_weights) / num_clients, up to an error that is
  small for many weights.

  Args:
    noise: The noise; None: no noise, or unknown.
    update_type: The type of an update.

  Returns:
    The ratio; 0 without noise.
  """
  if noise is None:
    return 0.0
  norm = noise.multiplier * math.sqrt(_num_weights(update_type))
  return norm / noise.num_clients


def _num_weights(update_type: tff.Type) -> int:
  sizes = tff.types.structure_from_tensor_type_tree(
    lambda tensor: math.prod(tensor.shape), update_type
  )
  return sum(tf.nest.flatten(sizes))


def warn(algorithm: str, noise: Noise | None, update_type: tff.Type) -> None:
  """Issues a `NoiseWarning` if the noise is longer than any update.

  Args:
    algorithm: The algorithm's name, for the message.
    noise: The noise; None: no noise, or unknown.
    update_type: The type of an update.
  """
  found = ratio(noise, update_type)
  if found > 1:
    num_weights = _num_weights(update_type)
    warnings.warn(
      f"{algorithm}: the noise in the mean of a round is about {found:.3g}"
      " times as long as the longest update that clipping allows"
      f" ({noise.multiplier:.3g} * sqrt({num_weights} weights) /"
      f" {noise.num_clients} clients), so that updates are mostly noise;"
      f" {_REMEDY}",
      errors.NoiseWarning,
      stacklevel=2,
    )


def what_may_help(found: float, advice: str = "") -> str:
  """Returns advice for a run that has diverged, without a full stop.

  Args:
    found: The `ratio` of the run.
    advice: Alternatives to a smaller learning rate.
  """
  if found > 1:
    return (
      f"the noise in the mean of a round is {found:.3g} times as long as the"
      f" longest update; {_REMEDY}"
    )
  return f"a smaller learning rate{advice} may help"
