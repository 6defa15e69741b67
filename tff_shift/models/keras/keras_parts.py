"""Parts of models from Keras models.

A Keras model holds variables, and a part is a function of its weights. The
function therefore copies the model whenever it is called, and passes the given
weights when the layers of the copy create variables. TFF's functional models do
the same (`tff.learning.models.functional_model_from_keras`).

Choices:
  * Layer normalisation does not use TensorFlow's fused kernel, which with
    oneDNN corrupts memory if batches of different sizes run concurrently
    (TensorFlow 2.14.1). `TF_ENABLE_ONEDNN_OPTS=0` also avoids it, but changes
    all other kernels.
  * Copies run in a scope that returns the given tensors as variables, in the
    order in which layers ask. Each call has its own `tf.function`: TFF's keeps
    alive every graph in which it was called. Without a function TensorFlow
    optimises convolutions together with their surroundings, and bits change:
    FedAvg with the CNN on rotated MNIST has 46.0 % after three rounds instead
    of 45.5 %.
"""

import dataclasses
import itertools
from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Iterator
from typing import Any
from typing import NamedTuple

import tensorflow as tf

from tff_shift._util import draws
from tff_shift._util import installed
from tff_shift.models import modes
from tff_shift.models import parts
from tff_shift.models.keras import fixed_layers
from tff_shift.models.keras import layer_names

installed.require_keras_2()


class _Source(NamedTuple):
  """The origin of a part: `Part.source`."""

  keras_model: tf.keras.Model
  # A name for each frozen weight.
  frozen_names: tuple[str, ...]


class _Weight(NamedTuple):
  """A weight of a Keras model."""

  # The name of its layer, see `make_part`.
  layer: str
  owner: tf.keras.layers.Layer
  # A variable, or the value that a layer was given for one.
  value: Any

  @property
  def name(self) -> str:
    """The name of the weight in its layer."""
    return self.value.name.split("/")[-1].split(":")[0]


def stateless(
  initializer: tf.keras.initializers.Initializer,
) -> parts.Initializer:
  """Makes a Keras initializer a pure function of a shape and a seed.

  Args:
    initializer: The initializer; its values may depend on nothing else.

  Returns:
    `(shape, seed) -> float32 tensor`, see `parts.Part`.
  """

  def draw(shape, seed):
    config = initializer.get_config()
    if "seed" not in config:
      return initializer(shape, dtype=tf.float32)
    # A Keras initializer with a seed draws stateless random numbers, and the
    # seed can be a tensor: initial weights are then a pure function of the
    # run's seed, inside the graph. Keras takes one number. It has to be drawn,
    # because folding leaves the position in the second half of the seed, and
    # the first half is the same for all weights.
    config["seed"] = draws.integer(seed)
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
    A function that draws the biases, with those of the forget gate at one.
  """

  def draw_with_ones(shape, seed):
    bias = draw(shape, seed)
    return tf.concat([bias[:units], tf.ones([units]), bias[2 * units :]], 0)

  return draw_with_ones


def _sublayers(
  layer: tf.keras.layers.Layer, name: str
) -> Iterator[tuple[str, tf.keras.layers.Layer]]:
  """Yields the direct sublayers of a layer, each with its name."""
  # The part of a name after an underscore belongs to the same layer.
  if isinstance(layer, tf.keras.layers.Bidirectional):
    for direction in ("forward", "backward"):
      yield f"{name}_{direction}", getattr(layer, f"{direction}_layer")
    return
  inner = list(layer._flatten_layers(recursive=False, include_self=False))
  if isinstance(layer, tf.keras.layers.RNN):
    # A layer and its cell count as one.
    yield from ((name, each) for each in inner)
    return
  own_names = layer_names.counted(inner)
  separator = "/" if isinstance(layer, tf.keras.Model) else "_"
  for each in inner:
    yield f"{name}{separator}{own_names[each.name]}", each


def _owners(
  layer: tf.keras.layers.Layer, name: str
) -> Iterator[tuple[str, tf.keras.layers.Layer]]:
  """Yields a layer and all layers inside of it, each with its name."""
  yield name, layer
  for own_name, each in _sublayers(layer, name):
    yield from _owners(each, own_name)


def _weights_of(keras_model: tf.keras.Model) -> list[_Weight]:
  """Lists the weights of a model, in an order determined by its structure.

  The order of Keras's own lists depends on which layers are frozen.
  """
  weights = {}
  for layer in keras_model.layers:
    for name, owner in _owners(layer, layer.name):
      for value in owner._trainable_weights + owner._non_trainable_weights:
        weights.setdefault(id(value), _Weight(name, owner, value))
  return list(weights.values())


class _Created(NamedTuple):
  """A layer's request when it created a weight."""

  # The index of the weight in `_weights_of`.
  position: int
  # Whether the layer creates it as a trainable weight.
  is_trainable: bool
  initializer: Any


