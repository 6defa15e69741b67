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
  given = {each.op.name for each in inputs}
  nodes = {node.name: node for node in definition.node}
  ahead, needed = [each.op.name for each in outputs], set(given)
  while ahead:
    name = ahead.pop()
    if name not in needed:
      needed.add(name)
      ahead += [
        each.lstrip("^").partition(":")[0] for each in nodes[name].input
      ]
  part = tf.compat.v1.GraphDef(
    versions=definition.versions, library=definition.library
  )
  part.node.extend(
    node for node in definition.node if node.name in needed - given
  )
  return part


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
  used = {name.partition(":")[0] for node in part.node for name in node.input}

  def trace(*arguments):
    values = dict(zip([each.name for each in inputs], arguments, strict=True))
    names = [each.name for each in outputs if each.name not in values]
    used_values = {
      each.name: values[each.name] for each in inputs if each.op.name in used
    }
    found = tf.import_graph_def(part, used_values, names)
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
