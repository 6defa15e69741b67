"""Rounds of many small clients, beside a plain TensorFlow loop.

  python -m benchmarks.small_clients

A client has 64 examples of 784 numbers and takes four SGD steps (rate 0.1) on
batches of 16 with a perceptron of 63,370 parameters; then the mean. The plain
loop is one `tf.function` over all clients in sequence, on data that TensorFlow
holds already, in a process of its own with the threads that TensorFlow chooses.
It sees the batches that FedAvg draws, and its weights after a round must agree.
Both take turns, and the median counts: ratios hold on a machine, its seconds on
a day. Run it when the machine is idle.
"""

import contextlib
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator

import numpy as np
import tensorflow as tf
from absl import app
from absl import flags

from tff_shift import algorithms
from tff_shift import execution
from tff_shift.learning import local_training
from tff_shift.learning import randomness
from tff_shift.models import mlp
from tff_shift.models import split_model
from tff_shift.simulation import client_data
from tff_shift.simulation import rounds

FLAGS = flags.FLAGS
flags.DEFINE_list("num_clients", ["10", "100", "1000"], "Clients in a round.")
flags.DEFINE_integer("repetitions", 7, "Rounds of each.")
flags.DEFINE_bool("plain", False, "Is the plain loop: rounds on demand.")

_EXAMPLES, _FEATURES, _CLASSES = 64, 784, 10
_BATCH, _STEPS, _RATE, _WIDTH = 16, 4, 0.1, 64
_TOLERANCE = 1e-5


def _model() -> split_model.SplitModel:
  return mlp.build(
    (_FEATURES,), num_classes=_CLASSES, width=_WIDTH, head_width=_WIDTH
  )


def _client(number: int) -> local_training.ClientData:
  generator = np.random.default_rng([0, number])
  return local_training.ClientData(
    x=generator.normal(size=(_EXAMPLES, _FEATURES)).astype(np.float32),
    y=generator.integers(0, _CLASSES, _EXAMPLES).astype(np.int32),
    domain_sizes=np.array([_EXAMPLES], np.int32),
    seed=randomness.client_seed(0, number),
    client_id=np.int32(number),
  )


def _initial_weights() -> list[np.ndarray]:
  """Returns the same weights in every process, in the order of the layers."""
  generator = np.random.default_rng(1)
  model = _model()
  return [
    (generator.normal(size=shape) * (0.05 if len(shape) > 1 else 0)).astype(
      np.float32
    )
    for shape in model.backbone.shapes + model.head.shapes
  ]


def _plain_round(num_clients: int):
  """Returns the plain loop: weights to weights after a round."""

  @tf.function
  def draw(data):
    seed = randomness.fold(data.seed, randomness.Purpose.TRAIN, 0)
    batches = local_training.pooled_batches(data, _STEPS, _BATCH, seed)
    drawn = [batches(step) for step in range(_STEPS)]
    return [tf.concat(parts, axis=0) for parts in zip(*drawn, strict=True)]

  drawn = [
    draw(tf.nest.map_structure(tf.constant, _client(number)))
    for number in range(num_clients)
  ]
  x, y = (tf.stack(parts) for parts in zip(*drawn, strict=True))

  def step(weights, x, y):
    with tf.GradientTape() as tape:
      tape.watch(weights)
      features = x
      for kernel, bias in zip(weights[:-2:2], weights[1:-2:2], strict=True):
        features = tf.nn.relu(features @ kernel + bias)
      logits = features @ weights[-2] + weights[-1]
      loss = local_training.cross_entropy(logits, y)
    gradients = tape.gradient(loss, weights)
    return [w - _RATE * g for w, g in zip(weights, gradients, strict=True)]

  @tf.function
  def run(initial):
    total = [tf.zeros_like(w) for w in initial]
    for client in tf.range(num_clients):
      weights = initial
      for number in tf.range(_STEPS):
        start = number * _BATCH
        weights = step(
          weights,
          x[client, start : start + _BATCH],
          y[client, start : start + _BATCH],
        )
      total = [t + w for t, w in zip(total, weights, strict=True)]
    return [t / num_clients for t in total]

  return run