def use_seed(
  layers: Iterable[tf.keras.layers.Layer],
  seed: Callable[[int], tf.Tensor],
) -> None:
  """Makes the random numbers of layers depend on a seed only.

  Args:
    layers: Layers; those without random numbers are not changed.
    seed: Maps the number of a draw to its seed, int32 [2].
  """
  numbers = itertools.count()
  for layer in layers:
    if isinstance(layer, tf.keras.__internal__.layers.BaseRandomLayer):
      generator = layer._random_generator
      # Keras's stateless generators use the same seed for all draws of a layer.
      generator._rng_type = generator.RNG_STATELESS
      generator._built = True
      generator.make_seed_for_stateless_op = lambda: seed(next(numbers))


def _unconverted(call: Callable[..., Any]) -> Callable[..., Any]:
  """Returns a function that AutoGraph calls as it is."""
  return tf.autograph.experimental.do_not_convert(
    lambda *arguments, **options: call(*arguments, **options)
  )


def _clone(
  keras_model: tf.keras.Model, create: Callable[..., tf.Tensor]
) -> tf.keras.Model:
  """Copies a model; its layers get the given values for their variables."""

  def copy(layer):
    if isinstance(layer, tf.keras.Model):
      return tf.keras.models.clone_model(layer, clone_function=copy)
    copied = type(layer).from_config(layer.get_config())
    if hasattr(copied, "_call_wrapper"):
      # A layer of an operation, such as `x / 2`. AutoGraph would put a wrapper
      # without arguments into the decorators of the TensorFlow function itself,
      # for the whole process.
      copied.call = _unconverted(copied.call)
    # Before they are built, since some would create a state.
    use_seed(copied._flatten_layers(), lambda _: tf.zeros([2], tf.int32))
    for each in filter(is_trained_normalization, copied._flatten_layers()):
      # Keras calls layers when it copies a model, and this one would write.
      each.call = lambda inputs, training=None, mask=None: inputs
    return copied

  with tf.variable_creator_scope(lambda _, **options: create(**options)):
    copied = copy(keras_model)
  for each in filter(is_trained_normalization, copied._flatten_layers()):
    del each.call
  for each in copied._flatten_layers():
    if isinstance(each, tf.keras.layers.LayerNormalization):
      # The fused kernel of TensorFlow with oneDNN corrupts memory if clients
      # with different batch sizes run concurrently.
      each._fused = False
    if isinstance(each, tf.keras.layers.LSTM | tf.keras.layers.GRU):
      # Without the kernel for GPUs, which takes seconds to trace.
      each._could_use_gpu_kernel = False
  return copied


def _order_of_creation(keras_model: tf.keras.Model) -> list[_Created]:
  """Lists the weights in the order in which a copy's layers create them.

  In a model with shortcuts it can differ from the order of the layers, and
  equal shapes would hide this.
  """
  created, positions = [], {}
  graph: tf.Graph | None = None

  def create(shape=None, dtype=None, trainable=True, initial_value=None, **_):
    # Keras builds layers outside of the traced function.
    with graph.as_default():
      value = tf.zeros(() if shape is None else shape, dtype or tf.float32)
    created.append((value, trainable is not False, initial_value))
    return value

  def copy():
    nonlocal graph
    graph = tf.compat.v1.get_default_graph()
    for position, weight in enumerate(_weights_of(_clone(keras_model, create))):
      positions[id(weight.value)] = position

  autograph = _has_own_layers(keras_model)
  tf.function(copy, autograph=autograph).get_concrete_function()
  weights = _weights_of(keras_model)
  if len(created) != len(weights) or len(positions) != len(weights):
    raise ValueError(
      f"a copy of it creates {len(created)} weights, and it has"
      f" {len(weights)}; its layers must create their weights by add_weight"
    )
  return [
    # Keras passes `functools.partial(initializer, shape, ...)`.
    _Created(positions[id(value)], flag, getattr(initial, "func", None))
    for value, flag, initial in created
  ]


