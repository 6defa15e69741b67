"""A model in two parts, backbone and head, as pure functions of their weights.

Weights are plain nested tuples of tensors, so that gradients, averages,
prototypes and per-client heads are ordinary functions of tensors. Each part is
a Keras model turned into a function (`keras_parts`), or a function written by
hand (`parts`).

Models use group normalisation where papers use batch normalisation: the latter
has running statistics, which are not a function of the weights and break under
federated averaging.
"""

import dataclasses
import hashlib
import itertools
import os
from collections.abc import Callable
from collections.abc import Mapping
from typing import Any
from typing import ClassVar
from typing import NamedTuple
from typing import Self

import tensorflow as tf

from tff_shift._util import files
from tff_shift.data import array_files
from tff_shift.models import input_scaling as scaling_lib
from tff_shift.models import parts
from tff_shift.models.keras import keras_files
from tff_shift.models.keras import keras_names
from tff_shift.models.keras import keras_parts

# The cut between backbone and head: before the last linear layer, or where the
# model's own file has it.
HEADS = ("last_layer", "classifier")

# Separates a layer's name into a prefix common to its parts (convolution,
# normalisation) and the part's own name.
_PART_SEPARATOR = "_"

_NPZ = ".npz"
# The files in the folder of a saved model of a run, beside a SavedModel.
_SAVED_RUN = ("weights.npz", "model.json")


class SplitWeights(NamedTuple):
  """The weights of a `SplitModel`.

  Attributes:
    backbone: A tuple of float32 tensors, in the order of creation.
    head: A tuple of float32 tensors, in the order of creation.
  """

  backbone: Any
  head: Any


class Origin(NamedTuple):
  """How a model was built, if a program can build it again.

  Attributes:
    name: Its name in `models.build`.
    options: The options, JSON types. With `normalization`, the model was
      changed by `models.with_batch_normalization`.
  """

  name: str
  options: Mapping[str, Any]


