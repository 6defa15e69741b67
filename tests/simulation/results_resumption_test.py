"""The output folder of a run that was stopped, opened again."""

import json
import os
import re

import pytest

from tff_shift._util import files
from tff_shift.simulation.storage import results

_FLAGS = {"rounds": 3, "seeds": ["0"]}


def _row(round_num, accuracy=0.1):
  return {"round": round_num, "accuracy": accuracy}


def _resume(path, flags=None):
  folder = results.RunFolder.resume(path)
  folder.write_resumption(flags or _FLAGS)
  return folder


@pytest.fixture
def path(tmp_path):
  """A folder with three rows."""
  folder = results.RunFolder.create(tmp_path / "run")
  folder.write_config(_FLAGS)
  for round_num in (1, 2, 3):
    folder.write_metrics(_row(round_num))
  return folder.path


def _contents(path):
  return {each: each.read_bytes() for each in path.iterdir()}


def _lines(path):
  return (path / "metrics.csv").read_text().splitlines()[1:]


class TestRows:
  def test_rows_that_are_written_again_come_once(self, path):
    folder = _resume(path)
    for round_num in (1, 2):
      folder.write_metrics(_row(round_num))
      # Nothing is lost should this process be stopped, too.
      assert _lines(path) == ["1,0.1", "2,0.1", "3,0.1"]
    folder.write_metrics(_row(3))
    folder.write_metrics(_row(4))
    assert _lines(path) == ["1,0.1", "2,0.1", "3,0.1", "4,0.1"]

  def test_rest_is_cut_off(self, path):
    folder = _resume(path)
    folder.write_metrics(_row(1))
    folder.cut_metrics()
    assert _lines(path) == ["1,0.1"]
    folder.cut_metrics()
    folder.write_metrics(_row(2, 0.7))
    assert _lines(path) == ["1,0.1", "2,0.7"]

  @pytest.mark.parametrize(
    "rows, expected",
    [
      # What differs takes the place of all that followed.
      ([(1, 0.1), (2, 0.75)], ["1,0.1", "2,0.75"]),
      # A longer one is another one.
      ([(1, 0.12)], ["1,0.12"]),
    ],
  )
  def test_rows_that_differ_replace(self, path, rows, expected):
    folder = _resume(path)
    for row in rows:
      folder.write_metrics(_row(*row))
    assert _lines(path) == expected

  def test_half_a_row_is_replaced(self, path):
    with open(path / "metrics.csv", "a") as file:
      file.write("4,0")
    folder = _resume(path)
    for round_num in (1, 2, 3, 4):
      folder.write_metrics(_row(round_num))
    assert _lines(path) == ["1,0.1", "2,0.1", "3,0.1", "4,0.1"]

  @pytest.mark.parametrize("content", ["", "rou", "other\n1\n"])
  def test_header_that_is_not_whole_is_written(self, path, content):
    (path / "metrics.csv").write_text(content)
    _resume(path).write_metrics(_row(1))
    assert (path / "metrics.csv").read_text() == "round,accuracy\n1,0.1\n"

  def test_folder_of_a_new_run_has_nothing_to_cut(self, tmp_path):
    folder = results.RunFolder.create(tmp_path / "new")
    folder.write_metrics(_row(1))
    folder.cut_metrics()
    assert _lines(folder.path) == ["1,0.1"]


