"""Parts of models from small Keras models.

TFF's functional models (`tff.learning.models.functional_model_from_keras`) work
only inside a graph, and so do these parts.
"""

import dataclasses
from collections.abc import Iterator
from typing import Any
from typing import NamedTuple

import tensorflow as tf
import tensorflow_federated as tff

from tff_shift.models import parts


class _Source(NamedTuple):
  """What a part was made of: `Part.source`."""

  keras_model: tf.keras.Model
  # A name for each frozen weight.
  frozen_names: tuple[str, ...]


def _cross_entropy(y_true, y_pred, sample_weight=None):
  # TFF asks for a loss at construction and for this very signature. The
  # algorithms of this package write their losses themselves.
  del sample_weight
  return tf.reduce_mean(
    tf.nn.sparse_softmax_cross_entropy_with_logits(y_true, y_pred)
  )


def stateless(
  initializer: tf.keras.initializers.Initializer,
) -> parts.Initializer:
  """Makes a Keras initializer a pure function of a shape and a seed.

  Args:
    initializer: The initializer; what it draws may not depend on more.

  Returns:
    `(shape, seed) -> float32 tensor`, see `parts.Part`.
  """

  def draw(shape, seed):
    config = initializer.get_config()
    if "seed" not in config:
      return initializer(shape, dtype=tf.float32)
    # A Keras initializer with a seed draws stateless random numbers, and a
    # tensor will do as the seed: that makes initial weights a pure function of
    # the run's seed, inside the graph. Keras takes one number, and it has to be
    # drawn: folding leaves the position in the second half of the seed, so that
    # the first half is the same for all weights.
    config["seed"] = tf.random.stateless_uniform(
      [], seed, minval=None, maxval=None, dtype=tf.int32
    )
    return type(initializer).from_config(config)(shape, dtype=tf.float32)

  return draw


def with_unit_forget_bias(
  draw: parts.Initializer, units: int
) -> parts.Initializer:
  """Sets the bias of an LSTM's forget gate, the second of four, to one.

  Args:
    draw: Draws the biases of all four gates.
    units: The number of units of a gate.

  Returns:
    What draws the biases with those of the forget gate at one.
  """

  def draw_with_ones(shape, seed):
    bias = draw(shape, seed)
    return tf.concat([bias[:units], tf.ones([units]), bias[2 * units :]], 0)

  return draw_with_ones


def _owners(layer: tf.keras.layers.Layer) -> Iterator[tuple[str, Any]]:
  """Yields what has the initializers of a layer's weights, the inmost last."""
  yield layer.name, layer
  if isinstance(layer, tf.keras.layers.RNN):
    yield layer.name, layer.cell
  elif isinstance(layer, tf.keras.layers.Bidirectional):
    for direction in ("forward", "backward"):
      for _, owner in _owners(getattr(layer, f"{direction}_layer")):
        # After an underscore: they are parts of one layer.
        yield f"{layer.name}_{direction}", owner


def _initializer(owner: Any, layer_name: str, name: str) -> parts.Initializer:
  """Returns the initializer of a weight."""
  attribute = {"recurrent_kernel": "recurrent_initializer"}.get(
    name, f"{name}_initializer"
  )
  initializer = getattr(owner, attribute, None)
  if initializer is None:
    raise ValueError(
      f"layer {layer_name!r} has no initializer for its weight {name!r};"
      " build the model from Keras layers with `<weight>_initializer`, or let"
      " its weights be given"
    )
  draw = stateless(initializer)
  if name == "bias" and getattr(owner, "unit_forget_bias", False):
    draw = with_unit_forget_bias(draw, owner.units)
  return draw


def _copy_with_frozen_layers(keras_model: tf.keras.Model) -> tf.keras.Model:
  copy = tf.keras.models.clone_model(keras_model)
  if not keras_model.trainable:
    # A copy has the flags of the layers and not the one of the model.
    copy.trainable = False
  return copy


