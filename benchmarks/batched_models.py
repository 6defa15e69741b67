"""Compares clients in batches with the loop over clients, for each model.

  python -m benchmarks.batched_models
  python -m benchmarks.batched_models --models=cnn --algorithms=fed_avg,fed_ade

A line for each model and algorithm, small in width and images: the largest
difference between the two over all results of two rounds and an evaluation,
each from the loop's previous results, relative to the largest value of a
result; the operations with a kernel on floats in a round (`benchmarks.kernels`)
of 100 clients in a batch and in the loop, and their ratio; and what ran in a
loop over the clients or could not run in batches. Batches have as many for any
number of clients, and the loop as many more for each: both are counted with two
and three clients.
"""

import dataclasses
import tempfile
from collections.abc import Iterator

import numpy as np
import tensorflow as tf
from absl import app
from absl import flags
from absl import logging

from benchmarks import executor_equality
from benchmarks import kernels
from tff_shift import algorithms
from tff_shift import execution
from tff_shift import models
from tff_shift.execution.in_process import context as contexts
from tff_shift.models import split_model
from tff_shift.models.networks import llama_checkpoint
from tff_shift.models.networks import llama_random

FLAGS = flags.FLAGS

_NUM_CLIENTS = 100
_IMAGE = 16, 16, 3
_TEXT = (12,)
# Small in width, as deep as by default.
_OPTIONS = {
  "bi_lstm": {"vocabulary_size": 50, "embedding_width": 8, "width": 8},
  "cnn": {"channels": (8, 8, 16, 16), "head_width": 8},
  "guided_cnn": {"width": 16},
  "guided_resnet": {"width": 16},
  "lenet": {},
  "mini_resnet": {"width": 8},
  "mlp": {"width": 8, "head_width": 8},
  "residual_cnn": {"width": 8},
  "resnet": {"width": 16},
  "wide_resnet": {"widening_factor": 1},
}
_LLAMA = llama_checkpoint.Config(
  vocabulary_size=50,
  width=16,
  mlp_width=32,
  num_layers=2,
  num_heads=4,
  num_key_value_heads=2,
)


def _build_model(name: str) -> split_model.SplitModel:
  if name == "llama":
    with tempfile.TemporaryDirectory() as folder:
      llama_random.write(folder, _LLAMA, seed=0)
      return models.build(
        name, input_shape=_TEXT, num_classes=3, model_dir=folder
      )
  shape = _TEXT if name == "bi_lstm" else _IMAGE
  return models.build(name, input_shape=shape, num_classes=3, **_OPTIONS[name])


def _relative(result, expected) -> float:
  """Returns the largest difference, relative to the size of its values."""
  differences = []
  for one, other in zip(
    tf.nest.flatten(result), tf.nest.flatten(expected), strict=True
  ):
    difference = executor_equality.largest_difference(one, other)
    size = np.max(np.abs(other), initial=0, where=np.isfinite(other))
    differences.append(difference / max(1.0, size))
  return max(differences, default=0.0)


def _kernels(built, is_batch: bool) -> list[int]:
  """Returns the kernels on floats of the round of two and three clients."""
  counts = []
  with execution.use("in_process", batch_clients=is_batch):
    for number in (2, 3):
      calls = executor_equality.run_all(
        built, (), num_rounds=1, num_sizes=1, num_clients=number
      )
      phases = [call for call in calls if call.name.startswith("phase")]
      counts.append(
        sum(
          kernels.count(lambda call=call: call.computation(*call.arguments))[1]
          for call in phases
        )
      )
  return counts


def _line(name: str, algorithm: str) -> str:
  module = algorithms.get(algorithm)
  hparams = module.HParams()
  hparams = dataclasses.replace(
    hparams,
    **{
      key: value
      for key, value in {"batch_size": 4, "local_steps": 2}.items()
      if hasattr(hparams, key)
    },
  )
  try:
    built = algorithms.build(
      module,
      _build_model(name),
      hparams,
      num_clients=_NUM_CLIENTS,
      num_evaluation_domains=4,
    )
  except ValueError as refusal:
    return f"{name:14} {algorithm:10} {refusal!s:.200}"
  with execution.use("in_process", batch_clients=False):
    calls = executor_equality.run_all(
      built, ("evaluate_clients",), num_sizes=1, num_clients=3
    )
  try:
    with execution.use("in_process", batch_clients=True) as context:
      difference = max(
        _relative(call.computation(*call.arguments), call.result)
        for call in calls
      )
      looped = sorted(set(_looped(context)))
    batch, _ = _kernels(built, True)
  except execution.NotBatchedError as error:
    return f"{name:14} {algorithm:10} {error!s:.200}"
  two, three = _kernels(built, False)
  loop = two + (_NUM_CLIENTS - 2) * (three - two)
  # Clients with many values are called one by one, and are not counted.
  ratio = f"1/{loop / batch:<5.0f}" if loop else "-      "
  shown = f"{loop:,}" if loop else "-"
  return (
    f"{name:14} {algorithm:10} {difference:8.1e} {batch:7,} {shown:>9}"
    f"  {ratio} {', '.join(looped) or '-'}"
  )


def _looped(context: contexts.InProcessContext) -> Iterator[str]:
  """Yields the operations that ran in a loop over the clients."""
  for compiled in context._compiled.living():
    yield from compiled.looped


def main(_) -> None:
  """Prints a line for each model and algorithm."""
  logging.set_verbosity(logging.ERROR)
  print(
    f"{'model':14} {'algorithm':10} {'largest':>8} {'batch':>7} {'loop':>9}"
    "  ratio   in a loop"
  )
  for name in FLAGS.models or models.names():
    for algorithm in FLAGS.algorithms:
      print(_line(name, algorithm), flush=True)


if __name__ == "__main__":
  flags.DEFINE_list("models", [], "Models to compare. Default: all.")
  flags.DEFINE_list(
    "algorithms",
    ["fed_avg", "fed_rep", "fed_proto", "fed_evolve", "fed_ade"],
    "Algorithms to compare.",
  )
  app.run(main)
