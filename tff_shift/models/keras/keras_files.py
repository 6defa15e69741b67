"""Readers of Keras model files, which read only the arrays.

    model.keras            the format of tf.keras: config.json and weights
    model.h5, model.hdf5   a whole model, or `save_weights`
    model.weights.h5       weights only, in the layout of .keras
    a folder               a SavedModel: of `model.save`, `model.export` or TF

No objects are created from a configuration and no code of a file is run: a
configuration is JSON, from which names and classes of layers are read. Arrays
that are too large for the memory are refused.
"""

import contextlib
import io
import json
import math
import os
import pathlib
import re
import zipfile
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any
from typing import IO
from typing import NamedTuple

import h5py
import numpy as np
import tensorflow as tf
from google.protobuf import message as protobuf
from tensorflow.core.protobuf import trackable_object_graph_pb2
from tensorflow.python.keras.protobuf import saved_metadata_pb2

from tff_shift._util import files
from tff_shift._util import memory
from tff_shift._util import shown_names
from tff_shift.data import array_files
from tff_shift.models.keras import layer_names

KERAS = ".keras"
HDF5 = (".h5", ".hdf5")
SAVED_MODEL_FILE = "saved_model.pb"

_CONFIG_FILE, _WEIGHTS_FILE = "config.json", "model.weights.h5"
_METADATA_FILE = "keras_metadata.pb"
_VARIABLES = pathlib.PurePath("variables", "variables")
_GRAPH = "_CHECKPOINTABLE_OBJECT_GRAPH"
# The contents of a file of a compiled model beside the weights.
_OF_TRAINING = re.compile(
  r"_?(optimizer|(compiled_)?metrics|compiled_loss|loss)"
)
# Groups in which Keras 2.14 and later keep the layers of a model.
_LAYERS = ("_layer_checkpoint_dependencies", "layers")
_OWN = "vars"
_LAYER_EDGE = re.compile(r"layer(_with_weights)?-\d+")

# Hints for files with little information.
_CLASSES_ALONE = (
  "; a file of weights only (.weights.h5) has the classes of layers in place"
  " of their names: save the whole model (model.save, .keras)"
)
_NO_MODELS = (
  "; such a SavedModel does not contain which layers are in which model: save"
  " it by model.save"
)


class Layer(NamedTuple):
  """A layer, as described in a file.

  Attributes:
    name: Its name.
    class_name: Its class. None: not in the file.
    layers: The layers of a nested model, in order.
  """

  name: str
  class_name: str | None
  layers: tuple["Layer", ...] = ()


class Array(NamedTuple):
  """A weight in a file.

  Attributes:
    layers: The names of its layers, the outermost first.
    name: Its name in the innermost layer. None: the file has only the order.
    value: The array.
  """

  layers: tuple[str, ...]
  name: str | None
  value: np.ndarray


class Contents(NamedTuple):
  """The content of a file.

  Attributes:
    arrays: The weights, in the order of the layers.
    layers: The layers of the model, including those without weights.
    has_names: Whether layers have their names in the model. Otherwise they are
      named by class and number.
    hint: Advice on what to save instead, if the file has too little
      information; "" or the end of a line.
  """

  arrays: tuple[Array, ...]
  layers: tuple[Layer, ...]
  has_names: bool = True
  hint: str = ""


class _RefusedError(ValueError):
  """The reason for refusing a file, without its name."""


def is_keras_file(path: str | os.PathLike[str]) -> bool:
  """Returns whether `read` supports a path, judging by its name.

  All folders are supported.
  """
  path = pathlib.Path(path)
  return path.suffix.lower() in (KERAS, *HDF5) or path.is_dir()


def files_of(folder: str | os.PathLike[str]) -> list[str]:
  """Returns the paths within a SavedModel's folder that `read` reads."""
  folder = pathlib.Path(folder)
  return [
    str(path.relative_to(folder))
    for path in (
      folder / _METADATA_FILE,
      folder / f"{_VARIABLES}.index",
      *sorted(folder.glob(f"{_VARIABLES}.data-*")),
    )
    if path.exists()
  ]


