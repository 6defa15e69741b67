"""The baseline of speed: many small clients in plain TensorFlow, without TFF.

The clients are those of `benchmarks.plain_clients`. One `tf.function` runs all
clients in sequence, on data that are already tensors, in a separate process
with TensorFlow's default number of threads. It uses the batches that FedAvg
draws.

    with plain_loop.started(num_clients=100, num_steps=4) as plain:
      ours, theirs, ratio = plain.compare(run_round, repetitions=7)
"""

import contextlib
import operator
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from collections.abc import Iterator

import numpy as np
import tensorflow as tf
from absl import app
from absl import flags

from benchmarks import plain_clients
from tff_shift import algorithms
from tff_shift.data import client_dataset
from tff_shift.data import examples
from tff_shift.learning import local_training
from tff_shift.learning import randomness
from tff_shift.models import split_model
from tff_shift.models.networks import mlp
from tff_shift.simulation.engine import rounds

_WARM_UP = 2
_CLOCKS = time.perf_counter, time.process_time

FLAGS = flags.FLAGS


def build_model() -> split_model.SplitModel:
  """Returns the perceptron: the last two of five layers are the head."""
  return mlp.build(
    (plain_clients.FEATURES,),
    num_classes=plain_clients.CLASSES,
    width=plain_clients.WIDTH,
    head_width=plain_clients.WIDTH,
  )


def make_client(number: int) -> client_dataset.ClientDataset:
  """Returns the random examples of a client, of one domain."""
  generator = np.random.default_rng([0, number])
  return client_dataset.ClientDataset.from_arrays(
    x=examples.read_only(
      generator.normal(
        size=(plain_clients.EXAMPLES, plain_clients.FEATURES)
      ).astype(np.float32)
    ),
    y=generator.integers(
      0, plain_clients.CLASSES, plain_clients.EXAMPLES
    ).astype(np.int32),
    domain_sizes=np.array([plain_clients.EXAMPLES], np.int32),
    seed=randomness.client_seed(0, number),
    client_id=np.int32(number),
  )


def initial_weights() -> list[np.ndarray]:
  """Returns the same weights in every process, in the order of the layers."""
  generator = np.random.default_rng(1)
  model = build_model()
  return [
    (generator.normal(size=shape) * (0.05 if len(shape) > 1 else 0)).astype(
      np.float32
    )
    for shape in model.backbone.shapes + model.head.shapes
  ]


def start_fed_avg(num_clients: int, num_steps: int) -> rounds.Rounds:
  """Returns this package's FedAvg on the same work, before its first round."""
  model = build_model()
  hparams = algorithms.get("fed_avg").HParams(
    batch_size=plain_clients.BATCH,
    local_steps=num_steps,
    learning_rate=plain_clients.RATE,
  )
  run = rounds.Rounds(
    algorithms.build("fed_avg", model, hparams),
    [make_client(number) for number in range(num_clients)],
    run_seed=0,
  )
  weights = initial_weights()
  size = len(model.backbone.shapes)
  run.server_state = run.server_state._replace(
    weights=split_model.SplitWeights(
      tuple(weights[:size]), tuple(weights[size:])
    )
  )
  return run


def _draw(num_clients: int, num_steps: int) -> tuple[tf.Tensor, tf.Tensor]:
  """Returns the batches of the first round of FedAvg, client by client."""

  @tf.function
  def draw(data):
    seed = randomness.fold(data.seed, randomness.Purpose.TRAIN, 0)
    batches = local_training.pooled_batches(
      data, num_steps, plain_clients.BATCH, seed
    )
    drawn = [batches(step) for step in range(num_steps)]
    return [
      tf.concat(parts, axis=0)
      for parts in ([each.x for each in drawn], [each.y for each in drawn])
    ]

  drawn = [
    draw(tf.nest.map_structure(tf.constant, make_client(number)))
    for number in range(num_clients)
  ]
  x, y = (tf.stack(parts) for parts in zip(*drawn, strict=True))
  return x, y