def _initializer(weight: _Weight, created: _Created) -> parts.Initializer:
  """Returns the initializer of a weight."""
  initializer = created.initializer
  name = weight.name
  if not isinstance(initializer, tf.keras.initializers.Initializer):
    # For its bias, an LSTM passes a function of its own.
    initializer = getattr(weight.owner, f"{name}_initializer", None)
  if not isinstance(initializer, tf.keras.initializers.Initializer):
    raise ValueError(
      f"layer {weight.layer!r} has no initializer for its weight {name!r};"
      " build the model from Keras layers with `<weight>_initializer`, or let"
      " its weights be given"
    )
  draw = stateless(initializer)
  if name == "bias" and getattr(weight.owner, "unit_forget_bias", False):
    (size,) = weight.value.shape
    draw = with_unit_forget_bias(draw, size // 4)
  return draw


def _with_weights(
  keras_model: tf.keras.Model, creatable, others
) -> tf.keras.Model:
  """Copies a model whose layers use tensors instead of variables.

  Args:
    keras_model: The model.
    creatable: The weights that its layers create as trainable, in the order of
      creation.
    others: All other weights, in the order of creation.

  Returns:
    The copy.
  """
  left = {True: list(creatable), False: list(others)}
  return _clone(
    keras_model,
    lambda trainable=True, **_: left[trainable is not False].pop(0),
  )


def _has_own_layers(keras_model: tf.keras.Model) -> bool:
  """Whether layers are not Keras's: only their code may need AutoGraph."""
  return any(
    not layer_names.is_of_keras(type(layer))
    for layer in keras_model._flatten_layers()
  )


def _in_own_function(
  call: Callable[..., tf.Tensor], *arguments, autograph: bool
) -> tf.Tensor:
  """Calls a function as a TensorFlow function.

  Each call makes a new one, because the cache of a kept function keeps alive
  all graphs in which it was called. Within it, layers are optimised as if they
  were alone.
  """
  function = tf.function(call, autograph=autograph)
  # Traced as if called eagerly: in TFF's graphs Keras would change the bases of
  # its classes to those for TensorFlow 1, for all threads of the process.
  with tf.__internal__.eager_context.eager_mode():
    concrete = function.get_concrete_function(
      *tf.nest.map_structure(_spec, arguments)
    )
  if not tf.executing_eagerly():
    # TFF's graphs cannot capture values of eager execution.
    concrete.set_external_captures(
      [
        value
        if tf.is_symbolic_tensor(value) or value.dtype == tf.resource
        else tf.constant(value.numpy())
        for value in concrete.captured_inputs
      ]
    )
  return concrete(*arguments)


def _spec(value: Any) -> tf.TensorSpec:
  return tf.TensorSpec(value.shape, value.dtype)


def is_trained_normalization(layer: tf.keras.layers.Layer) -> bool:
  """Whether a layer is a batch normalisation that is not frozen."""
  return (
    isinstance(layer, tf.keras.layers.BatchNormalization) and layer.trainable
  )


def _normalizations(
  keras_model: tf.keras.Model,
) -> Iterator[tuple[str, tf.keras.layers.BatchNormalization]]:
  """Yields the trained batch normalisations, each with its name."""
  for layer in keras_model.layers:
    for name, owner in _owners(layer, layer.name):
      if is_trained_normalization(owner):
        yield name, owner


def _normalize_by_statistics(
  layer: tf.keras.layers.BatchNormalization,
) -> None:
  """Makes a layer behave in training as in evaluation."""
  evaluate = layer.call
  layer.call = lambda inputs, training=None, mask=None: evaluate(
    inputs, training=False
  )


def _moments(
  layer: tf.keras.layers.BatchNormalization, inputs, mask
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
  """Returns mean, biased and unbiased variance of a batch, [channels] each."""
  (axis,) = layer.axis
  others = [each for each in range(len(inputs.shape)) if each != axis]
  if mask is None or layer.fused:  # Keras ignores it too if it fuses the layer.
    mean, variance = tf.nn.moments(inputs, others)
    size = tf.cast(tf.size(inputs) // inputs.shape[axis], tf.float32)
  else:
    present = tf.expand_dims(tf.cast(mask, tf.float32), -1)
    mean, variance = tf.nn.weighted_moments(inputs, others, present)
    size = tf.reduce_sum(tf.broadcast_to(present, tf.shape(inputs)), others)
  return mean, variance, variance * size / tf.maximum(size - 1.0, 1.0)


def _collect_moments(
  layer: tf.keras.layers.BatchNormalization,
  name: str,
  found: dict[str, tf.Tensor],
) -> None:
  """Makes a layer also store the moments of its batch.

  Args:
    layer: A layer of a copy that behaves as in evaluation.
    name: The layer's name in the names of statistics.
    found: Gets the mean and the unbiased variance, see
      `modes.observing_moments`.
  """
  evaluate = layer.call

  def call(inputs, training=None, mask=None):
    del training
    mean, _, unbiased = _moments(layer, inputs, mask)
    found[f"{name}/moving_mean"] = mean
    found[f"{name}/moving_variance"] = unbiased
    return evaluate(inputs)

  layer.call = call


def _normalize_by_batch(
  layer: tf.keras.layers.BatchNormalization, name: str
) -> None:
  """Makes a layer normalise by the batch and update the scope's statistics.

  As in Keras, with the momentum and the epsilon of the layer: outputs use the
  biased variance of the batch, and the running variance moves towards the
  unbiased one if Keras fuses the layer, which it does for images. A call with
  training=False uses the running statistics and keeps them. In evaluation
  (`modes.by_batch`) the statistics become those that outputs use.

  Args:
    layer: A layer of a copy, in training or in evaluation by batch.
    name: The layer's name in the names of the scope's statistics.
  """

  def call(inputs, training=None, mask=None):
    (axis,) = layer.axis
    is_evaluation = modes.current() is None
    uses_batch = is_evaluation or layer._get_training_value(training)
    shape = [1] * len(inputs.shape)
    shape[axis] = -1
    offset, scale = (
      None if each is None else tf.reshape(each, shape)
      for each in (layer.beta, layer.gamma)
    )
    current = modes.statistics()
    names = [f"{name}/{kind}" for kind in ("moving_mean", "moving_variance")]
    running = modes.Moments(*(current[each] for each in names))
    # An earlier call of the same step may have moved them.
    mean, variance = map(tf.stop_gradient, running)
    if uses_batch:
      mean, variance, unbiased = _moments(layer, inputs, mask)
    if is_evaluation:
      mean, variance = modes.mixed(
        tf.shape(inputs)[0], modes.Moments(mean, variance), running
      )
      current.update(zip(names, (mean, variance), strict=True))
    elif uses_batch:
      seen = mean, unbiased if layer.fused else variance
      for each, old, value in zip(names, running, seen, strict=True):
        current[each] = old - (old - value) * (1.0 - layer.momentum)
    return tf.nn.batch_normalization(
      inputs,
      tf.reshape(mean, shape),
      tf.reshape(variance, shape),
      offset,
      scale,
      layer.epsilon,
    )

  layer.call = call


def _penalties(keras_model: tf.keras.Model) -> list[Callable[[], tf.Tensor]]:
  """Returns the regularizers of the weights of a model."""
  return [
    penalty
    for layer in keras_model._flatten_layers()
    for penalty in layer._callable_losses
  ]


def make_part(
  keras_model: tf.keras.Model,
  stream: int,
  start: int = 0,
  *,
  is_given: bool = False,
  split: Callable[[tf.Tensor], Any] | None = None,
) -> parts.Part:
  """Turns a Keras model into a part.

  Weights that are not trainable become the part's frozen weights, with their
  current values.

  Args:
    keras_model: A model with one output; it may have no weights.
    stream: The stream of its seeds, see `parts.paths`.
    start: The position of its first weight, see `parts.paths`.
    is_given: Whether the initial weights are the current ones. Otherwise they
      are drawn.
    split: Splits the batch into the inputs of a model with several inputs.

  Returns:
    The part. A layer of a nested model is named `<model>/<layer>`, and a layer
    inside of another layer `<layer>_<layer>`.

  Raises:
    ValueError: If a drawn weight has no initializer, if two weights have the
      same name, or if a copy of a layer creates other weights.
  """
  weights = _weights_of(keras_model)
  trained = {id(variable) for variable in keras_model.trainable_variables}
  is_trained = [id(weight.value) in trained for weight in weights]
  names = [f"{weight.layer}/{weight.name}" for weight in weights]
  if len(set(names)) < len(names):
    twice = next(name for name in names if names.count(name) > 1)
    raise ValueError(
      f"layer {twice.split('/')[0]!r} has layers inside of it, two of whose"
      f" weights would be {twice!r}; give these layers different names"
    )
  values = [weight.value.numpy() for weight in weights]
  order = _order_of_creation(keras_model)
  creatable = [each.position for each in order if each.is_trainable]
  others = [each.position for each in order if not each.is_trainable]
  in_order = creatable + others
  # Names of running statistics by the position of the weight.
  moving = {
    number: f"{parts.STREAMS[stream]}/{names[number]}"
    for number, weight in enumerate(weights)
    if is_trained_normalization(weight.owner) and not is_trained[number]
  }
  ours = [each for each in in_order if is_trained[each]]
  fixed = [
    each for each in in_order if not is_trained[each] and each not in moving
  ]
  places = {
    moving[each]: others.index(each) for each in others if each in moving
  }
  created = {each.position: each for each in order}
  has_penalty = bool(_penalties(keras_model))
  has_own_layers = _has_own_layers(keras_model)

  def in_own_function(call, *arguments):
    return _in_own_function(call, *arguments, autograph=has_own_layers)

  def given(weights, frozen):
    values = dict(zip(ours, weights, strict=True))
    values.update(zip(fixed, frozen, strict=True))
    current = modes.statistics()
    values.update((each, current[name]) for each, name in moving.items())
    return tuple(
      tuple(values[each] for each in group) for group in (creatable, others)
    )

  def penalty(creatable, others):
    copied = _with_weights(keras_model, creatable, others)
    return tf.add_n([each() for each in _penalties(copied)])

  def function(weights, x, frozen):
    mode, normalizes_by_batch = modes.current(), modes.normalizes_by_batch()
    observed = modes.observed_moments()
    seed = None if mode is None else mode.seed_of_call()
    arguments = given(weights, frozen)
    if mode and has_penalty:
      mode.penalize(
        keras_model, weights, lambda: in_own_function(penalty, *arguments)
      )

    def call(creatable, others, x):
      copied = _with_weights(keras_model, creatable, others)
      if mode:
        use_seed(
          copied._flatten_layers(),
          lambda n: draws.fold_in(seed(), n),
        )
      if not places or not normalizes_by_batch:
        moments: dict[str, tf.Tensor] = {}
        for name, layer in _normalizations(copied):
          _normalize_by_statistics(layer)
          if observed is not None:
            _collect_moments(layer, f"{parts.STREAMS[stream]}/{name}", moments)
        return copied(x, training=bool(mode)), {}, moments
      with modes.with_statistics(
        {name: others[place] for name, place in places.items()}
      ) as current:
        for name, layer in _normalizations(copied):
          _normalize_by_batch(layer, f"{parts.STREAMS[stream]}/{name}")
        return copied(x, training=bool(mode)), current, {}

    y, moved, moments = in_own_function(
      call, *arguments, split(x) if split else x
    )
    if moved:
      if mode:
        modes.statistics().update(moved)
      else:
        modes.record_used(moved)
    if observed is not None:
      observed.update(moments)
    return y

  return parts.Part(
    function=function,
    names=tuple(names[each] for each in ours),
    initializers=tuple(
      parts.constant(values[each])
      if is_given
      else _initializer(weights[each], created[each])
      for each in ours
    ),
    shapes=tuple(values[each].shape for each in ours),
    paths=parts.paths(stream, len(ours), start),
    frozen=tuple(values[each] for each in fixed),
    source=_Source(keras_model, tuple(names[each] for each in fixed)),
    statistics={
      name: values[each]
      if is_given
      else created[each].initializer(values[each].shape, tf.float32).numpy()
      for each, name in moving.items()
    },
    normalizers=tuple(
      names[each]
      for each in ours
      if is_trained_normalization(weights[each].owner)
    ),
  )


def _make_part_like(keras_model: tf.keras.Model, whole: parts.Part):
  """Makes a part from some layers of another part, with its weights."""
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
  """Cuts a part before its last layer, which must be linear.

  Args:
    part: A part that maps vectors to vectors, made by `make_part`; initial and
      frozen weights may be given.

  Returns:
    The part before the last layer, `parts.identity` if it is empty, and the
    last layer. Initial weights do not change.

  Raises:
    ValueError: If the part is not a Keras model, or does not end in a linear
      layer of a vector.
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
  # A copy: calling the layer again would add to its original model.
  linear = tf.keras.Sequential(
    [
      fixed_layers.InputLayer(last.input_shape[1:]),
      type(last).from_config(last.get_config()),
    ],
    name=keras_model.name,
  )
  return _make_part_like(hidden, part), _make_part_like(linear, part)


def linear_head(embedding_size: int, num_classes: int) -> tf.keras.Model:
  """Builds a head of one linear layer with a bias."""
  return tf.keras.Sequential(
    [
      fixed_layers.InputLayer((embedding_size,)),
      fixed_layers.Dense(num_classes, name="classifier"),
    ],
    name="linear_head",
  )
