"""Adaptation of a deployed model to unlabelled data: shared building blocks.

Fed-ADE: Adaptive Learning Rate for Federated Post-adaptation under Distribution
Shift (Park, Joe, Kim, Im, Kwon; 2026), Section 3. A client has labelled data
from before deployment and, at each time step, unlabelled data, whose label
distribution it estimates (BBSE). The risk on the labelled data, weighted by the
estimate, replaces the risk on the unlabelled data (eq. 4).

The type `AdaptationData` does not contain the labels of the stream: adaptation
cannot use them.

Choices:
  * Clients start with a uniform prior, as in Section 6.1.
  * Eq. 4 does not specify whose predictions BBSE uses: those of the pre-trained
    model, since only for these is the confusion matrix correct
    (`label_estimator=current`).
  * A class of which a client has no labelled example drops out of the risk; the
    other weights are not increased.
  * Methods of test-time adaptation differ in whether a batch is predicted
    before or after the adaptation to it: by default as in the method's paper,
    "Published reading" in its file (`scored`).
  * Their optimizers keep their moments from batch to batch, in the client's
    state, as in the programs. In other algorithms a round starts the optimizer
    anew.
"""

import dataclasses
from collections.abc import Hashable
from collections.abc import Sequence
from typing import Any
from typing import NamedTuple

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tff_shift._util import arguments
from tff_shift.data import client_dataset
from tff_shift.data import examples as examples_lib
from tff_shift.learning import evaluation
from tff_shift.learning import hyperparameters
from tff_shift.learning import randomness
from tff_shift.models import split_model
from tff_shift.shift import bbse

# The maximum error of the sum of probabilities in float32 or with few digits.
_SUM_TOLERANCE = 1e-3


class AdaptationData(NamedTuple):
  """A client's data at a time step.

  Attributes:
    x: The labelled examples from before deployment, [num_initial, ...].
    y: Their classes, [num_initial] int32.
    stream_x: The unlabelled examples of the time step, [num_stream, ...].
    timestep: The time step, an int32 scalar that counts from 1.
    confusion: The confusion matrix that the server measured before deployment,
      [num_classes, num_classes] float32: M[i, j] = P(predicted i | true j).
    seed: The client's seed, [2] int32 (`randomness.client_seed`).
    client_id: The client's id, an int32 scalar, for algorithms that distinguish
      clients.
  """

  x: Any
  y: Any
  stream_x: Any
  timestep: Any
  confusion: Any
  seed: Any
  client_id: Any = np.int32(0)

  @property
  def labelled(self) -> client_dataset.ClientDataset:
    """The labelled examples, as `ClientDataset` for local training."""
    return client_dataset.ClientDataset(
      x=self.x,
      y=self.y,
      domain_sizes=tf.shape(self.y)[:1],
      num_examples=tf.shape(self.y)[0],
      seed=self.seed,
      client_id=self.client_id,
    )

  @property
  def unlabelled(self) -> client_dataset.ClientDataset:
    """The examples of the time step, with zeros as labels."""
    num_examples = num_stream_examples(self)
    return self.labelled._replace(
      x=self.stream_x,
      y=tf.zeros([num_examples], tf.int32),
      domain_sizes=num_examples[tf.newaxis],
      num_examples=num_examples,
    )


class Deployment(NamedTuple):
  """The data available when a model is deployed.

  Attributes:
    initial: Each client's labelled examples.
    confusion: The confusion matrix of the pre-trained model,
      [num_classes, num_classes] float32, see `bbse.confusion_matrix`: column j
      has the probabilities of the predictions of class j, with the sum 1.
    held_out: Labelled examples of the server, which it sends to clients that
      have none of their own, because they join later. None: there are none.
    client_names: The name of each client of `initial`. None: its position.
    feature_names: The name of each column of x. None: they have no names.

  Examples:
    >>> x, y = np.zeros((4, 2), np.float32), np.int32([0, 1, 0, 1])
    >>> deployment = ts.Deployment(
    ...   initial=[(x, y), (x, y)],
    ...   confusion=np.float32([[0.9, 0.2], [0.1, 0.8]]),
    ...   client_names=["north", "south"],
    ... )
    >>> deployment.confusion.sum(axis=0).tolist()
    [1.0, 1.0]
  """

  initial: Sequence[examples_lib.Examples]
  confusion: np.ndarray
  held_out: examples_lib.Examples | None = None
  client_names: Sequence[Hashable] | None = None
  feature_names: Sequence[str] | None = None


