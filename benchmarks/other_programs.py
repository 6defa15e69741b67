"""What comparisons with other programs on the same clients share."""

import json
import pathlib
import subprocess
import sys
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

import numpy as np

from tff_shift.data import examples as examples_lib


def run(command: Sequence[str]) -> str:
  """Runs a program; returns what it prints, or ends with its error."""
  done = subprocess.run(command, capture_output=True, text=True, check=False)
  if done.returncode:
    sys.exit(f"{' '.join(command)} failed:\n{done.stderr[-2000:]}")
  return done.stdout


def write_clients(
  path: pathlib.Path,
  train: Sequence[examples_lib.Examples],
  test: Sequence[examples_lib.Examples],
) -> None:
  """Writes the examples of each client as a data set with clients."""
  parts = (*train, *test)
  np.savez(
    path,
    x=np.concatenate([each.x for each in parts]),
    y=np.concatenate([each.y for each in parts]),
    client=np.concatenate(
      [
        np.full(len(each.y), place % len(train))
        for place, each in enumerate(parts)
      ]
    ),
    num_train=sum(len(each.y) for each in train),
  )


def guidance(
  settings: Mapping[str, Any], folder: pathlib.Path
) -> dict[str, float]:
  """Runs `experiments.guidance` with one seed; returns its metrics."""
  run(
    [sys.executable, "-m", "experiments.guidance", "--overwrite"]
    + [f"--{name}={value}" for name, value in settings.items()]
    + [f"--output_dir={folder}"]
  )
  summary = json.loads((folder / "summary.json").read_text())
  metrics = summary["runs"][0]["metrics"]
  return {
    name: values["mean"]
    for name, values in metrics.items()
    if isinstance(values, dict)
  }
