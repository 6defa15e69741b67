"""Memory that calls use one after the other, and what is packed once."""

import gc
import weakref

import numpy as np
import pytest

from tff_shift.data import examples
from tff_shift.execution.in_process import memory as memory_lib

FLOAT = np.dtype(np.float32)
LARGE = (512, 1024)  # 2 MiB.


def address(array):
  return array.ctypes.data


def test_next_call_has_the_same_memory():
  memory = memory_lib.Memory()
  with memory.lent() as lender:
    first = address(lender.array(LARGE, FLOAT))
  with memory.lent() as lender:
    # A somewhat larger cohort fits as well.
    assert address(lender.array((600, 1024), FLOAT)) == first


def test_arrays_of_a_call_and_of_calls_at_once_are_apart():
  memory = memory_lib.Memory()
  with memory.lent() as lender:
    lender.array(LARGE, FLOAT)
  with memory.lent() as one, memory.lent() as other:
    arrays = [
      each.array(LARGE, FLOAT) for each in (one, other) for _ in range(2)
    ]
    for number, array in enumerate(arrays):
      array[:] = number
    for number, array in enumerate(arrays):
      assert (array == number).all()


def test_more_than_the_limit_is_not_kept(monkeypatch):
  monkeypatch.setattr(memory_lib, "MAX_KEPT_BYTES", 3 * 2**20)
  with memory_lib.Memory().lent() as lender:
    lender.array(LARGE, FLOAT)
    lender.array(LARGE, FLOAT)
    assert len(lender.worth_keeping()) == 1


def read_only(value, size=LARGE[0]):
  return examples.read_only(np.full([size, 1024], value, np.float32))


class Packing:
  """Joins arrays, and counts how often."""

  def __init__(self, memory):
    self.memory = memory
    self.count = 0

  def __call__(self, *column):
    def join(new_array):
      self.count += 1
      rows = new_array((sum(map(len, column)), 1024), FLOAT)
      return [np.concatenate(column, out=rows)]

    with self.memory.lent() as lender:
      size = sum(array.nbytes for array in column)
      (packed,) = lender.pack(column, size, join)
      np.testing.assert_array_equal(packed, np.concatenate(column))
    return packed


@pytest.fixture
def pack():
  return Packing(memory_lib.Memory())


def test_read_only_arrays_that_come_again_are_packed_once(pack):
  one, two = read_only(1), read_only(2)
  kept = pack(one, two)
  assert pack(one, two) is kept and pack.count == 1
  # As what they are views of.
  views = one[:200], two[200:]
  assert pack(*views) is pack(*views) and pack.count == 2
  # Another order, and another cohort, are not the same.
  pack(two, one)
  pack(one)
  assert pack.count == 4 and pack(one, two) is kept
  # What is kept is not lent.
  with pack.memory.lent() as lender:
    assert not np.shares_memory(lender.array(LARGE, FLOAT), kept)


def test_arrays_are_packed_again_if_others_have_their_memory(pack):
  first, second = read_only(1), read_only(2)
  before = address(pack(first))
  assert address(pack(second)) == before
  # Then they have memory of their own.
  kept = pack(first)
  assert pack.count == 3 and address(kept) != before
  assert pack(first) is kept and pack.count == 3


def test_other_arrays_take_other_memory_first(pack):
  first = read_only(1)
  with pack.memory.lent() as lender:
    lender.pack(
      [first], first.nbytes, lambda new_array: [new_array(LARGE, FLOAT)]
    )
    other = address(lender.array(LARGE, FLOAT))
  with pack.memory.lent() as lender:
    assert address(lender.array(LARGE, FLOAT)) == other


def test_small_call_leaves_the_memory_as_it_is(pack):
  array = read_only(1)
  first = pack(array)
  with pack.memory.lent() as lender:
    lender.array((3,), FLOAT)
  assert pack(array) is first and pack.count == 1


def test_memory_of_calls_at_once_is_let_go(pack):
  array = read_only(1)
  with pack.memory.lent() as lender:
    packed = weakref.ref(pack(array))
    lender.array(LARGE, FLOAT)
  gc.collect()
  assert packed() is None
  pack(array)
  assert pack.count == 2


def test_memory_that_is_much_too_large_is_not_kept(pack):
  with pack.memory.lent() as lender:
    large = address(lender.array((3 * LARGE[0], LARGE[1]), FLOAT))
  array = read_only(1)
  assert address(pack(array)) == large
  assert address(pack(array)) != large and pack.count == 2
  assert pack(array) is pack(array) and pack.count == 2


def test_arrays_that_can_change_are_packed_each_time(pack):
  array = np.ones(LARGE, np.float32)
  closed_view = array[:300]
  closed_view.flags.writeable = False
  foreign = np.frombuffer(bytearray(2**20), np.float32).reshape([-1, 1024])
  foreign.flags.writeable = False
  closed = np.ones(LARGE, np.float32)
  view = closed[:]
  closed.flags.writeable = False
  for each in (array, closed_view, foreign, closed):
    before = pack.count
    for _ in range(3):
      pack(each)
    assert pack.count == before + 3
  array[:] = 2
  assert (pack(closed_view) == 2).all()
  # A view that was made before, and a flag that is reset.
  view[:] = 3
  assert (pack(closed) == 3).all()
  closed.flags.writeable = True
  closed[:] = 4
  closed.flags.writeable = False
  assert (pack(closed) == 4).all()


def test_flag_of_read_only_arrays_cannot_be_set():
  for array in (np.ones(3), np.zeros((0, 2), np.float32)):
    closed = examples.read_only(array)
    np.testing.assert_array_equal(closed, array)
    with pytest.raises(ValueError, match="WRITEABLE"):
      closed.flags.writeable = True


def test_another_array_in_the_place_of_one_that_is_gone_is_packed(pack):
  for value in range(20):
    array = read_only(value)
    for _ in range(3):
      pack(array)
    # The next one may get its address.
    del array
  assert pack.count == 20


def test_packed_arrays_beyond_the_limit_are_let_go(pack, monkeypatch):
  monkeypatch.setattr(memory_lib, "MAX_KEPT_BYTES", 5 * 2**20)
  arrays = [read_only(value) for value in range(3)]  # 2 MiB each.
  kept = [weakref.ref([pack(each) for _ in range(3)][-1]) for each in arrays]
  gc.collect()
  assert [each() is None for each in kept] == [True, False, False]
  # A dead client's go with the next that is packed.
  del arrays[1:]
  pack(arrays[0])
  gc.collect()
  assert all(each() is None for each in kept)
