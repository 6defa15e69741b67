"""Each binary is a program, whether its module is imported or run."""

import runpy
import sys

import pytest
from absl import flags
from absl.testing import flagsaver

from experiments import dynamic_personalization
from experiments import dynamic_regret
from experiments import evolving
from experiments import guidance
from experiments import online_adaptation


@pytest.mark.parametrize(
  "binary",
  [
    dynamic_personalization,
    dynamic_regret,
    evolving,
    guidance,
    online_adaptation,
  ],
)
def test_file_that_is_run_reads_its_flags(binary, monkeypatch, capsys):
  name = binary.__name__.rpartition(".")[2]
  monkeypatch.setattr(sys, "argv", [name, "--seeds=-1"])
  with flagsaver.flagsaver(), pytest.raises(SystemExit) as end:
    flags.FLAGS.unparse_flags()
    runpy.run_path(binary.__file__, run_name="__main__")
  assert end.value.code == 2
  errors = capsys.readouterr().err
  assert errors.startswith(f"{name}: --")
  assert errors.count("\n") == 1
