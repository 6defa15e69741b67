"""LAME: the predictions of a batch are pulled towards their neighbours'.

Parameter-free Online Test-time Adaptation (Boudiaf, Mueller, Ben Ayed,
Bertinetto; CVPR 2022, arXiv:2201.05718), Laplacian Adjusted Maximum-likelihood
Estimation.

No weight changes. For a batch of n examples with the predictions p_i of the
pre-trained model, LAME minimises over distributions z_i

    sum_i KL(z_i || p_i) - sum_ij w_ij z_i z_j

where w_ij is the affinity of the features of examples i and j, by the
repetition of

    z_i <- softmax(log p_i + sum_j w_ij z_j)

from z = p. Examples with similar features get the same class: this helps
streams with many examples of few classes in a batch.

What leaves a client: only the counts and losses of its evaluation.

Published reading: the batch itself, without state, so that predictions of
before and after a time step are the same. A batch is predicted as one: all
examples of a client at a time step, and nothing else.

Choices:
  * Features are the embeddings, the input of the model's head, at length 1.
  * affinity=rbf is exp(-d_ij^2 / (2 sigma^2)) of the distances d_ij, the
    default of the authors' program. sigma is the mean distance of an example to
    its k-th nearest example, itself counted, as in the program. If that is 0,
    as for k = 1 or many equal examples, sigma is the mean distance to the
    nearest example that differs. An example has affinity 1 with itself. It
    takes n x n numbers.
  * affinity=knn is 1 for the k nearest other examples, and not symmetric. Equal
    distances go to the lower position. The program leaves out the nearest
    example instead of the example itself, which differs for equal examples.
"""

import dataclasses
from collections.abc import Callable

import tensorflow as tf

from tff_shift.algorithms.parts import adaptation
from tff_shift.learning import algorithm
from tff_shift.learning import evaluation
from tff_shift.learning import hyperparameters
from tff_shift.learning.aggregators import factories
from tff_shift.models import split_model

SCENARIOS = ("online_adaptation",)

RUNNING_STATISTICS = algorithm.FIXED

AGGREGATION_REQUIREMENTS = factories.AggregationRequirements(
  no_aggregation="the model does not change after training"
)

# The relative change of the objective at which the repetition ends, not before
# this step.
_TOLERANCE = 1e-8
_FIRST_STOP = 3

# Features of equal examples, at length 1, differ by less.
_ROUNDING = 1e-6


@dataclasses.dataclass(frozen=True)
class HParams(hyperparameters.HParams):
  """Hyper-parameters of LAME."""

  affinity: str = hyperparameters.hparam(
    "rbf",
    "The affinity of two examples: rbf, a Gaussian of the distance of their"
    " features; knn, 1 for the nearest neighbours of an example.",
    choices=("rbf", "knn"),
  )
  num_neighbors: int = hyperparameters.hparam(
    5,
    "k: the number of neighbours of knn; for rbf, the distance to the k-th"
    " nearest example, itself counted, sets the width. 0: no affinity, source.",
    minimum=0,
  )
  max_steps: int = hyperparameters.hparam(
    100, "The largest number of repetitions; 0: source.", minimum=0
  )


def _for_each_distance(
  features, function: Callable[[tf.Tensor, tf.Tensor], tf.Tensor], dtype
) -> tf.Tensor:
  """Applies a function to the distances of each example to all examples.

  Example by example, because the differences of all pairs would take n x n x
  size numbers. Inner products are less exact for neighbours.

  Args:
    features: [n, size] float32; they are normalised to length 1.
    function: `(position of the example, distances [n] float32) -> [width]`.
    dtype: The dtype of its result.

  Returns:
    [n, width].
  """
  unit = tf.math.l2_normalize(features, axis=1, epsilon=1e-24)
  return tf.map_fn(
    lambda place: function(place, tf.norm(unit - unit[place], axis=1)),
    tf.range(tf.shape(unit)[0]),
    fn_output_signature=tf.TensorSpec([None], dtype),
    parallel_iterations=1,
  )


