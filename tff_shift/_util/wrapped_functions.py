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
  graph: tf.Graph, inputs: Sequence[tf.Tensor], output: tf.Tensor
) -> Callable[..., tf.Tensor]:
  """Makes a function of a graph that has no variables.

  Args:
    graph: The graph. Names are kept, and unused operations are removed.
    inputs: Its placeholders that the function takes, in order.
    output: The result.

  Returns:
    The function; its graph lives as long as the function.
  """
  definition = graph.as_graph_def()
  whole = wrap(lambda: tf.import_graph_def(definition, name=""), [])
  return _released(
    whole.prune(
      [whole.graph.get_tensor_by_name(each.name) for each in inputs],
      whole.graph.get_tensor_by_name(output.name),
    )
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