def check_deployment(deployment: Deployment, num_classes: int) -> None:
  """Checks a deployment: its fields, and the form of its confusion matrix.

  Args:
    deployment: The deployment.
    num_classes: The number of classes of the model.

  Raises:
    ValueError: If it has no such fields, or columns of its confusion matrix are
      not distributions; one line.
  """
  arguments.has(
    "deployment", deployment, ["initial", "confusion"], "a Deployment"
  )
  what = "deployment.confusion"
  matrix = examples_lib.checked_array(
    deployment.confusion,
    what,
    shape=(num_classes, num_classes),
    dtype=np.float32,
  )
  wanted = "confusion[i, j] is P(predicted i | true j)"
  if matrix.min() < 0:
    i, j = np.unravel_index(np.argmin(matrix), matrix.shape)
    raise ValueError(
      f"{what}: probabilities are wanted, {wanted}, got {matrix[i, j]:g} at"
      f" [{i}, {j}]"
    )
  sums = matrix.sum(axis=0, dtype=np.float64)
  are_wrong = abs(sums - 1) > _SUM_TOLERANCE
  if are_wrong.any():
    column = int(np.argmax(are_wrong))
    remedy = "divide the columns of counts by their sums"
    if np.all(abs(matrix.sum(axis=1, dtype=np.float64) - 1) <= _SUM_TOLERANCE):
      remedy = "its rows have the sum 1: transpose it"
    raise ValueError(
      f"{what}: each column must have the sum 1, since {wanted}; column"
      f" {column} has the sum {sums[column]:g}; {remedy}"
    )


def adaptation_data(
  deployment: Deployment,
  client: int,
  stream_x: np.ndarray,
  timestep: int,
  run_seed: int,
) -> AdaptationData:
  """Returns a client's adaptation data, without classes of the stream."""
  labelled = deployment.initial[client]
  if not len(labelled.y):
    if deployment.held_out is None:
      names = deployment.client_names
      name = client if names is None else repr(names[client])
      raise ValueError(
        f"deployment.initial of client {name} has no examples: held_out must"
        " have labelled examples of the server for it"
      )
    labelled = deployment.held_out
  return AdaptationData(
    x=labelled.x,
    y=labelled.y,
    stream_x=stream_x,
    timestep=np.int32(timestep),
    confusion=deployment.confusion,
    seed=randomness.client_seed(run_seed, client),
    client_id=np.int32(client),
  )


def data_type(model: split_model.SplitModel) -> tff.Type:
  """Returns the TFF type of `AdaptationData` for a model's inputs."""
  examples = tff.TensorType(
    model.input_dtype.as_numpy_dtype, (None, *model.input_shape)
  )
  return tff.types.to_type(
    AdaptationData(
      x=examples,
      y=tff.TensorType(np.int32, (None,)),
      stream_x=examples,
      timestep=tff.TensorType(np.int32),
      confusion=tff.TensorType(np.float32, (model.num_classes,) * 2),
      seed=randomness.SEED_TYPE,
      client_id=tff.TensorType(np.int32),
    )
  )


def num_stream_examples(data: AdaptationData) -> tf.Tensor:
  """Returns N_c^t, a client's weight in the mean of eq. 7."""
  return tf.shape(data.stream_x)[0]


@dataclasses.dataclass(frozen=True)
class LabelShiftHParams(hyperparameters.HParams):
  """Hyper-parameters of the estimate of the stream's label distribution."""

  label_estimator: str = hyperparameters.hparam(
    "pretrained",
    "The model whose predictions give the label distribution: pretrained, the"
    " model of the confusion matrix; current, the client's current model, for"
    " which the matrix is not correct.",
    choices=("pretrained", "current"),
  )
  soft_predictions: bool = hyperparameters.hparam(
    False,
    "Estimates from mean probabilities instead of the histogram of predicted"
    " labels.",
  )
  svd_threshold: float = hyperparameters.hparam(
    bbse.DEFAULT_THRESHOLD,
    "Singular values of the confusion matrix below this fraction of the largest"
    " one are dropped in its inverse; 0: only zeros are dropped.",
    minimum=0,
    maximum=1,
  )


