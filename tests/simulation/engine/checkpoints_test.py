"""Checkpoints: what is saved comes back bit by bit, or is reported."""

import collections
import contextlib
import json
import os
import shutil
import types
from typing import NamedTuple

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tff_shift import algorithms
from tff_shift import files
from tff_shift.algorithms import fed_rep
from tff_shift.data import client_dataset
from tff_shift.learning import algorithm as algorithm_lib
from tff_shift.learning import randomness
from tff_shift.models.networks import mlp
from tff_shift.simulation.engine import checkpoints
from tff_shift.simulation.engine import rounds
from tff_shift.simulation.storage import array_cache
from tff_shift.simulation.storage import results

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
    return [
      (np.asarray(each).dtype, np.shape(each), np.asarray(each).tobytes())
      for each in tf.nest.flatten(values)
      if each is not None
    ]


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
      tmp_path / "run", key, every=every, on_problem=problems.append, **options
    )

  return make_run


def names(tmp_path):
  return sorted(path.name for path in (tmp_path / "run").iterdir())


@pytest.fixture(scope="module")
def stopped_folder(tmp_path_factory):
  """The folder of a run that was stopped in its last step."""
  folder = tmp_path_factory.mktemp("stopped") / "run"
  Drive(checkpoints.Run(folder, "a", every=2), stop_in=5)
  return folder


@pytest.fixture
def stopped(stopped_folder, tmp_path):
  shutil.copytree(stopped_folder, tmp_path / "run")
  return tmp_path / "run"


class TestResume:
  @pytest.mark.parametrize("stop_in", [1, 2, 3, 5])
  def test_stopped_run_ends_with_the_same_bits(self, make, whole, stop_in):
    Drive(make(), stop_in=stop_in)
    resumed = Drive(make())
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

  def test_finished_run_is_not_run_again(self, make, whole, tmp_path):
    finished = Drive(make(every=3))
    assert names(tmp_path) == [
      "state_3",
      "state_3.json",
      "state_5",
      "state_5.json",
    ]
    again = Drive(make(every=3))
    assert again.done == []
    assert again.bits() == finished.bits() == whole.bits()
    assert again.running.seconds == finished.running.seconds
    speed = again.running.seconds_per_round
    assert speed == finished.running.seconds_per_round

  def test_last_two_are_kept(self, stopped):
    assert sorted(path.name for path in stopped.iterdir()) == [
      "state_2",
      "state_2.json",
      "state_4",
      "state_4.json",
    ]

  def test_zero_saves_nothing_and_restores_all_the_same(
    self, make, stopped, whole, tmp_path
  ):
    before = names(tmp_path)
    resumed = Drive(make(every=0))
    assert resumed.done == [5]
    assert resumed.bits() == whole.bits()
    assert names(tmp_path) == before
    shutil.rmtree(stopped)
    assert Drive(make(every=0)).bits() == whole.bits()
    assert not stopped.exists()

  def test_what_a_killed_process_leaves_is_no_checkpoint(
    self, make, stopped, whole, problems
  ):
    shutil.copytree(stopped / "state_4", stopped / "state_5")
    shutil.copytree(stopped / "state_4", stopped / "state_6_temp1234")
    (stopped / ".state_5.json.77.tmp").write_text("{")
    (stopped / "notes.txt").write_text("mine")
    assert Drive(make()).bits() == whole.bits()
    assert problems == []
    assert sorted(path.name for path in stopped.iterdir()) == [
      *("notes.txt", "state_4", "state_4.json", "state_5", "state_5.json")
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
    "b_2",
    "notes.txt",
  ]


