"""Binaries run whole: in this process, or in one of their own."""

import contextlib
import csv
import functools
import gc
import importlib
import io
import json
import os
import pathlib
import re
import subprocess
import sys
from typing import NamedTuple

import numpy as np
import pandas
import pytest
import tensorflow as tf
from absl import flags
from absl.testing import flagsaver

from benchmarks import resume
from tff_shift import execution
from tff_shift import models
from tff_shift.binaries import evolving
from tff_shift.command_line import comparison
from tff_shift.command_line import program
from tff_shift.command_line.flags import metric_flags
from tff_shift.command_line.flags import participation_flags
from tff_shift.command_line.flags import server_optimizer_flags
from tff_shift.reporting.figures import drawing
from tff_shift.simulation.storage import results

_ROOT = pathlib.Path(__file__).parents[2]

# A process in the background of a shell ignores Ctrl-C, and so do its children.
_WITH_CTRL_C = (
  "import os, signal, sys; signal.signal(signal.SIGINT, signal.SIG_DFL);"
  " os.execv(sys.executable, [sys.executable, *sys.argv[1:]])"
)


def _initial_bits(model):
  """The initial weights for two seeds, and the statistics."""
  weights = [
    model.initial_weights(np.array(seed, np.int32)) for seed in ((0, 1), (2, 3))
  ]
  values = tf.nest.flatten((weights, model.statistics))
  return tuple(np.asarray(each).tobytes() for each in values)


@pytest.fixture(scope="module", autouse=True)
def built_once():
  """What several runs of a module have is built, and compiled, once.

  That is most of what a small run takes, and not what is tested here. What is
  shared has no state: it is what another process would build again.
  """
  build, built = comparison.Comparison.build, {}

  def build_once(self, trial, model=None, **options):
    aggregator = self.plan.aggregators[trial.algorithm]
    own = self.plan.model if model is None else model
    # What has frozen weights or factories of its own is not compared.
    if own.frozen or not (aggregator is None or aggregator.traits.is_mean):
      return build(self, trial, model, **options)
    key = (
      trial.algorithm,
      trial.hparams,
      # The plan's has the initial weights of its name, or of one file.
      None if model is None else _initial_bits(model),
      (own.name, own.input_shape, own.input_dtype, own.input_scaling),
      *(tuple(map(tuple, part.shapes)) for part in (own.backbone, own.head)),
      flags.FLAGS.num_clients,
      *server_optimizer_flags.settings().items(),
      participation_flags.needs_losses(),
      *metric_flags.names(),
      *options.items(),
    )
    if key not in built:
      built[key] = build(self, trial, model, **options)
    return built[key]

  make, made = models._build, {}

  def make_once(name, builder, input_shape, num_classes, chosen):
    arguments = name, builder, input_shape, num_classes
    if models.is_user_model(name):
      return make(*arguments, chosen)
    key = *arguments, *sorted(chosen.items())
    if key not in made:
      made[key] = make(*arguments, chosen)
    return made[key]

  with pytest.MonkeyPatch.context() as patches:
    patches.setattr(comparison.Comparison, "build", build_once)
    patches.setattr(execution, "use", functools.cache(execution.use))
    patches.setattr(models, "_build", make_once)
    yield


_DRAW = drawing.save


def _leave_empty(figure, path):
  for suffix in (".png", ".pdf"):
    pathlib.Path(path).with_suffix(suffix).touch()
  return path


@pytest.fixture(scope="module", autouse=True)
def empty_figures():
  """Files of figures are empty: to draw them takes seconds."""
  with pytest.MonkeyPatch.context() as patches:
    patches.setattr(drawing, "save", _leave_empty)
    yield


@contextlib.contextmanager
def _drawn(*names):
  def draw(figure, path):
    is_drawn = not names or pathlib.Path(path).stem in names
    return (_DRAW if is_drawn else _leave_empty)(figure, path)

  with pytest.MonkeyPatch.context() as patches:
    patches.setattr(drawing, "save", draw)
    yield


