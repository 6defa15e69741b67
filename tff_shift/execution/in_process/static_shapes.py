"""Refuses graphs in which XLA would have shapes that depend on data.

XLA compiles some of them, with the largest shape and the true size beside it,
and computes other results: the mean of 9 rows that were concatenated from parts
of a list has been their sum divided by 256.
"""

from collections.abc import Callable
from collections.abc import Collection
from collections.abc import Iterable
from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from tff_shift.execution.in_process import vectorization

# The shape of their results depends on the values of their inputs.
_OF_VALUES = frozenset(
  {
    *("DynamicPartition", "Unique", "UniqueV2", "UniqueWithCounts"),
    *("TensorListConcat", "TensorListConcatV2", "Where"),
  }
)
# The inputs that determine a shape. XLA takes the largest value of many.
_SHAPES = {
  "Bincount": (1,),
  "BroadcastTo": (1,),
  "Conv2DBackpropFilter": (1,),
  "Conv2DBackpropInput": (0,),
  "DenseBincount": (1,),
  "Fill": (0,),
  "LinSpace": (2,),
  "MirrorPad": (1,),
  "OneHot": (1,),
  "Pad": (1,),
  "PadV2": (1,),
  "Range": (0, 1, 2),
  "Reshape": (1,),
  "ScatterNd": (2,),
  "Slice": (2,),
  "StatelessRandomUniformFullIntV2": (0,),
  "TensorListReserve": (0, 1),
  "Tile": (1,),
  "TopKV2": (1,),
  **{f"UnsortedSegment{name}": (2,) for name in ("Max", "Min", "Prod", "Sum")},
}


class NotCompiledError(Exception):
  """A batch cannot be compiled, or not with the same numbers."""


def check(
  definition: tf.compat.v1.GraphDef, constants: Collection[str]
) -> None:
  """Refuses a graph with shapes that are not known when XLA compiles it.

  Args:
    definition: The graph, without its inputs.
    constants: The names of the inputs whose values XLA knows.

  Raises:
    NotCompiledError: If an operation has such a shape.
  """
  functions = {
    each.signature.name: each for each in definition.library.function
  }
  _check_nodes(definition.node, set(constants), functions)


def _check_nodes(
  nodes: Iterable[Any], known: Collection[str], functions: Mapping[str, Any]
) -> None:
  """Checks a graph, or the body of a function.

  Args:
    nodes: Its operations.
    known: The names of the inputs whose values are known.
    functions: By their names.
  """
  by_name = {node.name: node for node in nodes}
  answers = dict.fromkeys(known, True)

  def is_known(name: str) -> bool:
    """Returns whether an operation computes from shapes and constants alone."""
    name = name.partition(":")[0]
    if name not in answers:
      node = by_name.get(name)
      answers[name] = node is not None and (
        node.op == "Const"
        or node.op in vectorization.OF_SHAPES
        or (bool(node.input) and all(map(is_known, _values(node))))
      )
    return answers[name]

  for node in by_name.values():
    if node.op in _OF_VALUES or not _has_known_shape(node, by_name, is_known):
      raise NotCompiledError(f"a shape depends on data: {node.op}")
    called = [
      functions[value.func.name]
      for value in node.attr.values()
      if value.func.name in functions
    ]
    arguments = _values(node)
    # Of a condition, the first is not an argument.
    if node.op in ("Case", "If", "StatelessCase", "StatelessIf"):
      arguments = arguments[1:]
    given = [is_known(each) for each in arguments]
    for function in called:
      names = [each.name for each in function.signature.input_arg]
      if node.op in ("StatelessWhile", "While"):
        kept = _kept(functions[node.attr["body"].func.name])
        given = [a and b for a, b in zip(given, kept, strict=True)]
      _check_nodes(
        function.node_def,
        {name for name, each in zip(names, given, strict=True) if each},
        functions,
      )


def _values(node: Any) -> list[str]:
  """Returns the names of the values that an operation takes."""
  return [name for name in node.input if not name.startswith("^")]


def _kept(body: Any) -> list[bool]:
  """Returns which variables of a loop its body leaves as they are."""
  by_name = {node.name: node for node in body.node_def}
  kept = []
  for argument, result in zip(
    body.signature.input_arg, body.signature.output_arg, strict=True
  ):
    name = body.ret[result.name].partition(":")[0]
    while name in by_name and by_name[name].op == "Identity":
      name = by_name[name].input[0].partition(":")[0]
    kept.append(name == argument.name)
  return kept


def _has_known_shape(
  node: Any, by_name: Mapping[str, Any], is_known: Callable[[str], bool]
) -> bool:
  """Returns whether the result's shape follows from shapes and constants."""
  inputs = _values(node)
  if node.op != "StridedSlice":
    return all(is_known(inputs[i]) for i in _SHAPES.get(node.op, ()))
  shrinks = node.attr["shrink_axis_mask"].i
  for name in inputs[1:3]:
    pack = by_name.get(name.partition(":")[0])
    places = _values(pack) if pack is not None and pack.op == "Pack" else []
    # One element of an axis may be at any place.
    if not is_known(name) and not (
      places
      and all(
        shrinks >> i & 1 or is_known(each) for i, each in enumerate(places)
      )
    ):
      return False
  return True
