"""Checkpoints: what is saved comes back bit by bit, or is reported."""

import collections
import contextlib
import json
import os
import shutil
import sqlite3
import types
from typing import NamedTuple

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tests.fixtures import clients
from tests.fixtures import trees
from tff_shift import algorithms
from tff_shift._util import files
from tff_shift.algorithms import fed_rep
from tff_shift.learning import algorithm as algorithm_lib
from tff_shift.models.networks import mlp
from tff_shift.simulation.engine import checkpoints
from tff_shift.simulation.engine import rounds
from tff_shift.simulation.storage import results
from tff_shift.simulation.storage import run_file

NUM_STEPS = 5


class Kept(NamedTuple):
  weights: tuple
  extra: collections.OrderedDict


class Inner(NamedTuple):
  counts: np.ndarray
  text: str | None = None


class Row(NamedTuple):
  step: int
  value: float
  inner: Inner


def make_row(inner, **fields):
  return Row(inner=Inner(**inner), **fields)


def odd_numbers(seed):
  """Numbers of which a bit is lost easily: NaN with a payload, -0.0, tiny."""
  bits = np.random.default_rng(seed).integers(0, 2**32, 6, dtype=np.uint32)
  bits[0], bits[1], bits[2] = 0x7FC0BEEF, 0x80000000, 1
  return bits.view(np.float32)


def phase(server_state, client_states, data):
  """A round without TFF: everybody's numbers are replaced by others."""
  round_num = int(server_state.round_num)
  server_state = server_state._replace(
    weights=odd_numbers([round_num, 99]).reshape(2, 3),
    round_num=np.int32(round_num + 1),
  )
  client_states = [
    state._replace(weights=(odd_numbers([round_num, each]),))
    for state, each in zip(client_states, data, strict=True)
  ]
  metrics = {
    "num_diverged": round_num % 2,
    "num_clients": len(data),
    "loss": [np.float32(0.1), np.float32("nan")][round_num % 2],
  }
  return server_state, client_states, metrics


def make_algorithm(width=3):
  extra = collections.OrderedDict(
    flag=np.bool_(True), count=np.int64(2**62 + 1), none=np.zeros([0, 4])
  )
  return types.SimpleNamespace(
    name="odd",
    initialize=lambda seed: algorithm_lib.ServerState(
      np.zeros([2, width], np.float32), (), np.int32(0)
    ),
    initialize_client=lambda state, seeds: [
      Kept((np.zeros(6, np.float32),), extra) for _ in seeds
    ],
    phases=(phase,),
    evaluate_clients=types.SimpleNamespace(
      # Clients' data have no field; they are the third and fourth argument.
      type_signature=types.SimpleNamespace(
        parameter=[types.SimpleNamespace(member=tff.StructType([]))] * 4
      )
    ),
  )


class Client(int):
  """A client is its number."""

  _fields = ()

  @property
  def seed(self):
    return int(self)


class InterruptedRunError(Exception):
  """Stands for the end of a process."""


class Drive:
  """A driver: goes through the steps, until it is interrupted.

  Attributes:
    running: The rounds.
    measured: The rows.
    done: The steps that were done here.
    replayed: The rows that were replayed.
    losses: What was told of each round.
  """

  def __init__(
    self, checkpoint, stop_in=None, num_clients=3, width=3, closes=True
  ):
    self.losses = []
    self.running = rounds.Rounds(
      make_algorithm(width),
      [Client(i) for i in range(num_clients)],
      run_seed=0,
      participation=0.7,
      storage=checkpoint and checkpoint.storage,
      on_loss=lambda *told: self.losses.append(told),
    )
    self.measured, self.done, self.replayed = [], [], []
    with contextlib.suppress(InterruptedRunError):
      for step in checkpoints.steps(
        checkpoint,
        NUM_STEPS,
        self.running,
        self.measured,
        make=make_row,
        replay=self.replayed.append,
      ):
        self.running.step()
        if step == stop_in:
          raise InterruptedRunError
        self.done.append(step)
        if step != 2:
          self.measured.append(
            Row(
              step,
              [float("nan"), -0.0, 0.1, float("inf")][step % 4],
              Inner(odd_numbers(step), None if step % 2 else 'odd, "text"'),
            )
          )
    self._bits = self._all_bits()
    if closes:
      self.running.close()

  def bits(self):
    """All that the run has come to, as bytes."""
    return self._bits

  def _all_bits(self):
    values = (
      self.running.server_state,
      tuple(self.running.client_states),
      self.measured,
      self.running.round_num,
    )
    return trees.typed_bits(
      [each for each in tf.nest.flatten(values) if each is not None]
    )


