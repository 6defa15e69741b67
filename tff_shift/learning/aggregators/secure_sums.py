"""Secure sums where no executor speaks their protocol: the same sums, plain.

TFF's executors for simulations know no secure sum. What a secure sum gives is
the sum of integers; the plain sum of the same integers is the same number.
"""

import contextlib

import tensorflow_federated as tff

from tff_shift import library_logs

_SECURE_SUM = "federated_secure_sum_bitwidth"


def plaintext_sums(computation: tff.Computation) -> tff.Computation:
  """Replaces the secure sums of a computation by plain ones.

  Args:
    computation: A computation of TFF's aggregators, whose secure sums all are
      of integers of a given number of bits.

  Returns:
    A computation of the same type that gives the same results, bit for bit.
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
        # A number that all clients share may go where they may differ.
        tff.FederatedType(summand.type_signature.member, tff.CLIENTS),
        block.type_signature,
      ),
    )
    return tff.framework.Call(plain_sum, summand), True

  block, _ = tff.framework.transform_postorder(
    computation.to_building_block(), replace
  )
  # The types of the original know the Python containers.
  return tff.framework.ConcreteComputation.with_type(
    tff.framework.ConcreteComputation.from_building_block(block),
    computation.type_signature,
  )


def quiet() -> contextlib.AbstractContextManager:
  """Keeps TensorFlow silent on assertions that TFF makes and does not use.

  TFF's secure sums assert that what clients send is in range and drop the
  operation; TensorFlow then writes a dozen lines on each to standard error.
  """
  return library_logs.without("tensorflow", "Object was never used")
