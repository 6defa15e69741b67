"""Checks that a run that is killed repeatedly gives bit-identical results.

  python -m benchmarks.resume --binary=evolving --kills=10
  python -m benchmarks.resume --binary=online_adaptation --seed=1
  python -m benchmarks.resume --binary=guidance
  python -m benchmarks.resume --binary=dynamic_personalization

Runs a binary without interruption. Then runs it again, killed by SIGKILL at
random moments, also while it starts or saves, and resumed each time. Compares
the outputs bit by bit: metrics.csv, summary.json (except times), figures,
TensorBoard's values, the values of clients, and the weights.
"""

import contextlib
import json
import os
import pathlib
import random
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from collections.abc import Sequence
from typing import Any

import tensorflow as tf
from absl import app
from absl import flags
from tensorboard.backend.event_processing import event_accumulator

_ROOT = pathlib.Path(__file__).parents[1]
_SMALL = {
  "evolving": (
    "--algorithm=fed_avg,fed_rep",
    "--dataset=circle",
    "--num_domains=4",
    "--max_examples_per_domain=90",
    "--num_clients=4",
    "--participation=0.5",
    "--rounds=30",
    "--local_steps=2",
    "--evaluate_every=2",
    "--optimizer=adam",
    "--learning_rate=1e-2",
  ),
  "online_adaptation": (
    "--algorithm=fed_ade,fth",
    "--dataset=digits",
    "--model_width=8",
    "--timesteps=20",
    "--num_clients=4",
    "--initial_examples=20",
    "--samples_per_step=20",
    "--pretraining_epochs=1",
    "--max_pretraining_examples=200",
  ),
  "guidance": (
    "--algorithm=fed_drm,fed_rep",
    "--dataset=digits",
    "--num_clients=4",
    "--max_examples=400",
    "--rounds=20",
    "--local_steps=2",
    "--batch_size=16",
    "--evaluate_every=2",
    "--final_rounds=3",
  ),
  "dynamic_personalization": (
    "--algorithm=fed_3da,p_fed_hn",
    "--dataset=digits",
    "--max_examples=600",
    "--num_clients=4",
    "--participation=0.5",
    "--rounds=40",
    "--period_size=20",
    "--periods=10",
    "--test_distributions=iid,0.5,0.9",
    "--model=mlp",
    "--model_width=4",
    "--hidden_width=6",
    "--num_hidden=1",
    "--pretraining_epochs=1",
  ),
}
# These binaries cache pre-trained models.
_WITH_CACHE = ("online_adaptation", "dynamic_personalization")


def num_rows(folder: pathlib.Path) -> int:
  """Returns the number of lines of metrics.csv below its header."""
  try:
    return max(0, (folder / "metrics.csv").read_text().count("\n") - 1)
  except FileNotFoundError:
    return 0


def _start(binary: str, arguments: Sequence[str]) -> subprocess.Popen:
  return subprocess.Popen(
    [sys.executable, "-m", f"experiments.{binary}", *arguments],
    cwd=_ROOT,
    stdout=subprocess.PIPE,
    stderr=subprocess.STDOUT,
    text=True,
    # A separate session, to be killed with all child processes.
    start_new_session=True,
  )


def _finish(process: subprocess.Popen) -> None:
  output, _ = process.communicate()
  if process.returncode != 0:
    raise RuntimeError(f"exit code {process.returncode}: {output}")


def _kill_after(
  process: subprocess.Popen, folder: pathlib.Path, rows: int, delay: float
) -> bool:
  """Kills a process some time after it has written a number of rows.

  Returns:
    Whether it was still running.
  """
  try:
    while num_rows(folder) < rows and process.poll() is None:
      time.sleep(0.02)
    time.sleep(delay)
  finally:
    was_running = process.poll() is None
    if was_running:
      os.killpg(process.pid, signal.SIGKILL)
    output, _ = process.communicate()
  if not was_running and process.returncode != 0:
    raise RuntimeError(f"exit code {process.returncode}: {output}")
  return was_running


def run_whole(
  binary: str, arguments: Sequence[str], folder: pathlib.Path
) -> None:
  """Runs a binary without interruption."""
  _finish(_start(binary, [*arguments, f"--output_dir={folder}"]))


def run_killed(
  binary: str,
  arguments: Sequence[str],
  folder: pathlib.Path,
  moments: Sequence[tuple[int, float]],
) -> Iterator[int]:
  """Runs a binary to its end, killed and resumed at some moments.

  Args:
    binary: Its name.
    arguments: Its flags, except the folder.
    folder: The output folder.
    moments: Numbers of rows of metrics.csv, ascending, and seconds after them,
      at which the process is killed.

  Yields:
    The number of rows when it was killed.
  """

  def start():
    # A run that was killed before it made its folder cannot be resumed.
    started = (folder / "metrics.csv").exists()
    return _start(
      binary,
      [*arguments, f"--output_dir={folder}", *["--resume"] * started],
    )

  for rows, delay in moments:
    if _kill_after(start(), folder, rows, delay):
      yield num_rows(folder)
  _finish(start())


