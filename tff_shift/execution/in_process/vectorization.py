"""A function of one client, applied to many clients in one batch.

TensorFlow's vectorisation turns a graph of one client into a graph of the same
operations on stacked tensors, loops and conditions included. It is used here
for graphs that were imported, and with three additions: an operation that it
can only run in a loop over the clients is noted; a loop is converted once
instead of until the stacking of its variables is a fixed point; and a few
operations are converted that TensorFlow runs in a loop.

TensorFlow's vectorisation has no public interface for that. Nothing outside of
this file, `converters`, `convolutions` and `draws` depends on its parts.
"""

import collections
import contextlib
import contextvars
import functools
import logging
import math
import re
import textwrap
import types
from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Mapping
from typing import Any
from typing import Self

import tensorflow as tf
from tensorflow.core.function.polymorphism import function_type
from tensorflow.python.eager.polymorphic_function import concrete_function
from tensorflow.python.saved_model import function_deserialization

from tff_shift._util import batch_values
from tff_shift.execution import errors
from tff_shift.execution.in_process import converters
from tff_shift.execution.in_process import convolutions  # noqa: F401
from tff_shift.execution.in_process import draws  # noqa: F401

# Their values follow from shapes, which are those of one client.
OF_SHAPES = frozenset({"Rank", "Shape", "ShapeN", "Size"})


def failure(error: tf.errors.OpError) -> str:
  """Returns the operation that failed in a batch, and why, in one line."""
  operation = re.search(r"(\w+?)(?:_\d+)?/pfor/", error.message)
  reason = re.search(r"([^\n]+)\n\t \[\[", error.message)
  name = f"the operation {operation[1]}: " if operation else ""
  return name + textwrap.shorten(reason[1] if reason else error.message, 500)


class Notes(logging.Filter):
  """What the vectorisation does in a `with` block, in the current thread.

  Attributes:
    looped: The types of operations that run in a loop over the clients.
    failed: The type of the operation that cannot be converted, or "".
  """

  def __init__(self):
    super().__init__()
    self.looped = set[str]()
    self.failed = ""

  def __enter__(self) -> Self:
    self._token = _notes.set(self)
    tf.get_logger().addFilter(self)
    return self

  def __exit__(self, *exception_info) -> None:
    tf.get_logger().removeFilter(self)
    _notes.reset(self._token)

  def not_batched(self, error: Exception) -> errors.NotBatchedError:
    """Returns the error that says why a computation cannot run in batches."""
    # TensorFlow's report of an error can fail itself.
    cause: BaseException = error
    while cause.__context__ is not None:
      cause = cause.__context__
    reason = textwrap.shorten(str(cause), 500)
    if self.failed:
      reason = f"the operation {self.failed}: {reason}"
    return errors.NotBatchedError(reason)

  def filter(self, record: logging.LogRecord) -> bool:
    """Takes the operation from TensorFlow's message, which is not shown."""
    if _notes.get() is not self or record.module != "pfor":
      return True
    message = re.search(
      'while pfor was converting op .*?op: "(.*?)"',
      record.getMessage(),
      re.DOTALL,
    )
    if message and not self.failed:
      self.failed = message[1]
    return False


_notes = contextvars.ContextVar[Notes | None]("notes", default=None)
_has_fixed_shapes = contextvars.ContextVar("has_fixed_shapes", default=False)


@contextlib.contextmanager
def fixed_shapes() -> Iterator[None]:
  """Makes the batches of the block ones without shapes that depend on data."""
  token = _has_fixed_shapes.set(True)
  try:
    yield
  finally:
    _has_fixed_shapes.reset(token)


def map_clients(
  function: Callable[[tf.Tensor], list[tf.Tensor]], num_clients: tf.Tensor
) -> list[tf.Tensor]:
  """Returns `function` of 0 to `num_clients - 1`, stacked.

  Args:
    function: From the number of a client, an int32 scalar, to tensors. Their
      shapes are those of all clients.
    num_clients: An int32 scalar, 1 or more.

  Returns:
    A tensor for each of the function's, with a first axis of clients.

  Raises:
    ValueError: If an operation can neither be vectorised nor run in a loop.
  """
  return tf.vectorized_map(function, tf.range(num_clients), warn=False)