@pytest.fixture(scope="session")
def drawn_figures():
  """Returns `drawn(*names)`: within its `with`, files have their figures.

  Names leave all others empty.
  """
  return _drawn


@contextlib.contextmanager
def _collected_as_before():
  """Binaries set for their process how often it looks for garbage."""
  before = gc.get_threshold()
  try:
    yield
  finally:
    gc.set_threshold(*before)


def _split(arguments):
  """The arguments in texts; flags begin with two dashes behind a blank."""
  texts = [arguments] if isinstance(arguments, str) else map(str, arguments)
  flags = (re.split(r"\s+(?=--\w)", text.strip()) for text in texts)
  return [flag for split in flags for flag in split if flag]


def _module(binary):
  """A binary that is a module, or the name of one of the package."""
  if isinstance(binary, str):
    return importlib.import_module(f"tff_shift.binaries.{binary}")
  return binary


def _run_here(binary, arguments, main=None, **options):
  binary, arguments = _module(binary), _split(arguments)
  # A scenario in one file is its own configuration's module.
  flags_of = planning = getattr(binary, "planning", binary)
  if hasattr(planning, "SCENARIO"):
    flags_of = planning.Configuration
    # To save models takes as long as the runs of most tests.
    if not any(each.startswith("--save_model") for each in arguments):
      arguments = ["--nosave_model", *arguments]
  name = binary.__name__.rpartition(".")[2]
  with (
    pytest.MonkeyPatch.context() as patches,
    _collected_as_before(),
    # Takes away the flags that the binary defines, too.
    flagsaver.flagsaver(),
    pytest.raises(SystemExit) as end,
  ):
    patches.setattr(sys, "argv", [name, *arguments])
    flags.FLAGS.unparse_flags()
    program.run(main or binary.main, flags_of.define_flags, **options)
  return end.value.code or 0


@pytest.fixture(scope="session")
def run_here():
  """Returns `run(binary, arguments, main=None, **options) -> exit code`.

  It runs the binary, a module or its name, in this process, or `main` in its
  place; options are `program.run`'s. Arguments are a text or several, of one
  flag or more.
  """
  return _run_here


class Run(NamedTuple):
  """A run of a binary that has ended."""

  folder: pathlib.Path
  code: int
  output: str
  errors: str

  @property
  def rows(self):
    """The rows of metrics.csv."""
    with open(self.folder / "metrics.csv", encoding="utf-8") as file:
      return list(csv.DictReader(file))

  @property
  def frame(self):
    """The rows of metrics.csv as a data frame."""
    path = self.folder / "metrics.csv"
    return pandas.read_csv(path, float_precision="round_trip")

  @property
  def runs(self):
    """The runs of summary.json without times: the same flags give the same."""
    runs = json.loads((self.folder / "summary.json").read_text())["runs"]
    for run in runs:
      del run["seconds_per_round"]
    return runs

  @property
  def config(self):
    """What config.json has."""
    return json.loads((self.folder / "config.json").read_text())

  @property
  def figures(self):
    """The names of the figures."""
    return {path.stem for path in self.folder.glob("figures/*.png")}


@pytest.fixture(scope="session")
def run_in():
  """Returns `run(folder, binary, *flags, code=0, errors=None) -> Run`.

  It runs the binary as `run_here` does, into a folder, to the end with a code,
  and with these errors, if they are given.
  """

  def run(folder, binary, *flags, code=0, errors=None, **options):
    output, told = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(output), contextlib.redirect_stderr(told):
      arguments = [*flags, f"--output_dir={folder}"]
      ended = _run_here(binary, arguments, **options)
    run = Run(folder, ended, output.getvalue(), told.getvalue())
    assert ended == code, run.errors
    assert errors in (None, run.errors)
    return run

  return run


