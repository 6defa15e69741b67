"""Arrays of all clients, as tensors."""

import numpy as np
import tensorflow as tf

from tff_shift.execution.in_process import memory
from tff_shift.execution.in_process import packing


def test_large_array_becomes_a_tensor_where_it_lies():
  with memory.Memory().lent() as lender:
    array = lender.array((512, 1024), np.dtype(np.float32))
    array[:] = 1
    tensor = packing.to_tensor(array)
    array[3, 5] = 7
    assert tensor.dtype == tf.float32 and tensor.shape == (512, 1024)
    assert tensor[3, 5] == 7


def test_what_cannot_be_shared_is_copied():
  # A type that the protocol does not know; memory that is not aligned.
  truth = np.ones([2**17], bool)
  crooked = np.frombuffer(bytearray(2**18 + 4), np.float32, offset=4)
  for array in (truth, crooked):
    tensor = packing.to_tensor(array)
    np.testing.assert_array_equal(tensor, array)
