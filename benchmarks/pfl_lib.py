"""Trains with PFLlib and with this package, on the same clients.

  python -m benchmarks.pfl_lib --pfl_lib=path/to/PFLlib \
      --pfl_lib_python=path/to/an/environment/with/torch/bin/python

PFLlib is a checkout of github.com/TsingZ0/PFLlib. Its program is imported and
not changed, except for `fed_dyn, squared`: there, FedDyn's penalty is the
square of the norm, as published.

Clients have the embedded MNIST images by a Dirichlet distribution of classes.
Both train the same layers from the same kind of first weights, with the same
numbers of clients, rounds, examples, batches and rates, and all clients in each
round. Each client's training examples are cut to whole double batches, because
PFLlib leaves out incomplete batches. Each program makes its own draws; the
partition depends on the seed and is the same for both.

Prints, for each method, the mean over clients of the accuracy on their own test
examples, in percent: mean and sample standard deviation over seeds. nan: a run
diverged.
"""

import json
import pathlib
import shutil
import statistics
import sys
import tempfile
from typing import Any

import numpy as np
from absl import app
from absl import flags

from benchmarks import other_programs
from tff_shift.data.shifts import guidance

_PFL_LIB = flags.DEFINE_string(
  "pfl_lib", None, "Folder of a checkout of PFLlib.", required=True
)
_PYTHON = flags.DEFINE_string(
  "pfl_lib_python",
  None,
  "Python with torch, scikit-learn, h5py and matplotlib.",
  required=True,
)
_SEEDS = flags.DEFINE_list("seeds", ["0", "1", "2"], "Seeds.")
_METHODS = flags.DEFINE_list("methods", [], "Rows. Default: all.")
_ROUNDS = flags.DEFINE_integer("rounds", 20, "Rounds.", lower_bound=2)
_LEARNING_RATE = flags.DEFINE_float("learning_rate", 0.02, "Learning rate.")

_NUM_CLIENTS, _BATCH_SIZE, _WIDTH = 10, 10, 64
_DATASET = "tff_shift"
# Of each row: the algorithm, PFLlib's arguments, our flags, and PFLlib's line
# that is replaced, as (file, old, new).
_FED_DYN = (
  "fed_dyn",
  {"alpha": 0.1},
  {"alpha": 0.1, "client_weighting": "uniform"},
)
_ROWS: dict[str, tuple[Any, ...]] = {
  "fed_avg": ("fed_avg", {}, {"client_weighting": "num_examples"}),
  "scaffold": (
    "scaffold",
    {},
    {"control": "steps", "client_weighting": "uniform"},
  ),
  "fed_dyn": _FED_DYN,
  "fed_dyn, squared": (
    *_FED_DYN,
    (
      "system/flcore/clients/clientdyn.py",
      "torch.norm(v1 - self.global_model_vector, 2)",
      "torch.norm(v1 - self.global_model_vector, 2) ** 2",
    ),
  ),
  "moon": (
    "moon",
    {"mu": 1.0, "tau": 0.5},
    {"mu": 1.0, "temperature": 0.5, "client_weighting": "num_examples"},
  ),
  "fed_proto": (
    "fed_proto",
    {"lamda": 1.0},
    {"prototype_weight": 1.0, "client_weighting": "uniform"},
  ),
  "fed_proto, classifier": (
    "fed_proto",
    {"lamda": 1.0},
    {
      "prototype_weight": 1.0,
      "client_weighting": "uniform",
      "proto_prediction": "classifier",
    },
  ),
  "per_fed_avg": (
    "per_fed_avg",
    {},
    {"hessian": "first_order", "client_weighting": "num_examples"},
  ),
  "p_fed_me": (
    "p_fed_me",
    {"lamda": 15.0, "K": 5, "p_learning_rate": 0.01, "beta": 1.0},
    {
      "moreau_lambda": 15,
      "personal_steps": 5,
      "learning_rate": 0.01,
      "weight_decay": 0.001,
      "client_weighting": "num_examples",
    },
  ),
}
# The reading of PFLlib that a row compares. Default: the reported one.
_READINGS = {"fed_proto, classifier": "classifier"}


def _clients(seed: int) -> guidance.GuidanceDataset:
  """Returns the clients, with training examples in whole double batches."""
  dataset = guidance.load_guidance(
    "mnist_5k",
    num_clients=_NUM_CLIENTS,
    partition="dirichlet_0.3",
    intensity="none",
    seed=seed,
  )
  train = []
  for own in dataset.train:
    kept = len(own.y) - len(own.y) % (2 * _BATCH_SIZE)
    train.append(own._replace(x=own.x[:kept], y=own.y[:kept]))
  return dataset._replace(train=tuple(train))


