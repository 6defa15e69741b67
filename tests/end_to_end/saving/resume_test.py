"""Runs of the binaries that are stopped, and go on with `--resume`."""

import contextlib
import json
import os
import re
import shutil
import signal
import sqlite3
import time

import pytest

from benchmarks import resume
from tests.fixtures import tables
from tff_shift.binaries import evolving
from tff_shift.reporting import trackers
from tff_shift.reporting.figures import drawing
from tff_shift.simulation.engine import checkpoints
from tff_shift.simulation.engine import rounds
from tff_shift.simulation.storage import results

pytestmark = pytest.mark.slow

_SMALL = """
  --dataset=circle --num_domains=4 --max_examples_per_domain=90 --num_clients=3
  --rounds=8 --local_steps=1 --evaluate_every=1 --optimizer=adam
  --learning_rate=1e-2 --participation=0.7 --noprogress --algorithm=fed_rep
  --seeds=0,1 --checkpoint_every=3
"""
# Five steps in a run, three rounds and two streams; 2, 4 and 5 are saved.
_DYNAMIC = """
  --algorithm=local --dataset=digits --max_examples=600 --num_clients=3
  --rounds=3 --period_size=20 --periods=2 --test_distributions=iid,0.9
  --model=mlp --model_width=4 --distance_threshold=1 --participation=0.7
  --noprogress --seeds=0,1 --checkpoint_every=2
"""


@pytest.fixture(scope="module", autouse=True)
def empty_figures(drawn_figures):
  """All figures but two are empty: to draw them takes longer than to run."""
  with drawn_figures("domains", "accuracy_per_domain"):
    yield


@pytest.fixture(scope="module")
def whole(run_once):
  """The folder of a run that was never stopped."""
  return run_once(evolving, _SMALL, errors="").folder


@pytest.fixture
def finished(whole, tmp_path):
  return shutil.copytree(whole, tmp_path / "run")


def saved_steps(folder):
  """Returns the steps of the checkpoints of the second seed in tuples."""
  found = []
  for path in folder.glob("checkpoints/*-1.sqlite"):
    with contextlib.closing(sqlite3.connect(path)) as connection:
      found += connection.execute("SELECT step FROM checkpoints")
  return found


@contextlib.contextmanager
def disk_full(no_file_above, owner, name, is_now):
  """Has what is written in a call fail if the arguments are those."""
  function = getattr(owner, name)

  def on_a_full_disk(*given):
    with no_file_above(20) if is_now(*given) else contextlib.nullcontext():
      return function(*given)

  with pytest.MonkeyPatch.context() as patches:
    patches.setattr(owner, name, on_a_full_disk)
    yield


@pytest.mark.long
def test_run_that_ends_early_again_and_again_ends_as_one_that_does_not(
  whole, tmp_path, run_evolving, start_binary, capfd, monkeypatch, no_file_above
):
  """By Ctrl-C in a process of its own, asked to end here, on full disks."""
  folder = tmp_path / "new" / "run"
  arguments = [_SMALL, f"--output_dir={folder}"]
  auto = [*arguments, "--resume=auto"]
  process = start_binary("evolving", auto, start_new_session=True)
  try:
    while resume.num_rows(folder) < 3:
      assert process.poll() is None, process.communicate()
      time.sleep(0.02)
    process.send_signal(signal.SIGSTOP)
    assert run_evolving(auto) == 2
    errors = capfd.readouterr().err
    assert "a run is still going on in" in errors and errors.count("\n") == 1
    # As a terminal does: to the whole foreground group.
    os.killpg(process.pid, signal.SIGINT)
    process.send_signal(signal.SIGCONT)
    # Returns only when nobody holds the pipes any more.
    assert process.communicate() == (
      "the data are changed by --max_examples_per_domain=90\n",
      "evolving: interrupted; partial results were saved; repeat the command to"
      " continue\n",
    )
    assert process.returncode == 130
  finally:
    process.kill()
    process.wait()
  assert 3 <= resume.num_rows(folder) < 16
  step = rounds.Rounds.step

  def stop(self):
    # The first run may have all its rounds.
    if self.round_num == 2 and resume.num_rows(folder) >= 8:
      os.kill(os.getpid(), signal.SIGTERM)
    return step(self)

  with monkeypatch.context() as patches:
    patches.setattr(rounds.Rounds, "step", stop)
    assert run_evolving([*arguments, "--resume"]) == 143
  assert capfd.readouterr().err == (
    "evolving: terminated; partial results were saved; continue with"
    f" --resume --output_dir={folder}\n"
  )
  assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
  assert resume.num_rows(folder) == 10

  def is_of(name):
    return lambda figure, path: os.path.basename(path) == name

  for owner, name, is_now, file, how in (
    (drawing, "save", is_of("domains.png"), "domains.png", "auto"),
    (
      *(results.RunFolder, "write_metrics"),
      lambda _, row: (row["seed"], row["round"]) == (1, 5),
      *("metrics.csv", ""),
    ),
    (
      *(trackers.TensorBoard, "scalars"),
      lambda own, _, step, *__: step == 6 and own._folder.name == "seed_1",
      *("seed_1", ""),
    ),
    (
      *(checkpoints.Run, "_save", lambda _, step, *__: step == 6),
      *("fed_rep-circle-target-0.01-1.sqlite", ""),
    ),
    (results.RunFolder, "write_summary", lambda *_: True, "summary.json", ""),
    (
      *(drawing, "save", is_of("accuracy_per_domain.png")),
      *("accuracy_per_domain.png", ""),
    ),
    (results.RunFolder, "write_done", lambda *_: True, "done.json", "auto"),
  ):
    with disk_full(no_file_above, owner, name, is_now):
      code = run_evolving(auto if how else [*arguments, "--resume"])
    errors = capfd.readouterr().err
    assert (code, errors.count("\n")) == (5, 1)
    reasons = (
      "cannot be (written: File too large|used: disk I/O error); partial"
    )
    assert re.search(f"/{re.escape(file)} {reasons}", errors)
    assert errors.endswith(
      "; repeat the command to continue\n"
      if how
      else f"; continue with --resume --output_dir={folder}\n"
    )
    assert not list(folder.rglob(".*.tmp*"))
    assert (6,) not in saved_steps(folder) or (
      file in ("summary.json", "accuracy_per_domain.png", "done.json")
    )
  assert run_evolving(auto) == 0
  assert resume.num_rows(folder) == 16
  assert resume.differences(whole, folder) == []
  config = json.loads((folder / "config.json").read_text())
  assert len(config["resumed"]) == 9


