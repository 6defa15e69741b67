"""The shift signal of Fed-ADE, and its learning rate.

Source: Fed-ADE: Adaptive Learning Rate for Federated Post-adaptation under
Distribution Shift (2026), section 4, eq. 9 to 14.

A batch is summarised by its mean probabilities q and its mean direction z. The
summary of an empty batch, and of embeddings that are all zero, is the zero
vector. Its cosine with any vector is undefined and counts as no shift, S = 0.
The same holds for a vector of subnormal numbers (below 1.2e-38), which
TensorFlow's kernels treat as zero.

The program that the authors released computes other summaries, and compares
embeddings with a moving mean; the functions say so.
"""

import tensorflow as tf


def _mean(rows) -> tf.Tensor:
  """Returns the mean of rows [batch, size]; zeros for an empty batch."""
  num_rows = tf.cast(tf.maximum(tf.shape(rows)[0], 1), tf.float32)
  return tf.reduce_sum(rows, axis=0) / num_rows


def unit(vectors) -> tf.Tensor:
  """Scales vectors [..., size] to length 1; zero vectors stay zero."""
  # By the largest entry first, since squares of small ones would underflow.
  scaled = tf.math.divide_no_nan(
    vectors, tf.reduce_max(tf.abs(vectors), axis=-1, keepdims=True)
  )
  return tf.math.divide_no_nan(scaled, tf.norm(scaled, axis=-1, keepdims=True))


def _cosine_distance(first, second) -> tf.Tensor:
  """Computes 1 - cos of two vectors, between 0 and 2; 0 if one is zero."""
  # As half the squared distance of the unit vectors: 0 for equal vectors and
  # never negative; 1 - cos in float32 has an error of about 1e-7.
  distance = 0.5 * tf.reduce_sum(
    tf.math.squared_difference(unit(first), unit(second))
  )
  defined = tf.logical_and(
    tf.reduce_any(tf.not_equal(first, 0.0)),
    tf.reduce_any(tf.not_equal(second, 0.0)),
  )
  return tf.where(defined, distance, 0.0)


def mean_probabilities(logits) -> tf.Tensor:
  """Computes q, the mean softmax of a batch, eq. 11.

  Args:
    logits: [batch, num_classes] float32.

  Returns:
    [num_classes] float32; zeros for an empty batch.
  """
  return _mean(tf.nn.softmax(logits))


def label_histogram(logits) -> tf.Tensor:
  """Computes the fractions of the predicted labels of a batch.

  The program of the paper's authors compares them instead of q.

  Args:
    logits: [batch, num_classes] float32.

  Returns:
    [num_classes] float32; zeros for an empty batch.
  """
  return _mean(tf.one_hot(tf.argmax(logits, axis=1), logits.shape[1]))


def uncertainty_dynamics(previous, current) -> tf.Tensor:
  """Computes S_unc = 1 - cos(q_{t-1}, q_t), eq. 12.

  Args:
    previous: q_{t-1}, [num_classes] float32, not negative.
    current: q_t, [num_classes] float32, not negative.

  Returns:
    A float32 scalar between 0 and 1; 0 if one of the vectors is zero.
  """
  return tf.clip_by_value(_cosine_distance(previous, current), 0.0, 1.0)


def mean_direction(embeddings) -> tf.Tensor:
  """Computes z, the mean of embeddings scaled to length 1, eq. 13.

  Args:
    embeddings: [batch, size] float32. Zero embeddings contribute zero, and
      count in the batch size.

  Returns:
    [size] float32, of length at most 1; zeros for an empty batch.
  """
  return _mean(unit(embeddings))


def direction_of_mean(embeddings) -> tf.Tensor:
  """Scales the mean embedding to length 1.

  The program of the paper's authors compares it instead of z.

  Args:
    embeddings: [batch, size] float32.

  Returns:
    [size] float32; zeros for an empty batch.
  """
  return unit(_mean(embeddings))


def move_reference(reference, direction, share: float) -> tf.Tensor:
  """Moves the reference of the program towards a direction.

  Args:
    reference: The old reference, [size] float32, of length 1.
    direction: The direction of a batch, see `direction_of_mean`.
    share: The weight of the direction, above 0 and at most 1.

  Returns:
    unit((1 - share) * reference + share * direction), [size] float32.
  """
  return unit((1.0 - share) * reference + share * direction)


def representation_dynamics(previous, current) -> tf.Tensor:
  """Computes S_rep = (1 - cos(z_{t-1}, z_t)) / 2, eq. 14.

  Args:
    previous: z_{t-1}, [size] float32.
    current: z_t, [size] float32.

  Returns:
    A float32 scalar between 0 and 1; 0 if one of the vectors is zero.
  """
  return tf.clip_by_value(0.5 * _cosine_distance(previous, current), 0.0, 1.0)


def combine(
  uncertainty,
  representation,
  use_uncertainty: bool = True,
  use_representation: bool = True,
) -> tf.Tensor:
  """Computes S = (S_unc + S_rep) / 2, eq. 10; or one of them alone (Table 4).

  Args:
    uncertainty: S_unc, a float32 scalar between 0 and 1.
    representation: S_rep, a float32 scalar between 0 and 1.
    use_uncertainty: Whether to use S_unc; without it S is S_rep.
    use_representation: Whether to use S_rep; without it S is S_unc.

  Returns:
    A float32 scalar between 0 and 1.

  Raises:
    ValueError: If neither is used.
  """
  if use_uncertainty and use_representation:
    return 0.5 * (uncertainty + representation)
  if use_uncertainty:
    return uncertainty
  if use_representation:
    return representation
  raise ValueError(
    "there is no signal: use_uncertainty or use_representation must be True"
  )


def learning_rate(signal, minimum: float, maximum: float) -> tf.Tensor:
  """Computes eta = eta_min + (eta_max - eta_min) S, eq. 9.

  Args:
    signal: S, a float32 scalar.
    minimum: eta_min, the learning rate for S = 0.
    maximum: eta_max, the learning rate for S = 1.

  Returns:
    A float32 scalar. It stays within the bounds (as float32 numbers), and
    reaches them exactly for S = 0 and S = 1.

  Raises:
    ValueError: Unless 0 <= minimum <= maximum.
  """
  if not 0 <= minimum <= maximum:  # Also refuses NaN.
    raise ValueError(
      "learning rates must be 0 <= minimum <= maximum, got"
      f" minimum={minimum} and maximum={maximum}"
    )
  # Eq. 9 in a form that is exact at both ends.
  rate = (1.0 - signal) * minimum + signal * maximum
  return tf.clip_by_value(rate, minimum, maximum)