@dataclasses.dataclass(frozen=True)
class SplitModel:
  """A classifier made of a backbone (input to embedding) and a head.

  Attributes:
    name: The name of the architecture.
    backbone: `(weights, x) -> embedding [batch, embedding_size] float32`.
    head: `(weights, embedding) -> logits [batch, num_classes] float32`.
    input_shape: The shape of one example, without the batch.
    input_dtype: `tf.uint8` for images in 0..255; `tf.int32` for tokens;
      `tf.float32` for anything else. `embed` scales all but tokens.
    num_classes: The number of classes.
    embedding_size: The length of an embedding.
    input_scaling: The scaling of images or features; by default features are
      not scaled.
    vocabulary_size: Tokens are from 0 to `vocabulary_size` - 1. None: unknown,
      or the model does not take tokens.
    origin: How it was built. None: by other functions than the package's.
  """

  name: str
  backbone: parts.Part
  head: parts.Part
  input_shape: tuple[int, ...]
  input_dtype: tf.DType
  num_classes: int
  embedding_size: int
  input_scaling: scaling_lib.InputScaling = dataclasses.field(
    default=scaling_lib.ZERO_ONE, kw_only=True
  )
  vocabulary_size: int | None = dataclasses.field(default=None, kw_only=True)
  origin: Origin | None = dataclasses.field(
    default=None, kw_only=True, compare=False
  )

  # The fields that are parts.
  _PARTS: ClassVar[tuple[str, ...]] = ("backbone", "head")

  def initial_weights(self, seed) -> SplitWeights:
    """Draws initial weights.

    Args:
      seed: An int32 tensor of shape [2]. Equal seeds give equal weights.

    Returns:
      `SplitWeights`.
    """
    return SplitWeights(
      backbone=self.initial_backbone(seed), head=self.initial_head(seed)
    )

  def initial_backbone(self, seed) -> tuple[tf.Tensor, ...]:
    """Draws the backbone's initial weights; seed is int32 [2]."""
    return self.backbone.initial_weights(seed)

  def initial_head(self, seed) -> tuple[tf.Tensor, ...]:
    """Draws the head's initial weights; seed is int32 [2]."""
    return self.head.initial_weights(seed)

  def scale(self, x) -> tf.Tensor:
    """Maps examples [batch, ...] to the inputs of the backbone."""
    if self.input_dtype == tf.uint8:
      return self.input_scaling(x)
    if self.input_dtype == tf.float32:
      return self.input_scaling.of_features(x)
    return x

  def embed(self, backbone_weights, x) -> tf.Tensor:
    """Maps examples [batch, ...] to embeddings [batch, embedding_size]."""
    return self.backbone(backbone_weights, self.scale(x))

  def classify(self, head_weights, embedding) -> tf.Tensor:
    """Maps embeddings to logits [batch, num_classes]."""
    return self.head(head_weights, embedding)

  def predict(self, weights: SplitWeights, x) -> tf.Tensor:
    """Maps examples [batch, ...] to logits [batch, num_classes]."""
    return self.classify(weights.head, self.embed(weights.backbone, x))

  def weight_names(self) -> SplitWeights:
    """Returns a name for each weight, `backbone/...` or `head/...`."""
    return SplitWeights(
      backbone=tuple(f"backbone/{name}" for name in self.backbone.names),
      head=tuple(f"head/{name}" for name in self.head.names),
    )

  @property
  def num_parameters(self) -> int:
    """The number of weights of backbone and head, without the frozen ones."""
    return self.backbone.num_parameters + self.head.num_parameters

  @property
  def frozen(self) -> tuple[Any, ...]:
    """The weights that are never trained, averaged or saved with a run.

    They are () for a model without any, otherwise a tuple of the frozen weights
    of each part. A traced function makes constants of them, unless it takes
    them as an argument and passes them to the model by `with_frozen`.
    """
    values = tuple(getattr(self, name).frozen for name in self._PARTS)
    return values if any(values) else ()

  def frozen_names(self, part: str) -> tuple[str, ...] | None:
    """Returns a name for each frozen weight of a part, like `weight_names`.

    Args:
      part: "backbone" or "head".

    Returns:
      The names in the order of the part's `frozen`. None: they have no names.
    """
    names = self._frozen_names_in(part)
    return names and tuple(f"{part}/{name.split(':')[0]}" for name in names)

  def _frozen_names_in(self, part: str) -> tuple[str, ...] | None:
    """Returns the names of frozen weights within a part, or None."""
    found = getattr(self, part)
    if not found.frozen:
      return ()
    return getattr(found.source, "frozen_names", None)

  @property
  def statistics(self) -> dict[str, Any]:
    """The initial running statistics of batch normalisation, by name."""
    return {
      name: value
      for part in self._PARTS
      for name, value in getattr(self, part).statistics.items()
    }

  @property
  def normalizers(self) -> SplitWeights:
    """Which weights scale and shift after batch normalisation, bools."""
    return SplitWeights(
      *(
        tuple(name in part.normalizers for name in part.names)
        for part in (self.backbone, self.head)
      )
    )

  @property
  def num_frozen_parameters(self) -> int:
    """The number of frozen weights."""
    return sum(
      tf.TensorShape(value.shape).num_elements()
      for value in tf.nest.flatten(self.frozen)
    )

  def with_frozen(self, values) -> Self:
    """Returns the model with other frozen weights.

    Args:
      values: Arrays or tensors in the structure of `frozen`.

    Returns:
      The model; all of its functions use these values.

    Raises:
      ValueError: If the structure differs from `frozen`.
    """
    tf.nest.assert_same_structure(self.frozen, values, check_types=False)
    return dataclasses.replace(
      self,
      **{
        name: getattr(self, name).with_frozen(value)
        # Not strict: there may be no frozen weights.
        for name, value in zip(self._PARTS, values, strict=False)
      },
    )

  def move_to_backbone(
    self, layers: parts.Part, head: parts.Part, embedding_size: int
  ) -> Self:
    """Returns the model with another cut.

    Args:
      layers: The layers of the head that become the end of the backbone.
      head: The rest of the head.
      embedding_size: The length of the head's input.

    Returns:
      The model.
    """
    return dataclasses.replace(
      self,
      backbone=parts.compose(self.backbone, layers),
      head=head,
      embedding_size=embedding_size,
    )

  def weights_of(self, part: str) -> SplitWeights:
    """Returns which weights belong to a part, for `local_training.train`.

    Args:
      part: "backbone", "head", or "full" for both.

    Returns:
      A bool for each weight.
    """
    return SplitWeights(
      *(
        (part in (name, "full"),) * len(getattr(self, name).names)
        for name in SplitWeights._fields
      )
    )

  def last_layers(self, number: int) -> SplitWeights:
    """Returns which weights belong to the last layers, starting at the head.

    Args:
      number: The number of layers; 0, or more than exist, means all.

    Returns:
      A bool for each weight. Layers whose names share a prefix up to the first
      underscore are one: a normalisation belongs to what it normalises. Frozen
      weights do not count.
    """
    layers = [
      (name, _layer_of(weight))
      for name in SplitWeights._fields
      for weight in getattr(self, name).names
    ]
    last = list(dict.fromkeys(layers))[-number:]
    return tf.nest.pack_sequence_as(
      self.weight_names(), [layer in last for layer in layers]
    )

  def last_backbone_layer(self) -> tuple[bool, ...]:
    """Returns which backbone weights belong to its last layer.

    Returns:
      A bool for each backbone weight, see `last_layers`.
    """
    layers = [_layer_of(name) for name in self.backbone.names]
    return tuple(layer == layers[-1] for layer in layers)