@pytest.fixture(scope="session")
def run_once(run_in, tmp_path_factory):
  """Returns `run(binary, *flags, folder="run", ...)`: it is kept for a module.

  It is `run_in` a new folder.
  """

  def run(*given, folder="run", **options):
    return run_in(tmp_path_factory.mktemp("runs") / folder, *given, **options)

  return run


@pytest.fixture
def run(run_in, tmp_path):
  """Returns `run(binary, *flags, folder="run", ...)`: `run_in` a new folder."""
  return lambda *given, folder="run", **options: run_in(
    tmp_path / folder, *given, **options
  )


@pytest.fixture(scope="session")
def planned(run_here):
  """Returns `planned(binary, arguments, ask=make_plan)`: what `ask` gives.

  The binary goes as far as its plan.
  """

  def plan(binary, arguments, ask=None):
    found = []

    def main():
      found.append((ask or _module(binary).planning.make_plan)())

    assert run_here(binary, arguments, main) == 0
    return found[0]

  return plan


@contextlib.contextmanager
def _stopped_at(**values):
  write = results.RunFolder.write_metrics

  def stop(self, row):
    if values.items() <= row.items():
      raise KeyboardInterrupt
    write(self, row)

  with pytest.MonkeyPatch.context() as patches:
    patches.setattr(results.RunFolder, "write_metrics", stop)
    yield


@pytest.fixture(scope="session")
def stopped_at():
  """Returns `stopped_at(**values)`.

  Within its `with`, Ctrl-C comes before a row with these values is written.
  """
  return _stopped_at


def _content(folder):
  # Modes tell pipes from files, which must not be opened.
  return {
    path.relative_to(folder): path.read_bytes() if path.is_file() else None
    for path in folder.rglob("*")
    if path.name != ".lock"
  }


@pytest.fixture
def refused(tmp_path, capsys):
  """Returns `refused(binary, arguments, **options) -> the line`.

  Results of a scenario go to the folder `run` if the arguments, as those of
  `run_here`, name no other. The exit code is 2, and nothing is printed or
  written otherwise.
  """

  def run(binary, arguments, **options):
    binary, arguments = _module(binary), _split(arguments)
    if hasattr(getattr(binary, "planning", binary), "SCENARIO"):
      arguments = [f"--output_dir={tmp_path / 'run'}", *arguments]
    before = _content(tmp_path)
    capsys.readouterr()
    code = _run_here(binary, arguments, **options)
    output, errors = capsys.readouterr()
    assert (code, output, errors.count("\n")) == (2, "", 1), errors
    assert errors[:-1].isprintable()
    assert errors.startswith(f"{binary.__name__.rpartition('.')[2]}: ")
    assert _content(tmp_path) == before
    return errors

  return run


@pytest.fixture(scope="session")
def run_evolving():
  """Returns `run(arguments) -> exit code`."""
  return functools.partial(_run_here, evolving)


def _start(binary, arguments, **options):
  # As from a shell: TensorFlow has put settings of its own into this process's.
  environment = {k: v for k, v in os.environ.items() if k[:3] != "TF_"}
  pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
  return subprocess.Popen(
    [
      sys.executable,
      "-c",
      _WITH_CTRL_C,
      "-m",
      f"experiments.{binary}",
      *_split(arguments),
    ],
    cwd=_ROOT,
    text=True,
    env=environment,
    **(pipes | options),
  )


@pytest.fixture(scope="session")
def start_binary():
  """Returns `start(binary, arguments, **options)`, which gives a `Popen`."""
  return _start


@pytest.fixture(scope="session")
def read_scalars():
  """Returns `read(folder)`: (step, value) of TensorBoard by run and scalar."""
  return resume.scalars


@pytest.fixture(scope="session")
def presets():
  """Returns `presets(binary)`, the files of settings of a binary."""
  folder = _ROOT / "experiments" / "presets"
  return lambda binary: sorted((folder / binary).glob("*.flags"))
