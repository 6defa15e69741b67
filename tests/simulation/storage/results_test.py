import concurrent.futures
import contextlib
import csv
import importlib.util
import json
import math
import os
import pathlib
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import threading

import numpy as np
import pytest
import tensorflow as tf

from tests.fixtures.refusals import refused
from tff_shift.simulation.storage import folder_lock
from tff_shift.simulation.storage import results

_ROW = dict.fromkeys(("algorithm", "seed", "round", "accuracy"))


def _tree(folder):
  """Returns every path below the folder but its lock, with its content."""
  return {
    str(path.relative_to(folder)): path.read_bytes() if path.is_file() else ""
    for path in sorted(folder.rglob("*"))
    if path.name != folder_lock.NAME
  }


@contextlib.contextmanager
def _read_only(folder):
  """Takes the right to write to a folder, even if root runs the tests."""
  user = os.geteuid()
  os.chmod(folder, 0o555)
  if user == 0:
    os.seteuid(65534)
  try:
    yield
  finally:
    os.seteuid(user)
    os.chmod(folder, 0o755)


@pytest.fixture
def open_folder():
  """A folder that every user may enter, unlike those of `tmp_path`."""
  with tempfile.TemporaryDirectory() as folder:
    os.chmod(folder, 0o755)
    yield pathlib.Path(folder)


def _reject_constant(name):
  raise AssertionError(f"{name} is not JSON")


def _read_json(path):
  return json.loads(path.read_text(), parse_constant=_reject_constant)


@pytest.fixture
def folder(tmp_path):
  return results.RunFolder.create(tmp_path / "run")


class TestCreate:
  def test_makes_missing_parents_and_a_file_without_rows(self, tmp_path):
    path = tmp_path / "a" / "b"
    folder = results.RunFolder.create(path)
    assert folder.path == path
    assert _tree(path) == {"metrics.csv": b""}

  @pytest.mark.parametrize(
    "files, name, overwrite, message",
    [
      ({"run/metrics.csv": ""}, "run", False, "holds files.*--overwrite$"),
      ({"figures/mine.png": "png"}, "", True, "no earlier run"),
      ({"file": "text"}, "file", False, "is a file"),
      ({"file": "text"}, "file", True, "is a file"),
      ({"file": "text"}, "file/run", False, "Not a directory"),
      # No parent is left behind.
      ({}, f"new/{'x' * 300}/run", False, "name too long"),
    ],
  )
  def test_what_is_in_the_way_is_told_and_stays(
    self, tmp_path, files, name, overwrite, message
  ):
    for each, content in files.items():
      (tmp_path / each).parent.mkdir(exist_ok=True)
      (tmp_path / each).write_text(content)
    before = _tree(tmp_path)
    with pytest.raises(ValueError, match=rf"^--output_dir: .*{message}"):
      results.RunFolder.create(tmp_path / name, overwrite=overwrite)
    assert _tree(tmp_path) == before

  def test_overwrite_replaces_an_earlier_run_only(self, folder, make_summary):
    folder.write_config({})
    folder.write_metrics({"seed": 1})
    folder.write_summary([make_summary().to_record()])
    folder.figure_path("curves").write_bytes(b"png")
    (folder.path / "tensorboard" / "fed_avg").mkdir(parents=True)
    (folder.path / "notes.txt").write_text("mine")
    results.RunFolder.create(folder.path, overwrite=True)
    expected = {"metrics.csv": b"", "notes.txt": b"mine"}
    assert _tree(folder.path) == expected

  @pytest.mark.parametrize(
    "name, has_run", [("", False), ("run", False), ("", True)]
  )
  def test_folder_without_permission_stays_as_it_is(
    self, open_folder, make_summary, name, has_run
  ):
    if has_run:
      folder = results.RunFolder.create(open_folder)
      folder.write_summary([make_summary().to_record()])
    before = _tree(open_folder)
    with _read_only(open_folder), refused(r"^--output_dir: .*denied"):
      results.RunFolder.create(open_folder / name, overwrite=has_run)
    assert _tree(open_folder) == before

  @pytest.mark.parametrize("exists", [False, True])
  def test_only_one_of_several_runs_gets_the_folder(self, tmp_path, exists):
    barrier = threading.Barrier(8)

    def create(path):
      barrier.wait()
      try:
        return results.RunFolder.create(path)
      except ValueError as error:
        return str(error)

    with concurrent.futures.ThreadPoolExecutor(max_workers=8) as pool:
      for attempt in range(20):
        path = tmp_path / str(attempt)
        if exists:
          path.mkdir()
        outcomes = list(pool.map(create, [path] * 8))
        refused = [line for line in outcomes if isinstance(line, str)]
        assert len(refused) == 7
        assert all(line.startswith("--output_dir: ") for line in refused)
        assert list(_tree(path)) == ["metrics.csv"]


