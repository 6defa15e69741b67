"""An algorithm with a survey, with memory at the server, and for N clients.

DANE with gradient steps, see `tests/learning/surveys_test.py`; the server
smooths the mean gradient over rounds.

What leaves a client: a gradient, its model update, and the mean loss.
"""

import dataclasses
from typing import Any
from typing import NamedTuple

import tensorflow as tf

from tff_shift.learning import algorithm
from tff_shift.learning import evaluation
from tff_shift.learning import hyperparameters
from tff_shift.learning import local_training
from tff_shift.learning import randomness
from tff_shift.learning.aggregators import factories

SCENARIOS = ("evolving",)
AGGREGATION_REQUIREMENTS = factories.AggregationRequirements(
  surveys="clients report the gradient at the received weights",
)


@dataclasses.dataclass(frozen=True)
class HParams(hyperparameters.LocalHParams):
  """Local training."""


class Shared(NamedTuple):
  """Model and mean gradient."""

  model: Any
  gradient: Any


def build(model, hparams, num_clients):
  """Builds the spec."""

  def gradient(weights, data):
    with tf.GradientTape() as tape:
      tape.watch(weights)
      loss = local_training.cross_entropy(
        model.predict(weights, data.x), data.y
      )
    return loss, tape.gradient(loss, weights)

  def initial_weights(seed):
    drawn = model.initial_weights(seed)
    return Shared(drawn, tf.nest.map_structure(tf.zeros_like, drawn))

  def survey_client(shared, state, data, round_num):
    loss, found = gradient(shared.model, data)
    return algorithm.ClientResult(found, state, loss)

  def after_survey(shared, mean, plaintext_sum, info):
    smooth = tf.nest.map_structure(
      lambda before, now: (before + now) / 2, info.memory, mean
    )
    return shared._replace(gradient=smooth), smooth

  def train_client(shared, state, data, round_num):
    _, own = gradient(shared.model, data)
    correction = tf.nest.map_structure(tf.subtract, shared.gradient, own)
    steps = local_training.num_local_steps(hparams, data, round_num)
    result = local_training.train_on_pool(
      model.predict,
      shared.model,
      data,
      steps,
      randomness.fold(data.seed, randomness.Purpose.TRAIN, round_num),
      hparams,
      penalty=lambda w: tf.add_n(
        [
          tf.reduce_sum(a * b)
          for a, b in zip(
            tf.nest.flatten(correction), tf.nest.flatten(w), strict=True
          )
        ]
      ),
      round_num=round_num,
    )
    return algorithm.ClientResult(
      Shared(
        tf.nest.map_structure(tf.subtract, result.weights, shared.model),
        tf.nest.map_structure(tf.zeros_like, shared.gradient),
      ),
      state,
      result.loss,
    )

  def update_server(shared, mean, plaintext_sum, info):
    scale = info.num_counted / num_clients
    change = tf.nest.map_structure(lambda each: scale * each, mean)
    return info.step(shared, change), info.memory

  return algorithm.AlgorithmSpec(
    initial_weights=initial_weights,
    initial_memory=lambda seed: initial_weights(seed).gradient,
    update_server=update_server,
    train_client=train_client,
    surveys=(algorithm.Survey(survey_client, after_survey),),
    predict_as_client=lambda s, state, data, examples: evaluation.predict(
      model, s.model, examples.x
    ),
    predict_as_server=lambda s, summary, examples: evaluation.predict(
      model, s.model, examples.x
    ),
  )
