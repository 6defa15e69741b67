"""Measures a round of a Llama with adapters against a plain TensorFlow loop.

  python -m benchmarks.llama_round

Writes a model with random bfloat16 weights (100 million by default). Clients
take local AdamW steps on adapters and head (FedAvg). Prints the resident memory
of the process at each stage, as multiples of the base's size. Then a
`tf.function` takes the same steps on the same batches, client by client: the
weights after the round must agree. Both alternate; times are medians. Run it on
an idle machine.
"""

import concurrent.futures
import multiprocessing
import pathlib
import re
import statistics
import tempfile
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf
from absl import app
from absl import flags

from tff_shift import algorithms
from tff_shift import execution
from tff_shift import models
from tff_shift.data import client_dataset
from tff_shift.data.texts import tokens
from tff_shift.learning import local_training
from tff_shift.learning import randomness
from tff_shift.models.networks import llama_checkpoint
from tff_shift.models.networks import llama_random
from tff_shift.simulation.engine import rounds

FLAGS = flags.FLAGS

_CLASSES, _LENGTH, _BATCH = 41, 32, 4
# Adam's first steps have one size for all gradients, even nearly zero ones.
_TOLERANCE = 1e-5


def _config() -> llama_checkpoint.Config:
  """Returns a configuration with head size 64, sized by the flags."""
  width = FLAGS.width
  return llama_checkpoint.Config(
    vocabulary_size=FLAGS.vocabulary,
    width=width,
    num_layers=FLAGS.layers,
    num_heads=width // 64,
    num_key_value_heads=max(1, width // 64 // 3),
    head_size=64,
    mlp_width=width * 8 // 3,
    rope_theta=500000.0,
    norm_epsilon=1e-5,
  )


def _client(number: int) -> client_dataset.ClientDataset:
  """Returns the random examples of a client, of 8 to 32 tokens."""
  generator = np.random.default_rng([0, number])
  size = FLAGS.steps * _BATCH
  x = generator.integers(0, FLAGS.vocabulary, (size, _LENGTH)).astype(np.int32)
  lengths = generator.integers(8, _LENGTH + 1, size)
  x[np.arange(_LENGTH) >= lengths[:, np.newaxis]] = tokens.PADDING
  return client_dataset.ClientDataset.from_arrays(
    x=x,
    y=generator.integers(0, _CLASSES, size).astype(np.int32),
    domain_sizes=np.array([size], np.int32),
    seed=randomness.client_seed(0, number),
    client_id=np.int32(number),
  )


def _memory() -> int:
  """Returns the resident memory that is not backed by files, in bytes."""
  status = pathlib.Path("/proc/self/status").read_text()
  (kilobytes,) = re.findall(r"RssAnon:\s+(\d+) kB", status)
  return int(kilobytes) * 2**10


class _Stages:
  """Prints current and peak memory of each stage, relative to the start."""

  def __init__(self, base_size: int):
    self._base_size = base_size
    self._before = _memory()

  def run(self, stage: str, function: Callable[[], Any]) -> Any:
    """Calls a function and samples its memory every few milliseconds."""
    found, has_ended = [], threading.Event()

    def look():
      while not has_ended.wait(0.005):
        found.append(_memory())

    thread = threading.Thread(target=look)
    thread.start()
    try:
      result = function()
    finally:
      has_ended.set()
      thread.join()
    now = _memory()
    after, most = (each - self._before for each in (now, max([now, *found])))

    def described(size):
      return (
        f"{size / 1e6:6.0f} MB, {size / self._base_size:.2f} times the base"
      )

    print(
      f"{stage:16}{described(after)}; at most {described(most)}", flush=True
    )
    return result


def _plain_round(model, hparams, weights, clients):
  """Returns a function that computes the mean weights after all steps."""
  optimizer = local_training.build_optimizer(hparams, hparams.learning_rate)
  size = len(model.backbone.names)

  def loss_of(current, x, y):
    kernel, bias = current[size:]
    states = model.embed(current[:size], x)
    return local_training.cross_entropy(states @ kernel + bias, y)

  @tf.function
  def train(initial, x, y):
    state = optimizer.initialize(
      tuple(tf.TensorSpec(w.shape, w.dtype) for w in initial)
    )
    current = initial
    for step in tf.range(FLAGS.steps):
      batch = slice(step * _BATCH, (step + 1) * _BATCH)
      with tf.GradientTape() as tape:
        tape.watch(current)
        loss = loss_of(current, x[batch], y[batch])
      gradients = tape.gradient(loss, current)
      state, current = optimizer.next(state, current, tuple(gradients))
    return current

  @tf.function
  def draw(data):
    seed = randomness.fold(data.seed, randomness.Purpose.TRAIN, 0)
    batches = local_training.pooled_batches(data, FLAGS.steps, _BATCH, seed)
    drawn = [batches(step) for step in range(FLAGS.steps)]
    return [tf.concat(parts, axis=0) for parts in zip(*drawn, strict=True)]

  drawn = [draw(tf.nest.map_structure(tf.constant, each)) for each in clients]
  initial = tuple(map(tf.constant, tf.nest.flatten(weights)))

  def run():
    trained = [train(initial, x, y) for x, y in drawn]
    return [
      tf.add_n(parts).numpy() / len(clients)
      for parts in zip(*trained, strict=True)
    ]

  return run


def _seconds(run) -> float:
  start = time.perf_counter()
  run()
  return time.perf_counter() - start


def main(_) -> None:
  """Writes the model, measures, and prints."""
  config = _config()
  # In a separate process: memory that it frees would hide new allocations.
  with concurrent.futures.ProcessPoolExecutor(
    1, multiprocessing.get_context("spawn")
  ) as child:
    child.submit(llama_random.write, FLAGS.folder, config, 0).result()
  num_weights = sum(int(np.prod(shape)) for shape in config.shapes().values())
  stages = _Stages(2 * num_weights)
  print(f"base: {num_weights / 1e6:.1f} million weights, bfloat16", flush=True)
  model = stages.run(
    "read",
    lambda: models.build(
      "llama",
      input_shape=(_LENGTH,),
      num_classes=_CLASSES,
      model_dir=FLAGS.folder,
    ),
  )
  hparams = algorithms.get("fed_avg").HParams(
    batch_size=_BATCH,
    local_steps=FLAGS.steps,
    optimizer="adamw",
    learning_rate=1e-3,
  )
  clients = [_client(number) for number in range(FLAGS.num_clients)]
  with execution.use("in_process", max_concurrent_clients=FLAGS.concurrent):
    run = stages.run(
      "built",
      lambda: rounds.Rounds(
        algorithms.build("fed_avg", model, hparams), clients, run_seed=0
      ),
    )
    initial = run.server_state.weights
    stages.run("first round", run.step)
    ours = tf.nest.flatten(run.server_state.weights)
    stages.run("second round", run.step)
    plain = _plain_round(model, hparams, initial, clients)
    difference = max(
      np.abs(one - other).mean()
      for one, other in zip(plain(), ours, strict=True)
    )
    if not difference < _TOLERANCE:
      raise SystemExit(f"the plain loop gives other weights: {difference:.1e}")
    pairs = [(_seconds(run.step), _seconds(plain)) for _ in range(FLAGS.rounds)]
  mine, theirs = map(statistics.median, zip(*pairs, strict=True))
  ratio = statistics.median(one / other for one, other in pairs)
  print(
    f"{FLAGS.num_clients} clients, {FLAGS.steps} steps each: in process"
    f" {mine:.2f} s, plain loop {theirs:.2f} s, ratio {ratio:.2f}; mean"
    f" difference of the weights of a matrix at most {difference:.1e}"
  )


if __name__ == "__main__":
  flags.DEFINE_integer("width", 768, "Length of a hidden state, 64 n.")
  flags.DEFINE_integer("layers", 12, "Number of layers.")
  flags.DEFINE_integer("vocabulary", 32000, "Number of tokens.")
  flags.DEFINE_integer("num_clients", 5, "Clients in a round.")
  flags.DEFINE_integer("steps", 5, "Steps of a client.")
  flags.DEFINE_integer("rounds", 3, "Timed rounds.")
  flags.DEFINE_integer("concurrent", 1, "Clients that train in parallel.")
  with tempfile.TemporaryDirectory() as temporary:
    flags.DEFINE_string("folder", temporary, "Folder of the model to write.")
    app.run(main)