class TestMetrics:
  def test_first_row_names_the_columns(self, folder):
    folder.write_metrics({"round": 1, "accuracy": None, "loss": 0.5})
    folder.write_metrics({"loss": 0.25, "round": 2})
    assert (folder.path / "metrics.csv").read_text() == (
      "round,accuracy,loss\n1,,0.5\n2,,0.25\n"
    )

  def test_values_survive_the_file_unchanged(self, folder):
    value = 100.0 / 3.0
    name = 'a "quoted", name\nin two lines'
    folder.write_metrics(_ROW | {"algorithm": name, "accuracy": value})
    folder.write_metrics({"accuracy": np.float64(value), "round": np.int32(7)})
    folder.write_metrics({"accuracy": math.nan})
    with open(folder.path / "metrics.csv", newline="") as file:
      rows = list(csv.DictReader(file))
    assert rows[0]["algorithm"] == name
    assert [float(row["accuracy"]) for row in rows[:2]] == [value, value]
    assert rows[1]["round"] == "7"
    assert rows[2]["accuracy"] == "nan"

  def test_refuses_an_unknown_column(self, folder):
    folder.write_metrics(_ROW)
    with pytest.raises(ValueError, match=r"no columns \['acuracy'\]"):
      folder.write_metrics({"acuracy": 1.0})
    assert (folder.path / "metrics.csv").read_text().count("\n") == 2

  def test_rows_outlive_a_killed_process(self, tmp_path):
    program = """
import os, signal, sys
from tff_shift.simulation.storage.results import RunFolder
folder = RunFolder.create(sys.argv[1])
folder.write_metrics({"seed": 0, "round": 1})
os.kill(os.getpid(), signal.SIGKILL)
"""
    path = tmp_path / "run"
    result = subprocess.run([sys.executable, "-c", program, path])
    assert result.returncode == -signal.SIGKILL
    lines = (path / "metrics.csv").read_text().splitlines()
    assert lines == ["seed,round", "0,1"]


class TestConfig:
  def test_holds_what_a_result_depends_on(self, folder):
    folder.write_config({"rounds": 2, "dirichlet": math.inf, "seeds": [0, 1]})
    config = _read_json(folder.path / "config.json")
    assert list(config["flags"]) == ["dirichlet", "rounds", "seeds"]
    assert config["flags"] == {"dirichlet": "inf", "rounds": 2, "seeds": [0, 1]}
    assert config["versions"]["python"] == sys.version.split()[0]
    assert config["versions"]["tensorflow"] == tf.__version__
    assert config["versions"]["numpy"] == np.__version__
    assert config["versions"]["tensorflow_federated"] == "0.87.0"
    assert "tff_shift" in config["versions"]
    assert config["cores"] == len(os.sched_getaffinity(0))
    assert shlex.split(config["command_line"]) == sys.orig_argv
    assert re.fullmatch(
      r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\+00:00", config["start_time"]
    )

  @pytest.mark.skipif(shutil.which("git") is None, reason="needs git")
  def test_git_commit_is_that_of_the_package(self, tmp_path):
    repository = tmp_path / "repository"
    repository.mkdir()
    module_path = repository / "results.py"
    shutil.copy(results.__file__, module_path)

    def git(*arguments):
      settings = (
        "user.name=name",
        "user.email=name@example.com",
        "commit.gpgSign=false",
        "tag.gpgSign=false",
      )
      options = [word for setting in settings for word in ("-c", setting)]
      return subprocess.check_output(
        ["git", *options, *arguments], cwd=repository, text=True
      ).strip()

    def recorded_commit():
      spec = importlib.util.spec_from_file_location("copy", module_path)
      module = importlib.util.module_from_spec(spec)
      sys.modules["copy_of_results"] = module
      spec.loader.exec_module(module)
      folder = module.RunFolder.create(tempfile.mkdtemp(dir=tmp_path))
      folder.write_config({})
      return _read_json(folder.path / "config.json")["git_commit"]

    git("init", "--quiet")
    assert recorded_commit() is None
    (repository / "other.txt").write_text("other")
    git("add", "other.txt")
    git("commit", "--quiet", "--message=other")
    assert recorded_commit() is None
    git("add", "results.py")
    git("commit", "--quiet", "--message=results")
    git("tag", "--annotate", "v1", "--message=v1")
    commit = git("rev-parse", "HEAD")
    assert re.fullmatch("[0-9a-f]{40}", commit)
    assert recorded_commit() == commit
    module_path.write_text(module_path.read_text() + "\n")
    assert recorded_commit() == commit + "-dirty"

  def test_refuses_a_value_without_json_form(self, folder):
    with pytest.raises(TypeError, match=r"config.json: flags: rounds: a set"):
      folder.write_config({"rounds": {1, 2}})
    assert not (folder.path / "config.json").exists()


