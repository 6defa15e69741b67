"""Times steps of `ts.Adapter`, in one process and with clients apart.

  python -m benchmarks.adapter_latency --output=runs/adapter_latency.md

Four clients adapt to 10 digits each per time step, with a perceptron with batch
normalisation; the algorithms of `--image_algorithms` also to 10 images of
CIFAR-10's size with `mini_resnet`. Weights and images are random: times do not
depend on them. Times are milliseconds of wall time, the median and the 95th
percentile over time steps; messages are in KiB. The first step includes tracing
and compilation. Apart, server and clients are in one process too, but exchange
bytes; a client's time is that of its work in all phases of a time step, the
server's that of its aggregations.
"""

import datetime
import os
import pathlib
import tempfile
import time
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import tensorflow as tf
from absl import app
from absl import flags
from absl import logging

import tff_shift as ts
from tff_shift import algorithms
from tff_shift.learning import algorithm as algorithm_lib
from tff_shift.models import split_model

FLAGS = flags.FLAGS
flags.DEFINE_integer("steps", 50, "Time steps after the first one.", 2)
flags.DEFINE_list("algorithms", None, "The algorithms; by default, all.")
flags.DEFINE_list(
  "image_algorithms",
  ["fed_ade", "fix_lr", "shot", "lame"],
  "The algorithms that are timed with images as well.",
)
flags.DEFINE_string("output", None, "The file of the table.")

_NUM_CLIENTS = 4
_BATCH = 10
_NUM_LABELLED = 50
_COLUMNS = (
  *("algorithm", "first", "step", "predict", "client, first", "client"),
  *("server", "predict apart", "message"),
)


class Workload(NamedTuple):
  """What is adapted.

  Attributes:
    name: Its name in the table.
    model: The deployed model.
    x: Examples, [n, ...].
    num_classes: The number of classes.
  """

  name: str
  model: split_model.SplitModel
  x: np.ndarray
  num_classes: int


def digits() -> Workload:
  """Returns the digits, and a perceptron with batch normalisation."""
  dataset = ts.load_online_adaptation("digits")
  x = dataset.stream.x.reshape(len(dataset.stream.x), -1) / np.float32(255)
  keras_model = tf.keras.Sequential(
    [
      tf.keras.layers.Dense(64, input_shape=x.shape[1:]),
      tf.keras.layers.BatchNormalization(),
      tf.keras.layers.ReLU(),
      tf.keras.layers.Dense(10),
    ]
  )
  # As if it were trained.
  keras_model.layers[1].set_weights([np.full(64, w) for w in (1, 0, 0.1, 2)])
  model = ts.from_keras(keras_model, initial="given")
  return Workload("perceptron, digits", model, x.astype(np.float32), 10)


def images() -> Workload:
  """Returns random images, and `mini_resnet`."""
  generator = np.random.default_rng(0)
  x = generator.integers(0, 256, (500, 32, 32, 3)).astype(np.uint8)
  model = ts.build_model("mini_resnet", input_shape=x.shape[1:], num_classes=10)
  names = tf.nest.flatten(model.weight_names())
  weights = tf.nest.flatten(model.initial_weights([0, 1]))
  # As if it were trained.
  statistics = {name: each + 0.1 for name, each in model.statistics.items()}
  values = dict(zip(names, weights, strict=True)) | statistics
  model = split_model.with_weights(model, values)
  return Workload("mini_resnet, 32 x 32 x 3", model, x, 10)


def _deployment(workload: Workload) -> ts.Deployment:
  y = np.arange(_NUM_LABELLED, dtype=np.int32) % workload.num_classes
  initial = [
    (np.roll(workload.x, -_NUM_LABELLED * client, axis=0)[:_NUM_LABELLED], y)
    for client in range(_NUM_CLIENTS)
  ]
  confusion = np.eye(workload.num_classes, dtype=np.float32) * 0.9 + 0.01
  return ts.Deployment(initial, confusion)


def _batches(workload: Workload) -> Iterator[dict[int, np.ndarray]]:
  """Yields the batches of each time step."""
  for step in range(1 + FLAGS.steps):
    generator = np.random.default_rng(step)
    yield {
      client: generator.choice(workload.x, _BATCH)
      for client in range(_NUM_CLIENTS)
    }