def num_bytes(graph: tf.Graph) -> collections.Counter[int]:
  """Returns the size of the outputs of all operations, for one client.

  Args:
    graph: The graph of a batch. What differs between clients has a first axis
      of open size.

  Returns:
    Bytes by the number of further axes of open size.
  """
  sizes = collections.Counter[int]()
  for operation in graph.get_operations():
    for output in operation.outputs:
      shape = output.shape
      if shape.rank and shape[0] is None and output.dtype.size:
        known = [size for size in shape[1:] if size is not None]
        sizes[shape.rank - 1 - len(known)] += math.prod(
          known, start=output.dtype.size
        )
    for attribute in operation.node_def.attr.values():
      if attribute.HasField("func"):
        function = graph._get_function(attribute.func.name)
        sizes += num_bytes(function.graph)
  return sizes


def import_functions(graph_def: tf.compat.v1.GraphDef, graph: tf.Graph) -> None:
  """Moves the functions of a graph, whose names are unique, to `graph`.

  The vectorisation needs the graphs of functions, which an import of their
  definitions does not keep.

  Args:
    graph_def: Loses its functions; its nodes get their new names.
    graph: The graph under construction.
  """
  functions = function_deserialization.load_function_def_library(
    graph_def.library, load_shared_name_suffix="", wrapper_function=_with_type
  )
  for node in graph_def.node:
    function_deserialization.fix_node_def(node, functions, "")
  for function in functions.values():
    function.add_to_graph(graph)
  graph_def.ClearField("library")


def _with_type(function):
  """Returns a loaded function with the type of its results."""
  return function_of(function.graph, function.function_def.attr)


def function_of(graph: Any, attributes: Mapping[str, Any]) -> Any:
  """Returns TensorFlow's `ConcreteFunction` of a graph.

  Args:
    graph: A `FuncGraph`.
    attributes: Those of the function.
  """
  specs = [tf.TensorSpec(each.shape, each.dtype) for each in graph.inputs]
  results = [tf.TensorSpec(each.shape, each.dtype) for each in graph.outputs]
  return concrete_function.ConcreteFunction.from_func_graph(
    graph,
    function_type.from_structured_signature((tuple(specs), {}), results, {}),
    attrs=attributes,
  )


_loop_over_one = converters.pfor._fallback_converter


def _noted(pfor_input, *arguments, **options):
  notes = _notes.get()
  if notes is not None:
    notes.looped.add(pfor_input.op_type)
  return _loop_over_one(pfor_input, *arguments, **options)


# TensorFlow falls back without a word where it has a converter.
converters.pfor._fallback_converter = _noted
# The conversion of Python's control flow takes longer than that of operations,
# and the functions that TensorFlow traces have none.
converters.pfor.def_function = types.SimpleNamespace(
  function=functools.partial(tf.function, autograph=False)
)


def _in_line(function, loop, arguments):
  """Adds the converted operations of a function to the current graph.

  TensorFlow's own version traces a function of them, which takes longer and
  which it later puts in line.
  """
  graph = function.graph
  for tensor, argument in zip(graph.inputs, arguments, strict=True):
    loop._add_conversion(tensor, argument)
  results = graph.outputs[: len(function.function_type.flat_outputs)]
  return [loop._convert_helper(result) for result in results]


converters.pfor._convert_function_call = _in_line


@converters.register("StatelessWhile", "While")
def _while(inputs):
  """Stacks what the body makes different for each client, once."""
  loop = converters.pfor.WhileV2(inputs)
  body, condition = loop._body_func.graph, loop._cond_func.graph
  stacked = {i for i, each in enumerate(inputs.inputs) if each.is_stacked}
  needed = _stacked_variables(body, stacked)
  inputs.stack_inputs(sorted(needed - stacked), tile_variants=True)
  if condition.outputs[0].op.name in _different(condition, needed):
    return loop()
  return _while_in_step(inputs, loop)


def _while_in_step(inputs, loop):
  """Converts a loop of as many steps for each client.

  TensorFlow's own version has a condition and lists in each step, for clients
  that end before others.
  """
  stacked = [value.is_stacked for value in inputs.inputs]
  missing = []

  def converted(function, variables):
    outer = inputs.pfor
    part = converters.pfor.PFor(
      outer.loop_var,
      outer.loop_len_vector[0],
      function.graph.get_operations(),
      outer.fallback_to_while_loop,
      outer.all_indices,
      outer.all_indices_partitioned,
      outer.pfor_config,
    )
    arguments = map(converters.pfor.wrap, variables, stacked)
    return part, _in_line(function, part, arguments)

  def condition(*variables):
    _, (result,) = converted(loop._cond_func, variables)
    return result.t

  def body(*variables):
    part, results = converted(loop._body_func, variables)
    missing[:] = [
      place
      for place, result in enumerate(results)
      if result.is_stacked and not stacked[place]
    ]
    if missing:
      return variables
    return [
      part._unwrap_or_tile(result) if is_stacked else result.t
      for result, is_stacked in zip(results, stacked, strict=True)
    ]

  results = tf.while_loop(
    condition,
    body,
    [value.t for value in inputs.inputs],
    shape_invariants=loop._output_shapes(),
    parallel_iterations=inputs.get_attr("parallel_iterations"),
  )
  if missing:
    # Drawn in a branch or a call. The loop so far is left unused.
    inputs.stack_inputs(missing, tile_variants=True)
    return _while(inputs)
  return list(map(converters.pfor.wrap, results, stacked))


