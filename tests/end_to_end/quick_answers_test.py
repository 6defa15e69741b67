"""Help and wrong flags are answered before TensorFlow is imported."""

import pathlib
import subprocess
import sys

import pytest

from tests.fixtures import tables
from tff_shift import algorithms

_ROOT = pathlib.Path(__file__).parents[2]
_BINARIES = sorted(
  file.stem
  for file in (_ROOT / "experiments").glob("*.py")
  if 'if __name__ == "__main__"' in file.read_text(encoding="utf-8")
)
_SCENARIOS = sorted(
  file.parent.name
  for file in (_ROOT / "tff_shift/scenarios").glob("*/configuration.py")
)
_HEAVY = {"tensorflow", "tensorflow_federated"}


def answer(binary, *arguments):
  """Runs a binary; returns its exit code, output, errors and imports."""
  process = subprocess.run(
    [
      *(sys.executable, "-X", "importtime", "-m", f"experiments.{binary}"),
      *arguments,
    ],
    cwd=_ROOT,
    capture_output=True,
    text=True,
    check=False,
  )
  errors, imported = [], set()
  for line in process.stderr.splitlines():
    if line.startswith("import time:"):
      imported.add(line.rpartition("|")[2].strip())
    else:
      errors.append(line)
  return process.returncode, process.stdout, errors, imported


def refusal(binary, *arguments):
  """Returns the one line of a refusal, which needs no TensorFlow."""
  code, output, errors, imported = answer(binary, *arguments)
  assert (code, output, len(errors)) == (2, "", 1), errors
  assert "absl.flags" in imported and not imported & _HEAVY
  return errors[0]


# What a scenario refuses is below.
@pytest.mark.slow
@pytest.mark.parametrize("binary", sorted({*_BINARIES} - {*_SCENARIOS}))
def test_a_flag_that_there_is_not(binary):
  told = refusal(binary, "--no_such_flag=1")
  assert told == f"{binary}: Unknown command line flag 'no_such_flag'"


@pytest.mark.slow
@pytest.mark.parametrize(
  "binary, flag, exit_code",
  [*((each, "help", 0) for each in _BINARIES), (_SCENARIOS[0], "helpfull", 1)],
)
def test_help(binary, flag, exit_code):
  code, output, errors, imported = answer(binary, f"--{flag}")
  assert (code, errors) == (exit_code, [])
  assert f"python -m experiments.{binary}" in output and "\n  --" in output
  assert not imported & _HEAVY


@pytest.mark.slow
@pytest.mark.parametrize("binary", _SCENARIOS)
def test_a_data_set_that_there_is_not(binary):
  algorithm = algorithms.names(binary)[0]
  told = refusal(binary, f"--algorithm={algorithm}", "--dataset=no_such")
  assert f"{binary}: --dataset=no_such: it must be one of" in told


# What checks algorithms and hyper-parameters is the same in all scenarios.
@pytest.mark.slow
@pytest.mark.parametrize(
  "binary, flags, message",
  tables.cases("""
"evolving", "--algorithm=no_such"
    =no_such: unknown algorithm
"guidance", "--algorithm=fed_avg --batch_size=0"
    batch_size=0 is not allowed: it must be an integer at least 1
"evolving", "--algorithm=local --mu=1"
    evolving: --mu belongs to
"""),
)
def test_algorithms_and_hyperparameters_that_are_wrong(binary, flags, message):
  assert message in refusal(binary, *flags.split())