def read(path: str | os.PathLike[str]) -> Contents:
  """Reads the weights of a Keras model.

  Args:
    path: The file or folder, see the docstring of the module.

  Returns:
    The weights, and the file's description of the layers.

  Raises:
    FileNotFoundError: If there is no such file.
    ValueError: If it is not a supported file, is incomplete, is too large for
      the memory, or has other values than numbers; the message is the reason.
  """
  path = pathlib.Path(path)
  try:
    if path.is_dir():
      return _read_saved_model(path)
    with files.reading(path) as file:
      return _read_file(file, path.suffix.lower())
  except (_RefusedError, memory.TooLargeError, FileNotFoundError) as error:
    raise type(error)(shown_names.line(error)) from error
  # Libraries raise errors of many types, depending on the damaged bytes.
  except Exception as error:
    raise ValueError(_reason(error, path)) from error


def _read_file(file: IO[bytes], suffix: str) -> Contents:
  try:
    return _read_keras(file) if suffix == KERAS else _read_hdf5(file)
  except OSError as error:
    # Not an error of the file system, which `files` reports.
    raise _RefusedError(_damaged(error)) from error


def _reason(error: Exception, path: pathlib.Path) -> str:
  if str(error).startswith(str(path)):  # Of `files`.
    return shown_names.line(f"it{str(error).removeprefix(str(path))}")
  return _damaged(error)


def _damaged(error: Exception) -> str:
  reason = shown_names.line(array_files.first_line(error)).strip("'\"")
  return f"it is damaged or cut off: {reason}; save it again"


# Files that are archives.


def _read_keras(file: IO[bytes]) -> Contents:
  if not zipfile.is_zipfile(file):
    raise _RefusedError(
      "it is not a .keras file (model.save of tf.keras), which is a zip archive"
    )
  with zipfile.ZipFile(file) as archive:
    members = {each.filename: each for each in archive.infolist()}
    for name in (_CONFIG_FILE, _WEIGHTS_FILE):
      if name not in members:
        raise _RefusedError(
          f"it has no {name}; a .keras file of tf.keras (model.save) has"
        )
    # Weights: once as bytes, and once as arrays.
    for name in (_CONFIG_FILE, _WEIGHTS_FILE):
      memory.check(2 * members[name].file_size, f"its {name} is too large")
    layers = _layers_of(archive.read(_CONFIG_FILE), _CONFIG_FILE)
    content = archive.read(_WEIGHTS_FILE)
  with _opened(io.BytesIO(content), _WEIGHTS_FILE) as group:
    return Contents(tuple(_Hdf5Reader().arrays(group, layers)), layers)


def _layers_of(text: bytes | str, where: str) -> tuple[Layer, ...]:
  """Returns the layers in a configuration, JSON."""
  try:
    config = json.loads(text)
  except (ValueError, RecursionError) as error:
    raise _RefusedError(
      f"its {where} is damaged: it is not JSON; save it again"
    ) from error
  return _inner_layers(config)


def _inner_layers(config: Any) -> tuple[Layer, ...]:
  """Returns the layers of a model's configuration; () for other layers."""
  inner = _get(_get(config, "config"), "layers")
  if not isinstance(inner, list):
    return ()
  found = []
  for each in inner:
    name = _get(_get(each, "config"), "name") or _get(each, "name")
    class_name = _get(each, "class_name")
    if isinstance(name, str) and isinstance(class_name, str):
      found.append(Layer(name, class_name.split(">")[-1], _inner_layers(each)))
  return tuple(found)


def _get(value: Any, key: str) -> Any:
  return value.get(key) if isinstance(value, dict) else None


# HDF5.


@contextlib.contextmanager
def _opened(file: IO[bytes], what: str) -> Iterator[h5py.File]:
  if not file.read(8) == b"\x89HDF\r\n\x1a\n":
    raise _RefusedError(
      f"{what} is not an HDF5 file (model.save or save_weights of tf.keras)"
    )
  with h5py.File(file, "r") as group:
    yield group


