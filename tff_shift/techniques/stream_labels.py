"""What stands for the labels of a stream, for methods that ask for them.

Fed-POE and FedCCFA learn from labels at every step, which a stream does not
have. Fed-ADE: Adaptive Learning Rate for Federated Post-adaptation under
Distribution Shift (Park, Joe, Kim, Im, Kwon; 2026), which compares itself with
both, does not say what they learn from.
"""

import dataclasses
from collections.abc import Callable
from typing import Any
from typing import NamedTuple

import tensorflow as tf

from tff_shift.learning import hyperparameters
from tff_shift.models import split_model
from tff_shift.techniques import adaptation


@dataclasses.dataclass(frozen=True)
class StreamLabelsHParams(adaptation.LabelShiftHParams):
  """What a client learns from in place of a labelled stream."""

  stream_labels: str = hyperparameters.hparam(
    "risk",
    "What stands for a labelled stream: risk, the labelled examples from before"
    " deployment, weighted by the estimated classes of the stream (eq. 4 of"
    " Fed-ADE); pseudo, the stream with the classes that the client predicts.",
    choices=("risk", "pseudo"),
  )


class Lesson(NamedTuple):
  """What a client learns from.

  Attributes:
    examples: A `local_training.ClientData`.
    class_weights: What an example of each class counts in `adaptation.risk`,
      [num_classes] float32.
    classes: The shares of the classes in the stream, as far as they are known,
      [num_classes] float32.
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
  """Makes of a client's data what it learns from.

  Args:
    model: The model; its initial weights are the pre-trained ones.
    hparams: What stands for the labels.
    weights: The client's weights of the moment, for the estimate of classes.
    data: The client's data.
    predict: `x -> logits [n, num_classes] float32`, the client's predictions of
      the moment, for pseudo-labels.

  Returns:
    A `Lesson`.
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