class TestSummaryFile:
  def test_has_the_common_form(self, folder, make_summary):
    folder.write_summary([make_summary().to_record()])
    summary = _read_json(folder.path / "summary.json")
    assert list(summary) == ["format", "runs"]
    (run,) = summary["runs"]
    assert next(iter(run)) == "algorithm"
    assert run == {
      "algorithm": "fed_avg",
      "dataset": "circle",
      "setting": {"dirichlet": "inf"},
      "metrics": {
        "client_accuracy": {
          "mean": 73.0,
          "std": math.sqrt(13.0),
          "seeds": [70.0, 72.0, 77.0],
        },
        "server_accuracy": {
          "mean": 60.0,
          "std": 0.0,
          "seeds": [60.0, 60.0, 60.0],
        },
      },
      "rounds": 50,
      "seconds_per_round": 0.25,
      "num_diverged": [],
      "scores": {},
    }

  def test_is_json_and_bit_identical_for_equal_values(
    self, tmp_path, make_summary
  ):
    setting = {
      "dirichlet": math.inf,
      "shape": (np.int64(2), np.array([0.5, math.nan])),
      "flag": np.bool_(True),
      "nothing": None,
    }
    rows = {
      0: {"accuracy": math.nan, "other": 100.0 / 3.0},
      1: {"accuracy": np.float32(0.5), "other": 0.1},
    }
    texts = []
    for name in ("a", "b"):
      folder = results.RunFolder.create(tmp_path / name)
      summary = make_summary(setting=setting, metrics_by_seed=rows)
      folder.write_summary([summary.to_record()])
      texts.append((folder.path / "summary.json").read_bytes())
      # The order of keys does not count.
      setting = dict(reversed(setting.items()))
      rows = {seed: dict(reversed(rows[seed].items())) for seed in rows}
    assert texts[0] == texts[1]
    record = _read_json(folder.path / "summary.json")["runs"][0]
    assert record["setting"] == {
      "dirichlet": "inf",
      "flag": True,
      "nothing": None,
      "shape": [2, [0.5, None]],
    }
    assert record["metrics"]["other"]["seeds"] == [100.0 / 3.0, 0.1]
    assert record["metrics"]["accuracy"] == {
      "mean": None,
      "std": None,
      "seeds": [None, 0.5],
    }

  def test_failure_keeps_the_earlier_file(self, folder, make_summary):
    folder.write_summary([make_summary().to_record()])
    before = _tree(folder.path)
    with pytest.raises(TypeError, match=r"summary.json: runs: .*object has no"):
      folder.write_summary(
        [make_summary(setting={"model": object()}).to_record()]
      )
    assert _tree(folder.path) == before

  @pytest.mark.slow
  def test_reader_never_sees_half_a_file(self, folder, make_summary):
    path = folder.path / "summary.json"
    folder.write_summary([make_summary().to_record()])
    stop = threading.Event()

    def write():
      for count in range(200):
        folder.write_summary(
          [make_summary().to_record()] * (1 + count % 2 * 40)
        )
      stop.set()

    writer = threading.Thread(target=write)
    writer.start()
    sizes = set()
    while not stop.is_set():
      sizes.add(len(_read_json(path)["runs"]))
    writer.join()
    assert sizes == {1, 41}
    assert sorted(_tree(folder.path)) == ["metrics.csv", "summary.json"]


@pytest.mark.slow
def test_import_does_not_load_tensorflow():
  program = """
import sys
from tff_shift.reporting import progress, trackers
from tff_shift.reporting.figures import drawing, figures
from tff_shift.simulation.storage import results
assert "tensorflow" not in sys.modules
assert "tensorflow_federated" not in sys.modules
"""
  subprocess.run([sys.executable, "-c", program], check=True)
