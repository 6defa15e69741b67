"""For each example, how much two heads count: the test-time part of FedTHE.

Test-Time Robust Personalization for Federated Learning (Jiang, Lin; ICLR 2023);
the equations are in `algorithms/fed_the`.
"""

from typing import Any
from typing import NamedTuple

import tensorflow as tf

from tff_shift.learning import hyperparameters
from tff_shift.learning import local_training
from tff_shift.techniques import test_time_adaptation

# Where the mixture of an example is found.
_SMALLEST_SLOPE = 1e-5
# How many mixtures are found side by side.
_BATCH = 256


class Judged(NamedTuple):
  """What is known of examples.

  Attributes:
    logits: g of the head that all share, [num_examples, num_classes] float32.
    personal_logits: l of the personal head, likewise.
    distances: |z' - r| and |z' - r_k|, [num_examples, 2] float32.
  """

  logits: Any
  personal_logits: Any
  distances: Any


def mix(mixtures, logits, personal_logits) -> tf.Tensor:
  """Computes u_g g + u_l l.

  Args:
    mixtures: (u_g, u_l) of each example, [..., 2] float32.
    logits: g, [..., num_classes] float32.
    personal_logits: l, likewise.

  Returns:
    [..., num_classes] float32.
  """
  return mixtures[..., :1] * logits + mixtures[..., 1:] * personal_logits


def smooth(
  features, history_rate: float, feature_share: float, domain_sizes, seed
) -> tf.Tensor:
  """Draws features to the history of those that came before.

  Args:
    features: z, [num_examples, size] float32, domain by domain.
    history_rate: alpha.
    feature_share: beta.
    domain_sizes: How many belong to each domain, [num_domains] int32.
    seed: Fixes the order in which they come, int32 [2].

  Returns:
    z', [num_examples, size] float32.
  """

  def move(history, feature, domain, place):
    del domain, place
    has_started, mean = history
    moved = history_rate * feature + (1.0 - history_rate) * mean
    mean = tf.where(has_started, moved, feature)
    smoothed = feature_share * feature + (1.0 - feature_share) * mean
    return smoothed, (tf.constant(True), mean)

  size = features.shape[1]
  return test_time_adaptation.adapt_each(
    features,
    (tf.constant(False), tf.zeros([size])),
    move,
    domain_sizes=domain_sizes,
    width=size,
    seed=seed,
  )


def _find_side_by_side(
  judged: Judged, num_steps: int, learning_rate: float
) -> tf.Tensor:
  """See `find`; the graph knows the number of examples."""
  cosine = tf.reduce_sum(
    tf.math.l2_normalize(tf.nn.softmax(judged.logits), axis=1)
    * tf.math.l2_normalize(tf.nn.softmax(judged.personal_logits), axis=1),
    axis=1,
  )

  def loss_fn(numbers, step, carry):
    del step
    mixtures = tf.nn.softmax(numbers)
    mixed = mix(mixtures, judged.logits, judged.personal_logits)
    entropy = test_time_adaptation.entropy(tf.nn.log_softmax(mixed))
    distance = tf.reduce_sum(mixtures * judged.distances, axis=1)
    # The gradient of the sum is that of each, and Adam moves each by its own.
    return tf.reduce_sum(cosine * entropy + (1.0 - cosine) * distance), carry

  def stop_where_flat(gradient_at, numbers):
    gradient = gradient_at(numbers)
    is_moving, reached = gradient.carry
    # Adam goes on with what it has: where an example stops is kept here.
    reached = tf.where(is_moving[:, tf.newaxis], numbers[0], reached)
    slope = tf.norm(gradient.gradients[0], axis=1)
    return gradient._replace(
      carry=(is_moving & (slope >= _SMALLEST_SLOPE), reached)
    )

  start = tf.zeros_like(judged.distances)
  result = local_training.train(
    loss_fn,
    start,
    num_steps,
    hyperparameters.LocalHParams(optimizer="adam", learning_rate=learning_rate),
    seed=None,
    carry=(tf.ones_like(start[:, 0], tf.bool), start),
    differentiate=stop_where_flat,
  )
  is_moving, reached = result.carry
  return tf.nn.softmax(
    tf.where(is_moving[:, tf.newaxis], result.weights, reached)
  )


def find(judged: Judged, num_steps: int, learning_rate: float) -> tf.Tensor:
  """Finds the mixture of each example by itself: Adam down its loss.

  L = s H(softmax(u_g g + u_l l)) + (1 - s) (u_g |z' - r| + u_l |z' - r_k|),
  with s the cosine of the two heads' probabilities and (u_g, u_l) the softmax
  of two numbers. It ends for an example where the gradient is below 1e-5.

  Args:
    judged: The examples.
    num_steps: The number of steps, at most.
    learning_rate: That of Adam.

  Returns:
    (u_g, u_l), [num_examples, 2] float32; rows add up to 1.
  """
  return test_time_adaptation.in_full_batches(
    lambda batch: _find_side_by_side(batch, num_steps, learning_rate),
    judged,
    _BATCH,
    width=2,
  )
