"""Runs that go on with more rounds or further seeds, and those that cannot.

What they end with is what a run has that had them from the start.
"""

import contextlib
import functools
import json
import shlex
import shutil
import sqlite3

import pytest

from benchmarks import resume
from tff_shift.binaries import dynamic_personalization
from tff_shift.binaries import evolving
from tff_shift.binaries import guidance
from tff_shift.binaries import online_adaptation
from tff_shift.scenarios.guidance import simulation
from tff_shift.simulation.engine import checkpoints
from tff_shift.simulation.storage import results

pytestmark = pytest.mark.slow

_EVOLVING = shlex.split("""
  --algorithm=fed_avg,fed_rep --dataset=circle --num_domains=4
  --max_examples_per_domain=90 --num_clients=3 --participation=0.7
  --local_steps=1 --evaluate_every=3 --mean_of_last=2 --optimizer=adam
  --learning_rate=1e-2 --checkpoint_every=2
""")
_GUIDANCE = shlex.split("""
  --algorithm=fed_rep --dataset=digits --num_clients=3 --participation=0.7
  --max_examples=200 --model=mlp --model_width=4 --local_steps=1 --batch_size=16
  --evaluate_every=2 --final_rounds=2 --checkpoint_every=1
""")
_DYNAMIC = shlex.split("""
  --algorithm=local --dataset=digits --max_examples=600 --num_clients=3
  --participation=0.7 --period_size=20 --periods=2 --test_distributions=iid,0.9
  --model=mlp --model_width=4 --distance_threshold=1 --checkpoint_every=2
""")
_ONLINE = shlex.split("""
  --algorithm=fth --timesteps=3 --dataset=digits --model=mlp --model_width=4
  --num_clients=3 --initial_examples=20 --samples_per_step=20
  --pretraining_epochs=1 --max_pretraining_examples=200
""")


@pytest.fixture(scope="module")
def run(tmp_path_factory, run_here, drawn_figures):
  """Returns `run(binary, arguments, folder=None, code=0) -> folder`.

  It runs a binary to its end with an exit code, in a new folder or again in
  one.
  """

  def run_binary(binary, arguments, folder=None, code=0):
    arguments = [*arguments, "--noprogress"]
    if folder is not None and folder.exists():
      arguments.append("--resume")
    folder = folder or tmp_path_factory.mktemp("runs") / "run"
    arguments.append(f"--output_dir={folder}")
    # To draw more takes longer than to run.
    with drawn_figures("accuracy_per_domain"):
      assert run_here(binary, arguments) == code
    return folder

  return run_binary


@pytest.fixture(scope="module")
def run_evolving_to_its_end(run):
  return functools.partial(run, evolving)


def rounds_of(rows):
  return [int(row["round"]) for row in rows]


@pytest.fixture(scope="module")
def long(run_evolving_to_its_end):
  """The folder of seven rounds with two seeds from the start."""
  return run_evolving_to_its_end([*_EVOLVING, "--rounds=7", "--seeds=0,1"])


@pytest.fixture(scope="module")
def short(run_evolving_to_its_end):
  """The folder of five rounds with a seed, finished."""
  return run_evolving_to_its_end([*_EVOLVING, "--rounds=5"])


@pytest.mark.long
def test_finished_run_takes_more_rounds_and_a_seed(
  run_evolving_to_its_end, long, short, tmp_path, read_rows, capsys
):
  folder = shutil.copytree(short, tmp_path / "run")
  assert rounds_of(read_rows(folder)) == [3, 5] * 2
  arguments = [*_EVOLVING, "--rounds=7", "--seeds=0,1"]
  run_evolving_to_its_end(arguments, folder)
  assert rounds_of(read_rows(folder)) == [3, 6, 7] * 4
  assert resume.differences(long, folder) == []
  assert capsys.readouterr().err == ""
  config = json.loads((folder / "config.json").read_text())
  assert (config["flags"]["rounds"], config["flags"]["seeds"]) == (
    7,
    ["0", "1"],
  )
  (resumption,) = config["resumed"]
  assert resumption["before"] == {"rounds": 5, "seeds": ["0"]}
  # It is one of seven rounds now.
  run_evolving_to_its_end(arguments, folder)
  assert resume.differences(long, folder) == []


