"""Files of the first version, as it wrote them, are still read.

In `first_version/` lie those of a run of two algorithms and two seeds.
"""

import json
import pathlib

import pytest

from tff_shift import records
from tff_shift import renamed_flags
from tff_shift.reporting import run_folders
from tff_shift.simulation.storage import run_records

_FOLDER = pathlib.Path(__file__).with_name("first_version")
_KINDS = {
  "config.json": run_records.RunConfig,
  "summary.json": run_records.Summary,
}


@pytest.mark.parametrize("name", _KINDS)
def test_all_that_it_said_is_kept(name, tmp_path):
  old = json.loads((_FOLDER / name).read_text())
  record = records.read(_FOLDER / name, _KINDS[name])
  found = record.to_fields()
  if name == "config.json":
    old["flags"] = {
      renamed_flags.RENAMED.get(flag, flag): value
      for flag, value in old["flags"].items()
    }
  for field in old.keys() - {"format", "digest"}:
    # Texts, because NaN is not equal to itself.
    assert json.dumps(found[field]) == json.dumps(old[field]), field
  # What is written now tells its format.
  assert json.loads(records.encode(record))["format"] == record.FORMAT


def test_run_is_read_whole():
  run = run_folders.read(_FOLDER)
  assert [each.algorithm for each in run.entries] == ["local", "fed_avg"]
  assert run.seeds == [0, 1] and len(run.rows) == 8
  step, curves = run_folders.curves(
    _FOLDER, run.rows, run.entries[0], "client_accuracy"
  )
  assert step == "round"
  # The last point of a curve is what the summary says.
  assert [points[-1][1] for points in curves.values()] == list(
    run.entries[0].metrics["client_accuracy"].seeds
  )


@pytest.mark.parametrize("counted", ["num_diverged", "scores"])
def test_summary_from_before_a_count(counted, tmp_path):
  summary = json.loads((_FOLDER / "summary.json").read_text())
  for entry in summary["runs"]:
    del entry[counted]
  path = tmp_path / "summary.json"
  path.write_text(json.dumps(summary))
  first, _ = records.read(path, run_records.Summary).runs
  assert not getattr(first, counted)
