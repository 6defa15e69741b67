"""FTH: predictions reweighted by the mean of all label estimates so far.

Online Adaptation to Label Distribution Shift (Wu, Guo, Su, Weinberger; NeurIPS
2021, arXiv:2107.04520), Follow The History; a localised baseline of Fed-ADE:
Adaptive Learning Rate for Federated Post-adaptation under Distribution Shift
(Park, Joe, Kim, Im, Kwon; 2026), Table 1.

The model does not change after training. A client keeps the mean of its
estimates of the label distribution over time steps and multiplies the predicted
probabilities with it, relative to the uniform prior from which clients of
Fed-ADE start (Section 6.1).

What leaves a client: the mean risk on its labelled data. The history stays.
"""

import dataclasses
from typing import Any
from typing import NamedTuple

import tensorflow as tf

from tff_shift.algorithms.parts import adaptation
from tff_shift.algorithms.parts import label_priors
from tff_shift.learning import algorithm
from tff_shift.learning import evaluation
from tff_shift.learning.aggregators import factories
from tff_shift.models import split_model

SCENARIOS = ("online_adaptation",)

RUNNING_STATISTICS = algorithm.FIXED

AGGREGATION_REQUIREMENTS = factories.AggregationRequirements(
  no_aggregation="the model does not change after training"
)


@dataclasses.dataclass(frozen=True)
class HParams(adaptation.LabelShiftHParams):
  """Hyper-parameters of FTH: those of the label estimates."""


class History(NamedTuple):
  """The state of a client.

  Attributes:
    total: The sum of its estimates of the label distribution, [num_classes].
    num_timesteps: Their number, a float32 scalar.
    timestep: The time step of the last one, an int32 scalar; 0: none yet.
  """

  total: Any
  num_timesteps: Any
  timestep: Any


def build(
  model: split_model.SplitModel, hparams: HParams
) -> algorithm.AlgorithmSpec:
  """Builds the spec of FTH; see `algorithm.AlgorithmSpec`.

  The initial weights of the model are the pre-trained ones. A client's state is
  its `History`; nothing is shared.
  """

  def reweight(logits, history):
    """Multiplies probabilities by the mean estimate over the uniform prior."""
    uniform = 1.0 / model.num_classes
    # Without a history, the prior.
    mean = tf.math.divide_no_nan(
      history.total, history.num_timesteps
    ) + uniform * tf.cast(tf.equal(history.num_timesteps, 0), tf.float32)
    return label_priors.correct(logits, mean, uniform)

  def train_client(nothing, history, data, round_num):
    del nothing, round_num
    weights = model.initial_weights(data.seed)
    classes = adaptation.estimate_classes(model, hparams, weights, data)
    # Rounds of the same time step have the same data and count once.
    is_new = tf.cast(tf.not_equal(history.timestep, data.timestep), tf.float32)
    history = History(
      history.total + is_new * classes,
      history.num_timesteps + is_new,
      data.timestep,
    )
    logits = reweight(evaluation.predict(model, weights, data.x), history)
    class_weights = adaptation.class_weights(classes, data.y)
    return algorithm.ClientResult(
      update=(),
      client_state=history,
      loss=adaptation.risk(logits, data.y, class_weights),
    )

  def predict_as_client(nothing, history, data, examples):
    del nothing
    weights = model.initial_weights(data.seed)
    return reweight(evaluation.predict(model, weights, examples.x), history)

  return algorithm.AlgorithmSpec(
    initial_weights=lambda seed: (),
    initial_client_state=lambda seed, weights: History(
      tf.zeros([model.num_classes]), tf.constant(0.0), tf.constant(0)
    ),
    train_client=train_client,
    predict_as_client=predict_as_client,
    examples_type=adaptation.data_type(model),
    num_examples=adaptation.num_stream_examples,
  )
