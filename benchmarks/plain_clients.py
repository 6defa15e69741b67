"""Many small clients in plain TensorFlow, in a loop or as one batch.

A client has 64 examples of 784 numbers and takes SGD steps (rate 0.1) on
batches of 16 with a perceptron of 63,370 parameters; then the mean is computed.
Needs TensorFlow alone, for machines that cannot have TFF.
"""

from collections.abc import Callable

import numpy as np
import tensorflow as tf

EXAMPLES, FEATURES, CLASSES = 64, 784, 10
BATCH, RATE, WIDTH = 16, 0.1, 64
_SHAPES = (
  *((FEATURES, WIDTH), (WIDTH,)),
  *((WIDTH, WIDTH), (WIDTH,)) * 3,
  *((WIDTH, CLASSES), (CLASSES,)),
)


def dense(features: tf.Tensor, weights: list[tf.Tensor]) -> tf.Tensor:
  """Returns the features after layers with ReLU."""
  for kernel, bias in zip(weights[::2], weights[1::2], strict=True):
    features = tf.nn.relu(features @ kernel + bias)
  return features


def step(weights, x, y) -> list[tf.Tensor]:
  """Takes an SGD step.

  Args:
    weights: Kernel and bias of each layer: of one client, or with a first axis
      of clients and biases of [clients, 1, width].
    x: [batch, features] or [clients, batch, features] float32.
    y: [batch] or [clients, batch] int32.

  Returns:
    The new weights.
  """
  with tf.GradientTape() as tape:
    tape.watch(weights)
    logits = dense(x, weights[:-2]) @ weights[-2] + weights[-1]
    losses = tf.nn.sparse_softmax_cross_entropy_with_logits(
      labels=y, logits=logits
    )
    # The sum over clients of their means: each gets its own gradient.
    loss = tf.reduce_sum(tf.reduce_mean(losses, -1))
  gradients = tape.gradient(loss, weights)
  return [w - RATE * g for w, g in zip(weights, gradients, strict=True)]


def initial_weights() -> list[tf.Tensor]:
  """Returns the same random weights at each call."""
  generator = np.random.default_rng(0)
  return [
    tf.constant(generator.normal(0, 0.05, shape), tf.float32)
    for shape in _SHAPES
  ]


def build_round(
  num_clients: int, *, in_one_batch: bool, num_steps: int = 4
) -> Callable[[list[tf.Tensor]], list[tf.Tensor]]:
  """Builds a round of federated averaging on random examples.

  Args:
    num_clients: The number of clients.
    in_one_batch: Whether all clients take a step together, with weights that
      have an axis of clients. Otherwise one client trains after the other.
    num_steps: The steps of a client, at most `EXAMPLES // BATCH`.

  Returns:
    A function that maps weights to the weights after a round: one call into
    TensorFlow.
  """
  generator = np.random.default_rng(1)
  x = tf.constant(
    generator.normal(size=(num_clients, EXAMPLES, FEATURES)), tf.float32
  )
  y = tf.constant(
    generator.integers(0, CLASSES, (num_clients, EXAMPLES)), tf.int32
  )

  def train(weights, x, y):
    for number in range(num_steps):
      batch = slice(number * BATCH, (number + 1) * BATCH)
      weights = step(weights, x[..., batch, :], y[..., batch])
    return weights

  @tf.function
  def all_at_once(initial):
    # A bias becomes a matrix of one row.
    own = [
      tf.tile(tf.reshape(w, (1, -1, w.shape[-1])), (num_clients, 1, 1))
      for w in initial
    ]
    return [
      tf.reshape(tf.reduce_mean(w, 0), first.shape)
      for w, first in zip(train(own, x, y), initial, strict=True)
    ]

  @tf.function
  def one_by_one(initial):
    total = [tf.zeros_like(w) for w in initial]
    for client in tf.range(num_clients):
      weights = train(initial, x[client], y[client])
      total = [t + w for t, w in zip(total, weights, strict=True)]
    return [t / num_clients for t in total]

  return all_at_once if in_one_batch else one_by_one
