"""Moments of the gradients of examples and of batches."""

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tff_shift.data import client_dataset
from tff_shift.learning import local_training
from tff_shift.models import split_model


def differentiate(
  model: split_model.SplitModel,
  weights: Any,
  data: client_dataset.ClientDataset,
) -> tuple[tf.Tensor, Any, Any]:
  """Computes loss, gradient and Fisher information, example by example.

  Args:
    model: The model.
    weights: The point at which to differentiate, `SplitWeights`.
    data: The examples, at least one.

  Returns:
    The means over the examples of the cross-entropy, of its gradient, and of
    the squares of its gradient.
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


def trace(
  predict: Callable[[Any, tf.Tensor], tf.Tensor],
  weights: Any,
  batches: Callable[[Any], local_training.Batch],
  num_batches,
) -> tf.Tensor:
  """Computes the trace of the Fisher information as in FedAS.

  It sums over gradients of batches, not of examples: it decreases with the
  batch size and increases with the number of batches.

  Args:
    predict: `(weights, x) -> logits`.
    weights: The point at which to differentiate, a nested structure of float32
      tensors.
    batches: `(number) -> Batch`.
    num_batches: The number of batches, an int32 scalar.

  Returns:
    The sum over batches of the squared norm of the gradient of the batch's mean
    cross-entropy, a float32 scalar.
  """
  loss_of = local_training.classification_loss(predict)

  def add(number, total):
    with tf.GradientTape() as tape:
      tape.watch(weights)
      loss = loss_of(weights, batches(number))
    gradients = tape.gradient(
      loss,
      tf.nest.flatten(weights),
      unconnected_gradients=tf.UnconnectedGradients.ZERO,
    )
    squares = [tf.reduce_sum(tf.square(each)) for each in gradients]
    return number + 1, total + tf.add_n(squares)

  _, total = tf.while_loop(
    lambda number, _: number < num_batches,
    add,
    (tf.constant(0), tf.constant(0.0)),
    parallel_iterations=1,
  )
  return total


def of_own_labels(
  log_probabilities: Callable[[Any, tf.Tensor], tf.Tensor],
  weights: Any,
  x,
  batch_size: int,
) -> Any:
  """Computes the diagonal of the Fisher information as in EATA.

  The classes are those that the model itself predicts.

  Args:
    log_probabilities: `(weights, x) -> [n, num_classes] float32`.
    weights: The point at which to differentiate, a nested structure of float32
      tensors.
    x: The examples, [num_examples, ...]; consecutive ones are a batch, and the
      last batch may be smaller.
    batch_size: The number of examples of a batch.

  Returns:
    The mean over batches of the squared gradient of the batch's mean
    cross-entropy, in the structure of the weights; zeros without examples.
  """
  num_batches = -(-tf.shape(x)[0] // batch_size)

  def add(number, sums):
    batch = x[number * batch_size : (number + 1) * batch_size]
    with tf.GradientTape() as tape:
      tape.watch(weights)
      # Of the predicted class, the largest.
      likelihoods = tf.reduce_max(log_probabilities(weights, batch), axis=1)
      loss = -tf.reduce_mean(likelihoods)
    gradient = tape.gradient(
      loss, weights, unconnected_gradients=tf.UnconnectedGradients.ZERO
    )
    gradient = tf.nest.map_structure(tf.convert_to_tensor, gradient)
    return number + 1, tf.nest.map_structure(
      lambda s, g: s + g * g, sums, gradient
    )

  _, sums = tf.while_loop(
    lambda number, _: number < num_batches,
    add,
    (tf.constant(0), tf.nest.map_structure(tf.zeros_like, weights)),
    parallel_iterations=1,
  )
  return tf.nest.map_structure(
    lambda each: tf.math.divide_no_nan(each, tf.cast(num_batches, tf.float32)),
    sums,
  )
