"""Batches that XLA compiles as a whole, once for each of their shapes.

XLA must know all shapes when it compiles. In the computations of clients, only
what `batch_values` declares can depend on data and determine a shape: it is
computed before, and TensorFlow hands it to XLA as a constant. So are draws that
all clients share, where XLA's own have other bits.

A compiled batch has no assertions, which XLA ignores with a warning.
"""

import collections
import re
import textwrap
from collections.abc import Callable
from collections.abc import Iterator
from typing import Any

import tensorflow as tf

from tff_shift._util import batch_values
from tff_shift._util import wrapped_functions
from tff_shift.execution.in_process import graphs
from tff_shift.execution.in_process import static_shapes
from tff_shift.execution.in_process import vectorization

# XLA has the same bits of these alone; `in_process.draws` makes others of them.
_EQUAL_DRAWS = frozenset(
  {
    *("StatelessRandomGetAlg", "StatelessRandomGetKeyCounter"),
    *("StatelessRandomGetKeyCounterAlg", "StatelessRandomUniformFullIntV2"),
  }
)

# What TensorFlow's messages begin with.
_PLACE = re.compile("Graph execution error|Detected at node|<stack traces")


def failure(error: Exception) -> str:
  """Returns why XLA cannot compile a batch, in one line."""
  text = str(error)
  operation = re.search(r"unsupported operations .*?: (\w+)", text)
  shape = re.search(r"with op (\w+) must be a compile-time constant", text)
  if operation:
    return f"XLA has no {operation[1]}"
  if shape:
    return f"a shape depends on data: {shape[1]}"
  lines = (
    line for line in text.splitlines() if line and not _PLACE.match(line)
  )
  return textwrap.shorten(next(lines, text), 200)


def call(
  function: Callable[[Any], Any], argument: Any
) -> tuple[Any, collections.Counter[int]]:
  """Calls a function in the current graph, compiled.

  Args:
    function: From `argument` to a structure of tensors.
    argument: A structure of tensors.

  Returns:
    The results; and what `vectorization.num_bytes` says of the function.

  Raises:
    NotCompiledError: If it draws numbers that XLA draws in another way, or has
      shapes that depend on data.
  """
  specs = tf.nest.map_structure(
    lambda each: tf.TensorSpec(each.shape, each.dtype), argument
  )
  with vectorization.fixed_shapes():
    traced = tf.function(function, autograph=False).get_concrete_function(specs)
  graph = traced.graph
  before = [
    operation.outputs[0]
    for operation in graph.get_operations()
    if batch_values.is_declared(operation) or _draws_others(operation.type)
  ]
  definition = graph.as_graph_def()
  ends = graph.inputs, before
  values = wrapped_functions.from_part(
    wrapped_functions.part_of(definition, *ends), *ends
  )
  ends = graph.inputs + before, graph.outputs
  part = wrapped_functions.part_of(definition, *ends)
  graphs.drop_unused_functions(part)
  _check_draws(part)
  static_shapes.check(part, [each.op.name for each in before])
  _remove_assertions(part)
  compiled = wrapped_functions.from_part(part, *ends)
  inputs = [*tf.nest.flatten(argument), *traced.captured_inputs]
  results = vectorization.function_of(
    compiled.graph, {"_XlaMustCompile": True}
  )(*inputs, *values(*inputs))
  return (
    tf.nest.pack_sequence_as(traced.structured_outputs, results),
    vectorization.num_bytes(graph),
  )


def _node_lists(definition: tf.compat.v1.GraphDef) -> Iterator[Any]:
  yield definition.node
  for function in definition.library.function:
    yield function.node_def


def _draws_others(name: str) -> bool:
  """Returns whether XLA draws other numbers, by the type of an operation."""
  is_draw = "Random" in name or "Normal" in name or "Multinomial" in name
  return name.startswith("Stateless") and is_draw and name not in _EQUAL_DRAWS


def _check_draws(definition: tf.compat.v1.GraphDef) -> None:
  """Refuses numbers that XLA draws in another way."""
  types = {node.op for nodes in _node_lists(definition) for node in nodes}
  others = sorted(filter(_draws_others, types))
  if others or graphs.has_draws(definition):
    raise static_shapes.NotCompiledError(
      f"XLA draws other numbers: {', '.join(others) or 'drawn without a seed'}"
    )


def _remove_assertions(definition: tf.compat.v1.GraphDef) -> None:
  for nodes in _node_lists(definition):
    removed = {f"^{node.name}" for node in nodes if node.op == "Assert"}
    for i in reversed(range(len(nodes))):
      if nodes[i].op == "Assert":
        del nodes[i]
        continue
      kept = [each for each in nodes[i].input if each not in removed]
      if len(kept) < len(nodes[i].input):
        nodes[i].input[:] = kept
