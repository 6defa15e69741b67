"""Several server models of one architecture, stacked along a first axis.

What methods of clustered federated learning share: each tensor of the stack has
a first axis of models. Model 0 is drawn as the model of FedAvg, and each other
model from its own seed, because equal models receive equal updates and never
separate. A client whose update belongs to one model sends zeros for the others,
and the cluster as a 0/1 vector. The server averages both and divides:

    mean over clients of [k_i = k] update_i / mean over clients of [k_i = k]

is the mean over the clients of cluster k, with the clients' weights. The server
needs no values of single clients for it.
"""

from collections.abc import Callable
from typing import Any
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from tff_shift.data import client_dataset
from tff_shift.learning import evaluation
from tff_shift.learning import hyperparameters
from tff_shift.learning import randomness
from tff_shift.learning.aggregators import factories
from tff_shift.models import parts
from tff_shift.models import split_model

# The number that is folded into a seed before the number of a model. No part of
# a model has this stream.
_STREAM = len(parts.STREAMS)

# The requirements of a server that averages within clusters.
AGGREGATION_REQUIREMENTS = factories.AggregationRequirements(
  no_clipping="an update has rows for all models and the client's cluster, and"
  " a norm or a range would cover all of them together",
  no_server_optimizer="its server adds the mean update of each cluster, and"
  " leaves a cluster without members as it is",
)


def num_models_hparam(default: int) -> Any:
  """Declares the hyper-parameter `num_models`."""
  return hyperparameters.hparam(
    default,
    "The number of server models; 1: fed_avg. IFCA's paper has 2 on rotated"
    " CIFAR-10 and 4 on rotated MNIST, FedEM's 3.",
    minimum=1,
    maximum=64,
  )


class StackUpdate(NamedTuple):
  """A client's update of the models, or the mean of such updates.

  Attributes:
    models: The updates of the weights, with a first axis of num_models.
    members: 1 for the client's cluster, else 0; in a mean, the fraction of the
      cohort in each cluster, by the clients' weights; [num_models] float32.
  """

  models: Any
  members: Any


def check_starts(
  name: str, model: split_model.SplitModel, num_models: int
) -> None:
  """Refuses several models with the same initial weights.

  Args:
    name: The algorithm's name, for the message.
    model: The model.
    num_models: The number of models.

  Raises:
    ValueError: If the initial weights do not depend on the seed; one line.
  """
  if num_models == 1:
    return
  with tf.init_scope():
    one, other = (
      tf.nest.flatten(model.initial_weights(tf.constant([0, seed])))
      for seed in range(2)
    )
    if all(np.array_equal(a, b) for a, b in zip(one, other, strict=True)):
      raise ValueError(
        f"num_models={num_models} is not allowed for {name} with model"
        f" {model.name!r}, whose initial weights are given: equal models never"
        " separate; take a model with random initial weights, or num_models=1"
      )


def initial_models(
  model: split_model.SplitModel, num_models: int, seed
) -> split_model.SplitWeights:
  """Draws the initial weights of all models.

  Args:
    model: The model.
    num_models: The number of models.
    seed: The run's seed, an int32 tensor of shape [2].

  Returns:
    The weights with a first axis of num_models. Model 0 is the one of the seed;
    the others do not depend on num_models.
  """
  seeds = [
    seed,
    *(randomness.fold(seed, _STREAM, each) for each in range(1, num_models)),
  ]
  return tf.nest.map_structure(
    lambda *each: tf.stack(each), *map(model.initial_weights, seeds)
  )


def take(models: Any, number) -> Any:
  """Returns a model of a stack; the number is an int32 scalar."""
  return tf.nest.map_structure(lambda w: tf.gather(w, number), models)


def example_losses(
  model: split_model.SplitModel,
  models: Any,
  data: client_dataset.ClientDataset,
  measure: Callable[[tf.Tensor, tf.Tensor], tf.Tensor] | None = None,
) -> tf.Tensor:
  """Computes the loss of each model on each example of a client.

  Args:
    model: The model.
    models: The weights with a first axis of num_models.
    data: The client's data.
    measure: `(logits, y) -> losses` [num_examples] float32. None: the
      cross-entropy.

  Returns:
    [num_models, num_examples] float32.
  """
  if measure is None:

    def measure(logits, y):
      return tf.nn.sparse_softmax_cross_entropy_with_logits(
        labels=y, logits=logits
      )

  losses = tf.map_fn(
    lambda weights: measure(evaluation.predict(model, weights, data.x), data.y),
    models,
    parallel_iterations=1,
    fn_output_signature=tf.TensorSpec([None], tf.float32),
  )
  return tf.ensure_shape(losses, [tf.nest.flatten(models)[0].shape[0], None])


def mean_losses(
  model: split_model.SplitModel,
  models: Any,
  data: client_dataset.ClientDataset,
) -> tf.Tensor:
  """Computes the mean loss of each model on all examples of a client.

  Args:
    model: The model.
    models: The weights with a first axis of num_models.
    data: The client's data.

  Returns:
    [num_models] float32: the mean cross-entropy; infinite if it is not a
    number; zeros without examples.
  """
  losses = tf.math.divide_no_nan(
    tf.reduce_sum(example_losses(model, models, data), axis=1),
    tf.cast(tf.size(data.y), tf.float32),
  )
  return tf.where(tf.math.is_nan(losses), np.float32(np.inf), losses)


def smallest(values) -> tf.Tensor:
  """Returns the position of the smallest value, the first of equal ones."""
  return tf.argmin(values, output_type=tf.int32)


def update_of_one(update: Any, number, num_models: int) -> StackUpdate:
  """Returns a client's update of one model, zeros for the others.

  Args:
    update: The update, in the structure of a model's weights.
    number: The number of the model, an int32 scalar.
    num_models: The number of models.
  """
  row = tf.one_hot(number, num_models, True, False)

  def spread(tensor):
    mask = tf.reshape(row, [num_models] + [1] * tensor.shape.rank)
    # Not a product: 0 * inf is NaN.
    return tf.where(mask, tensor, tf.zeros([], tensor.dtype))

  return StackUpdate(
    tf.nest.map_structure(spread, update), tf.cast(row, tf.float32)
  )


def add_means(models: Any, mean_update: StackUpdate) -> Any:
  """Adds to each model the mean update of its cluster.

  Args:
    models: The weights with a first axis of num_models.
    mean_update: The mean of the clients' `update_of_one`.

  Returns:
    The new models. A model without members stays as it is.
  """

  def add(weights, mean):
    fractions = tf.reshape(
      mean_update.members, [-1] + [1] * (weights.shape.rank - 1)
    )
    return weights + tf.math.divide_no_nan(mean, fractions)

  return tf.nest.map_structure(add, models, mean_update.models)