def _layer_of(weight: str) -> str:
  """Returns the layer to which a weight of this name belongs."""
  model, slash, layer = weight.rpartition("/")[0].rpartition("/")
  return model + slash + layer.split(_PART_SEPARATOR)[0]


def check_input_dtype(
  name: str, keras_model: tf.keras.Model, input_dtype: tf.DType
) -> None:
  """Raises a ValueError unless a model takes outputs of `SplitModel.scale`."""
  scaled = tf.float32 if input_dtype == tf.uint8 else tf.as_dtype(input_dtype)
  taken = keras_model.inputs[0].dtype
  if taken != scaled:
    raise ValueError(
      f"model {name!r}: examples come as {scaled.name} and the Keras model"
      f" takes {taken.name}; give its input this dtype"
    )


def build_split_model(
  name: str,
  *,
  backbone: Callable[[], tf.keras.Model],
  head: Callable[[], tf.keras.Model],
  input_dtype: tf.DType,
) -> SplitModel:
  """Builds a `SplitModel` from two Keras models.

  Args:
    name: The name of the architecture.
    backbone: Builds a Keras model from an example to a vector.
    head: Builds a Keras model from that vector to logits.
    input_dtype: `tf.uint8` (images in 0..255), `tf.int32` (tokens) or
      `tf.float32`.

  Returns:
    The `SplitModel`. Weights that are not trainable are frozen, with the
    current values of the Keras models.

  Raises:
    ValueError: If a weight has no initializer, or if head, backbone and dtype
      do not fit together.
  """
  keras_backbone, keras_head = backbone(), head()
  input_shape = keras_backbone.input_shape[1:]
  embedding_shape = keras_backbone.output_shape[1:]
  if len(embedding_shape) != 1 or keras_head.input_shape[1:] != embedding_shape:
    raise ValueError(
      f"model {name!r}: backbone gives {embedding_shape} and head takes"
      f" {keras_head.input_shape[1:]}; both must be one and the same vector"
    )
  check_input_dtype(name, keras_backbone, input_dtype)
  return SplitModel(
    name=name,
    backbone=keras_parts.make_part(keras_backbone, parts.BACKBONE),
    head=keras_parts.make_part(keras_head, parts.HEAD),
    input_shape=tuple(input_shape),
    input_dtype=tf.as_dtype(input_dtype),
    num_classes=keras_head.output_shape[-1],
    embedding_size=embedding_shape[0],
  )