def _final_states(folder: pathlib.Path) -> dict[str, bytes]:
  """Returns the last states in each run's file as bytes, by name."""
  found = {}
  for path in sorted((folder / "checkpoints").glob("*.sqlite")):
    with contextlib.closing(sqlite3.connect(path)) as connection:
      ((last,),) = connection.execute("SELECT MAX(step) FROM checkpoints")
      for owner, part, content, _ in connection.execute(
        "SELECT owner, part, content, MAX(step) FROM states"
        " GROUP BY owner, part"
      ):
        found[f"{path.stem}/{last}/{owner}/{part}"] = content
  return found


def _client_values(folder: pathlib.Path) -> list[tuple]:
  """Returns the rows of the values of clients in each run's file."""
  found = []
  for path in sorted((folder / "checkpoints").glob("*.sqlite")):
    with contextlib.closing(sqlite3.connect(path)) as connection:
      for table in ("evaluations", "measurements", "details"):
        rows = connection.execute(f"SELECT * FROM {table}").fetchall()
        found.append((path.stem, table, sorted(rows)))
  return found


def scalars(folder: pathlib.Path) -> dict[str, list[tuple[int, float]]]:
  """Returns TensorBoard's steps and values, by run and scalar."""
  folder, found = folder / "tensorboard", {}
  for path in sorted(folder.rglob("events*")):
    events = event_accumulator.EventAccumulator(
      str(path), size_guidance={event_accumulator.TENSORS: 0}
    )
    events.Reload()
    for tag in events.Tags()["tensors"]:
      found[f"{path.parent.relative_to(folder)}/{tag}"] = [
        (each.step, tf.make_ndarray(each.tensor_proto).tolist())
        for each in events.Tensors(tag)
      ]
  return found


def _summary(folder: pathlib.Path) -> list[dict[str, Any]]:
  runs = json.loads((folder / "summary.json").read_text())["runs"]
  return [{k: v for k, v in run.items() if "seconds" not in k} for run in runs]


def _figures(folder: pathlib.Path) -> dict[str, bytes]:
  return {
    path.name: path.read_bytes()
    for path in sorted((folder / "figures").iterdir())
  }


def differences(one: pathlib.Path, other: pathlib.Path) -> list[str]:
  """Returns the outputs in which two folders differ in any bit."""
  found = [
    name
    for name, read in (
      ("metrics.csv", lambda path: (path / "metrics.csv").read_bytes()),
      ("summary.json", _summary),
      ("figures", _figures),
      ("tensorboard", scalars),
      ("values of clients", _client_values),
    )
    # As texts, in which NaN equals NaN.
    if repr(read(one)) != repr(read(other))
  ]
  states, others = _final_states(one), _final_states(other)
  if not states or states.keys() != others.keys():
    return [*found, "names of states"]
  return found + [
    name for name, state in states.items() if state != others[name]
  ]


def main(_) -> None:
  """Runs, kills, resumes and compares."""
  binary, seed = flags.FLAGS.binary, flags.FLAGS.seed
  with tempfile.TemporaryDirectory() as name:
    arguments = [
      *_SMALL[binary],
      "--seeds=0,1",
      "--checkpoint_every=5",
      "--noprogress",
    ]
    if binary in _WITH_CACHE:
      arguments.append(f"--cache_dir={name}/cache")
    whole, killed = (pathlib.Path(name, each) for each in ("whole", "killed"))
    run_whole(binary, arguments, whole)
    generator = random.Random(seed)
    # A start takes seconds; a round or a checkpoint takes a tenth of a second.
    rows = sorted(
      generator.randrange(num_rows(whole)) for _ in range(flags.FLAGS.kills)
    )
    moments = [
      (each, generator.choice([0.05, 0.5, 5]) * generator.random())
      for each in rows
    ]
    at = list(run_killed(binary, arguments, killed, moments))
    found = differences(whole, killed)
    print(
      f"{binary}: killed at {at} of {num_rows(whole)} rows;"
      f" {len(_final_states(whole))} states compared; differences:"
      f" {', '.join(found) or 'none'}"
    )
  sys.exit(bool(found))


if __name__ == "__main__":
  flags.DEFINE_enum("binary", "evolving", list(_SMALL), "The binary.")
  flags.DEFINE_integer("kills", 10, "Number of kills.")
  flags.DEFINE_integer("seed", 0, "Seed of the random moments.")
  app.run(main)