@dataclasses.dataclass(frozen=True)
class ScoredHParams(hyperparameters.HParams):
  """The choice of the predictions that count, for methods of streams.

  Methods differ in whether a batch is predicted before or after the adaptation
  to it. The driver of streams reports the chosen predictions as the method's.
  """

  scored: str = hyperparameters.hparam(
    "before",
    "Which predictions for the batch of a time step count as the method's:"
    " before, those of before the adaptation to this batch, as published;"
    " after, those of after it.",
    choices=("before", "after"),
  )

  @property
  def is_scored_before(self) -> bool:
    """Whether the predictions of before an adaptation count."""
    return self.scored == "before"


@dataclasses.dataclass(frozen=True)
class ScoredAfterHParams(ScoredHParams):
  """The same choice, for methods that predict a batch after they adapt."""

  scored: str = hyperparameters.hparam(
    "after",
    "Which predictions for the batch of a time step count as the method's:"
    " before, those of before the adaptation to this batch; after, those of"
    " after it, as published.",
    choices=("before", "after"),
  )


def embed(model: split_model.SplitModel, backbone, x) -> tf.Tensor:
  """Returns the embeddings of examples [num_examples, ...]."""
  return evaluation.predict_in_batches(
    lambda batch: model.embed(backbone, batch), x, model.embedding_size
  )


def estimate_classes(
  model: split_model.SplitModel,
  hparams: LabelShiftHParams,
  weights: split_model.SplitWeights | None,
  data: AdaptationData,
) -> tf.Tensor:
  """Estimates the label distribution of the stream, M^-1 Q_yhat of eq. 4.

  Args:
    model: The model; its initial weights are the pre-trained ones.
    hparams: The hyper-parameters of the estimator.
    weights: The client's current weights, used only with
      `label_estimator=current`.
    data: The client's data.

  Returns:
    A distribution, [num_classes] float32.
  """
  if hparams.label_estimator == "pretrained":
    weights = model.initial_weights(data.seed)
  predicted = bbse.prediction_distribution(
    evaluation.predict(model, weights, data.stream_x),
    soft=hparams.soft_predictions,
  )
  return bbse.estimate(
    predicted, data.confusion, threshold=hparams.svd_threshold
  )


def class_weights(class_distribution, y) -> tf.Tensor:
  """Returns the weight of each class's examples in the risk of eq. 4.

  The mean over examples of weight times loss is the sum over classes i of
  `class_distribution[i]` times the mean loss of the examples of class i. A
  class without labelled examples drops out of the sum.

  Args:
    class_distribution: [num_classes] float32.
    y: The classes of all of the client's labelled examples, [n] int32.

  Returns:
    A weight for each class, [num_classes] float32: the distribution over the
    fraction of the examples in the class, 0 for a class without examples.
  """
  num_classes = tf.shape(class_distribution)[0]
  fractions = tf.math.bincount(
    y, minlength=num_classes, maxlength=num_classes, dtype=tf.float32
  ) / tf.cast(tf.maximum(tf.shape(y)[0], 1), tf.float32)
  return tf.math.divide_no_nan(class_distribution, fractions)


def risk(logits, y, weights) -> tf.Tensor:
  """Returns the unsupervised risk of eq. 4 over a batch of labelled examples.

  Args:
    logits: [batch, num_classes] float32.
    y: The classes, [batch] int32.
    weights: The weight of each class, see `class_weights`.

  Returns:
    A float32 scalar; over a random batch, an unbiased estimate of eq. 4.
  """
  losses = tf.nn.sparse_softmax_cross_entropy_with_logits(
    labels=y, logits=logits
  )
  return tf.reduce_mean(tf.gather(weights, y) * losses)
