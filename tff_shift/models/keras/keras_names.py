"""Matches the arrays of a Keras file to the weights of a model.

Layers are matched by name. Names chosen by Keras (`dense_3`) depend on what a
process has built before, so they are counted again on both sides, as in
`models.from_keras`: `dense.2`, the second layer of its class in its model.
Arrays or weights without a match are named in an error, never dropped.
"""

import functools
import re
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Sequence
from typing import Any
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from tff_shift.models.keras import keras_files
from tff_shift.models.keras import layer_names

Path = tuple[str, ...]

# A layer with a number assigned here.
_COUNTED = re.compile(r"[a-z0-9.]+\.\d+")
# Inner objects that are not part of a weight's name: the cell of a recurrent
# layer, and a wrapped layer.
_INSIDE = re.compile(r"cell|layer|.*[._]cell([._]\d+)?")
_DIRECTION = re.compile(
  r"(forward|backward)_(layer|(.*[._])?(lstm|gru|rnn)([._]\d+)?)"
)
# Names of a layer's attributes in files without names, and their usual names.
# Those of Keras 3 have no underscore.
_ATTRIBUTES = {
  f"{underscore}{name}_dense": usual
  for underscore in ("_", "")
  for name, usual in (
    ("query", "query"),
    ("key", "key"),
    ("value", "value"),
    ("output", "attention_output"),
  )
}
# The class of a functional model, and Keras's default name for such a model.
_FUNCTIONAL, _MODEL = "functional", "model"


class _Group(NamedTuple):
  """The weights of a layer.

  Attributes:
    raw: The names of the layers around them, the outermost first.
    counted: The same names, with those chosen by Keras counted again.
    weights: The name of each, None if unknown, and its array in a file or its
      name in a model.
  """

  raw: Path
  counted: Path
  weights: list[tuple[str | None, Any]]


def match(
  contents: keras_files.Contents, names: Iterable[str]
) -> dict[str, np.ndarray]:
  """Finds the array of each weight.

  Args:
    contents: The content of a file.
    names: The names of a model's weights, `<part>/<layers>/<weight>`, in the
      order of creation within a layer. Any number of nested layers is joined by
      `/` or by `_`.

  Returns:
    An array by the name of the weight. Weights that the file does not have are
    left out.

  Raises:
    ValueError: If an array of the file matches no weight, or it is ambiguous
      which of two; one line that names it.
  """
  names = tuple(names)
  in_file = _groups_of_file(contents)
  in_model = _groups_of_model(names)
  found = {}
  # Each kind of key is tried for the groups that earlier kinds have left.
  for key in (
    lambda group: _canonical(group.counted),
    lambda group: "_".join(_canonical(group.counted)),
    # A file may omit models between the outermost and the innermost.
    lambda group: _canonical(group.counted)[-1:],
    lambda group: _canonical(group.raw),
    lambda group: "_".join(_canonical(group.raw)),
  ):
    ours, theirs = _by_key(in_model, key), _by_key(in_file, key)
    for each in ours:
      if len(ours[each]) == len(theirs.get(each, ())) == 1:
        found |= _match_weights(theirs[each][0], ours[each][0])
        in_model.remove(ours[each][0])
        in_file.remove(theirs[each][0])
  if in_file:
    raise ValueError(_left_over(in_file, in_model, names) + contents.hint)
  return found


def _left_over(in_file, in_model, names) -> str:
  """Returns the message for arrays without a matching weight."""
  shown = ", ".join(repr(_shown(each)) for each in in_file[:3])
  more = f" and {len(in_file) - 3} more" if len(in_file) > 3 else ""
  wanted = (
    "still without an array: "
    + ", ".join(repr(each.weights[0][1]) for each in in_model[:3])
    if in_model
    else f"all of its weights, such as {names[0]!r}, have an array"
    if names
    else "it has no weights"
  )
  return f"it has {shown}{more}, for which the model has no weight ({wanted})"


def _shown(group: _Group) -> str:
  first = group.weights[0][0]
  return "/".join((*group.raw, *([] if first is None else [first])))


def _match_weights(theirs: _Group, ours: _Group) -> dict[str, np.ndarray]:
  """Returns the arrays of a layer by the names of the model's weights."""
  layer = "/".join(theirs.raw)
  given = [name for name, _ in theirs.weights]
  wanted = [name for name, _ in ours.weights]
  if None in given:
    if len(given) != len(wanted):
      raise ValueError(
        f"its layer {layer!r} has {len(given)} array(s), and the model has"
        f" {len(wanted)} weight(s) there ({', '.join(wanted)})"
      )
    given = wanted
  if "depthwise_kernel" in wanted and "kernel" not in wanted:
    # In a DepthwiseConv2D of Keras 3.
    given = ["depthwise_kernel" if name == "kernel" else name for name in given]
  if len(set(given)) < len(given) or len(set(wanted)) < len(wanted):
    twice = next(
      each
      for each in (*given, *wanted)
      if max(given.count(each), wanted.count(each)) > 1
    )
    raise ValueError(
      f"its layer {layer!r} has several nested weights {twice!r}, and it is"
      " ambiguous which is which; save the whole model"
      " (model.save, .keras)"
    )
  unknown = [each for each in given if each not in wanted]
  if unknown:
    raise ValueError(
      f"it has {f'{layer}/{unknown[0]}'!r}, for which the model has no weight;"
      f" that layer's are {', '.join(wanted)}"
    )
  by_name = {name: key for name, key in ours.weights}
  return {
    by_name[name]: value
    for name, (_, value) in zip(given, theirs.weights, strict=True)
  }


