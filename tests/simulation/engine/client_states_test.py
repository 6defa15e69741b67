"""States of clients on disk are those of a plain list, whatever is done."""

import collections
import pathlib
import shutil
import tempfile
from typing import NamedTuple

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest

from tests.fixtures import trees
from tff_shift._util import files
from tff_shift.simulation.engine import client_states
from tff_shift.simulation.storage import run_file

NUM_CLIENTS = 6


class State(NamedTuple):
  """A state with leaves of which a bit is lost easily."""

  weights: tuple
  extra: collections.OrderedDict


def make_state(number) -> State:
  """The state with a number; no two are equal."""
  bits = np.random.default_rng(number).integers(0, 2**32, 6, dtype=np.uint32)
  # NaN with a payload, -0.0, and a tiny number.
  bits[0], bits[1], bits[2] = 0x7FC00000 + number, 0x80000000, 1
  extra = collections.OrderedDict(
    flag=np.bool_(number % 2),
    count=np.int64(2**62 + number),
    none=np.zeros([0, 4]),
  )
  return State((bits.view(np.float32).reshape(2, 3),), extra)


def bits(states):
  return trees.typed_bits(list(states))


class Initializer:
  """Makes first states of seeds, and counts its calls."""

  def __init__(self):
    self.calls = []

  def __call__(self, seeds):
    self.calls.append(list(seeds))
    return [make_state(1000 + seed) for seed in seeds]


def open_states(path, limit=2, initialize=None, key="run"):
  """States in a file, with or without a limit in memory."""
  storage = client_states.Storage(limit, run_file.RunFile(path, key))
  return client_states.ClientStates(
    NUM_CLIENTS, initialize or Initializer(), lambda client: client, storage
  )


def commit(states, step):
  """Saves a checkpoint."""
  states.write()
  states.storage.file.commit(step, "")


@pytest.fixture
def path(tmp_path):
  return tmp_path / "states.sqlite"


subsets = st.lists(st.integers(0, NUM_CLIENTS - 1), unique=True, max_size=5)
operations = st.lists(
  st.one_of(
    st.tuples(st.just("put"), subsets),
    st.tuples(st.just("take"), subsets),
    st.tuples(st.just("commit"), st.booleans()),
    # How many checkpoints are skipped, because they are damaged.
    st.tuples(st.just("crash"), st.integers(0, 1)),
    st.tuples(st.just("crash in commit"), st.integers(0, 1)),
  ),
  max_size=25,
)


class Machine:
  """States on disk beside a plain list of them.

  Attributes:
    states: What is tested.
    plain: What it must be.
    saved: By step, a copy of `plain`; the last two.
  """

  def __init__(self, folder, limit):
    self.folder, self.limit = folder, limit
    self.num_files = self.step = self.number = 0
    self.plain = [make_state(1000 + client) for client in range(NUM_CLIENTS)]
    self.first = list(self.plain)
    self.saved = {}
    self.states = open_states(self.path, limit)

  @property
  def path(self):
    return self.folder / str(self.num_files)

  def put(self, clients):
    self.number += 1
    new = [make_state(10 * self.number + client) for client in clients]
    self.states.put(clients, new)
    for client, state in zip(clients, new, strict=True):
      self.plain[client] = state

  def take(self, clients):
    assert bits(self.states.take(clients)) == bits(
      self.plain[client] for client in clients
    )

  def commit(self, skips_a_step):
    self.step += 1 + skips_a_step
    commit(self.states, self.step)
    self.saved[self.step] = list(self.plain)
    if len(self.saved) > 2:
      del self.saved[min(self.saved)]

  def crash(self, num_skipped):
    """Goes on in another process, with the files as they are right now."""
    earlier = self.path
    self.num_files += 1
    for each in self.folder.glob(f"{earlier.name}*"):
      shutil.copy(each, str(self.path) + each.name[len(earlier.name) :])
    self.states.close()
    self.states = open_states(self.path, self.limit)
    kept = sorted(self.saved)[: max(len(self.saved) - num_skipped, 1)]
    self.saved = {step: self.saved[step] for step in kept}
    if not kept:
      self.step, self.plain = 0, list(self.first)
      self.states.storage.file.remove()
      return
    self.step = kept[-1]
    self.plain = list(self.saved[self.step])
    self.states.storage.file.restore(self.step)
    self.states.restore()

  def crash_in_commit(self, num_skipped):
    """All is written and nothing is committed."""
    self.states.write()
    self.crash(num_skipped)


