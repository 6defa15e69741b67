"""Bayesian online change-point detection for the summaries of batches.

Sources: Bayesian Online Changepoint Detection (Adams, MacKay; 2007); an
alternative to the cosine in Table 3 and Appendix H.3 of Fed-ADE: Adaptive
Learning Rate for Federated Post-adaptation under Distribution Shift (2026),
which gives no details. The choices below are ours.

The summaries of consecutive time steps form segments, each with its own mean.
Before each summary a new segment begins with probability h (`HAZARD`). Given
the mean m of its segment, a summary of size d is normal, and so is the mean:

  x | m ~ Normal(m, I / (n d)),    m ~ Normal(0, I / d),

the conjugate model with known variance and independent dimensions. Both
summaries are means over a batch of vectors of length at most 1. So is the mean,
and 1 is the expected square length of m. Over batches of n independent examples
(`BATCH_SIZE`) the variances in all d dimensions add up to at most 1/n, as in
the model.

In Adams and MacKay, the observation before a change is always the last of its
segment: the probability of run length 0 is then the hazard itself, for all
data. Here the new observation is the first of the new segment, so that its
prior predictive competes with the predictives of the older segments.

The probability of a change reaches 1/2 at a squared distance of about 0.1 from
the mean of ten observations and of about 0.15 from a single one, for any size
d. Otherwise the signal is nearly 0 or 1, the more so the larger d. As the paper
notes, it detects rather than measures a shift, and misses a slow drift.
"""

import math
from typing import Any
from typing import NamedTuple

import tensorflow as tf

# A change in ten time steps: sqrt(T) of the paper's schedules with T = 100.
HAZARD = 0.1

# Examples in a batch, n. It determines the expected noise of a summary.
BATCH_SIZE = 50

# The maximum number of observations by which segments are distinguished.
NUM_LENGTHS = 32

# The log probability of impossible events. Finite, because the difference of
# two infinities is NaN.
_IMPOSSIBLE = -1e9


class RunLengths(NamedTuple):
  """The distribution over current segments; entry r: it began r steps ago.

  The last entry represents all segments that began then or earlier.

  Attributes:
    log_probability: [num_lengths] float32.
    count: The observations of the segment, [num_lengths] float32; 0 if there is
      no such segment.
    total: Their sum, [num_lengths, size] float32.
  """

  log_probability: Any
  count: Any
  total: Any


def initial_state(size: int, num_lengths: int = NUM_LENGTHS) -> RunLengths:
  """Returns the state of a detector before the first observation.

  Args:
    size: The size of a summary.
    num_lengths: The number of distinguished segment lengths, at least 1.

  Returns:
    `RunLengths` without a segment.
  """
  return RunLengths(
    tf.fill([num_lengths], _IMPOSSIBLE),
    tf.zeros([num_lengths]),
    tf.zeros([num_lengths, size]),
  )


def _log_predictive(count, total, observation) -> tf.Tensor:
  """Returns log p(observation | segment), up to a common constant.

  After k observations the mean of a segment is normal with mean n total / (1 +
  n k) and variance 1 / (d (1 + n k)) in each of d dimensions.

  Args:
    count: k, [segments] float32; 0 for the prior predictive.
    total: [segments, size] float32.
    observation: [size] float32.

  Returns:
    [segments] float32.
  """
  size = observation.shape[0]
  precision = 1.0 + BATCH_SIZE * count
  mean = BATCH_SIZE * total / precision[:, tf.newaxis]
  variance = 1.0 / BATCH_SIZE + 1.0 / precision  # Times 1 / size.
  distance = tf.reduce_sum(
    tf.math.squared_difference(observation, mean), axis=1
  )
  return -0.5 * size * (tf.math.log(variance) + distance / variance)


def _begin(state: RunLengths, observation) -> RunLengths:
  """Returns the state in which the first segment begins with `observation`."""
  initial = tf.one_hot(0, state.count.shape[0])
  return RunLengths(
    (1.0 - initial) * _IMPOSSIBLE,
    initial,
    initial[:, tf.newaxis] * observation,
  )


def _merge_last_two(state: RunLengths) -> RunLengths:
  """Merges the two longest segments; statistics by their probability."""
  weights = tf.nn.softmax(state.log_probability[-2:])
  merged = RunLengths(
    tf.reduce_logsumexp(state.log_probability[-2:]),
    tf.reduce_sum(weights * state.count[-2:]),
    tf.linalg.matvec(state.total[-2:], weights, transpose_a=True),
  )
  return RunLengths(
    *(
      tf.concat([all_[:-2], last[tf.newaxis]], axis=0)
      for all_, last in zip(state, merged, strict=True)
    )
  )


def _update(state: RunLengths, observation) -> tuple[tf.Tensor, RunLengths]:
  """Observes; returns the probability of a new segment and the new state."""
  exists = state.count > 0
  grown = tf.where(
    exists,
    state.log_probability
    + math.log(1 - HAZARD)
    + _log_predictive(state.count, state.total, observation),
    _IMPOSSIBLE,
  )
  nothing = tf.zeros([1, observation.shape[0]])
  new = math.log(HAZARD) + _log_predictive(tf.zeros([1]), nothing, observation)
  joint = tf.concat([new, grown], axis=0)
  posterior = RunLengths(
    joint - tf.reduce_logsumexp(joint),
    tf.concat([[1.0], tf.where(exists, state.count + 1.0, 0.0)], axis=0),
    tf.concat([nothing, state.total], axis=0)
    + tf.concat([[1.0], tf.cast(exists, tf.float32)], axis=0)[:, tf.newaxis]
    * observation,
  )
  probability = tf.minimum(tf.exp(posterior.log_probability[0]), 1.0)
  return probability, _merge_last_two(posterior)


def _choose(condition, first, second):
  """Returns the nested structure `first` where the scalar condition holds."""
  return tf.nest.map_structure(
    lambda one, other: tf.where(condition, one, other), first, second
  )


def observe(
  state: RunLengths, previous, current
) -> tuple[tf.Tensor, RunLengths]:
  """Observes a summary and returns the probability of a new segment.

  A zero vector is the summary of an empty batch and is not observed.

  Args:
    state: The state of the detector.
    previous: The previous summary, [size] float32. It is only used before the
      first observation, where it begins the first segment.
    current: The new summary, [size] float32.

  Returns:
    The posterior probability that `current` is the first of a new segment, a
    float32 scalar between 0 and 1 (0 if there is nothing before it, or nothing
    is observed); and the new state.
  """
  has_previous = tf.reduce_any(tf.not_equal(previous, 0.0))
  has_current = tf.reduce_any(tf.not_equal(current, 0.0))
  untouched = tf.logical_not(tf.reduce_any(state.count > 0))
  state = _choose(
    tf.logical_and(untouched, has_previous), _begin(state, previous), state
  )
  has_segment = tf.reduce_any(state.count > 0)
  probability, updated = _choose(
    has_segment,
    _update(state, current),
    (tf.constant(0.0), _begin(state, current)),
  )
  return _choose(has_current, (probability, updated), (tf.constant(0.0), state))
