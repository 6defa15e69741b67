"""Simulates secure sums by equal plaintext sums.

TFF's executors for simulations do not implement secure sums. A secure sum is a
sum of integers, so the plaintext sum of the same integers is equal.
"""

import contextlib

import tensorflow_federated as tff

from tff_shift import library_logs

_SECURE_SUM = "federated_secure_sum_bitwidth"


def plaintext_sums(computation: tff.Computation) -> tff.Computation:
  """Replaces the secure sums of a computation by plaintext sums.

  Args:
    computation: A computation of TFF's aggregators whose secure sums are all
      sums of integers of a given number of bits.

  Returns:
    A computation of the same type with the same results, bit for bit.
  """

  def replace(block):
    if not (
      isinstance(block, tff.framework.Call)
      and isinstance(block.function, tff.framework.Intrinsic)
      and block.function.uri == _SECURE_SUM
    ):
      return block, False
    # The other argument is the number of bits.
    summand = tff.framework.Selection(block.argument, index=0)
    plain_sum = tff.framework.Intrinsic(
      tff.framework.FEDERATED_SUM.uri,
      tff.FunctionType(
        # A value that is equal on all clients is allowed here as well.
        tff.FederatedType(summand.type_signature.member, tff.CLIENTS),
        block.type_signature,
      ),
    )
    return tff.framework.Call(plain_sum, summand), True

  block, _ = tff.framework.transform_postorder(
    computation.to_building_block(), replace
  )
  # Only the original type contains the Python containers.
  return tff.framework.ConcreteComputation.with_type(
    tff.framework.ConcreteComputation.from_building_block(block),
    computation.type_signature,
  )


def quiet() -> contextlib.AbstractContextManager:
  """Suppresses TensorFlow's log about unused assertions of TFF.

  TFF's secure sums assert that the clients' values are in range and drop the
  operation; TensorFlow logs a dozen lines about each to standard error.
  """
  return library_logs.without("tensorflow", "Object was never used")