def truncate(path):
  os.truncate(path, path.stat().st_size // 2)


def flip(path):
  content = bytearray(path.read_bytes())
  content[len(content) // 2] ^= 1
  path.write_bytes(content)


def change_value(path):
  record = json.loads(path.read_text())
  record["seconds"][0] += 1e-9
  path.write_text(json.dumps(record))


def forget_losses(path):
  """Makes it a record of a version that did not keep them."""
  record = json.loads(path.read_text())
  del record["digest"], record["losses"]
  path.write_text(json.dumps(record | {"digest": array_cache.key(record)}))


def empty(path):
  path.write_text("[]")


def take_other(path):
  shutil.copy(path.with_name("state_2.json"), path)


class TestUnusable:
  @pytest.mark.parametrize(
    "name, damage, reason",
    [
      ("/saved_model.pb", truncate, "states"),
      ("/variables/variables.data-00000-of-00001", flip, "states"),
      ("/variables/variables.index", os.unlink, "states"),
      ("", shutil.rmtree, "states"),
      (".json", truncate, "record is damaged: it is not JSON"),
      (".json", flip, "record is damaged: "),
      (".json", change_value, "record is damaged: digest: it does not"),
      (
        ".json",
        forget_losses,
        "record is damaged: the field losses is missing",
      ),
      (".json", empty, "record is damaged: expected an object, got []"),
      (
        ".json",
        take_other,
        "record is damaged: step is 2, and its file name has 4",
      ),
    ],
  )
  def test_damage_is_reported_and_the_one_before_counts(
    self, make, stopped, whole, problems, name, damage, reason
  ):
    damage(stopped / f"state_4{name}")
    resumed = Drive(make())
    assert resumed.done == [3, 4, 5]
    assert resumed.bits() == whole.bits()
    (problem,) = problems
    assert problem.startswith(
      f"checkpoint {stopped / 'state_4'} cannot be used: its {reason}"
    )
    assert problem.endswith(
      "; the run resumes from the previous one, or starts again if there is"
      " none"
    )
    assert "\n" not in problem

  def test_without_any_that_is_whole_the_run_starts_again(
    self, make, stopped, whole, problems
  ):
    truncate(stopped / "state_4.json")
    truncate(stopped / "state_2" / "saved_model.pb")
    resumed = Drive(make())
    assert resumed.done == [1, 2, 3, 4, 5]
    assert resumed.bits() == whole.bits()
    assert resumed.replayed == []
    assert len(problems) == 2

  @pytest.mark.parametrize(
    "options, reason",
    [
      ({"key": "b"}, "it belongs to a run with other flags"),
      ({"num_clients": 4}, "its states have another structure"),
      ({"width": 4}, "its states have another structure"),
    ],
  )
  def test_that_of_another_run_is_reported(
    self, make, stopped, problems, options, reason
  ):
    del stopped
    run = make(key=options.pop("key", "a"))
    assert Drive(run, stop_in=1, **options).done == []
    assert len(problems) == 2
    assert all(reason in each for each in problems)


class TestFullDisk:
  def test_earlier_checkpoint_stays_whole(
    self, make, stopped, whole, no_file_above
  ):
    before = {path: path.stat().st_mtime_ns for path in stopped.rglob("*")}
    # Not enough for the graph of a SavedModel.
    with (
      no_file_above(1000),
      pytest.raises(files.WriteError, match="state_5 cannot be written: "),
    ):
      Drive(make())
    assert before.keys() == set(stopped.rglob("*"))
    assert all(
      path.stat().st_mtime_ns == time
      for path, time in before.items()
      if path.is_file()
    )
    resumed = Drive(make())
    assert resumed.done == [5] and resumed.bits() == whole.bits()

  def test_record_that_cannot_be_written_leaves_no_checkpoint(
    self, make, stopped, monkeypatch
  ):
    def fails(path, text):
      raise files.WriteError(path, "No space left on device")

    monkeypatch.setattr(files, "write_atomically", fails)
    with pytest.raises(files.WriteError, match=r"state_5\.json .*No space"):
      Drive(make())
    assert not (stopped / "state_5").exists()
    assert (stopped / "state_4").exists()

  def test_folder_that_cannot_be_made(self, make, tmp_path):
    (tmp_path / "run").write_text("a file")
    with pytest.raises(files.WriteError, match=r"run cannot be written: Not a"):
      Drive(make())


class TestPlantedLinks:
  @pytest.fixture
  def outside(self, tmp_path):
    """A folder elsewhere, with a file that nobody may touch."""
    folder = tmp_path / "outside"
    folder.mkdir()
    (folder / "mine").write_text("mine")
    yield folder
    assert [each.name for each in folder.iterdir()] == ["mine"]

  def test_what_is_not_whole_yet_has_a_name_that_nobody_can_guess(
    self, make, whole, outside, tmp_path, monkeypatch
  ):
    # TFF names a folder by four digits, and empties one that is there.
    monkeypatch.setattr("random.randint", lambda *_: 1234)
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "state_2_temp1234").symlink_to(outside)
    monkeypatch.setattr(checkpoints.Run, "_clear", lambda *_: None)
    assert Drive(make()).bits() == whole.bits()

  def test_link_in_the_place_of_a_checkpoint_is_replaced(
    self, make, whole, outside, tmp_path
  ):
    run = make()
    (tmp_path / "run").mkdir()
    for name in ("state_2", "state_4"):
      (tmp_path / "run" / name).symlink_to(outside)
    assert Drive(run).bits() == whole.bits()
    assert not (tmp_path / "run" / "state_4").is_symlink()

  def test_link_in_the_place_of_the_folder_is_refused(
    self, make, outside, tmp_path
  ):
    (tmp_path / "run").symlink_to(outside)
    with pytest.raises(files.WriteError, match=r"run cannot .* it is a link"):
      Drive(make())

  def test_link_in_the_place_of_states_on_disk_is_replaced(
    self, make, whole, outside, tmp_path
  ):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "states.sqlite").symlink_to(outside / "new")
    assert Drive(make(max_states_in_memory=1)).bits() == whole.bits()
    assert not (tmp_path / "run" / "states.sqlite").is_symlink()


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
    run = checkpoints.Run(folder, "a", every=2, max_states_in_memory=1)
    drive = Drive(run, stop_in=5)
    assert len(drive.running.states.in_memory) == 1
    return folder

  @pytest.mark.parametrize(
    "limit", [1, pytest.param(2, marks=pytest.mark.slow)]
  )
  @pytest.mark.parametrize("stop_in", [1, 3, 5, None])
  def test_run_ends_with_the_same_bits(
    self, make, whole, problems, stop_in, limit
  ):
    Drive(make(limit), stop_in=stop_in)
    resumed = Drive(make(limit))
    saved = 5 if stop_in is None else (stop_in - 1) // 2 * 2
    assert resumed.done == list(range(saved + 1, NUM_STEPS + 1))
    assert resumed.bits() == whole.bits()
    assert problems == []

  def test_checkpoints_share_a_file_and_hold_no_states(self, stopped, tmp_path):
    assert names(tmp_path) == [
      *("state_2", "state_2.json", "state_4", "state_4.json", "states.sqlite")
    ]
    record = json.loads((stopped / "state_4.json").read_text())
    assert record["clients"] == [] and record["states"]["num_clients"] == 3

  def test_zero_restores_all_the_same(self, make, stopped, whole):
    before = {path: path.read_bytes() for path in stopped.glob("state*.*")}
    for _ in range(2):
      drive = Drive(make(every=0))
      assert drive.done == [5] and drive.bits() == whole.bits()
      assert before == {path: path.read_bytes() for path in before}

  @pytest.mark.parametrize(
    "limits", [(None, 1, None), (1, None, 1), (None, None, 2), (2, 2, None)]
  )
  @pytest.mark.parametrize(
    "stops", [(3, 5), pytest.param((4, 5), marks=pytest.mark.slow)]
  )
  def test_limit_may_change(
    self, make, whole, problems, tmp_path, limits, stops
  ):
    for limit, stop_in in zip(limits, (*stops, None), strict=True):
      drive = Drive(make(limit), stop_in=stop_in)
    assert drive.bits() == whole.bits()
    assert problems == []
    last = json.loads((tmp_path / "run" / "state_5.json").read_text())
    assert (last["states"] is None) == (limits[-1] is None)
    again = Drive(make(limits[-1]))
    assert again.done == [] and again.bits() == whole.bits()

  def test_file_that_no_checkpoint_needs_is_removed(self, make, tmp_path):
    Drive(make(every=1), stop_in=3)
    Drive(make(None, every=1), stop_in=4)
    # The checkpoint after the second step needs it.
    assert "states.sqlite" in names(tmp_path)
    Drive(make(None, every=1), stop_in=5)
    assert names(tmp_path) == [
      "state_3",
      "state_3.json",
      "state_4",
      "state_4.json",
    ]

  @pytest.mark.parametrize(
    "damage, reason",
    [
      (os.unlink, "is missing"),
      (truncate, "is damaged: "),
      (lambda path: path.write_bytes(b""), "is damaged: no such table"),
    ],
  )
  def test_damage_is_reported_and_the_run_starts_again(
    self, make, stopped, whole, problems, damage, reason
  ):
    damage(stopped / "states.sqlite")
    resumed = Drive(make())
    assert resumed.done == [1, 2, 3, 4, 5]
    assert resumed.bits() == whole.bits()
    assert len(problems) == 2
    assert problems[0].startswith(
      f"checkpoint {stopped / 'state_4'} cannot be used: the file of its"
      f" clients' states {reason}"
    )
    again = Drive(make())
    assert again.done == [] and again.bits() == whole.bits()

  def test_file_of_another_run_is_reported(
    self, make, stopped, whole, problems, tmp_path
  ):
    mine = stopped.rename(tmp_path / "mine")
    Drive(make(key="b"), stop_in=5)
    shutil.copy(stopped / "states.sqlite", mine)
    shutil.rmtree(stopped)
    mine.rename(stopped)
    assert Drive(make()).bits() == whole.bits()
    assert len(problems) == 2 and all("of another run" in p for p in problems)

  def test_checkpoint_before_is_whole_where_the_last_is_damaged(
    self, make, stopped, whole, problems
  ):
    truncate(stopped / "state_4.json")
    resumed = Drive(make())
    assert resumed.done == [3, 4, 5] and resumed.bits() == whole.bits()
    assert len(problems) == 1

  def test_end_between_states_and_record_leaves_the_checkpoint_before(
    self, make, stopped, whole, problems, monkeypatch
  ):
    def end(path, text):
      raise InterruptedRunError

    with monkeypatch.context() as patches:
      patches.setattr(files, "write_atomically", end)
      assert Drive(make()).done == [5]
    assert not (stopped / "state_5.json").exists()
    resumed = Drive(make())
    assert resumed.done == [5] and resumed.bits() == whole.bits()
    assert problems == []

  def test_full_disk_leaves_the_checkpoint_before(
    self, make, stopped, whole, no_file_above
  ):
    size = (stopped / "states.sqlite").stat().st_size
    running = Drive(make(), stop_in=5, closes=False).running
    with (
      no_file_above(size - 1),
      pytest.raises(files.WriteError, match=r"sqlite cannot be used: "),
    ):
      running.states.put([0, 1, 2], running.client_states)
      running.states.commit(5)
    running.close()
    resumed = Drive(make())
    assert resumed.done == [5] and resumed.bits() == whole.bits()