class TestSameAsAList:
  @pytest.mark.slow
  @hypothesis.settings(deadline=None, max_examples=60)
  @hypothesis.given(operations, st.none() | st.integers(1, 7))
  def test_whatever_is_done(self, todo, limit):
    with tempfile.TemporaryDirectory() as folder:
      machine = Machine(pathlib.Path(folder), limit)
      for name, argument in todo:
        getattr(machine, name.replace(" ", "_"))(argument)
        assert len(machine.states.in_memory) <= (limit or NUM_CLIENTS)
      assert bits(machine.states) == bits(machine.plain)
      for client in range(NUM_CLIENTS):
        assert bits([machine.states[client]]) == bits([machine.plain[client]])
      machine.states.close()

  @pytest.mark.parametrize("limit", [None, 2])
  def test_types_are_kept(self, path, limit):
    states = open_states(path, limit)
    states.put(range(5), [make_state(i) for i in range(5)])
    for state in states:
      assert type(state) is State
      assert type(state.extra) is collections.OrderedDict
      assert type(state.extra["count"]) is np.int64
      assert state.weights[0].flags.writeable

  def test_sequence(self, path):
    states = open_states(path)
    assert len(states) == NUM_CLIENTS
    assert bits(states[1:6:2]) == bits(states.take([1, 3, 5]))
    assert bits([states[-1]]) == bits([states[NUM_CLIENTS - 1]])
    with pytest.raises(IndexError):
      _ = states[NUM_CLIENTS]


class TestFirstStates:
  @pytest.mark.parametrize("limit", [None, 2])
  def test_they_are_computed_in_one_call_when_needed(self, path, limit):
    initialize = Initializer()
    states = open_states(path, limit, initialize)
    assert initialize.calls == []
    taken = states.take([4, 1], [44, 11])
    assert initialize.calls == [[44, 11]]
    assert bits(taken) == bits([make_state(1044), make_state(1011)])
    # They take no memory, and no file.
    assert states.in_memory == {}
    states.put([4], [make_state(0)])
    states.take([4, 2, 3], [40, 20, 30])
    assert initialize.calls[1:] == [[20, 30]]
    assert list(states.in_memory) == [4]
    assert not path.exists()

  @pytest.mark.parametrize("limit", [None, 1])
  def test_nothing_is_kept_where_there_is_nothing(self, path, limit):
    calls = []

    def initialize(seeds):
      calls.append(len(seeds))
      return [((),)] * len(seeds)

    states = open_states(path, limit, initialize)
    for _ in range(3):
      taken = states.take([0, 1, 2])
      assert taken == [((),)] * 3
      states.put([0, 1, 2], taken)
      assert states.in_memory == {}
    assert calls == [3]
    assert list(states) == [((),)] * NUM_CLIENTS
    states.write()
    assert not path.exists()

  def test_state_may_be_none(self, path):
    states = open_states(path, 1, lambda seeds: [None] * len(seeds))
    assert states.template is None
    assert states.take([0, 3]) == [None, None]


class TestLimit:
  def test_those_used_last_stay(self, path):
    states = open_states(path, 3)
    states.put([0, 1, 2], [make_state(i) for i in range(3)])
    states.take([0])
    states.put([3], [make_state(3)])
    assert list(states.in_memory) == [2, 0, 3]
    states.put(range(6), [make_state(i) for i in range(6)])
    assert list(states.in_memory) == [3, 4, 5]

  def test_reading_all_moves_nothing_into_memory(self, path):
    states = open_states(path, 1)
    states.put(range(5), [make_state(i) for i in range(5)])
    list(states)
    assert list(states.in_memory) == [4]

  def test_what_did_not_change_is_not_written_again(self, path, monkeypatch):
    written = []
    write = run_file.RunFile.write

    def record(self, pairs):
      pairs = list(pairs)
      written.append([client for client, _ in pairs])
      write(self, pairs)

    monkeypatch.setattr(run_file.RunFile, "write", record)
    states = open_states(path, 3)
    states.put([0, 1, 2], [make_state(i) for i in range(3)])
    commit(states, 1)
    commit(states, 2)
    states.put([1], [make_state(7)])
    commit(states, 3)
    states.put([4, 5], [make_state(i) for i in (4, 5)])
    assert written == [[0, 1, 2], [1]]
    assert list(states.in_memory) == [1, 4, 5]


class TestTemporaryFile:
  def open(self, folder):
    file = run_file.RunFile(folder, is_temporary=True)
    return client_states.ClientStates(
      NUM_CLIENTS, Initializer(), int, client_states.Storage(1, file)
    )

  def test_it_is_never_seen(self, tmp_path):
    states = self.open(tmp_path)
    for number in range(3):
      new = [make_state(10 * number + i) for i in range(NUM_CLIENTS)]
      states.put(range(NUM_CLIENTS), new)
      assert bits(states) == bits(new)
      assert list(tmp_path.iterdir()) == []
    states.close()
    with pytest.raises(files.WriteError, match="cannot be used"):
      states.take([0])

  def test_folder_that_is_missing_is_told(self, tmp_path):
    states = self.open(tmp_path / "none")
    with pytest.raises(files.WriteError, match="none cannot be written"):
      states.put([0, 1], [make_state(0)] * 2)


def test_storage_of_a_checkpoint_takes_what_is_in_memory(path):
  states = client_states.ClientStates(NUM_CLIENTS, Initializer(), int)
  new = [make_state(i) for i in range(3)]
  states.put([0, 1, 2], new)
  storage = client_states.Storage(1, run_file.RunFile(path))
  states.attach(storage)
  states.attach(storage)
  assert len(states.in_memory) == 1 and bits(states[:3]) == bits(new)
  with pytest.raises(ValueError, match="storage must be the storage of the"):
    states.attach(storage._replace(max_in_memory=2))
