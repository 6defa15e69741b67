"""Binaries that are given damaged files: a line, exit code 2, nothing written.

What a reader makes of any file is tested in `records_fuzz_test`; here each kind
of record goes through the binary that reads it.
"""

import json
import os
import pathlib
import shutil

import numpy as np
import pytest

from examples import tiny_llama
from experiments import reproduce
from tff_shift.binaries import evolving
from tff_shift.binaries import online_adaptation
from tff_shift.binaries import predict
from tff_shift.binaries import report

_FIRST_VERSION = pathlib.Path(__file__).parents[1] / "first_version"


def _content(folder):
  # Modes tell pipes from files, which must not be opened.
  return {
    path.relative_to(folder): path.read_bytes() if path.is_file() else None
    for path in folder.rglob("*")
    if path.name != ".lock"
  }


@pytest.fixture
def refused(run_here, tmp_path, capsys):
  """Returns `refused(binary, arguments, **options) -> message`."""

  def run(binary, arguments, **options):
    before = _content(tmp_path)
    assert run_here(binary, arguments, **options) == 2
    captured = capsys.readouterr()
    assert captured.err.count("\n") == 1 and captured.out == ""
    assert captured.err[:-1].isprintable()
    assert _content(tmp_path) == before
    return captured.err

  return run


def _change(path, **fields):
  path.write_text(json.dumps(json.loads(path.read_text()) | fields))


def _pipe(path):
  path.unlink()
  os.mkfifo(path)


def _nest(path):
  # Fewer levels than at which the parser gives up.
  _change(path, hparams=json.loads("[" * 200 + "]" * 200))


@pytest.mark.parametrize(
  ("name", "damage", "message"),
  [
    ("config.json", _pipe, "config.json is a named pipe"),
    (
      "summary.json",
      lambda path: _change(path, runs=[3]),
      "summary.json: runs[0]: expected object, got int",
    ),
    (
      "config.json",
      lambda path: _change(path, flags={"seeds": ["0"]}),
      "summary.json: runs[0].metrics.client_accuracy has 2 values for 1 seeds",
    ),
  ],
)
def test_report(refused, tmp_path, name, damage, message):
  folder = shutil.copytree(_FIRST_VERSION, tmp_path / "run")
  damage(folder / name)
  arguments = [str(folder), f"--output_dir={tmp_path / 'page'}"]
  assert message in refused(report, arguments, takes_arguments=True)


@pytest.mark.parametrize(
  ("damage", "message"),
  [
    (lambda path: path.write_bytes(b""), "config.json: it is empty"),
    (
      lambda path: _change(path, resumed=[{"time": "2026-01-02T03:04:05"}]),
      "config.json: resumed[0]: the field command_line is missing",
    ),
  ],
)
def test_resumption(refused, tmp_path, damage, message):
  folder = shutil.copytree(_FIRST_VERSION, tmp_path / "run")
  damage(folder / "config.json")
  arguments = [
    *("--dataset=circle", "--algorithm=local,fed_avg", "--resume"),
    f"--output_dir={folder}",
  ]
  found = refused(evolving, arguments)
  assert message in found and "--overwrite in place of --resume" in found


def test_run_that_drew_other_numbers_does_not_go_on(refused, tmp_path):
  folder = shutil.copytree(_FIRST_VERSION, tmp_path / "run")
  arguments = [
    *("--dataset=circle", "--algorithm=local,fed_avg", "--resume"),
    f"--output_dir={folder}",
  ]
  assert refused(evolving, arguments) == (
    f"evolving: --resume: the run in {folder} was started by another version"
    " of tff_shift, which draws other random numbers; start a new run, with"
    " --overwrite or in another --output_dir\n"
  )


@pytest.mark.parametrize(
  ("damage", "message"),
  [
    (_nest, "model.json: it is nested too deeply"),
    (
      lambda path: _change(path, clients=[0, 1, 2, 3]),
      "model.json: clients is 0, 1, 2, 3, but the SavedModel has",
    ),
  ],
)
def test_prediction(refused, served_federation, tmp_path, damage, message):
  folder = shutil.copytree(served_federation, tmp_path / "model")
  damage(folder / "model.json")
  np.savez(tmp_path / "x.npz", x=np.zeros((2, 2), np.float32))
  arguments = [
    f"--{name}={tmp_path / value}"
    for name, value in (
      ("model", "model"),
      ("input", "x.npz"),
      ("output", "predictions.npz"),
    )
  ]
  assert message in refused(predict, arguments)


@pytest.mark.parametrize(
  ("damage", "message"),
  [
    (
      lambda path: _change(path, reduce={"rounds": 0}),
      "plan.json: reduce.rounds: expected str, got int",
    ),
    (
      lambda path: _change(path, more_flags=["--unheard_of=1"]),
      "plan.json: experiments.evolving has no flag --unheard_of",
    ),
  ],
)
def test_reproduction(refused, tmp_path, damage, message):
  shutil.copy(_FIRST_VERSION / "plan.json", tmp_path)
  damage(tmp_path / "plan.json")
  arguments = ["demo/digits", "--resume", f"--output_dir={tmp_path}"]
  assert message in refused(reproduce, arguments, takes_arguments=True)


def test_job(refused, tmp_path):
  shutil.copy(_FIRST_VERSION / "plan.json", tmp_path)
  path = tmp_path / "rotated_digits_dirichlet_inf" / "fed_avg.job.json"
  path.parent.mkdir()
  shutil.copy(_FIRST_VERSION / path.name, path)
  _change(path, exit_code=None)
  arguments = ["demo/digits", "--page_only", f"--output_dir={tmp_path}"]
  found = refused(reproduce, arguments, takes_arguments=True)
  assert f"{path}: exit_code is None, and ended is" in found


def test_language_model(refused, tmp_path):
  folder = tmp_path / "tiny"
  tiny_llama.write(folder, width=32, num_layers=2)
  _change(folder / "config.json", num_hidden_layers=10**9)
  arguments = [
    "--dataset=synthetic_relations",
    "--algorithm=fed_ade",
    *(f"--model_dir={folder}", f"--output_dir={tmp_path / 'run'}"),
  ]
  found = refused(online_adaptation, arguments)
  assert "config.json: num_hidden_layers: expected int <= 4096" in found
