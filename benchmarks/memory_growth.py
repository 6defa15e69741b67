"""Measures whether memory grows with rounds, for all executors.

  python -m benchmarks.memory_growth
  python -m benchmarks.memory_growth --executors=remote --algorithm=fed_avg
  python -m benchmarks.memory_growth --executors=remote --evaluate
  python -m benchmarks.memory_growth --rebuild

Trains a small MLP on rotated digits with eight clients. Each executor runs in a
separate Python process. Prints the resident size of this process (`driver`) and
of TFF's workers after some rounds, and its maximum. `remote` has two workers on
this machine. With personal states (`fed_rep`), client states are also passed
between driver and workers. With `--rebuild`, the algorithm is built again for
each round, as in a long-lived notebook, and the growth per build is printed.
"""

import concurrent.futures
import contextlib
import ctypes
import gc
import multiprocessing
import os
import pathlib
import re

import numpy as np
import psutil
from absl import app
from absl import flags
from absl import logging

from benchmarks import executor_equality
from tff_shift import algorithms
from tff_shift import execution
from tff_shift import models
from tff_shift.data.shifts import evolving as evolving_data
from tff_shift.scenarios.evolving import simulation as evolving
from tff_shift.simulation.engine import client_data
from tff_shift.simulation.engine import rounds

_NUM_CLIENTS = 8
_NUM_WORKERS = 2
# By round 100 everything is compiled and caches are full.
_SETTLED = 100
_ROUNDS = (10, _SETTLED, 250, 500)
# The first builds fill caches that later ones read.
_NUM_BUILDS, _FIRST_BUILDS = 24, 4


def _memory(pid: int) -> dict[str, float]:
  """Returns `VmRSS` and `VmHWM`, the current and peak resident size, in MiB."""
  status = pathlib.Path(f"/proc/{pid}/status").read_text()
  return {
    name: int(kilobytes) / 2**10
    for name, kilobytes in re.findall(r"(VmRSS|VmHWM):\s+(\d+) kB", status)
  }


def _all_memory() -> dict[str, dict[str, float]]:
  """Returns the memory of this process and of its workers, by name."""
  pids = [
    child.pid
    for child in psutil.Process().children(recursive=True)
    if child.name() == "worker_binary"
  ]
  return {"driver": _memory(os.getpid())} | {
    f"worker {position + 1}": _memory(pid)
    for position, pid in enumerate(sorted(pids))
  }


def _build(name: str, width: int = 64) -> rounds.Rounds:
  """Builds an algorithm and its clients with their first states."""
  dataset = evolving_data.load_evolving("rotated_digits", seed=0)
  clients = evolving_data.assemble_clients(
    dataset, num_clients=_NUM_CLIENTS, seed=0
  )
  model = models.build(
    "mlp",
    input_shape=dataset.domains[0].x.shape[1:],
    num_classes=len(dataset.class_names),
    input_dtype=np.uint8,
    width=width,
  )
  module = algorithms.get(name)
  algorithm = algorithms.build(module, model, module.HParams(local_steps=1))
  data = [evolving.training_data(client, 0) for client in clients]
  return rounds.Rounds(algorithm, data, run_seed=0)


def measure(
  executor: str, algorithm: str, evaluate: bool = False
) -> dict[int, dict[str, dict[str, float]]]:
  """Runs the rounds.

  Args:
    executor: The executor.
    algorithm: The algorithm's name.
    evaluate: Whether the clients' models are evaluated after each round.

  Returns:
    For some rounds, and for each process by name, `VmRSS` and `VmHWM` in MiB.
  """
  # TFF logs at each compilation which small graphs it did not optimise.
  logging.set_verbosity(logging.WARNING)
  with contextlib.ExitStack() as stack:
    remote_workers = None
    if executor == "remote":
      remote_workers = stack.enter_context(
        executor_equality.started_workers(_NUM_WORKERS)
      )
    stack.enter_context(execution.use(executor, remote_workers=remote_workers))
    run = _build(algorithm)
    to_predict = [
      client_data.to_predict(each.x, each.y, np.int32([len(each.y)]))
      for each in run.data
    ]
    found = {}
    for round_num in range(1, max(_ROUNDS) + 1):
      run.step()
      if evaluate:
        run.algorithm.evaluate_clients(
          run.server_state, run.client_states, run.data, to_predict
        )
      if round_num in _ROUNDS:
        found[round_num] = _all_memory()
  return found


def _growth_of_builds(algorithm: str, wider: int) -> float:
  """Returns the MiB that a process keeps of an algorithm that is gone.

  Args:
    algorithm: The algorithm's name.
    wider: By how many units the model grows from build to build.
  """
  logging.set_verbosity(logging.WARNING)
  sizes = []
  with execution.use("in_process"):
    for number in range(_NUM_BUILDS + 1):
      width = 64 + wider * number
      with contextlib.closing(_build(algorithm, width)) as run:
        run.step()
      del run
      gc.collect()
      ctypes.CDLL(None).malloc_trim(0)
      sizes.append(_memory(os.getpid())["VmRSS"])
  return (sizes[-1] - sizes[_FIRST_BUILDS]) / (_NUM_BUILDS - _FIRST_BUILDS)


def main(_) -> None:
  """Measures all executors and prints the table."""
  algorithm = flags.FLAGS.algorithm
  if flags.FLAGS.rebuild:
    for wider, models_are in ((0, "of one shape"), (1, "of other shapes")):
      with concurrent.futures.ProcessPoolExecutor(
        1, multiprocessing.get_context("spawn")
      ) as child:
        growth = child.submit(_growth_of_builds, algorithm, wider).result()
      print(
        f"{algorithm}, {_NUM_BUILDS} models {models_are}: {growth:.3f} MiB per"
        " build",
        flush=True,
      )
    return
  print(f"{algorithm}, {_NUM_CLIENTS} clients; resident MiB after round")
  print(
    f"{'executor':12}{'process':10}"
    + "".join(f"{each:>8}" for each in _ROUNDS)
    + f"{'peak':>8}   growth from {_SETTLED} to {_ROUNDS[-1]}",
    flush=True,
  )
  for executor in flags.FLAGS.executors:
    with concurrent.futures.ProcessPoolExecutor(
      1, multiprocessing.get_context("spawn")
    ) as child:
      found = child.submit(
        measure, executor, algorithm, flags.FLAGS.evaluate
      ).result()
    for name, last in found[_ROUNDS[-1]].items():
      sizes = [found[each][name]["VmRSS"] for each in _ROUNDS]
      growth = last["VmRSS"] / found[_SETTLED][name]["VmRSS"] - 1
      print(
        f"{executor:12}{name:10}"
        + "".join(f"{size:8.1f}" for size in [*sizes, last["VmHWM"]])
        + f"   {growth:+.1%}",
        flush=True,
      )


if __name__ == "__main__":
  flags.DEFINE_list(
    "executors", ["in_process", "local", "remote"], "Executors to measure."
  )
  flags.DEFINE_bool(
    "evaluate", False, "Evaluates the clients' models after each round, too."
  )
  flags.DEFINE_bool(
    "rebuild", False, "Builds the algorithm anew for each round, in process."
  )
  flags.DEFINE_string("algorithm", "fed_rep", "The algorithm.")
  app.run(main)