def _by_key(groups: Iterable[_Group], key) -> dict[object, list[_Group]]:
  found = {}
  for each in groups:
    if key(each):
      found.setdefault(key(each), []).append(each)
  return found


def _groups_of_file(contents: keras_files.Contents) -> list[_Group]:
  counted = dict(_counted(contents.layers))
  groups = {}
  for each in contents.arrays:
    raw = _resolved(each.layers, contents.layers)
    # Inner objects of a layer have no number.
    size = max(s for s in range(len(raw) + 1) if s == 0 or raw[:s] in counted)
    whole = (*counted.get(raw[:size], ()), *raw[size:])
    group = groups.setdefault(_canonical(whole), _Group(raw, whole, []))
    group.weights.append((each.name, each.value))
  return list(groups.values())


def _groups_of_model(names: Sequence[str]) -> list[_Group]:
  paths = [tuple(name.split("/")) for name in names]
  counted = dict(_counted(_tree(path[1:-1] for path in paths)))
  groups = {}
  for name, (part, *layers, weight) in zip(names, paths, strict=True):
    raw = tuple(layers)
    whole = counted.get(raw, ())
    key = part, _canonical(whole)
    group = groups.setdefault(key, _Group(raw, whole, []))
    group.weights.append((weight, name))
  return list(groups.values())


def _tree(paths: Iterable[Path]) -> tuple[keras_files.Layer, ...]:
  """Returns the layers of paths, in order."""
  inside = {}
  for first, *rest in filter(None, paths):
    inside.setdefault(first, []).append(tuple(rest))
  return tuple(
    keras_files.Layer(name, None, _tree(rests))
    for name, rests in inside.items()
  )


def _resolved(path: Path, layers: Iterable[keras_files.Layer]) -> Path:
  """Adds the models that a path omits, if this is unambiguous."""
  inside = {each.name: each.layers for each in layers}
  if not path or not inside:
    return path
  first, *rest = path
  if first in inside:
    return (first, *_resolved(tuple(rest), inside[first]))
  ways = [name for name in inside if _has_below(first, inside[name])]
  if len(ways) != 1:
    return path
  return (ways[0], *_resolved(path, inside[ways[0]]))


def _has_below(name: str, layers: Iterable[keras_files.Layer]) -> bool:
  return any(
    each.name == name or _has_below(name, each.layers) for each in layers
  )


def _counted(
  layers: Iterable[keras_files.Layer], raw: Path = (), counted: Path = ()
) -> Iterator[tuple[Path, Path]]:
  """Yields for each layer its path and the path of counted names."""
  layers, counts = tuple(layers), {}
  # If some are counted already, the others have names of their own.
  is_counted = any(
    layer.class_name is None and _COUNTED.fullmatch(layer.name)
    for layer in layers
  )
  for layer in layers:
    kind, name = None if is_counted else _kind(layer), layer.name
    if kind is not None:
      counts[kind] = counts.get(kind, 0) + 1
      name = f"{kind.replace('_', '.')}.{counts[kind]}"
    paths = (*raw, layer.name), (*counted, name)
    yield paths
    yield from _counted(layer.layers, *paths)


def _kind(layer: keras_files.Layer) -> str | None:
  """Returns Keras's default name for such layers; None: it has its own name."""
  kind = re.sub(r"_\d+$", "", layer.name)
  if layer.class_name is None:
    is_automatic = kind in _kinds()
  else:
    expected = layer_names.snake_case(layer.class_name)
    is_automatic = _model_for(kind) == _model_for(expected)
  return _model_for(kind) if is_automatic else None


def _model_for(kind: str) -> str:
  return _MODEL if kind == _FUNCTIONAL else kind


@functools.cache
def _kinds() -> frozenset[str]:
  classes = [name for name in dir(tf.keras.layers) if name[0].isupper()]
  return frozenset(
    {*map(layer_names.snake_case, classes), _MODEL, _FUNCTIONAL, "sequential"}
  )


def _canonical(path: Path) -> Path:
  """Returns a path in the form that all kinds of files share."""
  found = []
  for name in path:
    name = _ATTRIBUTES.get(name, name)
    if found and _INSIDE.fullmatch(name):
      continue
    direction = _DIRECTION.fullmatch(name)
    if found and direction:
      found[-1] += f"_{direction[1]}"
    elif name not in found[-1:]:
      found.append(name)
  return tuple(found)
