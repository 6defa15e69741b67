"""Constants that clients add to each gradient, and gradients of all examples.

SCAFFOLD and FedDyn correct the drift of clients by a sum that the server keeps
of all clients' states. It stays this sum only if every client counts equally.
SCAFFOLD and FedIIR send gradients of all examples at the received model.
"""

import dataclasses
from collections.abc import Callable
from typing import Any
from typing import NamedTuple

import tensorflow as tf

from tff_shift.data import client_dataset
from tff_shift.learning import hyperparameters
from tff_shift.learning import local_training
from tff_shift.learning import randomness
from tff_shift.models import modes


def add(
  correction: Any,
) -> Callable[
  [Callable[[Any], local_training.Gradient], Any], local_training.Gradient
]:
  """Makes `differentiate` of `local_training.train`.

  The loss that is reported stays the loss without the correction.

  Args:
    correction: The constant, in the structure of the trained weights.

  Returns:
    A function that adds the correction to the gradient.
  """
  constants = tf.nest.flatten(correction)

  def differentiate(gradient_at, trained):
    found = gradient_at(trained)
    return found._replace(
      gradients=tuple(map(tf.add, found.gradients, constants))
    )

  return differentiate


def check_equal_clients(
  name: str, hparams: hyperparameters.LocalWorkHParams, kept: str
) -> None:
  """Refuses what breaks the server's sum over clients' states.

  Args:
    name: The algorithm's name.
    hparams: Its hyper-parameters.
    kept: What the server keeps, for the message.

  Raises:
    ValueError: One line that names the hyper-parameter.
  """
  if hparams.client_weighting != "uniform":
    raise ValueError(
      f"client_weighting={hparams.client_weighting} is not allowed for {name}:"
      f" {kept} is a sum over clients that count equally; it must be uniform"
    )
  if hparams.personal_norm == "all":
    raise ValueError(
      f"personal_norm=all is not allowed for {name}: {kept} would correct"
      " personal scales and shifts too; it must be none or statistics"
    )


class GradientOfAll(NamedTuple):
  """The gradient of a client's loss over all its examples.

  Attributes:
    gradient: Without weight decay, in the structure of the weights.
    loss: The mean loss, a float32 scalar; 0 without examples.
  """

  gradient: Any
  loss: Any


def gradient_of_all(
  predict: Callable[[Any, tf.Tensor], tf.Tensor],
  hparams: hyperparameters.LocalWorkHParams,
  weights: Any,
  data: client_dataset.ClientDataset,
  round_num,
) -> GradientOfAll:
  """Computes the gradient of a client's loss over all its examples.

  Models are called in training mode, and their statistics stay as they are.

  Args:
    predict: `(weights, x) -> logits`.
    hparams: The batch size, which changes no gradient.
    weights: Where to differentiate, a nested structure of float32 tensors.
    data: The client's data.
    round_num: The round, an int32 scalar.

  Returns:
    A `GradientOfAll`.
  """
  size = hparams.batch_size
  num_batches = local_training.epoch_steps(data, size)
  # The last batch is filled up with examples of weight 0. The others have the
  # weight that makes the mean over batches the mean over examples.
  scale = tf.cast(num_batches * size, tf.float32) / tf.cast(
    tf.maximum(data.num_examples, 1), tf.float32
  )

  def loss_fn(offset, step, carry):
    places = step * size + tf.range(size)
    held = tf.minimum(places, data.num_examples - 1)
    at = tf.nest.map_structure(tf.add, weights, offset)
    loss = local_training.cross_entropy(
      predict(at, tf.gather(data.x, held)),
      tf.gather(data.y, held),
      tf.where(places < data.num_examples, scale, 0.0),
    )
    return loss, carry

  # Every step differentiates at the same weights and adds minus its gradient.
  zeros = tf.nest.map_structure(tf.zeros_like, weights)
  flat_zeros = tuple(tf.nest.flatten(zeros))
  with modes.apart():
    result = local_training.train(
      loss_fn,
      zeros,
      num_batches,
      dataclasses.replace(
        hparams, optimizer="sgd", momentum=0.0, weight_decay=0.0
      ),
      seed=randomness.fold(
        data.seed, randomness.Purpose.PERSONALIZE, round_num
      ),
      learning_rate=1.0 / tf.cast(tf.maximum(num_batches, 1), tf.float32),
      differentiate=lambda gradient_at, _: gradient_at(flat_zeros),
    )
  return GradientOfAll(
    tf.nest.map_structure(tf.negative, result.weights), result.loss
  )
