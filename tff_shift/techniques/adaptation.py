"""Adapting a deployed model to unlabelled data: what its methods share.

Fed-ADE: Adaptive Learning Rate for Federated Post-adaptation under Distribution
Shift (Park, Joe, Kim, Im, Kwon; 2026), Section 3. A client has labelled data
from before deployment and, at a time step, unlabelled data of which it
estimates the classes (BBSE); the risk on the labelled data, weighted by the
estimate, stands for the risk on the unlabelled ones (eq. 4).

The type `AdaptationData` has no room for the classes of the stream: nothing
that adapts can see them.
"""

import dataclasses
from typing import Any
from typing import NamedTuple

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tff_shift.learning import evaluation
from tff_shift.learning import hyperparameters
from tff_shift.learning import local_training
from tff_shift.learning import randomness
from tff_shift.models import split_model
from tff_shift.shift import bbse


class AdaptationData(NamedTuple):
  """What a client adapts to at a time step.

  Attributes:
    x: The labelled examples from before deployment, [num_initial, ...].
    y: Their classes, [num_initial] int32.
    stream_x: The unlabelled examples of the time step, [num_stream, ...].
    timestep: The time step, an int32 scalar that counts from 1.
    confusion: What the server measured before deployment and told the client,
      [num_classes, num_classes] float32: M[i, j] = P(predicted i | true j).
    seed: The client's seed, [2] int32 (`randomness.client_seed`).
    client_id: The client's number, an int32 scalar, for algorithms that tell
      clients apart.
  """

  x: Any
  y: Any
  stream_x: Any
  timestep: Any
  confusion: Any
  seed: Any
  client_id: Any = np.int32(0)

  @property
  def labelled(self) -> local_training.ClientData:
    """The labelled examples, as local training takes them."""
    return local_training.ClientData(
      x=self.x,
      y=self.y,
      domain_sizes=tf.shape(self.y)[:1],
      seed=self.seed,
      client_id=self.client_id,
    )

  @property
  def unlabelled(self) -> local_training.ClientData:
    """The examples of the time step; zeros stand where classes would."""
    num_examples = num_stream_examples(self)
    return self.labelled._replace(
      x=self.stream_x,
      y=tf.zeros([num_examples], tf.int32),
      domain_sizes=num_examples[tf.newaxis],
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
  """Returns N_c^t, the client's weight in the mean of eq. 7."""
  return tf.shape(data.stream_x)[0]


@dataclasses.dataclass(frozen=True)
class LabelShiftHParams(hyperparameters.HParams):
  """How a client estimates the classes of unlabelled data."""

  label_estimator: str = hyperparameters.hparam(
    "pretrained",
    "Whose predictions the class distribution is estimated from: pretrained,"
    " the model that the confusion matrix was measured with; current, the"
    " client's model of the moment, for which that matrix is not right.",
    choices=("pretrained", "current"),
  )
  soft_predictions: bool = hyperparameters.hparam(
    False,
    "Estimates from mean probabilities in place of the histogram of predicted"
    " classes.",
  )
  svd_threshold: float = hyperparameters.hparam(
    bbse.DEFAULT_THRESHOLD,
    "Singular values of the confusion matrix below this share of the largest"
    " are left out when it is inverted; 0 inverts all that are not 0.",
    minimum=0,
    maximum=1,
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
  """Estimates the class distribution of the stream, M^-1 Q_yhat of eq. 4.

  Args:
    model: The model; its initial weights are the pre-trained ones.
    hparams: The estimator.
    weights: The client's weights of the moment; only `label_estimator=current`
      looks at them.
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
  """Returns the weight of an example of each class in the risk of eq. 4.

  The mean over examples of weight times loss is the sum over classes i of
  `class_distribution[i]` times the mean loss of the examples of class i. A
  class of which the client has no labelled example drops out of the sum.

  Args:
    class_distribution: [num_classes] float32.
    y: The classes of all of the client's labelled examples, [n] int32.

  Returns:
    A weight for each class, [num_classes] float32: the distribution over the
    share of the class among the examples, 0 where there is no example.
  """
  num_classes = tf.shape(class_distribution)[0]
  shares = tf.math.bincount(
    y, minlength=num_classes, maxlength=num_classes, dtype=tf.float32
  ) / tf.cast(tf.maximum(tf.shape(y)[0], 1), tf.float32)
  return tf.math.divide_no_nan(class_distribution, shares)


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
