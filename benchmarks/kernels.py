"""Counts and times the operations of a computation, without a GPU.

The functions of its calls run once more in a session of TensorFlow that traces
each operation. Nearly every operation with an output of floats is a launch of a
kernel on a GPU; shapes and the numbers of loops are computed on the host.
"""

import itertools
import re
from collections.abc import Callable
from collections.abc import Iterator
from typing import NamedTuple
from unittest import mock

import numpy as np
import tensorflow as tf

from tff_shift.execution.in_process import cohorts
from tff_shift.execution.in_process import packing

# They pass values on.
_PASSING = frozenset(
  {
    *("Const", "Enter", "EnsureShape", "Exit", "ExpandDims", "Identity"),
    *("IdentityN", "LoopCond", "Merge", "NextIteration", "NoOp"),
    *("PlaceholderWithDefault", "PreventGradient", "Rank", "ReadVariableOp"),
    *("Reshape", "Shape", "ShapeN", "Size", "Squeeze", "StopGradient"),
    *("Switch", "TensorListGetItem", "TensorListLength", "TensorListReserve"),
    *("TensorListSetItem", "_Arg", "_Recv", "_Retval", "_Send"),
  }
)
_FLOATS = {dtype.as_datatype_enum for dtype in (tf.float32, tf.float64)}
_LOWERED = "_lower_using_switch_merge"


class Operation(NamedTuple):
  """An operation that was executed.

  Attributes:
    kind: Its name in TensorFlow.
    has_kernel: Whether it has a kernel on floats.
    seconds: The seconds of its kernel.
  """

  kind: str
  has_kernel: bool
  seconds: float


def count(run: Callable[[], object]) -> tuple[int, int]:
  """Returns how many operations a call executes in loops or batches.

  Args:
    run: Calls computations in process.

  Returns:
    All operations, and those with a kernel on floats.
  """
  operations = traced(run)
  return len(operations), sum(part.has_kernel for part in operations)


def traced(run: Callable[[], object]) -> list[Operation]:
  """Returns the operations that a call executes in loops or batches.

  Args:
    run: Calls computations in process.
  """
  calls = []

  def call(program, num_clients, packed, *blocks, **options):
    tensors = tf.constant(num_clients), *blocks, *map(packing.to_tensor, packed)
    calls.append((program._function, [*map(np.array, tensors)]))
    return original(program, num_clients, packed, *blocks, **options)

  original = cohorts.CohortProgram.__call__
  with mock.patch.object(cohorts.CohortProgram, "__call__", call):
    run()
  return [*itertools.chain.from_iterable(itertools.starmap(_traced, calls))]


def _traced(function, arguments) -> Iterator[Operation]:
  definition = function.graph.as_graph_def()
  nodes = [*definition.node]
  for function_definition in definition.library.function:
    nodes += function_definition.node_def
  for node in nodes:
    if _LOWERED in node.attr or re.fullmatch("(Stateless)?(If|While)", node.op):
      node.attr[_LOWERED].b = True
  metadata = tf.compat.v1.RunMetadata()
  with tf.Graph().as_default() as graph, tf.compat.v1.Session() as session:
    tf.import_graph_def(definition, name="")
    inputs, outputs = (
      [graph.get_tensor_by_name(tensor.name) for tensor in tensors]
      for tensors in (function.graph.inputs, function.graph.outputs)
    )
    session.run(
      outputs,
      dict(zip(inputs, arguments, strict=True)),
      tf.compat.v1.RunOptions(trace_level=tf.compat.v1.RunOptions.FULL_TRACE),
      metadata,
    )
  for device in metadata.step_stats.dev_stats:
    for node in device.node_stats:
      label = re.search(r"= *(\w+)\(", node.timeline_label)
      kind = label[1] if label else ""
      has_floats = any(
        output.tensor_description.dtype in _FLOATS for output in node.output
      )
      microseconds = node.op_end_rel_micros - node.op_start_rel_micros
      yield Operation(
        kind, kind not in _PASSING and has_floats, microseconds * 1e-6
      )