class TestResume:
  @pytest.mark.parametrize("name", ["", "none", "notes.txt"])
  def test_folder_without_a_run_is_refused(self, tmp_path, name):
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(
      ValueError, match=r"^--output_dir: .* holds no run to resume"
    ):
      results.RunFolder.resume(tmp_path / name)
    assert os.listdir(tmp_path) == ["notes.txt"]

  def test_nothing_changes_before_the_folder_is_taken_over(self, path):
    (path / ".summary.json.7.tmp").write_text("{")
    before = _contents(path)
    results.RunFolder.resume(path)
    assert before == _contents(path)
    _resume(path)
    assert sorted(os.listdir(path)) == [".lock", "config.json", "metrics.csv"]

  def test_configuration_stays_and_says_when_it_was_resumed(self, path):
    before = results.RunFolder(path).read_config()
    for _ in range(2):
      folder = _resume(path, {"rounds": 99})
    after = folder.read_config()
    assert after.replace(resumed=()) == before
    assert len(after.resumed) == 2
    assert re.fullmatch(r"[\d-]{10}T[\d:]{8}\+00:00", after.resumed[0].time)

  def test_run_that_grows_loses_what_was_derived_of_it(self, path):
    derived = ["summary.json", "figures", "tensorboard", "model"]
    for name in derived[1:]:
      (path / name).mkdir()
      (path / name / "file").touch()
    (path / derived[0]).write_text("{}")
    (path / "checkpoints").mkdir()
    before = results.RunFolder(path).read_config()
    # Nothing is lost of a run that only goes on.
    _resume(path)
    assert set(derived) <= set(os.listdir(path))
    folder = results.RunFolder.resume(path)
    flags = {"rounds": 4, "seeds": ["0"], "other": 1}
    folder.write_resumption(flags, {"rounds": 3})
    assert sorted(os.listdir(path)) == [
      ".lock",
      "checkpoints",
      "config.json",
      "metrics.csv",
    ]
    after = folder.read_config()
    assert after.flags == {"rounds": 4, "seeds": ["0"]}
    assert after.resumed[1].before == {"rounds": 3}
    # As another one, which goes on as itself.
    assert folder.identity == after.identity != before.identity
    again = _resume(path)
    assert again.identity == folder.identity
    assert again.replaced == folder.replaced == (before.identity,)

  @pytest.mark.parametrize(
    "changes, message",
    [
      ({"cores": 0}, "Expected `int` >= 1 - at `$.cores`"),
      ({"format": 9}, "it has format 9, and this version of tff_shift reads"),
    ],
  )
  def test_configuration_that_is_damaged_is_named(
    self, path, changes, message, refusal
  ):
    config = path / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | changes))
    before = _contents(path)
    told = refusal(_resume, path)
    assert told.startswith(f"{config}: {message}")
    assert "--overwrite in place of --resume" in told
    del before[path / ".lock"]
    assert all(each.read_bytes() == before[each] for each in before)

  def test_configuration_that_is_missing_is_written(self, path):
    (path / "config.json").unlink()
    assert _resume(path).read_config().flags == _FLAGS

  def test_run_that_is_overwritten_loses_its_checkpoints(self, path):
    folder = results.RunFolder(path)
    (folder.checkpoints / "run").mkdir(parents=True)
    results.RunFolder.create(path, overwrite=True)
    assert sorted(os.listdir(path)) == [".lock", "metrics.csv"]

  def test_identity_stays_until_the_run_is_overwritten(self, path):
    first = results.RunFolder(path).read_config().identity
    folder = _resume(path)
    assert folder.identity == first == folder.read_config().identity
    again = results.RunFolder.create(path, overwrite=True)
    again.write_config(_FLAGS)
    assert again.identity == again.read_config().identity != first

  def test_row_on_a_full_disk(self, path, no_file_above):
    folder = _resume(path)
    with (
      # The line that names the columns, and half a row.
      no_file_above(18),
      pytest.raises(files.WriteError, match=r"metrics\.csv .*File too large"),
    ):
      folder.write_metrics(_row(1, 0.25))
    assert _lines(path) == ["1,0"]
    folder = _resume(path)
    for round_num in (1, 2):
      folder.write_metrics(_row(round_num))
    assert _lines(path) == ["1,0.1", "2,0.1"]


def test_leftovers_that_are_no_files_are_removed(path):
  (path / ".b.tmp" / "inner").mkdir(parents=True)
  (path / "model" / "fed_avg" / ".c.tmp" / "variables").mkdir(parents=True)
  _resume(path)
  assert sorted(os.listdir(path)) == [
    ".lock",
    "config.json",
    "metrics.csv",
    "model",
  ]
  assert os.listdir(path / "model" / "fed_avg") == []


class TestDone:
  def test_run_is_done_with_its_flags_and_files_and_no_other(self, path):
    folder = results.RunFolder(path)
    folder.write_summary([])
    assert not folder.is_done(_FLAGS)
    folder.write_done(_FLAGS)
    before = {each: each.stat().st_mtime_ns for each in path.iterdir()}
    assert results.RunFolder(path).is_done(dict(_FLAGS))
    assert not folder.is_done(_FLAGS | {"rounds": 4})
    assert not folder.is_done({"rounds": 3})
    assert before == {each: each.stat().st_mtime_ns for each in path.iterdir()}
    for name in ("config.json", "metrics.csv", "summary.json", "done.json"):
      (path / name).rename(path / "kept")
      assert not folder.is_done(_FLAGS), name
      (path / "kept").rename(path / name)
    assert folder.is_done(_FLAGS)

  def test_run_that_goes_on_is_not_done(self, path):
    results.RunFolder(path).write_done(_FLAGS)
    folder = _resume(path)
    assert not (path / "done.json").exists()
    folder.write_done(_FLAGS)
    results.RunFolder.create(path, overwrite=True)
    assert not (path / "done.json").exists()


class TestBeginning:
  def test_folder_of_a_run_that_could_not_begin_is_removed(
    self, tmp_path, no_file_above
  ):
    folder = results.RunFolder.create(tmp_path / "a" / "b")
    with (
      pytest.raises(files.WriteError, match=r"config\.json"),
      folder.beginning(),
      no_file_above(10),
    ):
      folder.write_config(_FLAGS)
    assert os.listdir(tmp_path) == []

  def test_what_was_there_stays(self, path, no_file_above):
    folder = results.RunFolder.create(path, overwrite=True)
    with pytest.raises(files.WriteError), folder.beginning(), no_file_above(10):
      folder.write_config(_FLAGS)
    # So that it can be overwritten again.
    assert sorted(os.listdir(path)) == [".lock", "metrics.csv"]
