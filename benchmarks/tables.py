"""Measures how long tables take to become clients, and how much memory.

  python -m benchmarks.tables
  python -m benchmarks.tables --rows=2000 --columns=10000 --users=20 --days=10
  python -m benchmarks.tables --sources=csv,dataframe

A table of random numbers, each row of a user and a day, is written for every
source and partitioned over clients of the scenario `evolving`. A process for
each source prints its seconds of processor time and what the peak of its memory
grows by beyond the source, as a multiple of the size of x (on Linux). First a
small table is read, which imports what is needed.
"""

import pathlib
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
from absl import app
from absl import flags

from tff_shift.data import partition

FLAGS = flags.FLAGS

_ROLES = {"label": "y", "client": "user", "time": "day"}
_SMALL = 400, 3, 4, 2
_STATUS = pathlib.Path("/proc/self/status")


def _columns(rows: int, columns: int, users: int, days: int) -> dict[str, Any]:
  generator = np.random.default_rng(0)
  return {
    "x": generator.normal(size=(rows, columns)).astype(np.float32),
    "y": generator.integers(0, 2, rows),
    "client": np.arange(rows) % users,
    "domain": np.arange(rows) // users % days,
  }


def _frame(arrays: dict[str, Any]) -> pd.DataFrame:
  frame = pd.DataFrame(arrays["x"]).add_prefix("x")
  return frame.assign(
    y=arrays["y"], user=arrays["client"], day=arrays["domain"]
  )


def _pairs(arrays: dict[str, Any]) -> list[list[Any]]:
  users, days = (int(arrays[name].max()) + 1 for name in ("client", "domain"))
  keys = arrays["client"] * days + arrays["domain"]
  groups = partition.split_by(keys, users * days)
  parts = [(arrays["x"][rows], arrays["y"][rows]) for rows in groups]
  return [parts[user * days : (user + 1) * days] for user in range(users)]


def _write(source: str, arrays: dict[str, Any], folder: pathlib.Path) -> str:
  """Writes a table; returns its name with options."""
  roles = "&".join(f"{role}={column}" for role, column in _ROLES.items())
  if source == "npz":
    np.savez(folder / "data.npz", **arrays)
    return str(folder / "data.npz")
  frame = _frame(arrays)
  if source == "csv":
    frame.to_csv(folder / "data.csv", index=False)
  elif source == "parquet":
    frame.to_parquet(folder / "data.parquet")
  else:
    import datasets

    datasets.Dataset.from_pandas(frame).save_to_disk(str(folder / "data"))
    return f"{folder / 'data'}?{roles}"
  return f"{folder / 'data'}.{source}?{roles}"


def _reader(
  source: str, shape: tuple[int, int, int, int], folder: pathlib.Path
) -> Callable[[], Any]:
  """Returns a function that makes the clients."""
  import tff_shift as ts

  arrays = _columns(*shape)
  if source == "dataframe":
    frame = _frame(arrays)
    return lambda: ts.from_dataframe("evolving", frame, **_ROLES).data
  if source == "arrays":
    pairs = _pairs(arrays)
    return lambda: ts.from_arrays("evolving", pairs)
  name = f"{source}_{shape[0]}"
  (folder / name).mkdir()
  file = _write(source, arrays, folder / name)
  users = shape[2]
  return lambda: ts.assemble_clients(
    ts.load_evolving(file), num_clients=users, seed=0
  )


def _memory(field: str) -> int:
  """Returns a field of Linux's status of this process, in KiB."""
  return int(re.search(rf"{field}:\s+(\d+)", _STATUS.read_text())[1])


def _measure(source: str) -> None:
  """Prints the line of a source."""
  shape = FLAGS.rows, FLAGS.columns, FLAGS.users, FLAGS.days
  with tempfile.TemporaryDirectory() as folder:
    _reader(source, _SMALL, pathlib.Path(folder))()
    read = _reader(source, shape, pathlib.Path(folder))
    _STATUS.with_name("clear_refs").write_text("5")  # Forgets the peak.
    before = _memory("VmRSS")
    start = time.process_time()
    clients = read()
    seconds = time.process_time() - start
  after = _memory("VmHWM")
  size = 4 * FLAGS.rows * FLAGS.columns / 2**10
  print(
    f"{source:12} {len(clients):,} clients: {seconds:5.1f} CPU s, peak"
    f" {(after - before) / 2**10:+.0f} MiB, {(after - before) / size:.1f} times"
    " x",
    flush=True,
  )


def main(_) -> None:
  """Starts a process for each source."""
  if FLAGS.source:
    _measure(FLAGS.source)
    return
  for source in FLAGS.sources:
    command = [sys.executable, "-m", "benchmarks.tables", f"--source={source}"]
    command += [
      f"--{name}={FLAGS[name].value}"
      for name in ("rows", "columns", "users", "days")
    ]
    subprocess.run(command, check=True)


if __name__ == "__main__":
  flags.DEFINE_integer("rows", 1_000_000, "Rows of the table.")
  flags.DEFINE_integer("columns", 10, "Columns of features.")
  flags.DEFINE_integer("users", 5_000, "Clients.")
  flags.DEFINE_integer("days", 100, "Times.")
  flags.DEFINE_list(
    "sources",
    ["npz", "csv", "parquet", "huggingface", "dataframe", "arrays"],
    "Sources to measure.",
  )
  flags.DEFINE_string("source", "", "The source of this process.")
  app.run(main)
