"""Compares drift detectors on streams whose drift times are known.

  python -m examples.drift_detection --seeds=0,1,2
  python -m examples.drift_detection --output=results/drift_detection.json

The streams are those of dynamic personalization on the embedded digits: periods
of a client, whose label distribution changes every few periods. A network that
is trained on public data gives features, predictions and confidences.

Detectors that compare two consecutive periods have a threshold, which is the
same quantile of distances between IID periods for all of them. ADWIN and DDM
see one example after another; a detection counts for its period. DDM, and ADWIN
on errors, need labels. ADWIN and DDM need the extra `river`.
"""

import functools
import importlib.util
import itertools
import json
import math
import pathlib
import time
from collections.abc import Callable
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import tensorflow as tf
from absl import app
from absl import flags

from tff_shift import execution
from tff_shift.data import examples as examples_lib
from tff_shift.data.shifts import dynamic_personalization
from tff_shift.scenarios.dynamic_personalization import drift_detector
from tff_shift.shift import detection
from tff_shift.shift import distances
from tff_shift.shift import dynamics
from tff_shift.shift import measures
from tff_shift.simulation import pretraining
from tff_shift.simulation import pretraining_hparams

FLAGS = flags.FLAGS


class Period(NamedTuple):
  """What detectors see of a client's period.

  Attributes:
    x: The examples.
    features: Their features, [n, size] float32.
    q: Fed-ADE's mean probabilities, eq. 11.
    z: Fed-ADE's mean direction, eq. 13.
    confidences: The highest probability of each prediction, [n].
    errors: Whether each prediction is wrong, [n] bool; needs labels.
  """

  x: np.ndarray
  features: np.ndarray
  q: tf.Tensor
  z: tf.Tensor
  confidences: np.ndarray
  errors: np.ndarray


def describer(
  dataset: dynamic_personalization.DynamicPersonalizationDataset, seed: int
) -> Callable[[examples_lib.Examples], Period]:
  """Trains a network on public data; returns what describes a period."""
  train, held_out = drift_detector.split_public(dataset.public, seed)
  network = drift_detector.extractor_model(
    dataset.train.x.shape[1:], len(dataset.schema.classes)
  )
  trained = pretraining.pretrain(
    network,
    train,
    held_out,
    pretraining_hparams.PretrainingHParams(),
    seed=seed,
  )
  weights = trained.weights

  @tf.function
  def summarize(x):
    features = network.embed(weights.backbone, x)
    logits = network.classify(weights.head, features)
    return (
      features,
      dynamics.mean_probabilities(logits),
      dynamics.mean_direction(features),
      tf.nn.softmax(logits),
    )

  def describe(batch):
    features, q, z, p = summarize(batch.x)
    p = p.numpy()
    return Period(
      batch.x,
      features.numpy(),
      q,
      z,
      p.max(axis=1),
      p.argmax(axis=1) != batch.y,
    )

  return describe


def pair_distances(name: str, periods: Sequence[Period]) -> np.ndarray:
  """Returns the distances of consecutive periods, [periods - 1].

  Args:
    name: `fed_3da_features`, `fed_3da_pixels`, or a measure of Fed-ADE.
    periods: The periods of a client.
  """
  if name.startswith("fed_3da"):
    parts = [
      each.x if name.endswith("pixels") else each.features for each in periods
    ]
    return np.array(
      [
        distances.distance(one, other)
        for one, other in itertools.pairwise(parts)
      ]
    )
  initial_state, step = _measure(name.removeprefix("fed_ade_"))
  states = [initial_state(len(part)) for part in (periods[0].q, periods[0].z)]
  found = []
  for one, other in itertools.pairwise(periods):
    signal, states = step(states, one.q, one.z, other.q, other.z)
    found.append(float(signal))
  return np.array(found)


@functools.cache
def _measure(name: str):
  """Returns the initial state and the step of a measure, as a graph."""
  measure = measures.get(name)

  @tf.function
  def step(states, old_q, old_z, q, z):
    uncertainty, of_q = measure.uncertainty(states[0], old_q, q)
    shift, of_z = measure.representation(states[1], old_z, z)
    return dynamics.combine(uncertainty, shift), [of_q, of_z]

  return measure.initial_state, step


