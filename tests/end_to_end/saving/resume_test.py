"""Runs of the binaries that are stopped, and go on with `--resume`."""

import functools
import itertools
import json
import os
import resource
import shutil
import signal
import time

import pytest

from benchmarks import resume
from tff_shift import files
from tff_shift.command_line.binaries import dynamic_personalization
from tff_shift.command_line.binaries import evolving
from tff_shift.command_line.plans import dynamic_personalization_plan
from tff_shift.command_line.plans import evolving_plan
from tff_shift.reporting.figures import drawing
from tff_shift.reporting.trackers import trackers
from tff_shift.simulation.engine import checkpoints
from tff_shift.simulation.engine import rounds
from tff_shift.simulation.storage import results

pytestmark = pytest.mark.slow

_SMALL = (
  *("--dataset=circle", "--num_domains=4", "--max_examples_per_domain=90"),
  *("--num_clients=3", "--rounds=8", "--local_steps=1", "--evaluate_every=1"),
  *("--optimizer=adam", "--learning_rate=1e-2", "--participation=0.7"),
  *("--noprogress", "--algorithm=fed_rep", "--seeds=0,1"),
  "--checkpoint_every=3",
)
# Five steps in a run, three rounds and two streams; 2, 4 and 5 are saved.
_DYNAMIC = (
  *("--algorithm=local", "--dataset=digits", "--max_examples=600"),
  *("--num_clients=3", "--rounds=3", "--period_size=20", "--periods=2"),
  *("--test_distributions=iid,0.9", "--model=mlp", "--model_width=4"),
  *("--distance_threshold=1", "--participation=0.7", "--noprogress"),
  *("--seeds=0,1", "--checkpoint_every=2"),
)


@pytest.fixture(scope="module")
def whole(tmp_path_factory, run_whole):
  """The folder of a run that was never stopped."""
  folder = tmp_path_factory.mktemp("runs") / "whole"
  run_whole(evolving, evolving_plan, [*_SMALL, f"--output_dir={folder}"])
  return folder


@pytest.fixture
def finished(whole, tmp_path):
  return shutil.copytree(whole, tmp_path / "run")


def test_run_that_ended_early_ends_as_one_that_did_not(
  whole, tmp_path, run_evolving, capsys, monkeypatch
):
  """Killed in the first run; stopped by a full disk in the second."""
  folder = tmp_path / "run"
  arguments = [*_SMALL, f"--output_dir={folder}"]
  # It starts in a new process, and goes on here.
  (rows,) = itertools.islice(
    resume.run_killed("evolving", _SMALL, folder, [(4, 0)]), 1
  )
  assert 4 <= rows < 16
  write = results.RunFolder.write_metrics

  def stop(self, row):
    if (row["seed"], row["round"]) == (1, 5):
      raise files.WriteError("here", "No space left on device")
    write(self, row)

  with monkeypatch.context() as patches:
    patches.setattr(results.RunFolder, "write_metrics", stop)
    assert run_evolving([*arguments, "--resume"]) == 5
  assert capsys.readouterr().err == (
    "evolving: here cannot be written: No space left on device; partial"
    f" results were saved; continue with --resume --output_dir={folder}\n"
  )
  assert resume.num_rows(folder) == 12
  assert run_evolving([*arguments, "--resume"]) == 0
  assert resume.num_rows(folder) == 16
  assert resume.differences(whole, folder) == []
  config = json.loads((folder / "config.json").read_text())
  assert len(config["resumed"]) == 2


def test_comparison_sees_a_difference(whole, finished):
  assert resume.differences(whole, finished) == []
  with open(finished / "metrics.csv", "a") as file:
    file.write("\n")
  (finished / "figures" / "domains.png").write_bytes(b"")
  assert resume.differences(whole, finished) == ["metrics.csv", "figures"]


def test_damage_and_lost_rows_are_mended(whole, finished, run_evolving, capsys):
  runs = finished / "checkpoints"
  for path in (runs / "fed_rep-circle-target-0.01-0").glob("state_*.json"):
    path.unlink()
  variables = runs / "fed_rep-circle-target-0.01-1/state_8/variables"
  for path in variables.iterdir():
    os.truncate(path, 10)
  (finished / "summary.json").unlink()
  (finished / "metrics.csv").write_text("")
  code = run_evolving([*_SMALL, f"--output_dir={finished}", "--resume"])
  errors = capsys.readouterr().err
  assert code == 0
  assert errors.startswith("evolving: checkpoint ")
  assert "state_8 cannot be used: its states are damaged" in errors
  assert errors.count("\n") == 1
  assert resume.differences(whole, finished) == []


