"""Substitutes for the labels of a stream, for methods that need labels.

Fed-POE and FedCCFA learn from labels at every step, which a stream does not
have. Fed-ADE: Adaptive Learning Rate for Federated Post-adaptation under
Distribution Shift (Park, Joe, Kim, Im, Kwon; 2026) uses both as baselines, and
does not specify their labels.

Choices:
  * By default (`stream_labels=risk`) they learn from the labelled examples from
    before deployment, weighted by the estimated label distribution (eq. 4), as
    Fed-ADE: all methods learn from the same data. Pseudo-labels are the labels
    that the client predicts with its current model (Fed-POE: its mixture).
"""

import dataclasses
from collections.abc import Callable
from typing import Any
from typing import NamedTuple

import tensorflow as tf

from tff_shift.algorithms.parts import adaptation
from tff_shift.learning import hyperparameters
from tff_shift.models import split_model


@dataclasses.dataclass(frozen=True)
class StreamLabelsHParams(adaptation.LabelShiftHParams):
  """Hyper-parameters of the substitute for a labelled stream."""

  stream_labels: str = hyperparameters.hparam(
    "risk",
    "Substitute for a labelled stream: risk, the labelled examples from before"
    " deployment, weighted by the estimated label distribution of the stream"
    " (eq. 4 of Fed-ADE); pseudo, the stream with the client's predictions as"
    " labels.",
    choices=("risk", "pseudo"),
  )


class Lesson(NamedTuple):
  """A client's training data with class weights.

  Attributes:
    examples: A `ClientDataset`.
    class_weights: The weight of each class's examples in `adaptation.risk`,
      [num_classes] float32.
    classes: The estimated label distribution of the stream, [num_classes]
      float32.
  """

  examples: Any
  class_weights: Any
  classes: Any


def lesson(
  model: split_model.SplitModel,
  hparams: StreamLabelsHParams,
  weights: split_model.SplitWeights,
  data: adaptation.AdaptationData,
  predict: Callable[[Any], tf.Tensor],
) -> Lesson:
  """Builds a client's training data from its data at a time step.

  Args:
    model: The model; its initial weights are the pre-trained ones.
    hparams: The substitute for the labels.
    weights: The client's current weights, for the estimate of the label
      distribution.
    data: The client's data.
    predict: `x -> logits [n, num_classes] float32`, the client's current
      predictions, for pseudo-labels.
  """
  if hparams.stream_labels == "risk":
    classes = adaptation.estimate_classes(model, hparams, weights, data)
    class_weights = adaptation.class_weights(classes, data.y)
    return Lesson(data.labelled, class_weights, classes)
  predicted = tf.argmax(predict(data.stream_x), axis=1, output_type=tf.int32)
  counts = tf.reduce_sum(tf.one_hot(predicted, model.num_classes), axis=0)
  return Lesson(
    data.unlabelled._replace(y=predicted),
    tf.ones([model.num_classes]),
    tf.math.divide_no_nan(counts, tf.reduce_sum(counts)),
  )