@pytest.fixture(scope="module")
def whole():
  """A run that never stops and saves nothing."""
  return Drive(None)


@pytest.fixture
def problems():
  return []


@pytest.fixture
def make(tmp_path, problems):
  """Returns `make(every=2, key="a")`, the checkpoints of a run."""

  def make_run(every=2, key="a", **options):
    return checkpoints.Run(
      tmp_path / "run" / "run.sqlite",
      key,
      every=every,
      on_problem=problems.append,
      **options,
    )

  return make_run


def execute(path, *statement):
  """Executes a statement; returns its rows."""
  with contextlib.closing(sqlite3.connect(path)) as connection, connection:
    return connection.execute(*statement).fetchall()


def saved_steps(path):
  return [
    step for (step,) in execute(path, "SELECT step FROM checkpoints ORDER BY 1")
  ]


@pytest.fixture(scope="module")
def stopped_folder(tmp_path_factory):
  """The folder of a run that was stopped in its last step."""
  folder = tmp_path_factory.mktemp("stopped") / "run"
  Drive(checkpoints.Run(folder / "run.sqlite", "a", every=2), stop_in=5)
  return folder


@pytest.fixture
def stopped(stopped_folder, tmp_path):
  """The file of that run, the only one in its folder."""
  shutil.copytree(stopped_folder, tmp_path / "run")
  return tmp_path / "run" / "run.sqlite"


class TestResume:
  # With all states in memory, one of three, and two.
  @pytest.mark.parametrize("limit", [None, 1, 2])
  @pytest.mark.parametrize("stop_in", [1, 2, 3, 5])
  def test_stopped_run_ends_with_the_same_bits(
    self, make, whole, problems, stop_in, limit
  ):
    Drive(make(max_states_in_memory=limit), stop_in=stop_in)
    resumed = Drive(make(max_states_in_memory=limit))
    assert problems == []
    saved = (stop_in - 1) // 2 * 2
    assert resumed.done == list(range(saved + 1, NUM_STEPS + 1))
    assert resumed.bits() == whole.bits()
    assert [row.step for row in resumed.replayed] == [
      row.step for row in whole.measured if row.step <= saved
    ]
    assert len(resumed.running.seconds) == NUM_STEPS
    assert resumed.running.starts == ([0, saved] if saved else [0])
    # Also those of the rounds of before, and none twice.
    np.testing.assert_equal(resumed.losses, whole.losses)
    assert [told[0] for told in resumed.losses] == [1, 2, 3, 4, 5]
    # In the second and the fourth round.
    assert resumed.running.num_diverged == whole.running.num_diverged == 2

  def test_what_is_restored_has_the_same_types(self, make, whole, stopped):
    del stopped
    resumed = Drive(make())
    for one, other in zip(
      resumed.running.client_states, whole.running.client_states, strict=True
    ):
      assert type(one) is Kept and type(one.extra) is collections.OrderedDict
      assert type(one.extra["count"]) is type(other.extra["count"])
    assert type(resumed.measured[0].inner) is Inner
    assert type(resumed.running.server_state) is algorithm_lib.ServerState

  @pytest.mark.parametrize("limit", [None, 1, 2])
  def test_finished_run_is_not_run_again(self, make, whole, tmp_path, limit):
    finished = Drive(make(every=3, max_states_in_memory=limit))
    assert saved_steps(tmp_path / "run" / "run.sqlite") == [3, 5]
    again = Drive(make(every=3, max_states_in_memory=limit))
    assert again.done == []
    assert again.bits() == finished.bits() == whole.bits()
    assert again.running.seconds == finished.running.seconds
    speed = again.running.seconds_per_round
    assert speed == finished.running.seconds_per_round

  def test_last_two_are_kept(self, stopped):
    assert saved_steps(stopped) == [2, 4]
    assert list(stopped.parent.iterdir()) == [stopped]

  def test_zero_saves_nothing_and_restores_all_the_same(
    self, make, stopped, whole
  ):
    before = stopped.read_bytes()
    resumed = Drive(make(every=0))
    assert resumed.done == [5]
    assert resumed.bits() == whole.bits()
    assert stopped.read_bytes() == before
    shutil.rmtree(stopped.parent)
    assert Drive(make(every=0)).bits() == whole.bits()
    assert not stopped.parent.exists()

  def test_other_files_stay(self, make, stopped, whole, problems):
    (stopped.parent / "notes.txt").write_text("mine")
    assert Drive(make()).bits() == whole.bits()
    assert problems == [] and saved_steps(stopped) == [4, 5]
    assert sorted(path.name for path in stopped.parent.iterdir()) == [
      *("notes.txt", "run.sqlite")
    ]

  def test_rest_of_the_metrics_is_cut_before_the_first_step_only(
    self, make, stopped
  ):
    del stopped
    cut = []
    resumed = Drive(make(on_restored=lambda: cut.append("cut")))
    assert cut == ["cut"] and resumed.done == [5]
    Drive(make(on_restored=lambda: cut.append("again")))
    assert cut == ["cut"]