def _read_hdf5(file: IO[bytes]) -> Contents:
  with _opened(file, "it") as group:
    reader = _Hdf5Reader()
    if any(name in group for name in _LAYERS):
      layers = _layers_by_class(group)
      return Contents(
        tuple(reader.arrays(group, layers)), layers, False, _CLASSES_ALONE
      )
    layers = ()
    if "model_config" in group.attrs:
      layers = _layers_of(
        "".join(_attribute(group, "model_config")), "model_config"
      )
    if "model_weights" in group:
      group = reader.child(group, "model_weights")
    if "layer_names" not in group.attrs and "layer_names0" not in group.attrs:
      raise _RefusedError(
        "it has no names of layers, which files of Keras have (model.save or"
        " save_weights of tf.keras)"
      )
    names = _texts(group, "layer_names")
    arrays = tuple(reader.legacy_arrays(group, names))
    if [each.name for each in layers if each.name in set(names)] != names:
      # There is no configuration, or it is of another model.
      layers = _layers_by_name(names, arrays)
    return Contents(arrays, layers)


def _attribute(group: h5py.Group, name: str) -> list[str]:
  """Returns the texts of an attribute."""
  return [
    each.decode("utf-8") if isinstance(each, bytes) else str(each)
    for each in np.ravel(group.attrs[name])
  ]


def _texts(group: h5py.Group, name: str) -> list[str]:
  """Returns a list of texts in attributes; long lists are in pieces."""
  if name in group.attrs:
    return _attribute(group, name)
  found, number = [], 0
  while f"{name}{number}" in group.attrs:
    found += _attribute(group, f"{name}{number}")
    number += 1
  return found


class _Hdf5Reader:
  """Reads arrays of an HDF5 file, as many as fit into the memory."""

  def __init__(self):
    self._num_bytes = 0

  def child(self, group: h5py.Group, name: str) -> Any:
    """Returns the object of a name or path in a group."""
    if name not in group:
      raise _RefusedError(f"it is damaged: {name!r} is not in it")
    return group[name]

  def array(self, group: h5py.Group, name: str) -> np.ndarray:
    """Reads an array."""
    found = self.child(group, name)
    if not isinstance(found, h5py.Dataset) or found.shape is None:
      raise _RefusedError(f"it is damaged: {name!r} in it is not an array")
    name = found.name or name
    _check_type(found.dtype, name)
    self._num_bytes += math.prod(found.shape) * found.dtype.itemsize
    memory.check(self._num_bytes, f"it is too large, with its array {name!r}")
    return found[()]

  def legacy_arrays(
    self, group: h5py.Group, names: Sequence[str]
  ) -> Iterator[Array]:
    """Yields the arrays of layers in the older layout, with names."""
    top = "top_level_model_weights"
    for layer in (*names, *({top} & set(group))):
      inside = self.child(group, layer)
      for weight in _texts(inside, "weight_names"):
        path = weight.split(":")[0].split("/")
        if layer in path:
          # Keras 3 begins with the name of a Sequential model.
          path = path[path.index(layer) :]
        elif layer != top:
          path = [layer, *path]
        yield Array(tuple(path[:-1]), path[-1], self.array(inside, weight))

  def arrays(
    self,
    group: h5py.Group,
    layers: Sequence[Layer],
    path: tuple[str, ...] = (),
  ) -> Iterator[Array]:
    """Yields the arrays of a group in the layout of .keras.

    Args:
      group: The group of a model, of a layer, or inside of a layer.
      layers: The layers of the model.
      path: The names of the layers around the group.

    Yields:
      The arrays; they have no names.
    """
    if _OWN in group:
      own = self.child(group, _OWN)
      for number in sorted(own, key=_number):
        yield Array(path, None, self.array(own, number))
    for name in group:
      if name == _OWN or (not path and _OF_TRAINING.fullmatch(name)):
        continue
      inside = self.child(group, name)
      if not isinstance(inside, h5py.Group):
        raise _RefusedError(f"it is damaged: {inside.name!r} is not a group")
      if name not in _LAYERS:
        yield from self.arrays(inside, (), (*path, name))
        continue
      by_key = _keys(layers)
      order = {key: number for number, key in enumerate(by_key)}
      for key in sorted(inside, key=lambda key: order.get(key, len(order))):
        layer = by_key.get(key, Layer(key, None))
        yield from self.arrays(
          self.child(inside, key), layer.layers, (*path, layer.name)
        )


def _number(text: str) -> int:
  if not text.isdecimal():
    raise _RefusedError(f"it is damaged: {text!r} in it is not a number")
  return int(text)


def _check_type(dtype: np.dtype, name: str) -> None:
  if dtype.kind not in "fiub":
    raise _RefusedError(
      f"its array {name!r} holds {dtype}, and no numbers; weights are float32"
    )