def _serve_plain(num_clients: int) -> None:
  """Runs a round for each line of the standard input, and prints seconds."""
  run = _plain_round(num_clients)
  weights = [tf.constant(w) for w in _initial_weights()]
  first = [w.numpy() for w in run(weights)]
  print(*(np.float64(w).sum() for w in first), flush=True)
  for _ in sys.stdin:
    start = time.perf_counter()
    weights = run(weights)
    weights[0].numpy()
    print(time.perf_counter() - start, flush=True)


@contextlib.contextmanager
def _plain(num_clients: int) -> Iterator[subprocess.Popen]:
  """Starts the plain loop in a process of its own."""
  # This process's settings of TensorFlow's threads are not for it.
  environment = {k: v for k, v in os.environ.items() if k[:3] != "TF_"}
  command = [
    sys.executable,
    "-m",
    "benchmarks.small_clients",
    "--plain",
    f"--num_clients={num_clients}",
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
      yield process
    finally:
      process.stdin.close()


def _start(num_clients: int) -> rounds.Rounds:
  """Returns FedAvg at the weights that the plain loop starts from."""
  model = _model()
  hparams = algorithms.get("fed_avg").HParams(
    batch_size=_BATCH, local_steps=_STEPS, learning_rate=_RATE
  )
  run = rounds.Rounds(
    algorithms.build("fed_avg", model, hparams),
    [_client(number) for number in range(num_clients)],
    run_seed=0,
  )
  weights = _initial_weights()
  size = len(model.backbone.shapes)
  run.server_state = run.server_state._replace(
    weights=split_model.SplitWeights(
      tuple(weights[:size]), tuple(weights[size:])
    )
  )
  return run


def _time(run) -> float:
  start = time.perf_counter()
  run()
  return time.perf_counter() - start


def _compare(num_clients: int) -> None:
  with _plain(num_clients) as plain:
    run = _start(num_clients)
    run.step()
    sums = [float(each) for each in plain.stdout.readline().split()]
    ours = [
      np.float64(w).sum() for w in tf.nest.flatten(run.server_state.weights)
    ]
    difference = np.abs(np.subtract(sums, ours)).max()
    if not difference < _TOLERANCE * _FEATURES:
      raise SystemExit(f"the plain loop does other work: {difference:.1e}")

    def plain_seconds():
      plain.stdin.write("go\n")
      plain.stdin.flush()
      return float(plain.stdout.readline())

    seconds = [
      (_time(run.step), plain_seconds()) for _ in range(FLAGS.repetitions + 2)
    ][2:]
  mine, theirs = (
    statistics.median(each) for each in zip(*seconds, strict=True)
  )
  ratio = statistics.median(one / other for one, other in seconds)
  print(
    f"{num_clients:5} clients: in process {mine:.4f} s, plain loop"
    f" {theirs:.4f} s, ratio {ratio:.2f}",
    flush=True,
  )


def _changing_cohorts() -> None:
  """Times 20 rounds of 50 to 150 of 150 clients, and of 100."""
  run = _start(150)
  (phase,) = run.algorithm.phases
  generator = np.random.default_rng(2)
  sizes = generator.integers(50, 151, 20)

  def one(size):
    phase(run.server_state, [()] * size, run.data[:size])

  one(100)
  for label, chosen in (
    ("50 to 150", sizes),
    ("as many clients in all, alike", [round(np.mean(sizes))] * 20),
  ):
    seconds = sum(_time(lambda size=size: one(size)) for size in chosen)
    print(f"20 rounds of {label}: {seconds:.2f} s", flush=True)


def _evaluation() -> None:
  """Times the evaluation of 1,000 clients."""
  run = _start(1000)
  to_predict = [
    client_data.to_predict(each.x, each.y, each.domain_sizes)
    for each in run.data
  ]
  states = run.client_states

  def evaluate():
    run.algorithm.evaluate_clients(
      run.server_state, states, run.data, to_predict
    )

  evaluate()
  seconds = statistics.median(_time(evaluate) for _ in range(5))
  print(f"evaluation of 1,000 clients: {seconds:.3f} s", flush=True)


def main(_) -> None:
  """Prints seconds and ratios."""
  counts = [int(each) for each in FLAGS.num_clients]
  if FLAGS.plain:
    _serve_plain(*counts)
    return
  with execution.use("in_process"):
    for num_clients in counts:
      _compare(num_clients)
    _changing_cohorts()
    _evaluation()


if __name__ == "__main__":
  app.run(main)
