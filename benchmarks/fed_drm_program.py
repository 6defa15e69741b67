"""Trains FedDRM with its authors' program and with this package.

  python -m benchmarks.fed_drm_program --program=path/to/FedDRM \
      --program_python=path/to/an/environment/with/torch/bin/python

The program is a checkout of github.com/zijianwang0510/FedDRM. It is imported
and not changed, except that it reads a part of CIFAR-10, and for the row
without crops: the program crops every image at random whenever it is read, also
test images, and this package crops none.

Both train LeNet with group normalisation on the same clients: the first 800
training and 200 test images of each class, by the program's own partition (Dir
0.3, 8 clients), with its transforms and its split of each client. Each draws
its own weights and batches. The program's other methods fail with LeNet; those
of this package are beside it.

Prints the system and the average accuracy in percent, means over the last
rounds: mean and sample standard deviation over seeds.
"""

import json
import pathlib
import shutil
import statistics
import tempfile

import numpy as np
from absl import app
from absl import flags

from benchmarks import other_programs
from tff_shift.data import datasets
from tff_shift.data import examples as examples_lib

_PROGRAM = flags.DEFINE_string(
  "program", None, "Folder of a checkout of FedDRM.", required=True
)
_PYTHON = flags.DEFINE_string(
  "program_python",
  None,
  "Python with torch, torchvision, fedlab, omegaconf, matplotlib and"
  " tensorboard.",
  required=True,
)
_SEEDS = flags.DEFINE_list("seeds", ["2025", "2026"], "Seeds.")
_ROUNDS = flags.DEFINE_integer("rounds", 40, "Rounds.", lower_bound=1)
_LAST = flags.DEFINE_integer("final_rounds", 5, "Rounds in a mean.")
_ALGORITHMS = flags.DEFINE_list(
  "algorithms", ["fed_drm"], "Algorithms of this package."
)
_VARIANTS = flags.DEFINE_list(
  "variants", ["crop", "no_crop"], "Variants of the program."
)
_MAX_TRAIN = flags.DEFINE_integer("train_images", 800, "Of each class.")
_MAX_TEST = flags.DEFINE_integer("test_images", 200, "Of each class.")
_NUM_CLIENTS, _NUM_CLASSES, _ALPHA = 8, 10, 0.3


def _first_of_each(y: np.ndarray, count: int) -> np.ndarray:
  """Returns the places of the first examples of each class, in order."""
  return np.sort(
    np.concatenate(
      [np.flatnonzero(y == label)[:count] for label in range(_NUM_CLASSES)]
    )
  )


def _write_images(path: pathlib.Path) -> tuple[np.ndarray, np.ndarray]:
  """Writes the images for the program; returns all of them, and classes."""
  source = datasets.load("cifar10")
  splits = {
    "train": (slice(source.num_train), _MAX_TRAIN.value),
    "test": (slice(source.num_train, None), _MAX_TEST.value),
  }
  arrays = {}
  for split, (part, count) in splits.items():
    x, y = source.x[part], source.y[part]
    kept = _first_of_each(y, count)
    arrays |= {f"{split}_x": x[kept], f"{split}_y": y[kept]}
  np.savez(path, **arrays)
  return tuple(
    np.concatenate([arrays[f"train_{name}"], arrays[f"test_{name}"]])
    for name in "xy"
  )


def _theirs(
  work: pathlib.Path, seed: str, crop: bool, clients: pathlib.Path | None = None
) -> dict[str, list[float]] | None:
  """Trains with the program, or with `clients` only partitions."""
  settings = {
    "program": str(work / "program"),
    "images": str(work / "images.npz"),
    "crop": crop,
    "config": {
      "model": "lenetgn",
      "device": "cpu",
      "seed": int(seed),
      "num_clients": _NUM_CLIENTS,
      "dir_alpha": _ALPHA,
      "commu_round": _ROUNDS.value,
    },
  }
  if clients is not None:
    settings["clients"] = str(clients)
  path = work / "settings.json"
  path.write_text(json.dumps(settings))
  script = pathlib.Path(__file__).with_name("fed_drm_rounds.py")
  printed = other_programs.run([_PYTHON.value, str(script), str(path)])
  return json.loads(printed) if clients is None else None


def _write_ours(
  path: pathlib.Path, clients: pathlib.Path, x: np.ndarray, y: np.ndarray
) -> None:
  """Writes the clients of the program as a data set with clients."""
  with np.load(clients) as arrays:
    train, test = (
      [
        examples_lib.Examples(x[places], y[places])
        for places in (arrays[f"{split}_{c}"] for c in range(_NUM_CLIENTS))
      ]
      for split in ("train", "test")
    )
  other_programs.write_clients(path, train, test)


def _ours(work: pathlib.Path, algorithm: str, seed: str) -> dict[str, float]:
  settings = {
    "algorithm": algorithm,
    "dataset": work / "clients.npz",
    "intensity": "high",
    "num_clients": _NUM_CLIENTS,
    "model": "lenet",
    "sharing": "deep",
    "rounds": _ROUNDS.value,
    "final_rounds": _LAST.value,
    "evaluate_every": _ROUNDS.value,
    "local_steps": 10,
    "batch_size": 128,
    "learning_rate": 0.01,
    "momentum": 0.9,
    "weight_decay": 5e-4,
    "input_scaling": "minus_one_one",
    "seeds": seed,
  }
  found = other_programs.guidance(settings, work / "run")
  return {name: found[f"{name}_accuracy"] for name in ("system", "average")}


def _row(name: str, found: list[dict[str, float]]) -> None:
  cells = []
  for metric in ("system", "average"):
    values = [each[metric] for each in found]
    spread = statistics.stdev(values) if len(values) > 1 else float("nan")
    listed = ", ".join(f"{each:.1f}" for each in values)
    cells.append(f"{statistics.mean(values):.1f} ± {spread:.1f} | {listed}")
  print(f"| {name} | {' | '.join(cells)} |", flush=True)


def main(_) -> None:
  """Prints the table as it grows."""
  print("| program | system accuracy | seeds | average accuracy | seeds |")
  print("| --- | --- | --- | --- | --- |")
  with tempfile.TemporaryDirectory() as folder:
    work = pathlib.Path(folder)
    # It writes into its own folder.
    shutil.copytree(_PROGRAM.value, work / "program", symlinks=True)
    x, y = _write_images(work / "images.npz")
    for variant in _VARIANTS.value:
      found = []
      for seed in _SEEDS.value:
        record = _theirs(work, seed, variant == "crop")
        found.append(
          {
            "system": statistics.mean(record["sys_acc"][-_LAST.value :]),
            "average": statistics.mean(record["avg_acc"][-_LAST.value :]),
          }
        )
      _row(f"authors' FedDRM, {variant}", found)
    for algorithm in _ALGORITHMS.value:
      found = []
      for seed in _SEEDS.value:
        _theirs(work, seed, True, work / "partition.npz")
        _write_ours(work / "clients.npz", work / "partition.npz", x, y)
        found.append(_ours(work, algorithm, seed))
      _row(f"tff_shift, {algorithm}", found)


if __name__ == "__main__":
  app.run(main)
