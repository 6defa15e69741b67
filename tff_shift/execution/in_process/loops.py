"""Loops over data sets, as part of the graph.

`tf.data.Dataset.reduce`, with which stock TFF algorithms iterate over a
client's batches, becomes a `ReduceDataset` operation. This operation
instantiates the step function at every call (about 20 ms for a small model) and
always runs it on the host. Here it is replaced by a call of a `while` loop
around an iterator, which does neither.
"""

from collections.abc import Mapping
from collections.abc import Sequence
from typing import TypeAlias

import tensorflow as tf
from google.protobuf import message

# TensorFlow exports no names for these protocol buffers.
_FunctionDef: TypeAlias = message.Message
_FunctionDefLibrary: TypeAlias = message.Message


def loop_over_datasets(graph_def: tf.compat.v1.GraphDef) -> None:
  """Turns each `ReduceDataset` into a call of an iterator loop.

  Args:
    graph_def: The graph to change, in its functions too.
  """
  functions = {
    function.signature.name: function for function in graph_def.library.function
  }
  bodies = [
    (graph_def.node, None),
    *((function.node_def, function) for function in functions.values()),
  ]
  for nodes, function in bodies:
    for node in nodes:
      if node.op != "ReduceDataset":
        continue
      _replace_reduction(node, functions, graph_def.library)
      if function is not None:
        # In a function, an output is named after the operation's signature.
        _rename_outputs(
          function, f"{node.name}:components:", f"{node.name}:output:"
        )


def _rename_outputs(
  function: _FunctionDef, old_prefix: str, new_prefix: str
) -> None:
  """Renames the outputs of one node wherever `function` uses them."""

  def renamed(name: str) -> str:
    if name.startswith(old_prefix):
      return new_prefix + name.removeprefix(old_prefix)
    return name

  for node in function.node_def:
    for index, name in enumerate(node.input):
      node.input[index] = renamed(name)
  for key, name in list(function.ret.items()):
    function.ret[key] = renamed(name)


def _replace_reduction(
  node: tf.compat.v1.NodeDef,
  functions: Mapping[str, _FunctionDef],
  library: _FunctionDefLibrary,
) -> None:
  """Makes `node`, a `ReduceDataset`, a call of the equivalent loop."""
  step = node.attr["f"].func.name
  state_types = list(node.attr["Tstate"].list.type)
  argument_types = list(node.attr["Targuments"].list.type)
  step_types = [
    argument.type for argument in functions[step].signature.input_arg
  ]
  element_types = step_types[
    len(state_types) : len(step_types) - len(argument_types)
  ]
  loop_name, loop_library = _iterator_loop(
    step, state_types, element_types, argument_types
  )
  library.MergeFrom(loop_library)
  node.op = "StatefulPartitionedCall"
  node.attr.clear()
  node.attr["f"].func.name = loop_name
  node.attr["Tin"].list.type.extend(
    [tf.variant.as_datatype_enum, *state_types, *argument_types]
  )
  node.attr["Tout"].list.type.extend(state_types)


def _iterator_loop(
  step: str,
  state_types: Sequence[int],
  element_types: Sequence[int],
  argument_types: Sequence[int],
) -> tuple[str, _FunctionDefLibrary]:
  """Builds `dataset, state, arguments -> state` around the function `step`.

  Args:
    step: The name of the function `state, element, arguments -> state`.
    state_types: The `DataType` of each of the state's tensors.
    element_types: The `DataType` of each of an element's tensors.
    argument_types: The `DataType` of each tensor that all steps share.

  Returns:
    The loop's name, and a library with it and its parts but without `step`.
  """
  specs = [tf.TensorSpec(None, tf.as_dtype(dtype)) for dtype in element_types]
  options = tf.data.Options()
  # A client's data set is short: tuning it and rewriting its graph at every
  # call would cost more than it saves.
  options.autotune.enabled = False
  options.experimental_optimization.apply_default_optimizations = False

  def run_step(state, element, arguments):
    return tf.raw_ops.StatefulPartitionedCall(
      args=[*state, *element, *arguments],
      Tout=[tf.as_dtype(dtype) for dtype in state_types],
      f=step,
    )

  @tf.function(autograph=False)
  def loop_over_dataset(variant, state, arguments):
    dataset = tf.data.experimental.from_variant(variant, structure=tuple(specs))
    iterator = iter(dataset.with_options(options))

    def advance(_, *state):
      element = iterator.get_next_as_optional()
      has_element = element.has_value()
      state = tf.cond(
        has_element,
        lambda: run_step(state, element.get_value(), arguments),
        lambda: [tf.identity(tensor) for tensor in state],
      )
      return has_element, *state

    unknown = tf.TensorShape(None)
    _, *state = tf.while_loop(
      lambda has_element, *_: has_element,
      advance,
      (True, *state),
      shape_invariants=(tf.TensorShape([]), *(unknown for _ in state)),
      parallel_iterations=1,
    )
    return state

  with tf.Graph().as_default() as graph:
    placeholders = [
      [tf.compat.v1.placeholder(tf.as_dtype(dtype)) for dtype in dtypes]
      for dtypes in (state_types, argument_types)
    ]
    variant = tf.compat.v1.placeholder(tf.variant, shape=[])
    loop_over_dataset(variant, *placeholders)
    graph_def = graph.as_graph_def()
  (call,) = [node for node in graph_def.node if "f" in node.attr]
  return call.attr["f"].func.name, graph_def.library
