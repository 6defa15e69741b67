"""Graphs that contain only the operations that their results need.

The functions of an `algorithm.AlgorithmSpec` are traced with a placeholder for
each tensor that they may use. The graph then shows which tensors a result
needs: only these must be stored with it.
"""

from collections.abc import Callable
from typing import Any
from typing import NamedTuple

import tensorflow as tf

from tff_shift._util import wrapped_functions


class Traced(NamedTuple):
  """A function of some of the tensors with which it was traced.

  Attributes:
    function: Takes the tensors that its result needs, in order.
    used: The positions of these among all flattened tensors.
    output_shape: The shape of the result, as far as it is known.
  """

  function: Callable[..., tf.Tensor]
  used: tuple[int, ...]
  output_shape: tf.TensorShape

  def __call__(self, structure: Any) -> tf.Tensor:
    """Computes the result.

    Args:
      structure: The arguments, in the structure of the traced `specs`. Unused
        ones may have any value.

    Returns:
      The result.
    """
    flat = tf.nest.flatten(structure)
    (result,) = self.function(*(flat[position] for position in self.used))
    return result


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
  part = wrapped_functions.part_of(graph.as_graph_def(), inputs, [output])
  used = wrapped_functions.used_inputs(part, inputs, [output])
  return Traced(
    wrapped_functions.from_part(part, [inputs[i] for i in used], [output]),
    tuple(used),
    output.shape,
  )