class Times:
  """Milliseconds of calls."""

  def __init__(self):
    self.values: list[float] = []

  def __enter__(self):
    self._start = time.perf_counter()

  def __exit__(self, *error):
    self.values.append(1e3 * (time.perf_counter() - self._start))

  def merge(self, count: int) -> None:
    """Replaces the last times by their sum."""
    self.values[-count:] = [sum(self.values[-count:])]

  @property
  def first(self) -> str:
    """The first time."""
    return f"{self.values[0]:.0f}"

  @property
  def later(self) -> str:
    """The median and the 95th percentile of the others."""
    return " / ".join(
      f"{each:.1f}" for each in np.percentile(self.values[1:], [50, 95])
    )


def _in_one_process(algorithm, workload, folder) -> list[str]:
  step, predict = Times(), Times()
  adapter = ts.Adapter(algorithm, _deployment(workload), folder)
  for batches in _batches(workload):
    with step:
      adapter.adapt(batches)
    with predict:
      adapter.predict(0, batches[0])
  return [step.first, step.later, predict.later]


def _apart(
  algorithm: algorithm_lib.FederatedAlgorithm, workload: Workload, folder: str
) -> list[str]:
  deployment = _deployment(workload)
  server = ts.AdapterServer(algorithm, folder, client_names=range(_NUM_CLIENTS))
  clients = [
    ts.AdapterClient(
      algorithm,
      deployment._replace(initial=[deployment.initial[client]]),
      os.path.join(folder, str(client)),
      client=client,
    )
    for client in range(_NUM_CLIENTS)
  ]
  own, aggregation, predict, size = Times(), Times(), Times(), 0
  for batches in _batches(workload):
    given = dict(batches)
    content = server.begin(list(batches)).to_bytes()
    num_phases = 0
    while server.asked:
      messages = {}
      for client in server.asked:
        x = given.pop(client, None)
        if client:
          messages[client] = clients[client].receive(content, x).to_bytes()
          continue
        with own:
          messages[client] = clients[client].receive(content, x).to_bytes()
      size = max(size, len(messages[0]))
      with aggregation:
        content = server.receive(messages).to_bytes()
      num_phases += 1
    if num_phases:
      own.merge(num_phases)
      aggregation.merge(num_phases)
    for client in range(_NUM_CLIENTS):
      clients[client].receive(content, given.pop(client, None))
    with predict:
      clients[0].predict(batches[0])
  if not own.values:
    return ["-", "-", "-", predict.later, "-"]
  message = f"{size / 1024:.1f}"
  return [own.first, own.later, aggregation.later, predict.later, message]


def measure(name: str, workload: Workload) -> str:
  """Returns the row of an algorithm."""
  algorithm = ts.build_algorithm(name, workload.model, num_clients=_NUM_CLIENTS)
  with (
    ts.execution.use("in_process"),
    tempfile.TemporaryDirectory() as folder,
  ):
    cells = [
      *_in_one_process(algorithm, workload, os.path.join(folder, "whole")),
      *_apart(algorithm, workload, os.path.join(folder, "apart")),
    ]
  return f"| {' | '.join([f'`{name}`', *cells])} |"


def main(_) -> None:
  """Prints the tables, and writes them to the file of `--output`."""
  # TFF logs each compilation at INFO.
  logging.set_verbosity(logging.WARNING)
  streams = [
    name
    for name in algorithms.names()
    if "online_adaptation" in algorithms.describe(name).scenarios
  ]
  lines = []

  def add(line):
    lines.append(line)
    print(line, flush=True)

  for workload, names in (
    (digits(), FLAGS.algorithms or streams),
    (images(), FLAGS.image_algorithms),
  ):
    add(f"## {workload.name}\n")
    add(f"| {' | '.join(_COLUMNS)} |")
    add(f"|{' --- |' * len(_COLUMNS)}")
    for name in names:
      add(measure(name, workload))
    add("")
  load = ", ".join(f"{each:.0f}" for each in os.getloadavg())
  add(
    f"{datetime.date.today()}, {os.cpu_count()} cores, load average {load} at"
    " the end."
  )
  if FLAGS.output:
    pathlib.Path(FLAGS.output).write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
  app.run(main)