def _write_theirs(
  dataset: guidance.GuidanceDataset, folder: pathlib.Path
) -> None:
  for split in ("train", "test"):
    (folder / split).mkdir(parents=True)
    for client, own in enumerate(getattr(dataset, split)):
      # As torchvision's ToTensor and Normalize(0.5, 0.5).
      x = (own.x.astype(np.float32) / 255 - 0.5) / 0.5
      np.savez(
        folder / split / f"{client}.npz",
        data={"x": x.transpose(0, 3, 1, 2), "y": own.y.astype(np.int64)},
      )


def _ours(row: str, data: pathlib.Path, seed: int, work: pathlib.Path) -> float:
  algorithm, _, hparams = _ROWS[row][:3]
  settings = {
    "algorithm": algorithm,
    "dataset": data,
    "num_clients": _NUM_CLIENTS,
    "model": "mlp",
    "model_width": _WIDTH,
    "input_scaling": "minus_one_one",
    "rounds": _ROUNDS.value,
    "evaluate_every": _ROUNDS.value,
    "local_epochs": 1,
    "batch_size": _BATCH_SIZE,
    "momentum": 0,
    "cosine_rounds": 0,
    "weight_decay": 0,
    "learning_rate": _LEARNING_RATE.value,
    "seeds": seed,
  } | hparams
  if algorithm == "p_fed_me":
    settings["outer_rate"] = _LEARNING_RATE.value
  if algorithm == "per_fed_avg":
    settings["inner_rate"] = _LEARNING_RATE.value
  return other_programs.guidance(settings, work / "run")["average_accuracy"]


def _theirs(
  row: str, library: pathlib.Path, seed: int, work: pathlib.Path
) -> dict[str, float]:
  algorithm, arguments = _ROWS[row][:2]
  settings = {
    "pfl_lib": str(library),
    "algorithm": algorithm,
    "seed": seed,
    "num_features": 28 * 28,
    "width": _WIDTH,
    "arguments": {
      "dataset": _DATASET,
      "num_clients": _NUM_CLIENTS,
      "batch_size": _BATCH_SIZE,
      "local_epochs": 1,
      "global_rounds": _ROUNDS.value - 1,
      "local_learning_rate": _LEARNING_RATE.value,
    }
    | arguments,
  }
  path = work / "settings.json"
  path.write_text(json.dumps(settings))
  program = pathlib.Path(__file__).with_name("pfl_lib_rounds.py")
  return json.loads(
    other_programs.run([_PYTHON.value, str(program), str(path)])
  )


def _library(row: str, work: pathlib.Path) -> pathlib.Path:
  """Copies PFLlib's program, with the row's other line."""
  copy = work / "library"
  shutil.rmtree(copy, ignore_errors=True)
  shutil.copytree(
    pathlib.Path(_PFL_LIB.value) / "system", copy / "system", symlinks=True
  )
  for name, old, new in _ROWS[row][3:]:
    text = (copy / name).read_text()
    if old not in text:
      sys.exit(f"{name} of PFLlib has no {old!r} any more")
    (copy / name).write_text(text.replace(old, new))
  return copy


def _spread(values: list[float]) -> str:
  return f"{statistics.mean(values):.1f} ± {statistics.stdev(values):.1f}"


def main(_) -> None:
  """Prints the table as it grows."""
  print("| method | PFLlib | tff_shift | PFLlib, other readings |")
  print("| --- | --- | --- | --- |")
  with tempfile.TemporaryDirectory() as folder:
    work = pathlib.Path(folder)
    for row in _METHODS.value or _ROWS:
      library = _library(row, work)
      theirs, ours = [], []
      for text in _SEEDS.value:
        seed = int(text)
        dataset = _clients(seed)
        other_programs.write_clients(
          work / "clients.npz", dataset.train, dataset.test
        )
        shutil.rmtree(library / "dataset", ignore_errors=True)
        _write_theirs(dataset, library / "dataset" / _DATASET)
        theirs.append(_theirs(row, library, seed, work))
        ours.append(_ours(row, work / "clients.npz", seed, work))
      read = _READINGS.get(row, "as reported")
      readings = {
        name: _spread([100 * each[name] for each in theirs])
        for name in theirs[0]
      }
      main_reading = readings.pop(read)
      others = "; ".join(f"{name} {value}" for name, value in readings.items())
      print(
        f"| {row} | {main_reading} | {_spread(ours)} | {others} |", flush=True
      )


if __name__ == "__main__":
  app.run(main)
