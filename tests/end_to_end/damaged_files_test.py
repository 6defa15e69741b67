"""Binaries with damaged files: a line, exit code 2, nothing written."""

import json
import shutil

import numpy as np
import pytest

from examples import tiny_llama
from experiments import reproduce
from tests.fixtures import tables
from tff_shift.reporting import summary
from tff_shift.simulation.storage import results

_RESUMED = "--dataset=circle --algorithm=fed_avg --resume"


def _change(path, **fields):
  path.write_text(json.dumps(json.loads(path.read_text()) | fields))


@pytest.fixture
def folder(tmp_path):
  """A run folder with a seed."""
  folder = results.RunFolder(tmp_path / "run")
  folder.path.mkdir()
  folder.write_config({"seeds": ["0"], "algorithm": ["fed_avg"]})
  folder.write_metrics({"seed": 0, "round": 1, "client_accuracy": 50.0})
  folder.write_summary(
    [
      summary.RunSummary(
        algorithm="fed_avg",
        dataset="circle",
        setting={},
        metrics_by_seed={0: {"client_accuracy": 50.0}},
        rounds=1,
        seconds_per_round=0.5,
      ).to_record()
    ]
  )
  return folder.path


def _damage(path, fields):
  """Cuts a file that has no new fields."""
  if fields is None:
    path.write_bytes(path.read_bytes()[:-9])
  else:
    _change(path, **fields)


@pytest.mark.parametrize(
  "name, fields, message",
  tables.cases("""
"config.json", None
    config.json: Input data was truncated
"summary.json", {"format": 7}
    summary.json: it has format 7, and this version of tff_shift reads format 1
"summary.json", {"runs": [3]}
    summary.json: Expected `object`, got `int` - at `$.runs[0]`
"config.json", {"flags": {"seeds": ["0", "x"]}}
    flags.seeds: invalid literal for int
"config.json", {"flags": {"seeds": ["0", "1"]}}
    summary.json: runs[0].metrics.client_accuracy has 1 values for 2 seeds
"metrics.csv", {}
    metrics.csv: field larger
"""),
)
def test_report(refused, folder, tmp_path, name, fields, message):
  if name == "metrics.csv":
    (folder / name).write_text(f"a\n{2**18 * '1'}\n")
  else:
    _damage(folder / name, fields)
  arguments = [str(folder), f"--output_dir={tmp_path / 'page'}"]
  assert message in refused("report", arguments, takes_arguments=True)


@pytest.mark.parametrize(
  "fields, message",
  tables.cases("""
None
    config.json: Input data was truncated
{"format": 1}
    config.json: it has format 1, and this version of tff_shift reads format 2
"""),
)
def test_resumption(refused, folder, fields, message):
  _damage(folder / "config.json", fields)
  found = refused("evolving", [_RESUMED, f"--output_dir={folder}"])
  assert message in found and "--overwrite in place of --resume" in found


def test_run_that_drew_other_numbers_does_not_go_on(refused, folder):
  _change(folder / "config.json", draws=1)
  assert refused("evolving", [_RESUMED, f"--output_dir={folder}"]) == (
    f"evolving: --resume: the run in {folder} was started by another version"
    " of tff_shift, which draws other random numbers; start a new run, with"
    " --overwrite or in another --output_dir\n"
  )


@pytest.mark.parametrize(
  "fields, message",
  tables.cases("""
None
    model.json: Input data was truncated
{"format": 1}
    model.json: it has format 1, and this version of tff_shift reads format 3
"""),
)
def test_prediction(refused, served_federation, tmp_path, fields, message):
  folder = shutil.copytree(served_federation, tmp_path / "model")
  _damage(folder / "model.json", fields)
  np.savez(tmp_path / "x.npz", x=np.zeros((2, 2), np.float32))
  flags = f"--model={folder} --input={tmp_path}/x.npz"
  assert message in refused("predict", f"{flags} --output={tmp_path}/y.npz")


@pytest.mark.parametrize(
  "fields, message",
  tables.cases("""
{"format": 0}
    plan.json: it has format 0, and this version of tff_shift reads format 1
{"more_flags": ["--unheard_of=1"]}
    plan.json: experiments.evolving has no flag --unheard_of
"""),
)
def test_reproduction(refused, tmp_path, fields, message):
  (tmp_path / "plan.json").write_text('{"format": 1, "reduce": {}}')
  _damage(tmp_path / "plan.json", fields)
  arguments = ["demo/digits", "--resume", f"--output_dir={tmp_path}"]
  assert message in refused(reproduce, arguments, takes_arguments=True)


def test_language_model(refused, tmp_path):
  folder = tmp_path / "tiny"
  tiny_llama.write(folder, width=32, num_layers=2)
  _change(folder / "config.json", num_hidden_layers=10**9)
  flags = "--dataset=synthetic_relations --algorithm=fed_ade"
  found = refused("online_adaptation", f"{flags} --model_dir={folder}")
  assert "json: Expected `int` <= 4096 - at `$.num_hidden_layers`" in found
