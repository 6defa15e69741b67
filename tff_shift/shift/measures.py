"""Ways to compare the summaries of two time steps, behind one interface.

Source: Fed-ADE: Adaptive Learning Rate for Federated Post-adaptation under
Distribution Shift (2026), Table 3 and Appendix H.3. The paper names the
alternatives to the cosine without details; the choices here are ours. All
compare q of eq. 11 and z of eq. 13, so that only the comparison differs, and
all give a signal between 0 and 1 for eq. 10. A zero vector, the summary of an
empty batch, is no shift.

For `kl_divergence` and `wasserstein`, z becomes a distribution by dividing its
positive part by the sum. Embeddings come after a ReLU, so nothing is lost.

Choices:
  * KL is 1 - exp(-KL), with a floor of 1e-4. W1 has the indices on a line.
  * Change points: the posterior probability that a segment begins, with hazard
    0.1 and a normal model of known noise that assumes 50 examples.
  * POT's functions cannot be traced into a graph (except in TensorFlow's NumPy
    mode, which changes the types of the whole program), so W1 is a closed form.
"""

from collections.abc import Callable
from typing import Any
from typing import NamedTuple

import tensorflow as tf

from tff_shift.shift import change_point
from tff_shift.shift import dynamics

# Minimum of a probability in the KL divergence, which 0 would make infinite.
KL_FLOOR = 1e-4


class Measure(NamedTuple):
  """A way to compare the summaries of two time steps.

  Attributes:
    name: Its name.
    initial_state: `initial_state(size)` returns the state of the measure before
      the first summary of this size, a nested structure of tensors.
    uncertainty: `uncertainty(state, previous, current)` returns the signal
      instead of S_unc (eq. 12), a float32 scalar between 0 and 1, and the new
      state. The summaries are q, [num_classes] float32.
    representation: The same instead of S_rep (eq. 14). The summaries are z,
      [size] float32. The two have separate states.
  """

  name: str
  initial_state: Callable[[int], Any]
  uncertainty: Callable[[Any, Any, Any], tuple[tf.Tensor, Any]]
  representation: Callable[[Any, Any, Any], tuple[tf.Tensor, Any]]


def _distributions(previous, current) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
  """Converts both vectors to distributions; returns whether it is possible."""
  both = tf.nn.relu(tf.stack([previous, current]))
  totals = tf.reduce_sum(both, axis=1, keepdims=True)
  first, second = tf.unstack(tf.math.divide_no_nan(both, totals))
  # NaN is not 0: it must not become "no shift".
  return first, second, tf.reduce_all(tf.not_equal(totals, 0))


def kl_divergence(previous, current) -> tf.Tensor:
  """Computes 1 - exp(-KL(current || previous)).

  Probabilities below `KL_FLOOR` are raised to it and all are divided by their
  new sum; the exponential maps the unbounded divergence into [0, 1).

  Args:
    previous: [size] float32; its positive part, divided by its sum, is used.
    current: [size] float32, in the same way.

  Returns:
    A float32 scalar between 0 and 1; 0 if a positive part is zero.
  """
  *pair, defined = _distributions(previous, current)
  floored = tf.maximum(tf.stack(pair), KL_FLOOR)
  old, new = tf.unstack(floored / tf.reduce_sum(floored, axis=1, keepdims=True))
  divergence = tf.reduce_sum(new * tf.math.log(new / old))
  # It is only negative by rounding.
  signal = -tf.math.expm1(-tf.nn.relu(divergence))
  return tf.where(defined, signal, 0.0)


def wasserstein(previous, current) -> tf.Tensor:
  """Computes the Wasserstein distance W1 on a line.

  Index i of I is at i / (I - 1), so that the distance is at most 1. Appendix
  H.3 warns of such an arbitrary ground metric: neither classes nor features
  have an order. On a line, W1 is the area between the two cumulative
  distributions. POT computes the same (`ot.wasserstein_1d`) but not in a graph:
  its TensorFlow backend needs TensorFlow's NumPy mode, which would change the
  types of results in the whole program and cannot be switched off.

  Args:
    previous: [size] float32; its positive part, divided by its sum, is used.
    current: [size] float32, in the same way.

  Returns:
    A float32 scalar between 0 and 1; 0 if a positive part is zero.
  """
  old, new, defined = _distributions(previous, current)
  area = tf.reduce_sum(tf.abs(tf.cumsum(new - old)[:-1]))
  distance = area / max(old.shape[0] - 1, 1)
  return tf.where(defined, tf.minimum(distance, 1.0), 0.0)


def _memoryless(name: str, uncertainty, representation) -> Measure:
  """Makes a `Measure` from two functions of (previous, current)."""
  return Measure(
    name,
    lambda size: (),
    lambda state, previous, current: (uncertainty(previous, current), state),
    lambda state, previous, current: (representation(previous, current), state),
  )


_MEASURES = {
  measure.name: measure
  for measure in (
    _memoryless(
      "cosine",
      dynamics.uncertainty_dynamics,
      dynamics.representation_dynamics,
    ),
    _memoryless("kl_divergence", kl_divergence, kl_divergence),
    _memoryless("wasserstein", wasserstein, wasserstein),
    Measure(
      "bayesian_cpd",
      change_point.initial_state,
      change_point.observe,
      change_point.observe,
    ),
  )
}


def names() -> tuple[str, ...]:
  """Returns the names of all measures; the first is the paper's own."""
  return tuple(_MEASURES)


def get(name: str) -> Measure:
  """Returns a measure.

  Args:
    name: One of `names()`.

  Returns:
    The measure.

  Raises:
    ValueError: If there is no measure of this name.
  """
  if name not in _MEASURES:
    raise ValueError(f"no measure {name!r}; there are {', '.join(_MEASURES)}")
  return _MEASURES[name]