def rbf_affinity(
  features, num_neighbors: int
) -> Callable[[tf.Tensor], tf.Tensor]:
  """Returns the product of a Gaussian affinity with z, see `HParams`."""
  apart = _for_each_distance(features, lambda _, each: each, tf.float32)
  number = tf.minimum(num_neighbors, tf.shape(apart)[0])
  nearest = -tf.math.top_k(-apart, number).values
  width = tf.reduce_mean(nearest[:, -1])
  others = tf.where(apart > _ROUNDING, apart, float("inf"))
  width_of_others = tf.reduce_mean(tf.reduce_min(others, axis=1))
  width = tf.where(width > _ROUNDING, width, width_of_others)
  # If all examples are equal, the width is infinite, and the affinity 1.
  matrix = tf.exp(-tf.square(apart) / (2.0 * tf.square(width)))
  return lambda z: tf.matmul(matrix, z)


def knn_affinity(
  features, num_neighbors: int
) -> Callable[[tf.Tensor], tf.Tensor]:
  """Returns the product of the neighbours' affinity with z, see `HParams`."""
  number = tf.minimum(num_neighbors, tf.shape(features)[0] - 1)

  def nearest(place, apart):
    # The lower position of equal values comes first.
    others = tf.where(
      tf.equal(tf.range(tf.shape(apart)[0]), place), float("inf"), apart
    )
    return tf.math.top_k(-others, number).indices

  neighbors = _for_each_distance(features, nearest, tf.int32)
  return lambda z: tf.reduce_sum(tf.gather(z, neighbors), axis=1)


def adjust(
  logits, multiply: Callable[[tf.Tensor], tf.Tensor], max_steps: int
) -> tf.Tensor:
  """Minimises the objective of LAME.

  Args:
    logits: log p, up to a number per example, [n, num_classes] float32.
    multiply: `z -> W z`, [n, num_classes] float32 each.
    max_steps: The largest number of repetitions.

  Returns:
    log z, up to a number per example: the logits plus W z of the last
    repetition, [n, num_classes] float32.
  """
  log_p = tf.nn.log_softmax(logits)

  def repeat(step, pull, value, change):
    del change
    pull = multiply(tf.nn.softmax(logits + pull))
    log_z = tf.nn.log_softmax(logits + pull)
    new = tf.reduce_sum(tf.exp(log_z) * (log_z - log_p - pull))
    return step + 1, pull, new, tf.abs(new - value) - _TOLERANCE * tf.abs(value)

  _, pull, _, _ = tf.while_loop(
    lambda step, _, value, change: (step < _FIRST_STOP) | (change > 0),
    repeat,
    (tf.constant(0), tf.zeros_like(logits), tf.constant(0.0), tf.constant(1.0)),
    maximum_iterations=max_steps,
    parallel_iterations=1,
  )
  return logits + pull


def build(
  model: split_model.SplitModel, hparams: HParams
) -> algorithm.AlgorithmSpec:
  """Builds the spec of LAME, without phases.

  The initial weights of the model are the pre-trained ones.
  """
  affinity = rbf_affinity if hparams.affinity == "rbf" else knn_affinity

  def embed_and_classify(weights, x):
    features = model.embed(weights.backbone, x)
    return tf.concat([features, model.classify(weights.head, features)], axis=1)

  def predict(weights, x):
    """Predicts a batch; the model itself takes it in parts."""
    outputs = evaluation.predict_in_batches(
      lambda part: embed_and_classify(weights, part),
      x,
      model.embedding_size + model.num_classes,
    )
    features, logits = tf.split(
      outputs, [model.embedding_size, model.num_classes], axis=1
    )
    if not hparams.num_neighbors:
      return logits
    return adjust(
      logits, affinity(features, hparams.num_neighbors), hparams.max_steps
    )

  return algorithm.AlgorithmSpec(
    initial_weights=model.initial_weights,
    train_client=None,
    predict_as_client=lambda weights, state, data, examples: (
      evaluation.predict_as_one(
        lambda x: predict(weights, x), examples, model.num_classes
      )
    ),
    predicts_batches=True,
    examples_type=adaptation.data_type(model),
  )
