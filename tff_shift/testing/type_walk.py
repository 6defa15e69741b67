"""The contents of TFF types and compiled computations, as a fixture."""

import types

import pytest
import tensorflow_federated as tff

from tff_shift.execution import compilation
from tff_shift.learning.aggregators import client_slots


def _tensors(type_signature):
  """Returns the tensor types within a type, excluding functions."""
  if isinstance(type_signature, tff.TensorType):
    return [type_signature]
  if isinstance(type_signature, tff.FederatedType):
    return _tensors(type_signature.member)
  if isinstance(type_signature, tff.StructType):
    return [tensor for part in type_signature for tensor in _tensors(part)]
  assert isinstance(type_signature, tff.FunctionType), type_signature
  return []


def _rows(type_signature):
  """Returns the types of the values that clients send for rows of tables."""
  if isinstance(type_signature, tff.FederatedType):
    return _rows(type_signature.member)
  if not isinstance(type_signature, tff.StructType):
    return []
  if getattr(type_signature, "python_container", None) is client_slots.Row:
    return [type_signature.value]
  return [row for part in type_signature for row in _rows(part)]


def _placed(type_signature, placement):
  """Returns the federated types at a placement within a type."""
  if isinstance(type_signature, tff.FederatedType):
    return [type_signature] if type_signature.placement is placement else []
  if isinstance(type_signature, tff.StructType):
    return [
      found for part in type_signature for found in _placed(part, placement)
    ]
  return []


def _aggregations(computation):
  """Returns the type of every aggregation of client values to a server's.

  They are read from the form that executors run. Its graphs are not optimised:
  their types are not needed, and optimising them takes most of the time of
  TFF's compilers.
  """
  found = []

  def visit(block):
    if isinstance(block, tff.framework.Intrinsic):
      signature = block.type_signature
      if _placed(signature.parameter, tff.CLIENTS) and _placed(
        signature.result, tff.SERVER
      ):
        found.append(signature)
    return block, False

  tff.framework.transform_postorder(
    compilation.to_call_dominant(computation), visit
  )
  return found


def _sent_tensors(signatures):
  """Returns the types of the values that clients aggregate."""
  return [
    tensor
    for signature in signatures
    for value in _placed(signature.parameter, tff.CLIENTS)
    for tensor in _tensors(value)
  ]


@pytest.fixture(scope="session")
def type_walk():
  """Functions on TFF types and computations, see the functions above."""
  return types.SimpleNamespace(
    tensors=_tensors,
    rows=_rows,
    placed=_placed,
    aggregations=_aggregations,
    sent_tensors=_sent_tensors,
  )