def _keys(layers: Iterable[Layer]) -> dict[str, Layer]:
  """Returns layers by their names in the layout of .keras."""
  counts, found = {}, {}
  for layer in layers:
    kind = layer_names.snake_case(layer.class_name or layer.name)
    number = counts.get(kind, 0)
    counts[kind] = number + 1
    found[f"{kind}_{number}" if number and layer.class_name else kind] = layer
  return found


def with_names(contents: Contents, layers: Iterable[Layer]) -> Contents:
  """Renames layers that are named by class to the names of a model.

  Args:
    contents: The content of a file.
    layers: The layers of the model of this file, with their classes.

  Returns:
    The contents. Layers that the model does not have keep their names.
  """
  if contents.has_names:
    return contents
  known = tuple(layers)

  def renamed(path: tuple[str, ...]) -> tuple[str, ...]:
    found, inside = [], known
    for key in path:
      layer = _keys(inside).get(key, Layer(key, None))
      found.append(layer.name)
      inside = layer.layers
    return tuple(found)

  return Contents(
    tuple(
      each._replace(layers=renamed(each.layers)) for each in contents.arrays
    ),
    known,
    hint=contents.hint,
  )


def layers_of(model: tf.keras.Model) -> tuple[Layer, ...]:
  """Returns the layers of a Keras model, including nested models."""
  return tuple(
    Layer(
      layer.name,
      type(layer).__name__,
      layers_of(layer) if isinstance(layer, tf.keras.Model) else (),
    )
    for layer in model.layers
  )


def _layers_by_class(group: h5py.Group) -> tuple[Layer, ...]:
  """Returns the layers of a group, each named by its class.

  Layers of a class are in order; the order of the classes is unknown.
  """
  found = []
  for name in _LAYERS:
    inside = group.get(name)
    if isinstance(inside, h5py.Group):
      for key in inside:
        kind, _, number = key.rpartition("_")
        if not (number.isdecimal() and kind in inside):
          kind, number = key, "0"
        layers = _layers_by_class(inside[key])
        found.append((kind, _number(number), key, layers))
  return tuple(Layer(key, None, inner) for *_, key, inner in sorted(found))


def _layers_by_name(
  names: Iterable[str], arrays: Iterable[Array]
) -> tuple[Layer, ...]:
  """Returns the layers if only names or weights are known."""
  inside = {name: {} for name in names}
  for each in arrays:
    below = inside
    for name in each.layers:
      below = below.setdefault(name, {})

  def layers(tree: Mapping[str, Any]) -> tuple[Layer, ...]:
    return tuple(
      Layer(name, None, layers(below)) for name, below in tree.items()
    )

  return layers(inside)


# SavedModels.


def _read_saved_model(folder: pathlib.Path) -> Contents:
  if not (folder / SAVED_MODEL_FILE).is_file():
    raise _RefusedError(
      f"it is a folder without {SAVED_MODEL_FILE}; a SavedModel (model.save,"
      " model.export or tf.saved_model.save) has one"
    )
  prefix = folder / _VARIABLES
  index = prefix.with_name(f"{prefix.name}.index")
  data = sorted(prefix.parent.glob(f"{prefix.name}.data-*"))
  if not index.exists() or not data:
    raise _RefusedError(
      f"it lacks {_VARIABLES}.index or {_VARIABLES}.data-*; save it again"
    )
  for path in (index, *data):
    files.check_regular(path)
  reader = tf.train.load_checkpoint(str(prefix))
  shapes = reader.get_variable_to_shape_map()
  dtypes = reader.get_variable_to_dtype_map()
  if _GRAPH not in shapes:
    raise _RefusedError("it does not contain the names of its variables")
  graph = trackable_object_graph_pb2.TrackableObjectGraph()
  graph.ParseFromString(reader.get_tensor(_GRAPH))
  tree = _Objects(graph, _metadata(folder / _METADATA_FILE))
  layers, variables = tree.layers(), tree.variables()
  num_bytes = 0
  for owners, name, key in variables:
    if key not in shapes:
      raise _RefusedError(f"it is damaged: its variable {name!r} is missing")
    _check_type(np.dtype(dtypes[key].as_numpy_dtype), "/".join((*owners, name)))
    num_bytes += math.prod(shapes[key]) * dtypes[key].size
  memory.check(num_bytes, "it is too large")
  arrays = tuple(
    Array(owners, name, reader.get_tensor(key))
    for owners, name, key in variables
  )
  if layers:
    return Contents(arrays, layers)
  return Contents(arrays, _layers_by_name((), arrays), hint=_NO_MODELS)