def make_part(
  keras_model: tf.keras.Model,
  stream: int,
  start: int = 0,
  *,
  is_given: bool = False,
) -> parts.Part:
  """Turns a Keras model into a part.

  Weights that are not trainable become the part's frozen weights, with the
  values that they have now.

  Args:
    keras_model: A model of one input and one output; it may be changed, and
      Keras takes no eager calls of it any more.
    stream: See `parts.paths`.
    start: See `parts.paths`.
    is_given: Whether weights start with the values that they have now. Else
      they are drawn.

  Returns:
    The part; its function works only inside a graph.

  Raises:
    ValueError: If the model has no weights, if a weight that is drawn has no
      initializer, or if two have one name.
    KerasFunctionalModelError: TFF's, if the model has batch normalisation.
  """
  if not keras_model.variables:
    raise ValueError(
      f"model {keras_model.name!r} has no weights; join its layers to the"
      " model before or after it"
    )
  values = [variable.numpy() for variable in keras_model.variables]
  marked = keras_model
  if keras_model.non_trainable_variables:
    marked = _copy_with_frozen_layers(keras_model)
  owners = {
    variable.ref(): (layer_name, owner)
    for layer in marked.layers
    for layer_name, owner in _owners(layer)
    for variable in owner.variables
  }
  trainable = {variable.ref() for variable in marked.trainable_variables}
  names, initializers, frozen_names = {}, {}, {}
  for number, variable in enumerate(marked.variables):
    layer_name, owner = owners[variable.ref()]
    if variable.ref() in trainable:
      name = variable.name.split("/")[-1].split(":")[0]
      names[number] = f"{layer_name}/{name}"
      initializers[number] = (
        parts.constant(values[number])
        if is_given
        else _initializer(owner, layer_name, name)
      )
    else:
      frozen_names[number] = f"{layer_name}/{variable.name}"
  if len(set(names.values())) < len(names):
    twice = next(n for n in names.values() if [*names.values()].count(n) > 1)
    raise ValueError(
      f"layer {twice.split('/')[0]!r} has layers inside of it, two of whose"
      f" weights would be {twice!r}; put these layers into the model itself"
    )
  for number, variable in enumerate(marked.variables):
    # A mark, by which to know the weight again below.
    variable.assign(tf.fill(variable.shape, tf.cast(number, variable.dtype)))
  # TFF tells weights apart by how layers create them, which does not depend on
  # whether a layer is frozen: it has to see a model without frozen layers.
  marked.trainable = True
  functional_model = tff.learning.models.functional_model_from_keras(
    marked,
    _cross_entropy,
    (
      tf.TensorSpec(keras_model.input_shape, keras_model.inputs[0].dtype),
      tf.TensorSpec((None,), tf.int32),
    ),
  )
  # TFF orders the weights as they are created when it copies the model. In a
  # model with shortcuts this need not be the order of the layers, and equal
  # shapes would hide it: hence the marks.
  order, others = (
    [int(value.flat[0]) for value in group]
    for group in functional_model.initial_weights
  )
  is_trained = [number in names for number in order]

  def function(weights, x, frozen):
    trained, fixed = iter(weights), iter(frozen)
    in_order = tuple(next(trained if t else fixed) for t in is_trained)
    return functional_model.predict_on_batch((in_order, tuple(fixed)), x, True)

  trained = [number for number in order if number in names]
  fixed = [number for number in order if number not in names] + others
  return parts.Part(
    function=function,
    names=tuple(names[number] for number in trained),
    initializers=tuple(initializers[number] for number in trained),
    shapes=tuple(values[number].shape for number in trained),
    paths=parts.paths(stream, len(trained), start),
    frozen=tuple(values[number] for number in fixed),
    source=_Source(
      keras_model, tuple(frozen_names[number] for number in fixed)
    ),
  )


def _make_part_like(keras_model: tf.keras.Model, whole: parts.Part):
  """Makes a part of layers of another part; its weights are those there."""
  if not keras_model.variables:

    def function(weights, x, frozen):
      del weights, frozen
      # Made anew in the graph that calls it, as in TFF's functional models.
      return tf.keras.models.clone_model(keras_model)(x, training=True)

    return dataclasses.replace(parts.identity(), function=function)
  part = make_part(keras_model, parts.HEAD)
  positions = [whole.names.index(name) for name in part.names]
  frozen = dict(zip(whole.source.frozen_names, whole.frozen, strict=True))
  return dataclasses.replace(
    part,
    initializers=tuple(whole.initializers[i] for i in positions),
    paths=tuple(whole.paths[i] for i in positions),
    frozen=tuple(frozen[name] for name in part.source.frozen_names),
  )


def input_size(part: parts.Part) -> int:
  """Returns the length of the vectors that a part of `make_part` takes."""
  return part.source.keras_model.input_shape[-1]


def cut_last_layer(part: parts.Part) -> tuple[parts.Part, parts.Part]:
  """Cuts a part before its last layer, which has to be linear.

  Args:
    part: A part that maps vectors to vectors, made by `make_part`; initial and
      frozen weights may be given.

  Returns:
    What comes before the last layer, `parts.identity` where nothing does, and
    the last layer. All weights start as they do in the part.

  Raises:
    ValueError: If the part is no Keras model, or does not end in a linear layer
      of a vector.
  """
  keras_model = part.source.keras_model if part.source else None
  last = keras_model.layers[-1] if part.source else None
  if not (
    isinstance(last, tf.keras.layers.Dense)
    and last.activation is tf.keras.activations.linear
    and len(last.inbound_nodes) == 1
    and last.output is keras_model.output
    and len(last.input_shape) == 2
  ):
    raise ValueError(
      "the head does not end in a linear Keras layer of a vector that can be"
      " cut off"
    )
  if last.input is keras_model.input:
    return parts.identity(), part
  hidden = tf.keras.Model(keras_model.input, last.input)
  # A copy: to call the layer once more would add to the model that it is from.
  linear = tf.keras.Sequential(
    [
      tf.keras.layers.InputLayer(last.input_shape[1:]),
      type(last).from_config(last.get_config()),
    ],
    name=keras_model.name,
  )
  return _make_part_like(hidden, part), _make_part_like(linear, part)


def linear_head(embedding_size: int, num_classes: int) -> tf.keras.Model:
  """Builds a head of one linear layer with a bias."""
  return tf.keras.Sequential(
    [
      tf.keras.layers.InputLayer((embedding_size,)),
      tf.keras.layers.Dense(num_classes, name="classifier"),
    ],
    name="linear_head",
  )