_PAIRWISE = (
  "fed_3da_features",
  "fed_3da_pixels",
  *(f"fed_ade_{name}" for name in measures.names()),
)


def adwin(values: np.ndarray) -> np.ndarray:
  """Detects changes of a mean, by adaptive windowing.

  Learning from Time-Changing Data with Adaptive Windowing (Bifet, Gavaldà; SDM
  2007), as river implements it.

  Args:
    values: [n] numbers of single examples, such as the confidence of each
      prediction, which needs no labels, or whether it is wrong.

  Returns:
    The indices of the detections, from 0, [n] int64.
  """
  from river import drift

  return _by_example(drift.ADWIN(), values)


def ddm(errors: np.ndarray) -> np.ndarray:
  """Detects a rise of the error rate, by the drift detection method.

  Learning with Drift Detection (Gama, Medas, Castillo, Rodrigues; SBIA 2004),
  as river implements it. It needs labels.

  Args:
    errors: [n] bool, whether the prediction of each example is wrong.

  Returns:
    The indices of the detections, from 0, [n] int64.
  """
  from river import drift

  return _by_example(drift.binary.DDM(), errors)


def _by_example(detector, values) -> np.ndarray:
  """Feeds a detector of river, which resets itself after a detection."""
  detections = []
  for index, value in enumerate(values.tolist()):
    detector.update(value)
    if detector.drift_detected:
      detections.append(index)
  return np.array(detections, np.int64)


def _by_period(found: np.ndarray, periods: Sequence[Period]) -> np.ndarray:
  """Converts indices of examples to periods, without duplicates."""
  ends = np.cumsum([len(each.errors) for each in periods])
  return np.unique(np.searchsorted(ends, found, side="right"))


def detectors(
  thresholds: dict[str, float],
) -> dict[str, Callable[[Sequence[Period]], np.ndarray]]:
  """Returns functions from a client's periods to the detected ones, from 0."""

  def pairwise(name):
    return lambda periods: 1 + detection.thresholded(
      pair_distances(name, periods), thresholds[name]
    )

  def mmd(periods):
    p_values = [
      detection.mmd(one.features, other.features, seed=index)[1]
      for index, (one, other) in enumerate(itertools.pairwise(periods))
    ]
    return 1 + np.flatnonzero(np.array(p_values) <= 1 - FLAGS.quantile + 1e-9)

  def by_example(detect, name):
    return lambda periods: _by_period(
      detect(np.concatenate([getattr(each, name) for each in periods])),
      periods,
    )

  found = {name: pairwise(name) for name in _PAIRWISE} | {"mmd": mmd}
  if importlib.util.find_spec("river") is not None:
    # Its import must not count as time of a detector.
    importlib.import_module("river.drift")
    found |= {
      "adwin_confidence": by_example(adwin, "confidences"),
      "adwin_errors": by_example(adwin, "errors"),
      "ddm_errors": by_example(ddm, "errors"),
    }
  else:
    print("river is not installed: without ADWIN and DDM")
  return found


def _draw(
  dataset: dynamic_personalization.DynamicPersonalizationDataset,
  part: str,
  distribution: str,
  length: int,
  num_clients: int,
  seed: int,
) -> dynamic_personalization.Periods:
  return dynamic_personalization.Periods(
    getattr(dataset, part),
    len(dataset.schema.classes),
    distribution,
    num_clients=num_clients,
    period_size=FLAGS.period_size,
    seed=seed,
    periods_per_distribution=length,
  )


@functools.cache
def _prepared(seed: int):
  """Returns data set, description and thresholds of a seed."""
  dataset = dynamic_personalization.load_dynamic_personalization(
    "digits", seed=seed
  )
  describe = describer(dataset, seed)
  # Pairs of IID periods of the training pool: one client each.
  num_pairs = FLAGS.calibration_pairs
  iid = _draw(dataset, "train", "iid", 1, num_pairs, seed)
  pairs = [
    [describe(iid.batch(pair, period)) for period in (0, 1)]
    for pair in range(num_pairs)
  ]
  thresholds = {
    name: distances.calibrate(
      np.array([pair_distances(name, pair)[0] for pair in pairs]),
      FLAGS.quantile,
    )
    for name in _PAIRWISE
  }
  return dataset, describe, thresholds