@pytest.mark.parametrize(
  ("flags", "expected"),
  [
    *(
      (f"{how} {flags}", expected)
      for how in ("--resume", "--resume=auto")
      for flags, expected in (
        ("--rounds=7", "--rounds was 8 and is 7 (it may grow, not shrink)"),
        ("--seeds=1,0", "--seeds was 0,1 and is 1,0 (additional seeds"),
        ("--seeds=0 --aggregator=robust", "--seeds was 0,1 and is 0"),
        ("--seeds=0 --aggregator=robust", "--aggregator was mean and is robus"),
        ("--batch_size=7", "--batch_size was not set and is 7"),
        ("--overwrite", "--overwrite exclude each other"),
        ("--checkpoint_every=-1", "--checkpoint_every=-1: it must be at least"),
      )
    ),
    ("--resume --output_dir=/nowhere", "'/nowhere' holds no run to resume"),
  ],
)
def test_other_flags_are_refused_and_nothing_is_changed(
  finished, refused, flags, expected
):
  given = [*_SMALL, f"--output_dir={finished}", *flags.split()]
  assert expected in refused(evolving, evolving_plan, given)


def test_what_leaves_results_as_they_are_may_change(
  whole, finished, run_evolving, capsys
):
  config = json.loads((finished / "config.json").read_text())
  config["versions"]["tensorflow"] = "2.0"
  (finished / "config.json").write_text(json.dumps(config))
  code = run_evolving(
    [
      *_SMALL,
      f"--output_dir={finished}",
      *("--resume", "--checkpoint_every=0", "--max_concurrent_clients=1"),
      "--executor=in_process",
    ]
  )
  errors = capsys.readouterr().err
  assert code == 0
  assert resume.differences(whole, finished) == []
  # Other software may leave them or not.
  assert errors.startswith("evolving: versions differ from the earlier run")
  assert errors.count("\n") == 1


def test_drifting_clients_go_on_in_training_and_in_use(
  tmp_path, run_here, capsys, monkeypatch
):
  whole, folder = tmp_path / "whole", tmp_path / "run"
  run = functools.partial(
    run_here, dynamic_personalization, dynamic_personalization_plan
  )
  assert run([*_DYNAMIC, f"--output_dir={whole}"]) == 0
  arguments = [*_DYNAMIC, f"--output_dir={folder}"]
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

  capsys.readouterr()
  for num_rows, owner, name, stop in (
    (3, results.RunFolder, "write_metrics", stop_in_use),
    (4, rounds.Rounds, "step", stop_in_training),
  ):
    with monkeypatch.context() as patches:
      patches.setattr(owner, name, stop)
      assert run([*arguments, *["--resume"] * folder.exists()]) == 130
    assert capsys.readouterr().err == (
      "dynamic_personalization: interrupted; partial results were saved;"
      f" continue with --resume --output_dir={folder}\n"
    )
    assert resume.num_rows(folder) == num_rows
  assert run([*arguments, "--resume"]) == 0
  assert resume.num_rows(folder) == 8
  assert resume.differences(whole, folder) == []


def test_full_disk_ends_a_process_in_one_line(tmp_path, start_binary):
  folder = tmp_path / "run"
  with start_binary(
    "evolving",
    # Wide enough that weights are the largest file.
    [*_SMALL, "--model_width=128", f"--output_dir={folder}"],
    preexec_fn=lambda: resource.setrlimit(
      resource.RLIMIT_FSIZE, (120_000, 120_000)
    ),
  ) as process:
    _, errors = process.communicate()
  assert process.returncode == 5
  assert errors.count("\n") == 1
  assert "state_3 cannot be written: File too large; partial" in errors
  assert errors.endswith(f"continue with --resume --output_dir={folder}\n")
  (run,) = (folder / "checkpoints").glob("fed_rep*")
  assert list(run.iterdir()) == []


@pytest.mark.parametrize(
  ("owner", "name", "call", "file", "going_on"),
  [
    (drawing, "save", 1, "domains.png", "--resume=auto"),
    (results.RunFolder, "write_metrics", 13, "metrics.csv", "--resume"),
    (trackers.TensorBoard, "release", 25, "seed_1", "--resume"),
    (checkpoints.Run, "_save", 5, "state_6", "--resume"),
    (results.RunFolder, "write_summary", 1, "summary.json", "--resume"),
    (drawing, "save", 3, "accuracy_per_domain.png", "--resume"),
    (results.RunFolder, "write_done", 1, "done.json", "--resume=auto"),
  ],
)
def test_full_disk_anywhere_ends_the_run_which_then_goes_on(
  whole,
  tmp_path,
  run_evolving,
  capsys,
  monkeypatch,
  no_file_above,
  owner,
  name,
  call,
  file,
  going_on,
):
  folder = tmp_path / "run"
  arguments = [*_SMALL, f"--output_dir={folder}"]
  if going_on == "--resume=auto":
    arguments.append(going_on)
  calls, function = itertools.count(1), getattr(owner, name)

  def on_a_full_disk(*given):
    if next(calls) != call:
      return function(*given)
    with no_file_above(20):
      return function(*given)

  with monkeypatch.context() as patches:
    patches.setattr(owner, name, on_a_full_disk)
    assert run_evolving(arguments) == 5
  errors = capsys.readouterr().err
  assert errors.count("\n") == 1
  assert f"/{file} cannot be written: File too large; partial" in errors
  if going_on == "--resume":
    assert errors.endswith(f"; continue with --resume --output_dir={folder}\n")
    arguments.append(going_on)
  else:
    assert errors.endswith("; repeat the command to continue\n")
  assert run_evolving(arguments) == 0
  assert resume.differences(whole, folder) == []
  assert not list(folder.rglob(".*.tmp*"))


