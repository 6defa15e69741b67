"""A model in two parts, backbone and head, as pure functions of their weights.

Weights are plain nested tuples of tensors, so that gradients, averages,
prototypes and per-client heads are ordinary functions of tensors. Each part is
a small Keras model turned into a `tff.learning.models.FunctionalModel`; these
work only inside a graph (a `tff.tensorflow.computation`, for example), which is
where every computation of this package uses them.

Models use group normalisation where papers use batch normalisation: TFF's
functional models refuse the latter, because its running statistics are not a
function of the weights, and federated averaging breaks it.
"""

import dataclasses
import os
import zipfile
from collections.abc import Callable
from collections.abc import Mapping
from typing import Any
from typing import NamedTuple

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

# Kept apart from the layers' position: a layer's name is a prefix common to its
# parts (convolution, normalisation) and the part's own name.
_PART_SEPARATOR = "_"


class SplitWeights(NamedTuple):
  """The weights of a `SplitModel`.

  Attributes:
    backbone: A tuple of float32 tensors, in the order of creation.
    head: A tuple of float32 tensors, in the order of creation.
  """

  backbone: Any
  head: Any


def _cross_entropy(y_true, y_pred, sample_weight=None):
  # TFF asks for a loss at construction and for this very signature. The
  # algorithms of this package write their losses themselves.
  del sample_weight
  return tf.reduce_mean(
    tf.nn.sparse_softmax_cross_entropy_with_logits(y_true, y_pred)
  )


@dataclasses.dataclass(frozen=True)
class Part:
  """A pure function of weights, with what names and initialises these.

  Attributes:
    function: `(weights, x) -> y`, all float32.
    names: A name for each weight, `<layer>/<weight>`.
    initializers: A Keras initializer for each weight.
    shapes: The shape of each weight.
  """

  function: Callable[[Any, tf.Tensor], tf.Tensor]
  names: tuple[str, ...]
  initializers: tuple[tf.keras.initializers.Initializer, ...]
  shapes: tuple[tuple[int, ...], ...]

  @property
  def num_parameters(self) -> int:
    """The number of weights."""
    return sum(int(np.prod(shape)) for shape in self.shapes)

  def initial_weights(self, seed) -> tuple[tf.Tensor, ...]:
    """Draws the weights; seed is an int32 tensor of shape [2]."""
    weights = []
    for position, (initializer, shape) in enumerate(
      zip(self.initializers, self.shapes, strict=True)
    ):
      config = initializer.get_config()
      if "seed" in config:
        # A Keras initializer with a seed draws stateless random numbers, and a
        # tensor will do as the seed: that makes initial weights a pure function
        # of the run's seed, inside the graph. Keras takes one number, and it
        # has to be drawn: folding leaves the position in the second half of the
        # seed, so that the first half is the same for all weights.
        config["seed"] = tf.random.stateless_uniform(
          [],
          tf.random.experimental.stateless_fold_in(seed, position),
          minval=None,
          maxval=None,
          dtype=tf.int32,
        )
        initializer = type(initializer).from_config(config)
      weights.append(initializer(shape, dtype=tf.float32))
    return tuple(weights)

  def __call__(self, weights, x) -> tf.Tensor:
    """Applies the function to a tuple of weights and a batch."""
    return self.function(weights, x)

  def with_values(self, values: Mapping[str, Any], prefix: str) -> "Part":
    """Returns the part with initial weights that are given, not drawn."""
    initializers = []
    for name, shape in zip(self.names, self.shapes, strict=True):
      key = f"{prefix}/{name}"
      if key not in values:
        raise ValueError(
          f"weight {key!r} is missing; give all weights of {prefix!r} or none"
        )
      value = np.asarray(values[key], np.float32)
      if value.shape != shape:
        raise ValueError(
          f"weight {key!r} has shape {value.shape}, and the model takes {shape}"
        )
      initializers.append(tf.keras.initializers.Constant(value))
    return dataclasses.replace(self, initializers=tuple(initializers))


def _initializer(layer: tf.keras.layers.Layer, name: str):
  """Returns the initializer of a layer's weight."""
  initializer = getattr(layer, f"{name}_initializer", None)
  if initializer is None:
    raise ValueError(
      f"layer {layer.name!r} has no initializer for its weight {name!r};"
      " build the model from Keras layers with `<weight>_initializer`"
    )
  return initializer


def make_part(keras_model: tf.keras.Model) -> Part:
  """Turns a Keras model into a part.

  Args:
    keras_model: A model of one float32 input and one output.

  Returns:
    The part; its function works only inside a graph.

  Raises:
    ValueError: If the model has no weights, or one that has no initializer or
      is not trainable.
  """
  if keras_model.non_trainable_variables:
    raise ValueError(
      f"model {keras_model.name!r} has weights that are not trainable"
    )
  if not keras_model.trainable_variables:
    raise ValueError(
      f"model {keras_model.name!r} has no weights; join its layers to the"
      " model before or after it"
    )
  names, initializers = [], []
  for layer in keras_model.layers:
    for variable in layer.trainable_variables:
      name = variable.name.split("/")[-1].split(":")[0]
      # A mark, by which to know the weight again below.
      variable.assign(tf.fill(variable.shape, float(len(names))))
      names.append(f"{layer.name}/{name}")
      initializers.append(_initializer(layer, name))
  functional_model = tff.learning.models.functional_model_from_keras(
    keras_model,
    _cross_entropy,
    (
      tf.TensorSpec(keras_model.input_shape, tf.float32),
      tf.TensorSpec((None,), tf.int32),
    ),
  )

  def function(weights, x):
    return functional_model.predict_on_batch((tuple(weights), ()), x, True)

  # TFF orders the weights as they are created when it copies the model. In a
  # model with shortcuts this need not be the order of the layers, and equal
  # shapes would hide it: hence the marks.
  values, _ = functional_model.initial_weights
  order = [int(value.flat[0]) for value in values]
  return Part(
    function=function,
    names=tuple(names[i] for i in order),
    initializers=tuple(initializers[i] for i in order),
    shapes=tuple(value.shape for value in values),
  )


