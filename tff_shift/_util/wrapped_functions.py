"""TensorFlow functions of a graph as it is, without control dependencies.

`tf.function` adds automatic control dependencies, which fail with an imported
graph. `tf.compat.v1.wrap_function` does not, but it registers the functions of
loops and conditions once more than it removes them: each of them would stay in
memory as long as the process lives.
"""

import weakref
from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

# The only access to the functions of a process.
from tensorflow.python.eager import context


def wrap(
  trace: Callable[..., Sequence[tf.Tensor]], signature: Sequence[tf.TensorSpec]
) -> Any:
  """Traces a function of tensors; its graph lives as long as the result.

  Args:
    trace: The function.
    signature: The type of each argument.

  Returns:
    TensorFlow's `WrappedFunction`, `(*tensors) -> tensors`.
  """
  return _released(tf.compat.v1.wrap_function(trace, signature))


def part_of(
  definition: tf.compat.v1.GraphDef,
  inputs: Sequence[tf.Tensor],
  outputs: Sequence[tf.Tensor],
) -> tf.compat.v1.GraphDef:
  """Returns the operations from inputs, without them, to outputs.

  Args:
    definition: A graph.
    inputs: Tensors of the graph, or of another one with the same names.
    outputs: The same.
  """
  given = {tensor.op.name for tensor in inputs}
  nodes = {node.name: node for node in definition.node}
  ahead, needed = [tensor.op.name for tensor in outputs], set(given)
  while ahead:
    name = ahead.pop()
    if name not in needed:
      needed.add(name)
      ahead += [
        source.lstrip("^").partition(":")[0] for source in nodes[name].input
      ]
  part = tf.compat.v1.GraphDef(
    versions=definition.versions, library=definition.library
  )
  part.node.extend(
    node for node in definition.node if node.name in needed - given
  )
  # An operation may wait for an input without taking its value.
  waits = {f"^{name}" for name in given}
  for node in part.node:
    if not waits.isdisjoint(node.input):
      node.input[:] = [name for name in node.input if name not in waits]
  return part


def used_inputs(
  part: tf.compat.v1.GraphDef,
  inputs: Sequence[tf.Tensor],
  outputs: Sequence[tf.Tensor],
) -> list[int]:
  """Returns the positions of the inputs that the outputs of a part need."""
  used = {tensor.op.name for tensor in outputs}
  used |= {name.partition(":")[0] for node in part.node for name in node.input}
  return [i for i, tensor in enumerate(inputs) if tensor.op.name in used]


def from_part(
  part: tf.compat.v1.GraphDef,
  inputs: Sequence[tf.Tensor],
  outputs: Sequence[tf.Tensor],
) -> Any:
  """Makes a function of a part of a graph that has no variables.

  Args:
    part: The result of `part_of`.
    inputs: Those of the part, the only outputs of their operations.
    outputs: Those of the part.

  Returns:
    TensorFlow's `WrappedFunction`, `(*tensors) -> tensors`; its graph lives as
    long as the function.
  """
  used = used_inputs(part, inputs, ())

  def trace(*arguments):
    values = {
      tensor.name: argument
      for tensor, argument in zip(inputs, arguments, strict=True)
    }
    names = [tensor.name for tensor in outputs if tensor.name not in values]
    results = tf.import_graph_def(
      part, {inputs[i].name: arguments[i] for i in used}, names
    )
    values.update(zip(names, results, strict=True))
    return [tf.identity(values[tensor.name]) for tensor in outputs]

  return wrap(
    trace, [tf.TensorSpec(tensor.shape, tensor.dtype) for tensor in inputs]
  )


def _released(function):
  library = function.graph.as_graph_def().library.function
  names = [each.signature.name for each in library]
  weakref.finalize(function, _remove, names).atexit = False
  return function


def _remove(names: Iterable[str]) -> None:
  """Drops one registration of each function."""
  registry = context.context()
  for name in names:
    if registry.has_function(name):
      registry.remove_function(name)