def test_unfinished_run_and_its_extension_may_stop(
  run_evolving_to_its_end, long, tmp_path, monkeypatch, read_rows
):
  folder = tmp_path / "run"
  write = results.RunFolder.write_metrics

  def stop_at(algorithm, seed, round_num, *arguments):
    def stop(self, row):
      if (row["algorithm"], row["seed"], row["round"]) == (
        algorithm,
        seed,
        round_num,
      ):
        raise KeyboardInterrupt
      write(self, row)

    with monkeypatch.context() as patches:
      patches.setattr(results.RunFolder, "write_metrics", stop)
      run_evolving_to_its_end([*_EVOLVING, *arguments], folder, code=130)

  stop_at("fed_rep", 0, 5, "--rounds=5")
  longer = ["--rounds=7", "--seeds=0,1"]
  # What fed_avg has had before is not there again yet.
  stop_at("fed_avg", 0, 7, *longer)
  assert rounds_of(read_rows(folder)) == [3, 6]
  assert not (folder / "summary.json").exists()
  run_evolving_to_its_end([*_EVOLVING, *longer], folder)
  assert resume.differences(long, folder) == []


def tree(folder):
  return {
    path: path.read_bytes()
    for path in folder.rglob("*")
    if path.is_file() and path.name != ".lock"
  }


def assert_refused(run_here, capsys, binary, arguments, folder):
  """Asserts that nothing changes, and returns the one line."""
  before = tree(folder)
  arguments = [*arguments, "--noprogress", f"--output_dir={folder}", "--resume"]
  capsys.readouterr()
  assert run_here(binary, arguments) == 2
  errors = capsys.readouterr().err
  assert errors.count("\n") == 1
  assert tree(folder) == before
  return errors


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
def test_tasks_share_the_rounds_unless_their_number_is_set(
  run_here, run_evolving_to_its_end, capsys
):
  arguments = [*_EVOLVING, "--algorithm=cfl"]
  set_number = [*arguments, "--task_rounds=4"]
  folder, whole = (
    run_evolving_to_its_end([*set_number, f"--rounds={each}"])
    for each in (4, 5)
  )
  with recorded_before(folder, task_rounds=None):
    errors = assert_refused(
      run_here, capsys, evolving, [*arguments, "--rounds=5"], folder
    )
  assert "--rounds was 4 and is 5: --task_rounds of cfl is not set" in errors
  assert "keep --rounds=4, or start a new run in another --output_dir" in errors
  run_evolving_to_its_end([*set_number, "--rounds=5"], folder)
  assert resume.differences(whole, folder) == []


@pytest.mark.long
def test_choice_is_that_of_more_rounds(run_evolving_to_its_end, read_runs):
  """After one round another learning rate is chosen than after three."""
  arguments = [
    *_EVOLVING,
    *("--algorithm=fed_avg", "--optimizer=sgd", "--learning_rate=0.2,2"),
    "--select=last_source",
  ]
  folder, whole = (
    run_evolving_to_its_end([*arguments, f"--rounds={each}"]) for each in (1, 3)
  )
  chosen = [
    run["setting"]["learning_rate"]
    for each in (folder, whole)
    for run in read_runs(each)
  ]
  assert len(chosen) == len(set(chosen)) == 2
  run_evolving_to_its_end([*arguments, "--rounds=3"], folder)
  assert resume.differences(whole, folder) == []
  # Nothing stays of the one that was chosen before.
  names = [
    sorted(path.relative_to(each) for path in each.rglob("*") if path.is_dir())
    for each in (folder, whole)
  ]
  assert names[0] == names[1]