@dataclasses.dataclass(frozen=True)
class SplitModel:
  """A classifier made of a backbone (input to embedding) and a head.

  Attributes:
    name: The name of the architecture.
    backbone: `(weights, x) -> embedding [batch, embedding_size] float32`.
    head: `(weights, embedding) -> logits [batch, num_classes] float32`.
    input_shape: The shape of one example, without the batch.
    input_dtype: `tf.uint8` for images in 0..255, which `embed` scales to
      [0, 1]; `tf.float32` for anything else.
    num_classes: The number of classes.
    embedding_size: The length of an embedding.
  """

  name: str
  backbone: Part
  head: Part
  input_shape: tuple[int, ...]
  input_dtype: tf.DType
  num_classes: int
  embedding_size: int
  frozen = ()

  def initial_weights(self, seed) -> SplitWeights:
    """Draws initial weights.

    Args:
      seed: An int32 tensor of shape [2]. Equal seeds give equal weights.

    Returns:
      `SplitWeights`.
    """
    return SplitWeights(
      backbone=self.initial_backbone(seed),
      head=self.head.initial_weights(
        tf.random.experimental.stateless_fold_in(seed, 1)
      ),
    )

  def initial_backbone(self, seed) -> tuple[tf.Tensor, ...]:
    """Draws the backbone's initial weights; seed is int32 [2]."""
    return self.backbone.initial_weights(
      tf.random.experimental.stateless_fold_in(seed, 0)
    )

  def scale(self, x) -> tf.Tensor:
    """Maps examples [batch, ...] to what the backbone takes, in float32."""
    if self.input_dtype == tf.uint8:
      return tf.cast(x, tf.float32) / 255.0
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
    """The number of weights of backbone and head."""
    return self.backbone.num_parameters + self.head.num_parameters

  def last_backbone_layer(self) -> tuple[bool, ...]:
    """Tells which backbone weights belong to its last layer.

    Returns:
      A bool for each backbone weight: the last layer with weights, its
      normalisation included (layers whose names share a prefix up to the first
      underscore are parts of one).
    """
    layers = [
      name.split("/")[0].split(_PART_SEPARATOR)[0]
      for name in self.backbone.names
    ]
    return tuple(layer == layers[-1] for layer in layers)


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
    input_dtype: `tf.uint8` (images in 0..255) or `tf.float32`.

  Returns:
    The `SplitModel`.

  Raises:
    ValueError: If a weight has no initializer or is not trainable, or if head
      and backbone do not fit.
  """
  keras_backbone, keras_head = backbone(), head()
  input_shape = keras_backbone.input_shape[1:]
  embedding_shape = keras_backbone.output_shape[1:]
  if len(embedding_shape) != 1 or keras_head.input_shape[1:] != embedding_shape:
    raise ValueError(
      f"model {name!r}: backbone gives {embedding_shape} and head takes"
      f" {keras_head.input_shape[1:]}; both must be one and the same vector"
    )
  return SplitModel(
    name=name,
    backbone=make_part(keras_backbone),
    head=make_part(keras_head),
    input_shape=tuple(input_shape),
    input_dtype=tf.as_dtype(input_dtype),
    num_classes=keras_head.output_shape[-1],
    embedding_size=embedding_shape[0],
  )


def with_weights(model: SplitModel, values: Mapping[str, Any]) -> SplitModel:
  """Makes a model start from given weights.

  Args:
    model: The model.
    values: An array for each name of `model.weight_names()`. All weights of the
      head, or all of the backbone, may be left out: they are drawn as before.
      (A backbone trained on other classes has no use for its old head.)

  Returns:
    The model; its `initial_weights` of any seed are the given values, which
    become constants of the computations that call it.

  Raises:
    ValueError: If there are no values, if the model has no weight of some name,
      if a part is given incompletely, or if a shape is not the model's.
  """
  known = set(tf.nest.flatten(model.weight_names()))
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


def load_weights(model: SplitModel, path: str | os.PathLike[str]) -> SplitModel:
  """Makes a model start from the weights of a file.

  A file for it is written by

      names = tf.nest.flatten(model.weight_names())
      np.savez(path, **dict(zip(names, tf.nest.flatten(weights))))

  Args:
    model: The model.
    path: An .npz file with an array for each name (see `with_weights`).

  Returns:
    The model; see `with_weights`.

  Raises:
    FileNotFoundError: If there is no such file.
    ValueError: If it is not an .npz file or does not fit the model.
  """
  path = os.fspath(path)
  if not os.path.exists(path):
    raise FileNotFoundError(f"no weights file {path!r}")
  if not zipfile.is_zipfile(path):
    raise ValueError(f"weights file {path!r} is not an .npz file (numpy.savez)")
  with np.load(path, allow_pickle=False) as values:
    try:
      return with_weights(model, values)
    except ValueError as error:
      raise ValueError(f"weights file {path!r}: {error}") from error