def test_runs_that_nobody_asks_for_are_removed(tmp_path):
  folder = results.RunFolder(tmp_path)

  def runs():
    return checkpoints.Checkpoints(folder, {"rounds": 3}, every=2)

  for name in ("a", "b, 2"):
    Drive(runs().run({"name": name}))
  (folder.checkpoints / "notes.txt").write_text("mine")
  saved = runs()
  saved.run({"name": "b, 2"})
  assert len(list(folder.checkpoints.iterdir())) == 3
  saved.remove_others()
  assert sorted(path.name for path in folder.checkpoints.iterdir()) == [
    "b_2.sqlite",
    "notes.txt",
  ]


def test_temporary_files_of_a_killed_process_are_removed(tmp_path):
  folder = results.RunFolder(tmp_path)
  folder.checkpoints.mkdir()
  left = files.temporary_path(folder.checkpoints / "a.sqlite")
  left.write_bytes(b"half")
  others = [".a.sqlite.tmp", "a.sqlite.0123456789abcdef.tmp"]
  for name in others:
    (folder.checkpoints / name).write_text("mine")
  checkpoints.Checkpoints(folder, {"rounds": 3}, every=2)
  assert sorted(path.name for path in folder.checkpoints.iterdir()) == others


def truncate(path):
  os.truncate(path, path.stat().st_size // 2)


def flip_state(owner):
  """Returns a function that flips a bit of the last state of an owner."""

  def flip(path):
    ((state,),) = execute(
      path,
      "SELECT content FROM states WHERE owner = ? ORDER BY step DESC LIMIT 1",
      (owner,),
    )
    content = bytearray(path.read_bytes())
    assert content.count(state) == 1
    content[content.index(state) + len(state) // 2] ^= 1
    path.write_bytes(content)

  return flip


def change_record(change):
  """Returns a function that changes the text of the last record."""

  def changed(path):
    ((text,),) = execute(path, "SELECT record FROM checkpoints WHERE step = 4")
    execute(
      path,
      "UPDATE checkpoints SET record = ? WHERE step = 4",
      (change(text),),
    )

  return changed


def change_value(text):
  record = json.loads(text)
  record["seconds"][0] += 1e-9
  return json.dumps(record)


def forget_losses(text):
  """Makes it a record of a version that did not keep them."""
  record = json.loads(text)
  del record["losses"]
  return json.dumps(record)


def take_other(path):
  execute(
    path,
    "UPDATE checkpoints SET record ="
    " (SELECT record FROM checkpoints WHERE step = 2) WHERE step = 4",
  )


class TestUnusable:
  @pytest.mark.parametrize(
    "damage, reason",
    [
      (flip_state(-1), "it is damaged: its digest is another"),
      (flip_state(0), "it is damaged: its digest is another"),
      (
        lambda path: execute(
          path, "DELETE FROM states WHERE owner = 0 AND step = 3"
        ),
        "it is damaged: its digest is another",
      ),
      (change_record(change_value), "it is damaged: its digest is another"),
      (take_other, "it is damaged: its digest is another"),
      (
        change_record(lambda text: text[: len(text) // 2]),
        "its record is damaged: Input data was truncated",
      ),
      (
        change_record(forget_losses),
        "its record is damaged: Object missing required field `losses`",
      ),
    ],
  )
  def test_damage_is_reported_and_the_one_before_counts(
    self, make, stopped, whole, problems, damage, reason
  ):
    damage(stopped)
    resumed = Drive(make())
    assert resumed.done == [3, 4, 5]
    assert resumed.bits() == whole.bits()
    (problem,) = problems
    assert problem.startswith(
      f"checkpoint 4 in {stopped} cannot be used: {reason}"
    )
    assert problem.endswith(
      "; the run resumes from the previous one, or starts again if there is"
      " none"
    )
    assert "\n" not in problem

  def test_missing_record_is_reported_and_the_one_before_counts(
    self, make, stopped, whole, problems
  ):
    execute(stopped, "DELETE FROM checkpoints WHERE step = 4")
    resumed = Drive(make())
    assert resumed.done == [3, 4, 5] and resumed.bits() == whole.bits()
    (problem,) = problems
    assert problem.startswith("the record of the last checkpoint in ")

  def test_without_any_that_is_whole_the_run_starts_again(
    self, make, stopped, whole, problems
  ):
    change_record(lambda text: "")(stopped)
    execute(stopped, "UPDATE states SET content = x'00' WHERE step = 1")
    resumed = Drive(make())
    assert resumed.done == [1, 2, 3, 4, 5]
    assert resumed.bits() == whole.bits()
    assert resumed.replayed == []
    assert len(problems) == 2

  @pytest.mark.parametrize(
    "options, num_problems, reason",
    [
      ({"key": "b"}, 1, "it belongs to a run with other flags"),
      ({"num_clients": 4}, 2, "its states have another structure"),
      ({"width": 4}, 2, "its states have another structure"),
    ],
  )
  def test_that_of_another_run_is_reported(
    self, make, stopped, problems, options, num_problems, reason
  ):
    del stopped
    run = make(key=options.pop("key", "a"))
    assert Drive(run, stop_in=1, **options).done == []
    assert len(problems) == num_problems
    assert all(reason in each for each in problems)

  def test_file_of_another_format_is_refused_and_stays(
    self, make, stopped, refusal
  ):
    execute(stopped, "PRAGMA user_version = 1")
    before = stopped.read_bytes()
    for every in (0, 2):
      assert refusal(Drive, make(every=every)) == (
        f"{stopped} has format 1, and this version of tff_shift reads format 2;"
        " start again in another folder or overwrite it"
      )
    assert stopped.read_bytes() == before


class TestFullDisk:
  @pytest.mark.parametrize("limit", [1000, 20_000])
  def test_earlier_checkpoint_stays_whole(
    self, make, stopped, whole, no_file_above, limit
  ):
    """Not even the journal finds room, or only the journal does."""
    with (
      no_file_above(limit),
      pytest.raises(
        files.WriteError, match=r"run\.sqlite cannot be used: disk"
      ),
    ):
      Drive(make())
    assert saved_steps(stopped) == [2, 4]
    resumed = Drive(make())
    assert resumed.done == [5] and resumed.bits() == whole.bits()

  def test_folder_that_cannot_be_made(self, make, tmp_path):
    (tmp_path / "run").write_text("a file")
    with pytest.raises(files.WriteError, match=r"run\.sqlite cannot .* Not a"):
      Drive(make())


class TestStatesOnDisk:
  @pytest.fixture
  def make(self, make):
    """Returns `make(limit=1, **options)`, with a limit by default."""

    def make_run(limit=1, **options):
      return make(max_states_in_memory=limit, **options)

    return make_run

  @pytest.fixture(scope="class")
  def stopped_folder(self, tmp_path_factory):
    """The folder of a run that was stopped in its last step."""
    folder = tmp_path_factory.mktemp("stopped_on_disk") / "run"
    path = folder / "run.sqlite"
    run = checkpoints.Run(path, "a", every=2, max_states_in_memory=1)
    drive = Drive(run, stop_in=5)
    assert len(drive.running.states.in_memory) == 1
    return folder

  def test_zero_restores_all_the_same(self, make, stopped, whole):
    before = stopped.read_bytes()
    for _ in range(2):
      drive = Drive(make(every=0))
      assert drive.done == [5] and drive.bits() == whole.bits()
      assert stopped.read_bytes() == before

  @pytest.mark.parametrize(
    "limits", [(None, 1, None), (1, None, 1), (None, None, 2), (2, 2, None)]
  )
  def test_limit_may_change(self, make, whole, problems, limits):
    for limit, stop_in in zip(limits, (3, 5, None), strict=True):
      drive = Drive(make(limit), stop_in=stop_in)
    assert drive.bits() == whole.bits()
    assert problems == []
    again = Drive(make(limits[-1]))
    assert again.done == [] and again.bits() == whole.bits()

  @pytest.mark.parametrize(
    "damage, reason",
    [
      (truncate, ""),
      (lambda path: path.write_bytes(b""), "no such table"),
      (lambda path: path.write_text("text " * 5000), "file is not a database"),
    ],
  )
  def test_damage_is_reported_and_the_run_starts_again(
    self, make, stopped, whole, problems, damage, reason
  ):
    damage(stopped)
    resumed = Drive(make())
    assert resumed.done == [1, 2, 3, 4, 5]
    assert resumed.bits() == whole.bits()
    (problem,) = problems
    assert problem.startswith(
      f"checkpoints in {stopped} cannot be used: the file is damaged: {reason}"
    )
    assert problem.endswith("; the run starts again") and "\n" not in problem
    again = Drive(make())
    assert again.done == [] and again.bits() == whole.bits()

  def test_end_before_the_commit_leaves_the_checkpoint_before(
    self, make, stopped, whole, problems, monkeypatch
  ):
    def end(*_):
      raise InterruptedRunError

    with monkeypatch.context() as patches:
      patches.setattr(run_file.RunFile, "commit", end)
      assert Drive(make()).done == [5]
    assert saved_steps(stopped) == [2, 4]
    resumed = Drive(make())
    assert resumed.done == [5] and resumed.bits() == whole.bits()
    assert problems == []

  def test_full_disk_leaves_the_checkpoint_before(
    self, make, stopped, whole, no_file_above
  ):
    size = stopped.stat().st_size
    running = Drive(make(), stop_in=5, closes=False).running
    with (
      no_file_above(size // 2),
      pytest.raises(files.WriteError, match=r"sqlite cannot be used: "),
    ):
      running.states.put([0, 1, 2], running.client_states)
      running.states.write()
      running.states.storage.file.commit(5, "")
    running.close()
    resumed = Drive(make())
    assert resumed.done == [5] and resumed.bits() == whole.bits()


@pytest.mark.parametrize("limit", [None, 1])
def test_states_of_those_that_took_part_are_saved(make, tmp_path, limit):
  Drive(make(every=1, max_states_in_memory=limit), stop_in=4)
  rows = execute(
    tmp_path / "run" / "run.sqlite",
    "SELECT owner, step FROM states WHERE owner >= 0",
  )
  cohorts = [rounds.sample_clients(3, 0.7, 0, each) for each in range(3)]
  # The last two checkpoints need the states that the first cohort left.
  left = [client for client in cohorts[0] if client not in cohorts[1]]
  assert sorted(rows) == sorted(
    (client, step)
    for step, cohort in ((1, left), (2, cohorts[1]), (3, cohorts[2]))
    for client in cohort
  )


class TestFolder:
  @pytest.fixture
  def folder(self, tmp_path):
    return results.RunFolder.create(tmp_path / "out")

  def test_each_run_has_its_own(self, folder, whole):
    saved = checkpoints.Checkpoints(folder, {"rounds": 5}, every=5)
    for labels in ({"name": "a/b c", "rate": 1e-5}, {"name": "d", "rate": 2.0}):
      Drive(saved.run(labels))
    assert sorted(path.name for path in folder.checkpoints.iterdir()) == [
      "a_b_c-1e-05.sqlite",
      "d-2.0.sqlite",
    ]
    again = Drive(saved.run({"name": "d", "rate": 2.0}))
    assert again.done == [] and again.bits() == whole.bits()

  def test_one_that_was_moved_or_has_other_flags_is_foreign(self, folder):
    problems = []

    def start(value, name):
      saved = checkpoints.Checkpoints(
        folder, {"rounds": value}, every=5, on_problem=problems.append
      )
      return Drive(saved.run({"name": name}), stop_in=1)

    saved = checkpoints.Checkpoints(folder, {"rounds": 5}, every=5)
    Drive(saved.run({"name": "a"}))
    shutil.copy(
      folder.checkpoints / "a.sqlite", folder.checkpoints / "b.sqlite"
    )
    assert start(5, "a").replayed and problems == []
    assert not start(5, "b").replayed and len(problems) == 1
    assert not start(6, "a").replayed and len(problems) == 2

  def test_that_of_another_format_is_refused(self, folder, refusal):
    def start():
      return checkpoints.Checkpoints(folder, {"rounds": 5}, every=5)

    Drive(start().run({"name": "a"}))
    execute(folder.checkpoints / "a.sqlite", "PRAGMA user_version = 1")
    assert "has format 1, and this version" in refusal(start)

  def test_zero_makes_no_folder(self, folder):
    Drive(checkpoints.Checkpoints(folder, {}, every=0).run({"name": "a"}))
    assert not folder.checkpoints.exists()


def test_what_has_no_form_is_refused(make):
  run, measured = make(every=1), []
  running = Drive(run, stop_in=1, closes=False).running
  with (
    contextlib.closing(running),
    pytest.raises(TypeError, match="a set cannot be saved"),
  ):
    for _ in checkpoints.steps(
      run, 2, running, measured, make=make_row, replay=print
    ):
      measured.append({1})


@pytest.mark.slow
def test_real_algorithm_with_a_state_of_its_aggregator(context, make):
  del context
  data = [clients.make(i, 6) for i in range(3)]
  algorithm = algorithms.build(
    fed_rep,
    mlp.build((2,), width=4, head_width=3),
    fed_rep.HParams(batch_size=4, local_steps=1, head_steps=1),
    # Its state has clipping norms and thresholds.
    aggregator=tff.learning.robust_aggregator(),
  )

  def run(num_steps, checkpoint=None):
    running = rounds.Rounds(algorithm, data, run_seed=0)
    for _ in checkpoints.steps(
      checkpoint, num_steps, running, [], make=dict, replay=print
    ):
      running.step()
    return trees.bits((running.server_state, running.client_states))

  run(2, make())
  assert run(3, make()) == run(3)