def test_process_that_is_terminated_can_be_resumed(
  whole, tmp_path, run_evolving, start_binary
):
  folder = tmp_path / "run"
  arguments = [_SMALL, f"--output_dir={folder}"]
  process = start_binary("evolving", arguments)
  try:
    while resume.num_rows(folder) < 3:
      assert process.poll() is None, process.communicate()
      time.sleep(0.02)
    process.terminate()
    assert process.communicate()[1] == (
      "evolving: terminated; partial results were saved; continue with"
      f" --resume --output_dir={folder}\n"
    )
    assert process.returncode == 143
  finally:
    process.kill()
    process.wait()
  assert 3 <= resume.num_rows(folder) < 16
  assert run_evolving([*arguments, "--resume"]) == 0
  assert resume.differences(whole, folder) == []


def test_comparison_sees_a_difference(whole, finished):
  assert resume.differences(whole, finished) == []
  with open(finished / "metrics.csv", "a") as file:
    file.write("\n")
  (finished / "figures" / "domains.png").write_bytes(b"")
  assert resume.differences(whole, finished) == ["metrics.csv", "figures"]


def test_damage_and_lost_rows_are_mended(whole, finished, run):
  (first, second) = sorted((finished / "checkpoints").iterdir())
  first.unlink()
  with contextlib.closing(sqlite3.connect(second)) as connection, connection:
    connection.execute(
      "UPDATE states SET content = zeroblob(LENGTH(content))"
      " WHERE owner = -1 AND step > 6"
    )
  (finished / "summary.json").unlink()
  (finished / "metrics.csv").write_text("")
  errors = run(evolving, _SMALL, "--resume").errors
  assert errors.startswith("evolving: checkpoint ")
  assert f"checkpoint 8 in {second} cannot be used: it is damaged" in errors
  assert errors.count("\n") == 1
  assert resume.differences(whole, finished) == []


@pytest.mark.parametrize(
  "flags, expected",
  tables.rows("""
--rounds=7
    --rounds was 8 and is 7 (it may grow, not shrink)
--seeds=1,0
    --seeds was 0,1 and is 1,0 (additional seeds
--seeds=0 --aggregator=robust
    --seeds was 0,1 and is 0
    --aggregator was mean and is robus
--batch_size=7
    --batch_size was not set and is 7
--overwrite
    --overwrite exclude each other
--checkpoint_every=-1
    --checkpoint_every=-1: it must be at least
--output_dir=/nowhere
    '/nowhere' holds no run to resume
"""),
)
def test_other_flags_are_refused_and_nothing_is_changed(
  finished, refused, flags, expected
):
  line = refused(evolving, [_SMALL, f"--output_dir={finished} --resume", flags])
  assert all(part in line for part in expected)