def test_disk_that_is_full_at_the_start_makes_nothing(
  tmp_path, run_evolving, capsys, no_file_above
):
  with no_file_above(1000):
    code = run_evolving([*_SMALL, f"--output_dir={tmp_path}/new/run"])
  errors = capsys.readouterr().err
  assert (code, errors.count("\n")) == (2, 1)
  assert "--output_dir: " in errors and "config.json cannot be" in errors
  assert list(tmp_path.iterdir()) == []


def test_sigterm_ends_as_ctrl_c(
  whole, tmp_path, run_evolving, capsys, monkeypatch
):
  folder = tmp_path / "run"
  step = rounds.Rounds.step

  def stop(self):
    if self.round_num == 4:
      os.kill(os.getpid(), signal.SIGTERM)
    return step(self)

  arguments = [*_SMALL, f"--output_dir={folder}"]
  with monkeypatch.context() as patches:
    patches.setattr(rounds.Rounds, "step", stop)
    assert run_evolving(arguments) == 143
  assert capsys.readouterr().err == (
    "evolving: terminated; partial results were saved; continue with"
    f" --resume --output_dir={folder}\n"
  )
  assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
  assert run_evolving([*arguments, "--resume"]) == 0
  assert resume.differences(whole, folder) == []


class TestAuto:
  def test_one_command_starts_goes_on_and_does_nothing(
    self, whole, tmp_path, run_evolving, capsys, monkeypatch
  ):
    folder = tmp_path / "new" / "run"
    arguments = [*_SMALL, f"--output_dir={folder}", "--resume=auto"]
    assert run_evolving([*arguments, "--seeds=0"]) == 0
    assert run_evolving(arguments) == 0
    assert resume.differences(whole, folder) == []
    config = json.loads((folder / "config.json").read_text())
    assert config["flags"]["resume"] == "auto"
    capsys.readouterr()
    times = {each: each.stat().st_mtime_ns for each in folder.rglob("*")}

    def never(*_):
      raise AssertionError("data are looked at")

    with monkeypatch.context() as patches:
      patches.setattr(evolving_plan, "_load", never)
      assert run_evolving([*arguments, "--checkpoint_every=1"]) == 0
    output, errors = capsys.readouterr()
    assert errors == ""
    assert output == (
      "nothing to do: all rounds and seeds of this command line are done in"
      f" {folder}\n"
    )
    assert times == {
      each: each.stat().st_mtime_ns for each in folder.rglob("*")
    }
    # What else is asked for is written, without a round.
    with monkeypatch.context() as patches:
      patches.setattr(rounds.Rounds, "step", never)
      assert run_evolving([*arguments, "--save_model"]) == 0
    assert list((folder / "model").rglob("weights.npz"))

  @pytest.mark.parametrize("flag", ["--resume", "--resume=auto"])
  def test_folder_must_be_named(self, run_evolving, capsys, flag):
    assert run_evolving([*_SMALL, flag]) == 2
    assert "--output_dir" in capsys.readouterr().err

  @pytest.mark.parametrize(
    ("prepare", "flag", "expected"),
    [
      (
        "nothing",
        "--resume=maybe",
        "--resume=maybe: it must be true, false or",
      ),
      ("cut config.json", "--resume=auto", "config.json: it is not JSON"),
      ("without rows", "--resume=auto", "holds files but no earlier run"),
      ("with a link", "--rounds=9", "figures cannot be written: it is a link"),
    ],
  )
  def test_what_resume_refuses_is_refused(
    self, finished, refused, prepare, flag, expected
  ):
    if prepare == "cut config.json":
      os.truncate(finished / "config.json", 100)
    elif prepare == "without rows":
      (finished / "metrics.csv").unlink()
    elif prepare == "with a link":
      (finished / "figures").rename(finished / "elsewhere")
      (finished / "figures").symlink_to(finished / "elsewhere")
    given = [*_SMALL, f"--output_dir={finished}", "--resume=auto", flag]
    assert expected in refused(evolving, evolving_plan, given)

  def test_of_two_that_start_at_once_one_runs(
    self, whole, tmp_path, start_binary, run_evolving
  ):
    folder = tmp_path / "new" / "run"
    arguments = [*_SMALL, f"--output_dir={folder}", "--resume=auto"]
    with (
      start_binary("evolving", arguments) as one,
      start_binary("evolving", arguments) as other,
    ):
      while one.poll() is None and other.poll() is None:
        time.sleep(0.05)
      refused, runs = (one, other) if one.poll() is not None else (other, one)
      errors = refused.stderr.read()
      assert (refused.returncode, errors.count("\n")) == (2, 1)
      assert "a run is still going on in" in errors
      while resume.num_rows(folder) < 3:
        assert runs.poll() is None
        time.sleep(0.05)
      runs.send_signal(signal.SIGTERM)
      assert runs.stderr.read() == (
        "evolving: terminated; partial results were saved; repeat the command"
        " to continue\n"
      )
      assert runs.wait() == 143
    assert run_evolving(arguments) == 0
    assert resume.differences(whole, folder) == []
