"""The index of algorithms and models, held against the files themselves."""

import dataclasses
import inspect
import pathlib
import re
import shutil
import subprocess
import sys

import pytest

from tff_shift import algorithms
from tff_shift import models
from tff_shift._util import index
from tff_shift.command_line import write_index

_ROOT = pathlib.Path(__file__).parents[2]


def test_index_is_that_of_the_files():
  is_current = index.FILE.read_text() == index.to_json(write_index.make())
  assert is_current, "run `make index`"
  options = {name: models.options(name) for name in models.names()}
  assert "width" in options["mlp"]
  assert "split_model" not in options


def test_described_hyperparameters_are_those_of_the_imported_file():
  def told(kind):
    return [
      (field.name, field.default, type(field.default), dict(field.metadata))
      for field in dataclasses.fields(kind)
    ]

  for name in algorithms.names():
    module = algorithms.get(name)
    described = algorithms.describe(name)
    assert described.hparams is not module.HParams, "run `make index`"
    assert told(described.hparams) == told(module.HParams)
    assert described.hparams() is not None
    assert algorithms.describe_module(module)[:3] == described[:3]


def test_sources_are_the_files_that_fields_come_from():
  for name in algorithms.names():
    module = algorithms.get(name)
    of_classes = {
      pathlib.Path(inspect.getfile(kind)).relative_to(index.FOLDER).as_posix()
      for kind in module.HParams.__mro__
      if kind.__module__.startswith("tff_shift.")
    }
    found = write_index.sources(module.__name__)
    assert {f"algorithms/{name}.py"} | of_classes <= set(found)
  # A function makes fields, and a constant is a field's choices.
  of_evolve = write_index.sources("tff_shift.algorithms.fed_evolve")
  assert "algorithms/parts/prototypes.py" in of_evolve
  of_rep = write_index.sources("tff_shift.algorithms.fed_rep")
  assert "models/split_model.py" in of_rep
  # What only trains tells nothing of the flags.
  assert "learning/local_training.py" not in of_evolve


_NEW_ALGORITHM = '''
"""A new algorithm."""

import dataclasses

from tff_shift.algorithms import fed_avg
from tff_shift.learning import hyperparameters

SCENARIOS = ("evolving",)
build = fed_avg.build


@dataclasses.dataclass(frozen=True)
class HParams(fed_avg.HParams):
  """Hyper-parameters."""

  newness: float = hyperparameters.hparam(0.25, "How new it is.", minimum=0)
'''


@pytest.mark.long
def test_files_that_the_index_does_not_know_are_imported(tmp_path):
  for folder in ("experiments", "tff_shift"):
    shutil.copytree(
      _ROOT / folder,
      tmp_path / folder,
      ignore=shutil.ignore_patterns("__pycache__"),
    )
  package = tmp_path / "tff_shift"
  (package / "algorithms" / "new_one.py").write_text(_NEW_ALGORITHM)
  (package / "models" / "networks" / "new_model.py").write_text(
    "build = None\n"
  )
  # A file that algorithms take a field from.
  changed = package / "algorithms" / "parts" / "prototypes.py"
  text = changed.read_text()
  assert text.count('    "l2",\n') == 1
  changed.write_text(text.replace('    "l2",\n', '    "cosine",\n'))

  process = subprocess.run(
    [sys.executable, "-m", "experiments.evolving", "--help=all"],
    cwd=tmp_path,
    capture_output=True,
    text=True,
    check=True,
  )
  told = " ".join(process.stdout.split())
  assert re.search(r", new_one, [\w, ]+\(a comma separated list\)", told)
  assert "--newness: How new it is. Default: 0.25. (new_one)" in told
  assert re.search(r", new_model, ", told)
  assert "Default: cosine. (fed_evolve" in told