def test_states_of_those_that_took_part_are_saved(make, tmp_path):
  Drive(make(every=1), stop_in=2)
  record = json.loads((tmp_path / "run" / "state_1.json").read_text())
  assert record["clients"] == rounds.sample_clients(3, 0.7, 0, 0)
  assert record["states"] is None


class TestFolder:
  @pytest.fixture
  def folder(self, tmp_path):
    return results.RunFolder.create(tmp_path / "out")

  def test_each_run_has_its_own(self, folder, whole):
    saved = checkpoints.Checkpoints(folder, {"rounds": 5}, every=5)
    for labels in ({"name": "a/b c", "rate": 1e-5}, {"name": "d", "rate": 2.0}):
      Drive(saved.run(labels))
    assert sorted(path.name for path in folder.checkpoints.iterdir()) == [
      "a_b_c-1e-05",
      "d-2.0",
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
    shutil.copytree(folder.checkpoints / "a", folder.checkpoints / "b")
    assert start(5, "a").replayed and problems == []
    assert not start(5, "b").replayed and len(problems) == 1
    assert not start(6, "a").replayed and len(problems) == 2

  def test_zero_makes_no_folder(self, folder):
    Drive(checkpoints.Checkpoints(folder, {}, every=0).run({"name": "a"}))
    assert not folder.checkpoints.exists()


def test_what_has_no_form_is_refused(make):
  drive = Drive(make(), stop_in=1)
  with pytest.raises(TypeError, match="a set cannot be saved"):
    for _ in make().steps(2, drive.running, [{1}], make_row, print, int):
      pass


@pytest.mark.slow
def test_real_algorithm_with_a_state_of_its_aggregator(context, make):
  del context
  generator = np.random.default_rng(1)
  data = [
    client_dataset.ClientDataset.from_arrays(
      generator.normal(size=(6, 2)).astype(np.float32),
      generator.integers(0, 2, 6).astype(np.int32),
      np.array([6], np.int32),
      randomness.client_seed(0, i),
    )
    for i in range(3)
  ]
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
    return [
      np.asarray(each).tobytes()
      for each in tf.nest.flatten((running.server_state, running.client_states))
    ]

  run(2, make())
  assert run(3, make()) == run(3)
