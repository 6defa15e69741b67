"""Memory that calls use one after the other."""

import numpy as np
import tensorflow as tf

from tff_shift.execution.in_process import packing

FLOAT = np.dtype(np.float32)
LARGE = (512, 1024)  # 2 MiB.


def address(array):
  return array.ctypes.data


def test_next_call_has_the_same_memory():
  memory = packing.Memory()
  with memory.lent() as lender:
    first = address(lender.array(LARGE, FLOAT))
  with memory.lent() as lender:
    # A somewhat larger cohort fits as well.
    assert address(lender.array((600, 1024), FLOAT)) == first


def test_arrays_of_a_call_and_of_calls_at_once_are_apart():
  memory = packing.Memory()
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
  monkeypatch.setattr(packing, "MAX_KEPT_BYTES", 3 * 2**20)
  with packing.Memory().lent() as lender:
    lender.array(LARGE, FLOAT)
    lender.array(LARGE, FLOAT)
    assert len(lender.worth_keeping()) == 1


def test_large_array_becomes_a_tensor_where_it_lies():
  with packing.Memory().lent() as lender:
    array = lender.array(LARGE, FLOAT)
    array[:] = 1
    tensor = packing.to_tensor(array)
    array[3, 5] = 7
    assert tensor.dtype == tf.float32 and tensor.shape == LARGE
    assert tensor[3, 5] == 7


def test_what_cannot_be_shared_is_copied():
  # A type that the protocol does not know; memory that is not aligned.
  truth = np.ones([2**17], bool)
  crooked = np.frombuffer(bytearray(2**18 + 4), np.float32, offset=4)
  for array in (truth, crooked):
    tensor = packing.to_tensor(array)
    np.testing.assert_array_equal(tensor, array)