def with_input_scaling(
  model: SplitModel, input_scaling: scaling_lib.InputScaling
) -> SplitModel:
  """Changes the scaling of a model's images or features.

  Args:
    model: A model of images or features.
    input_scaling: The scaling, with one number for all channels or features, or
      one for each.

  Returns:
    The model, with the same weights.

  Raises:
    ValueError: If the model takes tokens, or other channels or features.
  """
  if model.input_dtype not in (tf.uint8, tf.float32):
    raise ValueError(
      f"model {model.name!r} takes {model.input_dtype.name}, which is not"
      " scaled; input_scaling is for images, uint8, and features, float32"
    )
  given, last = len(input_scaling.mean), model.input_shape[-1]
  if given not in (1, last):
    kinds = "channels" if model.input_dtype == tf.uint8 else "features"
    raise ValueError(
      f"model {model.name!r} takes examples of {last} {kinds}, and the input"
      f" mean and deviation are of {given}"
    )
  return dataclasses.replace(model, input_scaling=input_scaling)


def with_head(model: SplitModel, head: str) -> SplitModel:
  """Cuts a model into backbone and head at another layer.

  Source: Federated Learning under Evolving Distribution Shifts, Appendix D:
  FedRep, FedRoD and FedTHE take "the last fc layer of the model" as the head,
  where its own methods have two layers.

  Args:
    model: The model; its initial weights may be given.
    head: One of `HEADS`. "last_layer": the head is the last linear layer, and
      everything before it is the backbone. "classifier": the model's own head.

  Returns:
    A model with the same function from examples to logits and the same initial
    weights; the model itself if nothing changes.

  Raises:
    ValueError: If `head` is unknown, or if the model's head does not end in a
      linear layer that can be cut off.
  """
  if head not in HEADS:
    raise ValueError(f"unknown head {head!r}; known heads: {', '.join(HEADS)}")
  if head == "classifier":
    return model
  try:
    layers, last = keras_parts.cut_last_layer(model.head)
    if last is model.head:
      return model
    return model.move_to_backbone(layers, last, keras_parts.input_size(last))
  except ValueError as error:
    raise ValueError(f"model {model.name!r}: {error}") from error


def with_weights(model: SplitModel, values: Mapping[str, Any]) -> SplitModel:
  """Sets the initial weights of a model.

  Args:
    model: The model.
    values: An array for each name of `model.weight_names()`, and for each of
      `model.statistics` if it has batch normalisation. All of the head, or all
      of the backbone, may be left out and is drawn as before. (A backbone
      trained on other classes cannot use its old head.)

  Returns:
    The model; its `initial_weights` for any seed are the given values, which
    become constants of the computations that call it.

  Raises:
    ValueError: If there are no values, if the model has no weight of some name,
      if a part is incomplete, if a shape is not the model's, or if a number is
      not finite.
  """
  known = {*tf.nest.flatten(model.weight_names()), *model.statistics}
  unknown = sorted(set(values) - known)
  if unknown:
    raise ValueError(
      f"model {model.name!r} has no weight {unknown[0]!r}; its weights have"
      f" names like {min(known)!r}"
    )
  if not values:
    raise ValueError(f"no weights are given for model {model.name!r}")
  given = {key.split("/")[0] for key in values}
  return dataclasses.replace(
    model,
    **{
      prefix: getattr(model, prefix).with_values(values, prefix)
      for prefix in given
    },
  )


