"""Functions of tensors as graphs of what their results need, and no more.

The functions of a `algorithm.AlgorithmSpec` are traced with a placeholder for
each tensor that they may look at. What a result needs is then read off the
graph: only that has to be stored with it.
"""

from collections.abc import Callable
from typing import Any
from typing import NamedTuple

import tensorflow as tf


class Traced(NamedTuple):
  """A function of some of the tensors that it was traced with.

  Attributes:
    function: Takes the tensors that its result needs, in order.
    used: The positions of these among all, flattened.
  """

  function: Callable[..., tf.Tensor]
  used: tuple[int, ...]

  def __call__(self, structure: Any) -> tf.Tensor:
    """Computes the result.

    Args:
      structure: The arguments, in the structure of the `specs` that were
        traced. Of those that are not needed there may be anything.

    Returns:
      The result.
    """
    flat = tf.nest.flatten(structure)
    return self.function(*(flat[position] for position in self.used))


def trace(function: Callable[..., tf.Tensor], *specs: Any) -> Traced:
  """Traces a function in a graph of its own.

  Args:
    function: A pure function of nested structures of tensors, with one tensor
      as its result. Parts of models that come from Keras work only in such a
      graph, not where a `tf.function` is traced.
    *specs: The type of each argument, in nested structures of `tf.TensorSpec`.

  Returns:
    The function.
  """
  with tf.Graph().as_default() as graph:
    inputs = [
      tf.compat.v1.placeholder(spec.dtype, spec.shape)
      for spec in tf.nest.flatten(specs)
    ]
    output = tf.convert_to_tensor(
      function(*tf.nest.pack_sequence_as(specs, inputs))
    )
  needed = _needed_operations(output)
  used = tuple(
    position for position, each in enumerate(inputs) if each.op in needed
  )
  definition = graph.as_graph_def()
  whole = tf.compat.v1.wrap_function(
    lambda: tf.import_graph_def(definition, name=""), []
  )
  # The names are kept, and what nothing needs is not.
  pruned = whole.prune(
    [whole.graph.get_tensor_by_name(inputs[each].name) for each in used],
    whole.graph.get_tensor_by_name(output.name),
  )
  return Traced(pruned, used)


def _needed_operations(output: tf.Tensor) -> set[tf.Operation]:
  """Returns the operations that a result is computed from."""
  found, ahead = set(), [output.op]
  while ahead:
    operation = ahead.pop()
    if operation not in found:
      found.add(operation)
      ahead += [each.op for each in operation.inputs]
      ahead += operation.control_inputs
  return found