def test_what_leaves_results_as_they_are_may_change(whole, finished, run):
  config = json.loads((finished / "config.json").read_text())
  config["versions"]["numpy"] = "0.1"
  (finished / "config.json").write_text(json.dumps(config))
  flags = "--resume --checkpoint_every=0 --max_concurrent_clients=1"
  errors = run(evolving, _SMALL, flags, "--executor=in_process").errors
  assert resume.differences(whole, finished) == []
  # Other software may leave them or not.
  assert errors.startswith("evolving: versions differ from the earlier run")
  assert errors.count("\n") == 1


def test_other_kernels_are_refused_with_both_versions(finished, refused):
  config = json.loads((finished / "config.json").read_text())
  now = config["versions"]["tensorflow"]
  config["versions"]["tensorflow"] = "2.0.0"
  (finished / "config.json").write_text(json.dumps(config))
  line = refused(evolving, f"{_SMALL} --output_dir={finished} --resume")
  assert f"TensorFlow 2.0.0, and this is {now}" in line


def test_drifting_clients_go_on_in_training_and_in_use(
  tmp_path, run, monkeypatch
):
  given = "dynamic_personalization", _DYNAMIC
  whole, folder = run(*given, folder="whole").folder, tmp_path / "run"
  write, step = results.RunFolder.write_metrics, rounds.Rounds.step

  def stop_in_use(self, row):
    if (row["test_distribution"], row["period"]) == ("0.9", 2):
      raise KeyboardInterrupt
    write(self, row)

  def stop_in_training(self):
    # The first run has all its rounds: this is the second.
    if self.round_num == 2:
      raise KeyboardInterrupt
    return step(self)

  for num_rows, owner, name, stop in (
    (3, results.RunFolder, "write_metrics", stop_in_use),
    (4, rounds.Rounds, "step", stop_in_training),
  ):
    with monkeypatch.context() as patches:
      patches.setattr(owner, name, stop)
      ended = run(*given, *["--resume"] * folder.exists(), code=130)
    assert ended.errors == (
      "dynamic_personalization: interrupted; partial results were saved;"
      f" continue with --resume --output_dir={folder}\n"
    )
    assert resume.num_rows(folder) == num_rows
  run(*given, "--resume")
  assert resume.num_rows(folder) == 8
  assert resume.differences(whole, folder) == []


def test_disk_that_is_full_at_the_start_makes_nothing(
  tmp_path, run, no_file_above
):
  with no_file_above(1000):
    errors = run(evolving, _SMALL, folder="new/run", code=2).errors
  assert errors.count("\n") == 1
  assert "--output_dir: " in errors and "config.json cannot be" in errors
  assert list(tmp_path.iterdir()) == []


class TestAuto:
  def test_one_command_starts_goes_on_and_does_nothing(
    self, whole, tmp_path, run, monkeypatch
  ):
    folder = tmp_path / "run"
    given = evolving, _SMALL, "--resume=auto"
    run(*given, "--seeds=0")
    ended = run(*given)
    assert resume.differences(whole, folder) == []
    assert ended.config["flags"]["resume"] == "auto"
    times = {each: each.stat().st_mtime_ns for each in folder.rglob("*")}

    def never(*_):
      raise AssertionError("data are looked at")

    with monkeypatch.context() as patches:
      patches.setattr(evolving.planning, "_load", never)
      ended = run(*given, "--checkpoint_every=1", errors="")
    assert ended.output == (
      "nothing to do: all rounds and seeds of this command line are done in"
      f" {folder}\n"
    )
    assert times == {
      each: each.stat().st_mtime_ns for each in folder.rglob("*")
    }
    # What else is asked for is written, without a round.
    with monkeypatch.context() as patches:
      patches.setattr(rounds.Rounds, "step", never)
      run(*given, "--save_model")
    assert list((folder / "model").rglob("weights.npz"))

  @pytest.mark.parametrize("flag", ["--resume", "--resume=auto"])
  def test_folder_must_be_named(self, run_evolving, capsys, flag):
    assert run_evolving([_SMALL, flag]) == 2
    assert "--output_dir" in capsys.readouterr().err

  @pytest.mark.parametrize(
    "name, damage, expected",
    [
      (
        *("config.json", lambda path: os.truncate(path, 100)),
        "config.json: Input data was tr",
      ),
      ("metrics.csv", os.unlink, "holds files but no earlier run"),
    ],
  )
  def test_what_resume_refuses_is_refused(
    self, finished, refused, name, damage, expected
  ):
    damage(finished / name)
    flags = f"{_SMALL} --output_dir={finished} --resume=auto"
    assert expected in refused(evolving, flags)