def measure(seed: int, distribution: str) -> dict[str, dict[str, float]]:
  """Measures all detectors on the streams of one seed."""
  dataset, describe, thresholds = _prepared(seed)
  drawn = _draw(
    dataset, "test", distribution, FLAGS.length, FLAGS.num_clients, seed
  )
  num_periods = FLAGS.periods + 1
  streams = [
    [describe(drawn.batch(client, period)) for period in range(num_periods)]
    for client in range(FLAGS.num_clients)
  ]
  # Period 0 only starts a stream.
  drifted = np.array(
    [
      [
        period > 0 and drawn.is_drift(client, period)
        for client in range(FLAGS.num_clients)
      ]
      for period in range(num_periods)
    ]
  )
  rows = {}
  for name, detect in detectors(thresholds).items():
    start = time.perf_counter()
    detected = np.zeros(drifted.shape, bool)
    for client, periods in enumerate(streams):
      detected[detect(periods), client] = True
    detected[0] = False
    seconds = time.perf_counter() - start
    found = detection.evaluate_clients(
      detected, drifted, horizon=FLAGS.length - 1
    )
    quiet = drifted[1:].size - found.drifts
    rows[name] = {
      **found._asdict(),
      "missed_percent": 100 * found.missed / max(found.drifts, 1),
      "false_alarm_percent": 100 * found.false_alarms / quiet,
      "ms_per_period": 1000 * seconds / drifted[1:].size,
    }
  return rows


def main(_) -> None:
  """Prints a table for each distribution: means over seeds."""
  raw = {}
  with execution.use("auto"):
    for distribution in FLAGS.distributions:
      by_seed = [measure(int(seed), distribution) for seed in FLAGS.seeds]
      raw[distribution] = by_seed
      drifts = [next(iter(rows.values()))["drifts"] for rows in by_seed]
      print(f"\n{distribution}: {drifts} drifts by seed")
      print("| detector | delay | missed (%) | false alarms (%) | ms |")
      print("| --- | --- | --- | --- | --- |")
      for name in by_seed[0]:
        cells = []
        for column in ("delay", "missed_percent", "false_alarm_percent"):
          values = np.array([rows[name][column] for rows in by_seed], float)
          values = values[~np.isnan(values)]
          cells.append(_shown(values))
        times = [rows[name]["ms_per_period"] for rows in by_seed]
        print(f"| {name} | {' | '.join(cells)} | {np.mean(times):.1f} |")
  if FLAGS.output:
    path = pathlib.Path(FLAGS.output)
    path.write_text(json.dumps(_without_nan(raw), indent=1) + "\n")


def _shown(values: np.ndarray) -> str:
  if not len(values):
    return "-"
  spread = f" ± {values.std(ddof=1):.1f}" if len(values) > 1 else ""
  return f"{values.mean():.1f}{spread}"


def _without_nan(value):
  """Replaces NaN by null, which JSON allows."""
  if isinstance(value, dict):
    return {name: _without_nan(each) for name, each in value.items()}
  if isinstance(value, list):
    return [_without_nan(each) for each in value]
  return None if isinstance(value, float) and math.isnan(value) else value


if __name__ == "__main__":
  flags.DEFINE_list("seeds", ["0", "1", "2"], "Seeds of data and network.")
  flags.DEFINE_list(
    "distributions", ["0.9", "0.5", "iid"], "Distributions; iid has no drift."
  )
  flags.DEFINE_integer("num_clients", 10, "Clients.", 1)
  flags.DEFINE_integer("period_size", 100, "Examples of a period.", 2)
  flags.DEFINE_integer("periods", 40, "Periods of a stream.", 1)
  flags.DEFINE_integer("length", 5, "Periods of a distribution.", 1)
  flags.DEFINE_integer("calibration_pairs", 200, "Pairs for thresholds.", 1)
  flags.DEFINE_float(
    "quantile", 0.95, "Fraction of IID pairs below a threshold.", 0, 1
  )
  flags.DEFINE_string("output", "", "File for the values of each seed.")
  app.run(main)