def _with_contents(
  model: SplitModel, contents: keras_files.Contents
) -> SplitModel:
  """Sets the initial weights from a Keras file, see `load_weights`."""
  frozen = {
    part: model.frozen_names(part) or () for part in SplitWeights._fields
  }
  trained = {
    part: (*names, *getattr(model, part).statistics)
    for part, names in model.weight_names()._asdict().items()
  }
  sources = [getattr(model, part).source for part in frozen]
  if all(getattr(each, "keras_model", None) for each in sources):
    # In the order of the Keras model before the cut.
    layers = [keras_files.layers_of(each.keras_model) for each in sources]
    contents = keras_files.with_names(contents, itertools.chain(*layers))
  found = keras_names.match(
    contents,
    [name for part in frozen for name in (*trained[part], *frozen[part])],
  )
  if not found:
    raise ValueError("it has no weights")
  given = [
    part
    for part in frozen
    if any(name.startswith(f"{part}/") for name in found)
  ]
  # `with_weights` does not handle frozen weights.
  for part in given:
    if frozen[part] and not any(name in found for name in trained[part]):
      parts.require(found, trained[part], part)
  fixed = {
    part: tuple(
      parts.given(found, name, tuple(old.shape), part).astype(
        tf.as_dtype(old.dtype).as_numpy_dtype
      )
      for name, old in zip(
        frozen[part], getattr(model, part).frozen, strict=True
      )
    )
    for part in given
    if frozen[part]
  }
  if fixed:
    model = model.with_frozen(
      tuple(
        fixed.get(part, getattr(model, part).frozen) for part in model._PARTS
      )
    )
  values = {
    name: found[name]
    for part in given
    for name in trained[part]
    if name in found
  }
  return with_weights(model, values) if values else model


def _is_saved_run(path: str) -> bool:
  return all(os.path.isfile(os.path.join(path, each)) for each in _SAVED_RUN)


def load_weights(model: SplitModel, path: str | os.PathLike[str]) -> SplitModel:
  """Sets the initial weights of a model from a file.

  Write an .npz file by

      names = tf.nest.flatten(model.weight_names())
      np.savez(path, **dict(zip(names, tf.nest.flatten(weights))))

  or use the `weights.npz` of a run's saved model, or its folder; entries of
  single clients, `clients/...`, are ignored.

  The arrays of a Keras file (`keras_files`) are matched to the weights of
  layers of the same names (`keras_names`): the file contains the Keras model
  from which the model was made, or one with the same layers. It includes the
  frozen weights. A model with a guide keeps its guide.

  Args:
    model: The model.
    path: An .npz file with an array for each name (see `with_weights`); a
      .keras, .h5 or .hdf5 file, or the folder of a SavedModel. As in
      `with_weights` all of the head, or of the backbone, may be left out.

  Returns:
    The model; see `with_weights`.

  Raises:
    FileNotFoundError: If there is no such file.
    ValueError: If the file has another format, is damaged or does not fit the
      model.
  """
  path = os.fspath(path)
  if not os.path.exists(path):
    raise FileNotFoundError(f"no weights file {path!r}")
  try:
    if _is_saved_run(path):
      path = os.path.join(path, _SAVED_RUN[0])
    if keras_files.is_keras_file(path):
      return _with_contents(model, keras_files.read(path))
    if not path.lower().endswith(_NPZ):
      raise ValueError(
        "its name must end in"
        f" {', '.join((_NPZ, keras_files.KERAS, *keras_files.HDF5))}, or it"
        " must be the folder of a SavedModel"
      )
    values = array_files.read_npz(path)
    return with_weights(
      model,
      {k: v for k, v in values.items() if not k.startswith("clients/")},
    )
  except ValueError as error:
    raise ValueError(f"weights file {path!r}: {error}") from error


def weights_digest(path: str | os.PathLike[str]) -> str:
  """Returns the SHA-256 of the files that `load_weights` reads.

  Args:
    path: A file, or the folder of a SavedModel, as for `load_weights`.

  Returns:
    64 hexadecimal digits; for a folder, of its files and their names.

  Raises:
    FileNotFoundError: If there is no such file.
    ValueError: If it cannot be read.
  """
  path = os.fspath(path)
  if not os.path.exists(path):
    raise FileNotFoundError(f"no weights file {path!r}")
  if not os.path.isdir(path):
    return _digest_of_file(path)
  digest = hashlib.sha256()
  for each in _files_of(path):
    digest.update(
      f"{each}\0{_digest_of_file(os.path.join(path, each))}".encode()
    )
  return digest.hexdigest()


def _files_of(folder: str) -> list[str]:
  """Returns the paths of the files in a folder that `load_weights` reads."""
  if _is_saved_run(folder):
    return [_SAVED_RUN[0]]
  return keras_files.files_of(folder)


def _digest_of_file(path: str) -> str:
  with files.reading(path) as file:
    return hashlib.file_digest(file, "sha256").hexdigest()
