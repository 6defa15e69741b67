"""Runs that go on with more rounds or further seeds, and those that cannot.

What they end with is what a run has that had them from the start.
"""

import contextlib
import json
import sqlite3

import pytest

from benchmarks import resume
from tff_shift.scenarios.guidance import simulation
from tff_shift.simulation.engine import checkpoints

pytestmark = pytest.mark.slow

_EVOLVING = """
  --algorithm=fed_avg,fed_rep --dataset=circle --num_domains=4
  --max_examples_per_domain=90 --num_clients=3 --participation=0.7
  --local_steps=1 --evaluate_every=3 --mean_of_last=2 --optimizer=adam
  --learning_rate=1e-2 --checkpoint_every=2
"""
_GUIDANCE = """
  --algorithm=fed_rep --dataset=digits --num_clients=3 --participation=0.7
  --max_examples=200 --model=mlp --model_width=4 --local_steps=1 --batch_size=16
  --evaluate_every=2 --final_rounds=2 --checkpoint_every=1
"""
_DYNAMIC = """
  --algorithm=local --dataset=digits --max_examples=600 --num_clients=3
  --participation=0.7 --period_size=20 --periods=2 --test_distributions=iid,0.9
  --model=mlp --model_width=4 --distance_threshold=1 --checkpoint_every=2
"""
_ONLINE = """
  --algorithm=fth --timesteps=3 --dataset=digits --model=mlp --model_width=4
  --num_clients=3 --initial_examples=20 --samples_per_step=20
  --pretraining_epochs=1 --max_pretraining_examples=200
"""


@pytest.fixture(scope="module")
def run(run_once, run_in, drawn_figures):
  """Returns `run(binary, *flags, folder=None, code=0)`, of which it is `Run`.
  The folder is a new one, or the run is resumed.
  """

  def run_binary(*given, folder=None, **options):
    given = *given, "--noprogress"
    # To draw more takes longer than to run.
    with drawn_figures("accuracy_per_domain"):
      if folder is None:
        return run_once(*given, **options)
      return run_in(folder, *given, *["--resume"] * folder.exists(), **options)

  return run_binary


def rounds_of(run):
  return [int(row["round"]) for row in run.rows]


_LONG = "evolving", _EVOLVING, "--rounds=7 --seeds=0,1"


@pytest.fixture(scope="module")
def long(run):
  """The folder of seven rounds with two seeds from the start."""
  return run(*_LONG).folder


@pytest.mark.long
def test_finished_run_takes_more_rounds_and_a_seed(run, long):
  short = run("evolving", _EVOLVING, "--rounds=5")
  folder = short.folder
  assert rounds_of(short) == [3, 5] * 2
  ended = run(*_LONG, folder=folder, errors="")
  assert rounds_of(ended) == [3, 6, 7] * 4
  assert resume.differences(long, folder) == []
  flags = ended.config["flags"]
  assert (flags["rounds"], flags["seeds"]) == (7, ["0", "1"])
  (resumption,) = ended.config["resumed"]
  assert resumption["before"] == {"rounds": 5, "seeds": ["0"]}
  # It is one of seven rounds now.
  run(*_LONG, folder=folder)
  assert resume.differences(long, folder) == []


def test_unfinished_run_and_its_extension_may_stop(
  run, long, tmp_path, stopped_at
):
  folder = tmp_path / "run"
  with stopped_at(algorithm="fed_rep", seed=0, round=5):
    run("evolving", _EVOLVING, "--rounds=5", folder=folder, code=130)
  with stopped_at(algorithm="fed_avg", seed=0, round=7):
    stopped = run(*_LONG, folder=folder, code=130)
  # What fed_avg has had before is not there again yet.
  assert rounds_of(stopped) == [3, 6]
  assert not (folder / "summary.json").exists()
  run(*_LONG, folder=folder)
  assert resume.differences(long, folder) == []


def tree(folder):
  return {
    path: path.read_bytes()
    for path in folder.rglob("*")
    if path.is_file() and path.name != ".lock"
  }


@pytest.fixture
def refused(run):
  """Returns `refused(folder, binary, *flags)`: the line; nothing changes."""

  def resume_run(folder, *given):
    before = tree(folder)
    errors = run(*given, folder=folder, code=2).errors
    assert errors.count("\n") == 1
    assert tree(folder) == before
    return errors

  return resume_run


@contextlib.contextmanager
def recorded_before(folder, **changes):
  """A run has recorded other flags, for a while."""
  path = folder / "config.json"
  before = path.read_text()
  config = json.loads(before)
  config["flags"] |= changes
  path.write_text(json.dumps(config))
  yield
  path.write_text(before)


@pytest.mark.long
def test_tasks_share_the_rounds_unless_their_number_is_set(run, refused):
  given = "evolving", _EVOLVING, "--algorithm=cfl"
  set_number = *given, "--task_rounds=4"
  folder, whole = (
    run(*set_number, f"--rounds={each}").folder for each in (4, 5)
  )
  with recorded_before(folder, task_rounds=None):
    errors = refused(folder, *given, "--rounds=5")
  assert "--rounds was 4 and is 5: --task_rounds of cfl is not set" in errors
  assert "keep --rounds=4, or start a new run in another --output_dir" in errors
  run(*set_number, "--rounds=5", folder=folder)
  assert resume.differences(whole, folder) == []