@pytest.mark.long
def test_final_rounds_are_those_of_all(
  run, run_here, read_rows, monkeypatch, capsys
):
  run = functools.partial(run, guidance)
  drive, num_queries = simulation.run, {}

  def recorded(algorithm, *data, run_seed, **options):
    size = algorithm.guidance.num_queries
    # How many are asked at a time does not depend on the other seeds.
    assert num_queries.setdefault(run_seed, size) == size
    return drive(algorithm, *data, run_seed=run_seed, **options)

  monkeypatch.setattr(simulation, "run", recorded)
  arguments = [*_GUIDANCE, "--cosine_rounds=9"]
  folder, whole = (
    run([*arguments, f"--rounds={rounds}", f"--seeds={seeds}"])
    for rounds, seeds in ((5, "0"), (7, "0,1"))
  )
  assert rounds_of(read_rows(folder)) == [2, 4, 5]

  def stop(*_, **__):
    raise KeyboardInterrupt

  # A rate that falls until the last round would be another; the seeds have no
  # part in it.
  with recorded_before(folder, cosine_rounds=None):
    errors = assert_refused(
      run_here, capsys, guidance, [*_GUIDANCE, "--rounds=7"], folder
    )
    assert "--rounds was 5 and is 7: --cosine_rounds of fed_rep" in errors
    with monkeypatch.context() as patches:
      patches.setattr(simulation, "run", stop)
      run([*_GUIDANCE, "--rounds=5", "--seeds=0,1"], folder, code=130)
  run([*arguments, "--rounds=7", "--seeds=0,1"], folder)
  assert rounds_of(read_rows(folder)) == [2, 4, 6, 7] * 2
  assert resume.differences(whole, folder) == []


@pytest.mark.long
def test_use_follows_the_last_round(run, read_rows):
  """Checkpoints of use have the numbers of rounds that now follow."""
  run = functools.partial(run, dynamic_personalization)
  arguments = [*_DYNAMIC, "--max_states_in_memory=1"]
  folder, whole = (
    run([*arguments, f"--rounds={rounds}", f"--seeds={seeds}"])
    for rounds, seeds in ((3, "0"), (6, "0,1"))
  )
  before = read_rows(folder)
  run([*arguments, "--rounds=6", "--seeds=0,1"], folder)
  assert len(read_rows(folder)) == 8 and read_rows(folder)[:4] != before
  assert resume.differences(whole, folder) == []


def test_full_disk_leaves_what_can_go_on(
  run, monkeypatch, capsys, no_file_above
):
  """The checkpoint of use stays until one of the last round is whole."""
  run = functools.partial(run, dynamic_personalization)
  folder, whole = (run([*_DYNAMIC, f"--rounds={each}"]) for each in (3, 4))
  save = checkpoints.Run._save

  def fail(self, step, *given):
    with no_file_above(20) if step == 3 else contextlib.nullcontext():
      save(self, step, *given)

  arguments = [*_DYNAMIC, "--rounds=4"]
  with monkeypatch.context() as patches:
    patches.setattr(checkpoints.Run, "_save", fail)
    run(arguments, folder, code=5)
  assert ".sqlite cannot be used: disk I/O error" in capsys.readouterr().err
  (path,) = (folder / "checkpoints").glob("*.sqlite")
  with contextlib.closing(sqlite3.connect(path)) as connection:
    steps = connection.execute("SELECT step FROM checkpoints").fetchall()
  assert max(steps) == (5,)
  run(arguments, folder)
  assert resume.differences(whole, folder) == []


@pytest.mark.long
def test_streams_take_seeds_and_no_time_steps(run, run_here, capsys, tmp_path):
  run = functools.partial(run, online_adaptation)
  refused = functools.partial(
    assert_refused, run_here, capsys, online_adaptation
  )
  arguments = [*_ONLINE, f"--cache_dir={tmp_path / 'cache'}"]
  folder, whole = (
    run([*arguments, f"--seeds={seeds}"]) for seeds in ("0", "0,1")
  )
  assert (
    "--timesteps was 3 and is 4: --shift=linear depends on it: omega of"
    " time step 1 would become 0.25 instead of 0.3333; keep --timesteps=3"
  ) in refused([*arguments, "--timesteps=4"], folder)
  run([*arguments, "--seeds=0,1"], folder)
  assert resume.differences(whole, folder) == []
  # This schedule flips at the same steps, but controls need all of them.
  others = {"shift": ["bernoulli"], "algorithm": ["fed_ade"], "controls": True}
  with recorded_before(folder, **others, seeds=["0"]):
    errors = refused(
      [
        *arguments,
        *("--shift=bernoulli", "--algorithm=fed_ade", "--controls"),
        "--timesteps=4",
      ],
      folder,
    )
  assert "--timesteps was 3 and is 4: --controls use the rates of" in errors