def _metadata(path: pathlib.Path) -> dict[str, tuple[str, str]]:
  """Returns name and class of the layers of a Keras model, by their paths."""
  try:
    content = files.read_bytes(path)
  except FileNotFoundError:
    return {}
  metadata = saved_metadata_pb2.SavedMetadata()
  found = {}
  try:
    metadata.ParseFromString(content)
    for node in metadata.nodes:
      described = json.loads(node.metadata)
      name, kind = _get(described, "name"), _get(described, "class_name")
      if isinstance(name, str) and isinstance(kind, str):
        found[node.node_path] = name, kind.split(">")[-1]
  except (protobuf.DecodeError, ValueError, RecursionError) as error:
    raise _RefusedError(
      f"its {_METADATA_FILE} is damaged; save it again"
    ) from error
  return found


class _Objects:
  """The objects of a SavedModel: models, layers, variables.

  Args:
    graph: TensorFlow's description of the objects.
    metadata: Name and class of the layers, by their paths.
  """

  def __init__(
    self,
    graph: trackable_object_graph_pb2.TrackableObjectGraph,
    metadata: Mapping[str, tuple[str, str]],
  ):
    self._nodes = graph.nodes
    self._metadata = metadata

  def _children(self, number: int) -> dict[str, int]:
    return {
      each.local_name: each.node_id for each in self._nodes[number].children
    }

  def _inner(
    self, number: int, path: str
  ) -> Iterator[tuple[int, str, str, str]]:
    """Yields number, path, name and class of the layers of a model."""
    seen = {}
    for edge, child in self._children(number).items():
      if _LAYER_EDGE.fullmatch(edge):
        seen.setdefault(child, []).append(f"{path}.{edge}")
    for child, paths in seen.items():
      known = next((each for each in paths if each in self._metadata), None)
      if known is not None:
        yield child, known, *self._metadata[known]

  def layers(self, number: int = 0, path: str = "root") -> tuple[Layer, ...]:
    """Returns the layers of the model; () if their names are unknown."""
    return tuple(
      Layer(name, kind, self.layers(child, inner))
      for child, inner, name, kind in self._inner(number, path)
    )

  def variables(self) -> list[tuple[tuple[str, ...], str, str]]:
    """Returns layer names, name and key of the weights, in order."""
    owners = dict(self._owners(0, "root", ()))
    found = []
    for number in self._weights(0):
      full_name, key = self._stored(number)
      path = full_name.split("/")
      names = owners.get(number, ())
      if names and path[0] in names[-1:]:
        path = path[1:]
      found.append(((*names, *path[:-1]), path[-1], key))
    return found

  def _owners(
    self, number: int, path: str, names: tuple[str, ...]
  ) -> Iterator[tuple[int, tuple[str, ...]]]:
    """Yields each weight with the names of its layers."""
    for child, inner, name, _ in self._inner(number, path):
      for weight in self._weights(child):
        yield weight, (*names, name)
      # The innermost is yielded last and overrides.
      yield from self._owners(child, inner, (*names, name))

  def _weights(self, number: int) -> list[int]:
    listed = self._children(number).get("variables")
    if listed is not None:
      children = self._children(listed)
      return [children[each] for each in sorted(children, key=_number)]
    if number:
      return []
    # Not a Keras model: all stored variables except the optimizer's.
    return [
      each
      for each, node in enumerate(self._nodes)
      if any(a.name == "VARIABLE_VALUE" for a in node.attributes)
      and _GRAPH not in node.attributes[0].checkpoint_key
      and not _OF_TRAINING.match(node.attributes[0].checkpoint_key)
    ]

  def _stored(self, number: int) -> tuple[str, str]:
    for each in self._nodes[number].attributes:
      if each.name == "VARIABLE_VALUE":
        return each.full_name or f"variable_{number}", each.checkpoint_key
    raise _RefusedError(
      "it is damaged: one of its variables has no value; save it again"
    )