def _stacked_variables(body: tf.Graph, stacked: set[int]) -> set[int]:
  """Returns the variables of a loop that depend on stacked ones."""
  stacked = set(stacked)
  while True:
    different = _different(body, stacked)
    new = {
      i for i, each in enumerate(body.outputs) if each.op.name in different
    }
    if new <= stacked:
      return stacked
    stacked |= new


def _different(graph: tf.Graph, stacked: set[int]) -> set[str]:
  """Returns the operations that differ between clients if some inputs do."""
  different = {graph.inputs[i].op.name for i in stacked}
  # A function is imported in the order in which it can be computed.
  for operation in graph.get_operations():
    is_equal = operation.type in OF_SHAPES or batch_values.is_declared(
      operation
    )
    if not is_equal and (
      _is_random(operation)
      or any(tensor.op.name in different for tensor in operation.inputs)
    ):
      different.add(operation.name)
  return different


def _is_random(operation: tf.Operation) -> bool:
  return operation.op_def.is_stateful and operation.type not in (
    "Assert",
    "Case",
    "If",
    "PartitionedCall",
    "StatefulPartitionedCall",
    "While",
  )


@converters.register("StatelessIf", "If")
def _if(inputs):
  """Runs each branch for its clients, but not for none of them.

  Operations can fail without clients, and then have no shapes. With
  `fixed_shapes`, both run for all of them.
  """
  condition, is_stacked, _ = inputs.input(0)
  if not is_stacked or any(
    each.dtype == tf.variant for each in inputs.op.outputs
  ):
    return converters.pfor._convert_if(inputs)
  if _has_fixed_shapes.get():
    return _chosen(inputs, condition)
  loop = inputs.pfor
  chosen = tf.cast(condition, tf.int32)
  # The clients among all clients, and among those of this operation.
  clients = tf.dynamic_partition(loop.all_indices, chosen, 2)
  places = clients
  if loop.all_indices_partitioned:
    numbers = tf.range(loop.loop_len_vector[0])
    places = tf.dynamic_partition(numbers, chosen, 2)
  results = [
    _of_branch(inputs, inputs.get_attr(name).name, *of_branch)
    for name, *of_branch in zip(
      ("else_branch", "then_branch"), clients, places, strict=True
    )
  ]
  return [
    converters.pfor.wrap(result, True) for result in _merged(places, results)
  ]


def _chosen(inputs, condition):
  """Runs both branches for all clients, and takes one of their results."""
  branches = (
    converters.pfor._outputs_for_branch(
      inputs.get_attr(name).name, None, inputs, inputs.inputs[1:]
    )
    for name in ("then_branch", "else_branch")
  )
  return [
    converters.pfor.wrap(
      tf.where(tf.reshape(condition, [-1] + [1] * (one.shape.rank - 1)), *pair)
    )
    for pair in zip(*branches, strict=True)
    for one in pair[:1]
  ]


def _of_branch(inputs, name, clients, places):
  """Returns the stacked results of a branch for some clients."""
  outputs = inputs.op.outputs

  def run():
    arguments = [
      converters.pfor.wrap(tf.gather(each.t, places), True)
      if each.is_stacked
      else each
      for each in inputs.inputs[1:]
    ]
    return converters.pfor._outputs_for_branch(name, clients, inputs, arguments)

  def nothing():
    return [
      tf.zeros([0, *(size or 0 for size in each.shape or ())], each.dtype)
      for each in outputs
    ]

  return tf.cond(tf.size(places) > 0, run, nothing)


def _merged(places, parts):
  """Returns the results of both branches in the order of the clients."""
  ends = [tf.size(numbers) == 0 for numbers in places]
  return tf.cond(
    ends[0],
    lambda: parts[1],
    lambda: tf.cond(
      ends[1],
      lambda: parts[0],
      lambda: [
        tf.dynamic_stitch(places, pair) for pair in zip(*parts, strict=True)
      ],
    ),
  )
