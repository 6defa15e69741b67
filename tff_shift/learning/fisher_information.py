"""First and second moments of the gradients of single examples."""

from typing import Any

import tensorflow as tf

from tff_shift.learning import local_training
from tff_shift.models import split_model


def differentiate(
  model: split_model.SplitModel, weights: Any, data: local_training.ClientData
) -> tuple[tf.Tensor, Any, Any]:
  """Computes loss, gradient and Fisher information, example by example.

  Args:
    model: The model.
    weights: Where, `SplitWeights`.
    data: The examples, one at least.

  Returns:
    The mean over the examples of the cross-entropy, of its gradient, and of the
    squares of its gradient.
  """
  size = tf.size(data.y)

  def add(number, loss_sum, sums, square_sums):
    chosen = slice(number, number + 1)
    with tf.GradientTape() as tape:
      tape.watch(weights)
      loss = local_training.cross_entropy(
        model.predict(weights, data.x[chosen]), data.y[chosen]
      )
    gradient = tape.gradient(
      loss, weights, unconnected_gradients=tf.UnconnectedGradients.ZERO
    )
    gradient = tf.nest.map_structure(tf.convert_to_tensor, gradient)
    return (
      number + 1,
      loss_sum + loss,
      tf.nest.map_structure(tf.add, sums, gradient),
      tf.nest.map_structure(lambda s, g: s + g * g, square_sums, gradient),
    )

  zeros = tf.nest.map_structure(tf.zeros_like, weights)
  _, *sums = tf.while_loop(
    lambda number, *_: number < size,
    add,
    (tf.constant(0), tf.constant(0.0), zeros, zeros),
    parallel_iterations=1,
  )
  return tf.nest.map_structure(
    lambda each: each / tf.cast(size, tf.float32), tuple(sums)
  )
