"""Times a new model for drifted data: requested from the server, or trained.

  python -m benchmarks.personal_update

A client of Fed-3DA whose digits have drifted computes r, sends it, and receives
the weights of its target network. This is compared with minimal training: the
client receives a model, trains it for one epoch on labels that it would need,
and sends it back. Both alternate; the ratio is the median over repetitions. Run
it on an idle machine.
"""

import statistics
import time

import numpy as np
import tensorflow as tf
from absl import app
from absl import flags
from absl import logging

from tff_shift import algorithms
from tff_shift import execution
from tff_shift import models
from tff_shift.algorithms import fed_3da
from tff_shift.algorithms import fed_avg
from tff_shift.data.shifts import (
  dynamic_personalization as dynamic_personalization_data,
)
from tff_shift.scenarios.dynamic_personalization import drift_detector
from tff_shift.scenarios.dynamic_personalization import (
  simulation as dynamic_personalization,
)
from tff_shift.simulation import pretraining
from tff_shift.simulation import pretraining_hparams

_REPETITIONS = flags.DEFINE_integer(
  "repetitions", 50, "Number of repetitions.", lower_bound=1
)
_WIDTH = flags.DEFINE_integer(
  "model_width",
  16,
  "Width of the layers of the target network.",
  lower_bound=1,
)
_PERIOD_SIZE = flags.DEFINE_integer(
  "period_size", 100, "Examples of a period.", lower_bound=2
)

_WARM_UP_TURNS = 3
_BYTES_PER_NUMBER = 4


def _fit_representation(dataset):
  """Fits `moments` with an extractor that is trained for one epoch."""
  model = drift_detector.extractor_model(
    dataset.train.x.shape[1:], len(dataset.class_names)
  )
  # How good it is has no part in how long it takes.
  trained = pretraining.pretrain(
    model,
    *drift_detector.split_public(dataset.public, seed=0),
    pretraining_hparams.PretrainingHParams(max_epochs=1),
    seed=0,
  )
  return drift_detector.fit(
    dataset,
    representation="moments",
    representation_size=2 * model.embedding_size,
    distance_features="pixels",
    period_size=_PERIOD_SIZE.value,
    extractor=drift_detector.make_extractor(model, trained.weights),
    threshold=0.0,
  ).represent


def main(_) -> None:
  """Times both alternately and prints medians, bytes and the ratio."""
  # TFF logs each compilation at INFO.
  logging.set_verbosity(logging.WARNING)
  dataset = dynamic_personalization_data.load_dynamic(
    "digits", seed=0, public_fraction=0.2
  )
  num_classes = len(dataset.class_names)
  model = models.build(
    "mlp",
    input_shape=dataset.train.x.shape[1:],
    num_classes=num_classes,
    width=_WIDTH.value,
    head_width=_WIDTH.value,
    input_dtype=tf.uint8,
  )
  drawn = dynamic_personalization_data.Periods(
    dataset.train,
    num_classes,
    dynamic_personalization_data.DISTRIBUTIONS,
    num_clients=1,
    period_size=_PERIOD_SIZE.value,
    seed=0,
  )
  with execution.use("in_process"):
    represent = _fit_representation(dataset)
    running = {
      module: dynamic_personalization.train(
        algorithms.build(module, model, hparams),
        drawn,
        represent,
        num_rounds=1,
        run_seed=0,
      )
      for module, hparams in (
        (
          fed_3da,
          fed_3da.HParams(representation_size=represent.size, local_epochs=1),
        ),
        (fed_avg, fed_avg.HParams(local_epochs=1)),
      )
    }
    asking, training = running.values()

    def ask(x, data):
      del data
      return asking.algorithm.request(asking.server_state, represent(x))

    def train(x, data):
      del x
      training.data = data
      return training.step()

    seconds = {ask: [], train: []}
    for turn in range(_WARM_UP_TURNS + _REPETITIONS.value):
      data = dynamic_personalization.training_data(
        training.algorithm, drawn, turn, None, run_seed=0
      )
      for update, measured in seconds.items():
        start = time.perf_counter()
        update(data[0].x, data)
        measured.append(time.perf_counter() - start)
  timed = [each[_WARM_UP_TURNS:] for each in seconds.values()]
  weights = _BYTES_PER_NUMBER * model.num_parameters
  phi = sum(
    np.size(each) for each in tf.nest.flatten(asking.server_state.weights)
  )
  print(f"target network {model.num_parameters} weights, hypernetwork {phi}")
  for name, each, up in (
    ("requested", timed[0], _BYTES_PER_NUMBER * represent.size),
    ("one epoch", timed[1], weights),
  ):
    print(
      f"{name}: {1e3 * statistics.median(each):.2f} ms, {up} bytes up,"
      f" {weights} down"
    )
  ratios = [one / other for one, other in zip(*timed, strict=True)]
  print(
    f"requested / one epoch: {statistics.median(ratios):.3f} (median of"
    f" {len(ratios)} turns, {min(ratios):.3f} to {max(ratios):.3f})"
  )


if __name__ == "__main__":
  app.run(main)
