"""Runs whose clients' states are on disk are the runs they are in memory."""

import contextlib
import shutil
import sqlite3

import pytest

from benchmarks import resume

pytestmark = pytest.mark.slow

_SMALL = """
  --dataset=circle --num_domains=4 --max_examples_per_domain=200
  --num_clients=12 --participation=0.25 --rounds=12 --local_steps=1
  --evaluate_every=1 --optimizer=adam --learning_rate=1e-2 --noprogress
  --algorithm=fed_rep --checkpoint_every=3
"""
_ON_DISK = f"{_SMALL} --max_states_in_memory=2"
_OTHERS = {
  "dynamic_personalization": """
    --algorithm=local --dataset=digits --max_examples=600 --num_clients=3
    --rounds=3 --period_size=20 --periods=2 --test_distributions=0.9
    --distance_threshold=1 --model=mlp --model_width=4 --participation=0.5
  """,
  "guidance": """
    --algorithm=fed_rep --dataset=digits --num_clients=4 --max_examples=200
    --model=mlp --model_width=4 --rounds=3 --local_steps=1 --batch_size=16
    --evaluate_every=2 --participation=0.5
  """,
  "online_adaptation": """
    --algorithm=fth --dataset=digits --model=mlp --model_width=4 --timesteps=3
    --num_clients=4 --initial_examples=20 --samples_per_step=20
    --pretraining_epochs=1 --max_pretraining_examples=200 --participation=0.5
  """,
}
_RUN = "checkpoints/fed_rep-circle-target-0.01-0.sqlite"


@pytest.fixture(scope="module", autouse=True)
def empty_figures(drawn_figures):
  """All figures but two are empty: to draw them takes longer than to run."""
  with drawn_figures("domains", "accuracy_per_domain"):
    yield


@pytest.fixture(scope="module")
def in_memory(run_once):
  """A run that was never stopped, all of it in memory."""
  return run_once("evolving", _SMALL, errors="")


@pytest.fixture(scope="module")
def on_disk(run_once):
  """The folder of the same run with states on disk."""
  return run_once("evolving", _ON_DISK, errors="").folder


def metrics(folder):
  return (folder / "metrics.csv").read_bytes()


def last_states(folder):
  """The bytes of all clients' last states in the file of a run."""
  with contextlib.closing(sqlite3.connect(folder / _RUN)) as connection:
    return connection.execute(
      "SELECT owner, content, MAX(step) FROM states WHERE owner >= 0"
      " GROUP BY owner"
    ).fetchall()


def test_metrics_are_the_same(in_memory, on_disk):
  assert resume.num_rows(in_memory.folder) == 12
  assert metrics(on_disk) == metrics(in_memory.folder)
  # More clients have taken part than were in memory at a time.
  assert len(last_states(on_disk)) > 8
  assert last_states(on_disk) == last_states(in_memory.folder)


@pytest.fixture(scope="module")
def killed(tmp_path_factory):
  """The folder of the same run, killed between two checkpoints."""
  folder = tmp_path_factory.mktemp("runs") / "killed"
  # In a new process.
  flags = _ON_DISK.split()
  next(resume.run_killed("evolving", flags, folder, [(4, 0)]))
  return folder


@pytest.mark.long
def test_killed_run_ends_as_one_that_was_not(
  in_memory, on_disk, killed, tmp_path, run
):
  assert 4 <= resume.num_rows(killed) < 12
  shutil.copytree(killed, tmp_path / "run")
  folder = run("evolving", _ON_DISK, "--resume").folder
  assert metrics(folder) == metrics(in_memory.folder)
  assert resume.differences(on_disk, folder) == []
  assert last_states(folder) == last_states(on_disk)


def test_limit_may_change_on_resume(
  in_memory, killed, tmp_path, run, stopped_at
):
  folder = shutil.copytree(killed, tmp_path / "run")
  given = "evolving", _SMALL, "--resume"
  with stopped_at(round=9):
    run(*given, code=130)
  run(*given, "--max_states_in_memory=1")
  assert metrics(folder) == metrics(in_memory.folder)


def test_damaged_file_is_told_in_a_line_and_the_run_starts_again(
  in_memory, on_disk, tmp_path, run
):
  folder = shutil.copytree(on_disk, tmp_path / "run")
  path = folder / _RUN
  path.write_bytes(path.read_bytes()[:5000])
  (error,) = run("evolving", _ON_DISK, "--resume").errors.splitlines()
  assert error.startswith(f"evolving: checkpoints in {path} cannot be used: ")
  assert "the file is damaged: " in error
  assert metrics(folder) == metrics(in_memory.folder)


@pytest.mark.long
@pytest.mark.parametrize("name", list(_OTHERS))
def test_other_scenarios_have_it_too(tmp_path, run, name, monkeypatch):
  # There may be a folder of a cache.
  monkeypatch.chdir(tmp_path)
  given = name, _OTHERS[name], "--noprogress"
  in_memory = run(*given).folder
  on_disk = run(*given, "--max_states_in_memory=1", folder="on_disk").folder
  assert metrics(on_disk) == metrics(in_memory)
  assert len(list(on_disk.glob("checkpoints/*.sqlite"))) > 0


class TestSomeClientsAreEvaluated:
  """In two rounds."""

  @pytest.fixture(scope="class")
  def some(self, run_once):
    flags = "--rounds=2 --evaluation_clients=3"
    return run_once("evolving", _SMALL, flags, errors="")

  def test_training_is_as_before(self, some, in_memory):
    rows, everybody = some.rows, in_memory.rows[:2]
    assert [
      {row.pop("evaluation_clients") for row in each}
      for each in (rows, everybody)
    ] == [{"3"}, {"0"}]
    assert rows != everybody
    losses = [[row["train_loss"] for row in each] for each in (rows, everybody)]
    assert losses[0] == losses[1]
    (entry,) = some.runs
    assert entry["setting"]["evaluation_clients"] == 3

  def test_all_of_them_are_everybody(self, run, in_memory):
    # The last round, which is evaluated on all domains, is left out: sums of
    # larger batches may be rounded otherwise.
    flags = "--evaluation_clients=12 --rounds=3"
    same = run("evolving", _SMALL, flags, errors="").rows[:2]
    everybody = in_memory.rows[:2]
    assert {row.pop("evaluation_clients") for row in same} == {"12"}
    assert {row.pop("evaluation_clients") for row in everybody} == {"0"}
    assert same == everybody

  def test_same_clients_again_and_no_file_is_left_without_checkpoints(
    self, run, some
  ):
    flags = "--rounds=2 --evaluation_clients=3 --checkpoint_every=0"
    folder = run("evolving", _ON_DISK, flags, errors="").folder
    assert metrics(folder) == metrics(some.folder)
    assert sorted(path.name for path in folder.iterdir()) == [
      ".lock",
      "config.json",
      "done.json",
      "figures",
      "metrics.csv",
      "summary.json",
      "tensorboard",
    ]


def test_other_evaluation_is_another_run(in_memory, run_in):
  assert in_memory.config["flags"]["max_states_in_memory"] is None
  given = "evolving", _SMALL, "--resume --evaluation_clients=3"
  errors = run_in(in_memory.folder, *given, code=2).errors
  assert "--evaluation_clients was 0 and is 3" in errors