@pytest.mark.long
def test_choice_is_that_of_more_rounds(run):
  """After one round another learning rate is chosen than after three."""
  given = (
    *("evolving", _EVOLVING, "--algorithm=fed_avg --optimizer=sgd"),
    "--learning_rate=0.2,2 --select=last_source",
  )
  first, last = (run(*given, f"--rounds={each}") for each in (1, 3))
  folder, whole = first.folder, last.folder
  chosen = [
    summary["setting"]["learning_rate"]
    for each in (first, last)
    for summary in each.runs
  ]
  assert len(chosen) == len(set(chosen)) == 2
  run(*given, "--rounds=3", folder=folder)
  assert resume.differences(whole, folder) == []
  # Nothing stays of the one that was chosen before.
  names = [
    sorted(path.relative_to(each) for path in each.rglob("*") if path.is_dir())
    for each in (folder, whole)
  ]
  assert names[0] == names[1]


@pytest.mark.long
def test_final_rounds_are_those_of_all(run, refused, monkeypatch):
  drive, num_queries = simulation.run, {}

  def recorded(algorithm, *data, run_seed, **options):
    size = algorithm.guidance.num_queries
    # How many are asked at a time does not depend on the other seeds.
    assert num_queries.setdefault(run_seed, size) == size
    return drive(algorithm, *data, run_seed=run_seed, **options)

  monkeypatch.setattr(simulation, "run", recorded)
  given = "guidance", _GUIDANCE
  falling = *given, "--cosine_rounds=9"
  first, last = (
    run(*falling, f"--rounds={rounds} --seeds={seeds}")
    for rounds, seeds in ((5, "0"), (7, "0,1"))
  )
  folder = first.folder
  assert rounds_of(first) == [2, 4, 5]

  def stop(*_, **__):
    raise KeyboardInterrupt

  # A rate that falls until the last round would be another; the seeds have no
  # part in it.
  with recorded_before(folder, cosine_rounds=None):
    errors = refused(folder, *given, "--rounds=7")
    assert "--rounds was 5 and is 7: --cosine_rounds of fed_rep" in errors
    with monkeypatch.context() as patches:
      patches.setattr(simulation, "run", stop)
      run(*given, "--rounds=5 --seeds=0,1", folder=folder, code=130)
  longer = run(*falling, "--rounds=7 --seeds=0,1", folder=folder)
  assert rounds_of(longer) == [2, 4, 6, 7] * 2
  assert resume.differences(last.folder, folder) == []


@pytest.mark.long
def test_use_follows_the_last_round(run):
  """Checkpoints of use have the numbers of rounds that now follow."""
  given = "dynamic_personalization", _DYNAMIC, "--max_states_in_memory=1"
  first, last = (
    run(*given, f"--rounds={rounds} --seeds={seeds}")
    for rounds, seeds in ((3, "0"), (6, "0,1"))
  )
  before = first.rows
  longer = run(*given, "--rounds=6 --seeds=0,1", folder=first.folder)
  assert len(longer.rows) == 8 and longer.rows[:4] != before
  assert resume.differences(last.folder, longer.folder) == []


def test_full_disk_leaves_what_can_go_on(run, monkeypatch, no_file_above):
  """The checkpoint of use stays until one of the last round is whole."""
  folder, whole = (
    run("dynamic_personalization", _DYNAMIC, f"--rounds={each}").folder
    for each in (3, 4)
  )
  save = checkpoints.Run._save

  def fail(self, step, *given):
    with no_file_above(20) if step == 3 else contextlib.nullcontext():
      save(self, step, *given)

  given = "dynamic_personalization", _DYNAMIC, "--rounds=4"
  with monkeypatch.context() as patches:
    patches.setattr(checkpoints.Run, "_save", fail)
    ended = run(*given, folder=folder, code=5)
  assert ".sqlite cannot be used: disk I/O error" in ended.errors
  (path,) = (folder / "checkpoints").glob("*.sqlite")
  with contextlib.closing(sqlite3.connect(path)) as connection:
    steps = connection.execute("SELECT step FROM checkpoints").fetchall()
  assert max(steps) == (5,)
  run(*given, folder=folder)
  assert resume.differences(whole, folder) == []


@pytest.mark.long
def test_streams_take_seeds_and_no_time_steps(run, refused, tmp_path):
  given = "online_adaptation", _ONLINE, f"--cache_dir={tmp_path / 'cache'}"
  folder, whole = (
    run(*given, f"--seeds={seeds}").folder for seeds in ("0", "0,1")
  )
  assert (
    "--timesteps was 3 and is 4: --shift=linear depends on it: omega of"
    " time step 1 would become 0.25 instead of 0.3333; keep --timesteps=3"
  ) in refused(folder, *given, "--timesteps=4")
  run(*given, "--seeds=0,1", folder=folder)
  assert resume.differences(whole, folder) == []
  # This schedule flips at the same steps, but controls need all of them.
  others = {"shift": ["bernoulli"], "algorithm": ["fed_ade"], "controls": True}
  with recorded_before(folder, **others, seeds=["0"]):
    flags = "--shift=bernoulli --algorithm=fed_ade --controls --timesteps=4"
    errors = refused(folder, *given, flags)
  assert "--timesteps was 3 and is 4: --controls use the rates of" in errors