def _round(num_clients: int, num_steps: int, num_head_steps: int):
  """Returns a function that maps weights to the weights after a round."""
  x, y = _draw(
    num_clients, max(num_steps, plain_clients.EXAMPLES // plain_clients.BATCH)
  )

  @tf.function
  def run(initial):
    total = [tf.zeros_like(w) for w in initial]
    for client in tf.range(num_clients):
      weights = initial
      for number in tf.range(num_steps):
        batch = slice(
          number * plain_clients.BATCH, (number + 1) * plain_clients.BATCH
        )
        weights = plain_clients.step(
          weights, x[client, batch], y[client, batch]
        )
      if num_head_steps:
        body, head = weights[:-4], weights[-4:]
        features = plain_clients.dense(
          x[client, : plain_clients.EXAMPLES], body
        )
        for number in tf.range(num_head_steps):
          first = (
            number
            % (plain_clients.EXAMPLES // plain_clients.BATCH)
            * plain_clients.BATCH
          )
          batch = slice(first, first + plain_clients.BATCH)
          head = plain_clients.step(head, features[batch], y[client, batch])
        weights = body + head
      total = [t + w for t, w in zip(total, weights, strict=True)]
    return [t / num_clients for t in total]

  return run


class Plain:
  """A plain loop that runs in a separate process.

  Attributes:
    sums: The sum of each weight tensor after one round from
      `initial_weights`.
  """

  def __init__(self, process: subprocess.Popen):
    self._process = process
    self.sums = [float(each) for each in process.stdout.readline().split()]

  def _seconds(self, clock: Callable[[], float]) -> float:
    """Runs a round; returns its seconds."""
    self._process.stdin.write("go\n")
    self._process.stdin.flush()
    found = map(float, self._process.stdout.readline().split())
    return dict(zip(_CLOCKS, found, strict=True))[clock]

  def compare(
    self,
    run: Callable[[], object],
    repetitions: int,
    clock: Callable[[], float] = time.perf_counter,
  ) -> tuple[float, float, float]:
    """Times a function and the loop, alternately.

    Args:
      run: Runs a round by other means.
      repetitions: The number of repetitions, after two that are not measured.
      clock: `time.process_time` counts CPU seconds, on which other work on the
        machine has less influence.

    Returns:
      The median seconds of the function and of the loop, and the median ratio
      of a repetition.
    """
    turns = []
    for _ in range(_WARM_UP + repetitions):
      start = clock()
      run()
      turns.append((clock() - start, self._seconds(clock)))
    turns = turns[_WARM_UP:]
    ours, theirs = map(statistics.median, zip(*turns, strict=True))
    return ours, theirs, statistics.median(a / b for a, b in turns)


@contextlib.contextmanager
def started(
  num_clients: int, num_steps: int, num_head_steps: int = 0
) -> Iterator[Plain]:
  """Starts the loop for a `with` block.

  Args:
    num_clients: The number of clients.
    num_steps: The gradient steps of a client on all weights.
    num_head_steps: The following gradient steps on the last two layers, for
      which each example is embedded once.

  Yields:
    A `Plain`.
  """
  # It must not inherit this process's settings of TensorFlow's threads.
  environment = {k: v for k, v in os.environ.items() if k[:3] != "TF_"}
  command = [
    sys.executable,
    "-m",
    "benchmarks.plain_loop",
    f"--num_clients={num_clients}",
    f"--num_steps={num_steps}",
    f"--num_head_steps={num_head_steps}",
  ]
  with subprocess.Popen(
    command,
    stdin=subprocess.PIPE,
    stdout=subprocess.PIPE,
    stderr=subprocess.DEVNULL,
    text=True,
    env=environment,
  ) as process:
    try:
      yield Plain(process)
    finally:
      process.stdin.close()


def main(_) -> None:
  """Runs a round for each line of standard input, and prints the seconds."""
  run = _round(FLAGS.num_clients, FLAGS.num_steps, FLAGS.num_head_steps)
  weights = [tf.constant(w) for w in initial_weights()]
  first = [w.numpy() for w in run(weights)]
  print(*(np.float64(w).sum() for w in first), flush=True)
  for _ in sys.stdin:
    start = [clock() for clock in _CLOCKS]
    weights = run(weights)
    weights[-1].numpy()
    end = [clock() for clock in _CLOCKS]
    print(*map(operator.sub, end, start), flush=True)


if __name__ == "__main__":
  flags.DEFINE_integer("num_clients", 100, "Clients in a round.")
  flags.DEFINE_integer("num_steps", 4, "Steps of a client on all weights.")
  flags.DEFINE_integer("num_head_steps", 0, "Steps on the head after them.")
  app.run(main)
