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


def from_graph(
  definition: tf.compat.v1.GraphDef,
  inputs: Sequence[tf.Tensor],
  outputs: Sequence[tf.Tensor],
) -> Any:
  """Makes a function of a part of a graph that has no variables.

  Args:
    definition: The graph.
    inputs: What the function takes, tensors of the graph or of another one with
      the same names; the only outputs of their operations.
    outputs: The results.

  Returns:
    TensorFlow's `WrappedFunction`, `(*tensors) -> tensors`; its graph has the
    operations that the results need, and lives as long as the function.
  """
  part = tf.compat.v1.GraphDef.FromString(definition.SerializeToString())
  given = {each.op.name for each in inputs}
  for node in part.node:
    if node.name in given:
      node.ClearField("input")
  part = tf.compat.v1.graph_util.extract_sub_graph(
    part, [each.op.name for each in outputs]
  )
  needed = {node.name for node in part.node}
  for i in reversed(range(len(part.node))):
    if part.node[i].name in given:
      del part.node[i]

  def trace(*arguments):
    values = {
      tensor.name: argument
      for tensor, argument in zip(inputs, arguments, strict=True)
      if tensor.op.name in needed
    }
    names = [each.name for each in outputs if each.name not in values]
    found = tf.import_graph_def(part, values, names)
    values.update(zip(names, found, strict=True))
    return [tf.identity(values[each.name]) for each in outputs]

  return wrap(trace, [tf.TensorSpec(each.shape, each.dtype) for each in inputs])


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
