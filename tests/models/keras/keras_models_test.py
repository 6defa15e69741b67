"""Whole Keras models as `SplitModel`s: equal logits, or one line of refusal."""

import functools
import inspect
import threading
from concurrent import futures

import numpy as np
import pytest
import tensorflow as tf

import tff_shift as ts
from tests.fixtures import tables
from tests.fixtures.arrays import assert_close
from tests.fixtures.arrays import assert_equal
from tests.fixtures.keras_models import randomized
from tests.fixtures.refusals import refused
from tff_shift import models
from tff_shift.models import split_model
from tff_shift.models.keras import keras_checks

layers = tf.keras.layers
SEED = np.array([1, 2], np.int32)


def sequential(*stack, shape=(4,), **options):
  return tf.keras.Sequential([layers.InputLayer(shape, **options), *stack])


def perceptron():
  return sequential(
    layers.Dense(6, activation="relu"),
    layers.Dense(5, activation="tanh", name="embed"),
    layers.Dense(3),
  )


def convolutions():
  return sequential(
    layers.Conv2D(8, 3, strides=2),
    layers.GroupNormalization(4),
    layers.ReLU(),
    layers.GlobalAveragePooling2D(),
    layers.Dense(5, activation="relu", name="embed"),
    layers.Lambda(lambda x: 2 * x),
    layers.Dense(3),
    shape=(7, 7, 2),
  )


def shared_and_frozen():
  """A layer that is used twice before the cut, and one that is frozen."""
  x = layers.Input((4,))
  twice = layers.Dense(4, activation="relu")
  y = layers.Dense(5, name="embed", trainable=False)(twice(twice(x)))
  return tf.keras.Model(x, layers.Dense(3)(y))


def custom_layer():
  return sequential(
    layers.Dense(5), Scale(5, name="scale"), layers.Dense(3, name="embed")
  )


def nested():
  """Models inside of a model, whose layers have the same names."""
  return sequential(
    sequential(layers.Dense(4, name="a"), layers.Dense(5), shape=(4,)),
    sequential(layers.Dense(5, name="a"), shape=(5,)),
    layers.Dense(3),
  )


def frozen_base():
  """A base with batch normalisation, as of a model that was trained before."""
  base = sequential(
    layers.Conv2D(4, 3),
    layers.BatchNormalization(),
    layers.Dropout(0.5),
    shape=(7, 7, 2),
  )
  base.trainable = False
  return sequential(
    base,
    layers.GlobalAveragePooling2D(),
    layers.Dense(5, name="embed"),
    layers.Dense(3),
    shape=(7, 7, 2),
  )


def attention():
  x = layers.Input((4, 6))
  y = layers.MultiHeadAttention(2, 3, dropout=0.1)(x, x)
  y = layers.GlobalAveragePooling1D()(layers.LayerNormalization()(y))
  return tf.keras.Model(x, layers.Dense(3)(layers.Dense(5, name="embed")(y)))


def logistic_regression():
  return sequential(layers.Flatten(), layers.Dense(3), shape=(2, 2))


def examples(keras_model):
  generator = np.random.default_rng(5)
  shape = (6, *keras_model.input_shape[1:])
  return generator.normal(size=shape).astype(np.float32)


def predict(model, x):
  return model.predict(model.initial_weights(tf.constant(SEED)), x)


@functools.cache
def compared(build, cut):
  """Returns a randomized Keras model, examples, its logits, its `SplitModel`.

  Keras allows no calls of a model after a graph has made layers of its classes.
  """
  keras_model = randomized(build())
  before = keras_model.get_weights()
  x = examples(keras_model)
  expected = keras_model(x)
  model = models.from_keras(keras_model, cut=cut, initial="given")
  # The user's model stays as it is.
  np.testing.assert_equal(keras_model.get_weights(), before)
  return keras_model, x, expected, model


@pytest.mark.slow
class TestLogits:
  @pytest.mark.parametrize(
    ("build", "cut"),
    [
      *((build, "embed") for build in (perceptron, convolutions)),
      *(
        (build, None)
        for build in (
          *(perceptron, shared_and_frozen, nested, logistic_regression),
          custom_layer,
          *(frozen_base, attention),
        )
      ),
    ],
  )
  def test_from_the_given_weights_are_those_of_keras(
    self, build, cut, run_in_graph
  ):
    keras_model, x, expected, model = compared(build, cut)
    logits = run_in_graph(lambda x: predict(model, x), x)
    assert_close(logits, expected, 1e-5, 1e-5)
    assert np.ptp(logits) > 1e-2
    assert model.num_classes == 3
    assert model.input_shape == x.shape[1:]
    head = {name.split("/")[0] for name in model.head.names}
    assert len(head) == (1 if cut is None else 2)
    if cut is None:
      last = keras_model.layers[-1]
      assert model.embedding_size == last.input_shape[1]

  def test_of_images_are_those_of_scaled_pixels(self, run_in_graph):
    keras_model = randomized(logistic_regression())
    x = np.random.default_rng(6).integers(0, 256, (3, 2, 2)).astype(np.uint8)
    expected = keras_model(x / np.float32(255))
    model = models.from_keras(
      keras_model, input_dtype=tf.uint8, initial="given"
    )
    logits = run_in_graph(lambda x: predict(model, x), x)
    assert_close(logits, expected, 1e-5, 1e-5)


class TestInitialWeights:
  @pytest.mark.slow
  def test_are_drawn_from_the_seed_whatever_was_given(self, run_in_graph):
    model, of_given = map(
      models.from_keras, (perceptron, randomized(perceptron()))
    )
    drawn = [
      run_in_graph(each.initial_weights, np.array(seed, np.int32))
      for each, seed in ((model, [1, 2]), (of_given, [1, 2]), (model, [1, 3]))
    ]
    flat = [tf.nest.flatten(each) for each in drawn]
    for one, same, other in zip(*flat, strict=True):
      assert_equal(one, same)
      if one.ndim == 2:
        assert not np.any(one == other)

  @pytest.mark.slow
  def test_names_do_not_depend_on_what_was_built_before(self):
    perceptron()
    one = models.from_keras(perceptron)
    assert one.backbone.names == (
      *("dense.1/kernel", "dense.1/bias"),
      *("embed/kernel", "embed/bias"),
    )
    assert one.head.names == ("dense.2/kernel", "dense.2/bias")
    # Names of Keras's own would make all dense layers one.
    assert one.last_backbone_layer() == (False, False, True, True)

  def test_of_a_frozen_layer_are_no_weights(self):
    *_, model = compared(shared_and_frozen, None)
    # That of four features, five units and their biases.
    assert model.num_frozen_parameters == 25
    assert not any("embed" in name for name in model.backbone.names)

  @pytest.mark.slow
  def test_names_tell_models_in_a_model_apart(self):
    *_, model = compared(nested, None)
    assert model.backbone.names == (
      *("sequential.1/a/kernel", "sequential.1/a/bias"),
      *("sequential.1/dense.1/kernel", "sequential.1/dense.1/bias"),
      *("sequential.2/a/kernel", "sequential.2/a/bias"),
    )
    assert model.last_backbone_layer() == (False,) * 4 + (True,) * 2
    # Layers inside of a layer are parts of it.
    *_, model = compared(attention, None)
    assert model.backbone.names[0] == "multi.head.attention.1_query/kernel"

  def test_head_can_be_cut_again(self):
    *_, model = compared(perceptron, "embed")
    assert model.embedding_size == 6
    cut = split_model.with_head(model, "last_layer")
    assert cut.head.names == ("dense.2/kernel", "dense.2/bias")
    assert cut.embedding_size == 5


class Subclassed(tf.keras.Model):
  def call(self, x):
    return x


class WithVariable(layers.Layer):
  def build(self, input_shape):
    self.scale = tf.Variable(tf.ones(input_shape[1:]))

  def call(self, x):
    return x * self.scale


class Scale(layers.Layer):
  def __init__(self, size, **options):
    super().__init__(**options)
    self.size = size

  def build(self, input_shape):
    self.scale = self.add_weight("scale", (self.size,), initializer="ones")

  def call(self, x):
    return x * self.scale

  def get_config(self):
    return {**super().get_config(), "size": self.size}


class WithoutConfig(Scale):
  def get_config(self):
    return layers.Layer.get_config(self)


class Counter(layers.Layer):
  def build(self, input_shape):
    self.count = self.add_weight("count", (), trainable=False)

  def call(self, x):
    self.count.assign_add(1.0)
    return x


@tf.keras.utils.register_keras_serializable("tests")
class Unseeded(tf.keras.initializers.Initializer):
  def __call__(self, shape, dtype=None, **options):
    return tf.random.normal(shape)

  def get_config(self):
    return {}


def way_around():
  x = layers.Input((4,))
  return tf.keras.Model(
    x,
    layers.Add()(
      [layers.Dense(3, name="long")(layers.Dense(5)(x)), layers.Dense(3)(x)]
    ),
  )


def shared_across():
  x = layers.Input((4,))
  twice = layers.Dense(4, name="twice")
  return tf.keras.Model(x, twice(layers.Dense(4, name="middle")(twice(x))))


def two_inputs():
  x = layers.Input((4,), name="a")
  y = layers.Input((2, 2), name="b")
  joined = layers.Concatenate()([layers.Dense(3)(x), layers.Flatten()(y)])
  return tf.keras.Model([x, y], layers.Dense(3)(joined))


FACTOR = tf.Variable(2.0, name="factor")


def with_operation(function):
  x = layers.Input((4,))
  return tf.keras.Model(x, function(layers.Dense(3)(layers.Dense(5)(x))))


def dense(stack, *, last=None):
  return lambda: sequential(
    layers.Dense(5), *stack(), last or layers.Dense(3, name="last")
  )


REFUSED = {
  "softmax_inside": (
    lambda: sequential(
      tf.keras.Sequential(
        [layers.InputLayer((4,)), layers.Dense(3, "softmax", name="p")],
        name="base",
      )
    ),
    r"`model.get_layer\('base'\).get_layer\('p'\).activation = tf.keras",
  ),
  "masked_logits": (
    lambda: sequential(
      layers.Masking(), layers.Dense(5), layers.Dense(3, name="last")
    ),
    "layer 'last' gives the logits a mask",
  ),
  "masked_cut": (
    lambda: sequential(
      layers.Dense(5),
      layers.Masking(),
      layers.Dense(3, name="last"),
      layers.Lambda(lambda x: 1 * x, mask=lambda *_: None),
    ),
    "layer 'last', which takes a vector with a mask",
  ),
  "python": (
    dense(
      lambda: [
        layers.Lambda(
          lambda x: tf.ensure_shape(
            tf.numpy_function(np.square, [x], tf.float32), [None, 5]
          ),
          name="square",
        )
      ]
    ),
    "layer 'square' calls Python",
  ),
  "foreign_variable": (
    dense(lambda: [layers.Lambda(lambda x: x * FACTOR)]),
    "uses the variable 'factor:0', which is a weight of no layer",
  ),
  "spectral_normalization": (
    dense(
      lambda: [layers.SpectralNormalization(layers.Dense(2), name="spectral")]
    ),
    "layer 'spectral' changes its weights where it uses them",
  ),
  "lookup": (
    lambda: sequential(
      layers.IntegerLookup(
        vocabulary=[1, 2], output_mode="multi_hot", name="look"
      ),
      layers.Dense(3),
      shape=(2,),
      dtype="int64",
    ),
    "layer 'look' looks values up in a table",
  ),
  "not_adapted": (
    lambda: sequential(layers.Normalization(name="scale"), layers.Dense(3)),
    r"layer 'scale' was not adapted; call its adapt\(examples\)",
  ),
  "random_lambda": (
    dense(
      lambda: [layers.Lambda(lambda x: x + tf.random.normal([5]), name="add")]
    ),
    "layer 'add' draws random numbers",
  ),
  "activity_regularizer": (
    dense(lambda: [layers.Dense(5, activity_regularizer="l2", name="sparse")]),
    "layer 'sparse' has a loss of its activations.*kernel_regularizer",
  ),
  "constraint": (
    dense(lambda: [layers.Dense(5, kernel_constraint="max_norm", name="max")]),
    "layer 'max' has a constraint",
  ),
  "stateful": (
    lambda: sequential(layers.Dense(5), Counter(name="count"), layers.Dense(3)),
    "layer 'count' writes to a variable",
  ),
  "no_add_weight": (
    dense(lambda: [WithVariable(name="scale")]),
    "its layers must create their weights by add_weight",
  ),
  "no_config": (
    dense(lambda: [WithoutConfig(5, name="scale")]),
    "layer 'scale' cannot be copied: its get_config",
  ),
  "unseeded": (
    dense(lambda: [layers.Dense(5, kernel_initializer=Unseeded(), name="u")]),
    "initializer of 'u/kernel' draws numbers that no seed determines",
  ),
  "two_inputs": (two_inputs, r"has 2 inputs; give the features.*: a, b$"),
  "one_logit": (
    dense(lambda: [], last=layers.Dense(1)),
    "output is of shape",
  ),
  "not_built": (
    lambda: tf.keras.Sequential([layers.Dense(3)]),
    "begins with an InputLayer",
  ),
  "no_weights": (
    lambda: sequential(layers.ReLU()),
    "it has no layer with weights; there is nothing to train",
  ),
  "way_around": (way_around, "has a path around it"),
  "shared": (shared_across, "shared layer 'twice' before and behind"),
  "subclassed_inside": (
    dense(lambda: [Subclassed(name="mine")]),
    "layer 'mine' is a model that is neither functional nor",
  ),
  "unknown_cut": (perceptron, r"no layer 'nope'.*embed"),
  "no_model": (
    lambda: 3,
    "a Keras model is wanted, got int",
  ),
}


CUTS = {"way_around": "long", "unknown_cut": "nope"}


class TestRefusals:
  @pytest.mark.parametrize("kind", REFUSED)
  def test_say_in_one_line_what_is_wrong(self, kind):
    function, message = REFUSED[kind]
    with refused(f"^model 'mine': .*{message}"):
      models.from_keras(function, cut=CUTS.get(kind), name="mine")

  def test_cut_that_takes_no_vector_names_those_that_do(self):
    message = r"'conv2d\S*', which takes \(7, 7, 2\), which is not a vector"
    keras_model = convolutions()
    fitting = ", ".join(layer.name for layer in keras_model.layers[4:])
    with refused(f"{message}.* may name {fitting}$"):
      models.from_keras(keras_model, cut=keras_model.layers[0].name)

  @pytest.mark.slow
  def test_images_are_not_scaled_twice(self):
    def build():
      return sequential(
        layers.Rescaling(1 / 255, name="rescale"),
        layers.Flatten(),
        layers.Dense(4),
        layers.Dense(3),
        shape=(2, 2, 1),
      )

    def nest():
      return sequential(build(), layers.Dense(3), shape=(2, 2, 1))

    for each in (build, nest):
      with refused("layer 'rescale' scales images"):
        models.from_keras(each, input_dtype=tf.uint8)
    assert models.from_keras(build).input_dtype == tf.float32

  def test_unknown_start_is_refused(self):
    with refused("'trained'; known: random, given"):
      models.from_keras(perceptron, initial="trained")


class TestInputs:
  def test_are_slices_of_the_features(self):
    keras_model = randomized(two_inputs())
    x = np.random.default_rng(0).normal(size=(6, 8)).astype(np.float32)
    expected = keras_model([x[:, 4:], x[:, :4].reshape(6, 2, 2)])
    model = models.from_keras(
      keras_model,
      initial="given",
      inputs={"b": slice(4), "a": slice(4, 8)},
    )
    assert_close(predict(model, tf.constant(x)), expected, 1e-6, 1e-6)
    assert model.input_shape == (8,) and model.input_dtype == tf.float32

  @pytest.mark.parametrize(
    ("inputs", "message"),
    # Start and stop of slices.
    tables.cases(r"""
{"a": (0, 4)}
    inputs= lacks the model's input 'b'
{"a": (0, 4), "c": (0, 4)}
    inputs= names 'c'; the model has a, b
{"a": (0, 3), "b": (4, 8)}
    inputs\['a'\] is of 3 features, .* of shape \(4,\) takes 4
{"a": (0, 4), "b": (5, 9)}
    feature 4 belongs to no input
{"a": (-4, 8), "b": (0, 4)}
    of whole numbers from 0 is wanted
{"a": 4, "b": (0, 4)}
    slice\(start, stop\)
"""),
  )
  def test_that_do_not_fit_are_refused(self, inputs, message):
    slices = {
      name: slice(*each) if isinstance(each, tuple) else each
      for name, each in inputs.items()
    }
    with refused(message):
      models.from_keras(two_inputs, inputs=slices)

  def test_images_are_not_split(self):
    inputs = {"a": slice(4), "b": slice(4, 8)}
    with refused("are float32, not uint8"):
      models.from_keras(two_inputs, inputs=inputs, input_dtype=tf.uint8)

  @pytest.mark.slow
  def test_adapted_numbers_stay(self):
    """Also where the layer is in a model inside of the model."""
    x = np.random.default_rng(0).normal(2, 3, (50, 1)).astype(np.float32)
    for layer in (
      layers.Normalization(),
      layers.Discretization(num_bins=4, output_mode="one_hot"),
    ):
      layer.adapt(x)
      keras_model = sequential(
        sequential(layer, layers.Dense(5), shape=(1,)),
        layers.Dense(3),
        shape=(1,),
      )
      expected = keras_model(x)
      assert np.ptp(expected) > 0.1
      model = models.from_keras(keras_model, initial="given")
      assert_close(predict(model, tf.constant(x)), expected, 1e-6, 1e-6)


class TestGroupNormalization:
  @pytest.mark.slow
  def test_takes_the_place_of_batch_normalization(self, reference):
    keras_model = randomized(
      sequential(
        layers.Conv2D(12, 3, name="conv"),
        layers.BatchNormalization(name="norm", epsilon=1e-5),
        layers.Flatten(),
        layers.Dense(3, name="last"),
        shape=(5, 5, 2),
      )
    )
    x = examples(keras_model)
    kernel, bias, gamma, beta, *_, last, last_bias = keras_model.get_weights()

    copied = models.with_group_normalization(keras_model, groups=8)

    # 8 does not divide 12, and 4 does.
    y = (reference.convolve(x, kernel) + bias)[:, 1:-1, 1:-1]
    y = reference.normalize(y, 4, gamma, beta)
    expected = y.reshape(len(x), -1) @ last + last_bias
    assert_close(copied(x), expected, 1e-4, 1e-4)
    names = models.from_keras(copied).weight_names()
    assert "backbone/norm/gamma" in names.backbone


@pytest.mark.slow
def test_the_model_of_the_user_can_still_be_called():
  keras_model = tf.keras.Sequential(
    [layers.LayerNormalization(input_shape=(4,)), layers.Dense(3)]
  )
  x = np.random.default_rng(0).normal(size=(5, 4)).astype(np.float32)
  before = keras_model(x).numpy()
  model = ts.from_keras(keras_model, initial="given")
  # Traced in graphs of TFF, where Keras takes other classes.
  ts.build_algorithm("fed_avg", model, ts.hparams("fed_avg"))
  assert_equal(keras_model(x).numpy(), before)


@pytest.mark.slow
def test_lines_of_a_refusal_give_logits():
  models_of_probabilities = (
    (sequential(layers.Dense(5), layers.Dense(3, "softmax", name="p")), 0),
    (with_operation(tf.nn.softmax), 1),
    (sequential(layers.Dense(5), layers.Dense(3), layers.Softmax(name="p")), 1),
  )
  x = np.random.default_rng(0).normal(size=(5, 4)).astype(np.float32)
  for model, _ in models_of_probabilities:
    expected = model(x).numpy()
    with pytest.raises(
      ValueError, match="ends in softmax; logits are wanted, which two lines gi"
    ) as error:
      ts.from_keras(model)
    names = {"model": model, "ts": ts, "tf": tf}
    for line in str(error.value).split("`")[1::2]:
      exec(line.replace("(model)", "(model, initial='given')"), names)
    logits = predict(names["split"], x)
    assert_close(tf.nn.softmax(logits), expected, 1e-5)
    assert np.ptp(np.sum(logits, -1)) > 1e-3


@pytest.mark.slow
def test_operations_are_as_before(tmp_path):
  def build():
    x = layers.Input((4,))
    return tf.keras.Model(x, layers.Dense(3)(x[:, 1:] / 2.0 - 1.0))

  x = np.ones([2, 4], np.float32)
  for _ in range(2):
    keras_model = randomized(build())
    model = ts.from_keras(keras_model, initial="given")
    assert_close(predict(model, x), keras_model(x), 1e-6)
  signature = inspect.signature(tf.math.truediv)
  assert list(signature.parameters) == ["x", "y", "name"]
  keras_model.save(tmp_path / "model.keras")
  loaded = tf.keras.models.load_model(tmp_path / "model.keras")
  assert_equal(loaded(x), keras_model(x))


@pytest.mark.slow
@pytest.mark.parametrize("file", ["model.keras", "model", "model.h5"])
def test_adapted_layers_may_have_been_saved(tmp_path, file):
  x = np.random.default_rng(0).normal(50, 9, (200, 3)).astype(np.float32)
  norm = layers.Normalization()
  norm.adapt(x)
  sequential(norm, layers.Dense(2), shape=(3,)).save(tmp_path / file)
  keras_model = tf.keras.models.load_model(tmp_path / file)
  model = ts.from_keras(keras_model, initial="given")
  logits = predict(model, x[:5])
  assert_close(logits, keras_model(x[:5]), 1e-5, 1e-5)
  assert np.ptp(logits) < 20  # Of features around 50 they would not be.


@pytest.mark.slow
def test_checks_of_values_stay_in_the_graph_of_their_function(run_in_graph):
  unit = layers.Input((1,))
  code = layers.CategoryEncoding(3, output_mode="one_hot", name="code")(unit)
  keras_model = tf.keras.Model(unit, layers.Dense(2)(code))
  model = ts.from_keras(keras_model, initial="given")
  ts.build_algorithm("fed_avg", model, ts.hparams("fed_avg"))
  x = np.float32([[0], [2], [1]])
  logits = run_in_graph(lambda x: predict(model, x), x)
  assert_close(logits, keras_model(x), 1e-6)
  with pytest.raises(tf.errors.InvalidArgumentError, match="num_tokens=3"):
    run_in_graph(lambda x: predict(model, x), x + 7)


class Focal(tf.keras.losses.SparseCategoricalCrossentropy):
  pass


LOSSES = {
  "a CategoricalFocalCrossentropy": (
    tf.keras.losses.CategoricalFocalCrossentropy(from_logits=True),
    "the loss CategoricalFocalCrossentropy, which is not used",
  ),
  "smoothed": (
    tf.keras.losses.CategoricalCrossentropy(label_smoothing=0.1),
    "the loss CategoricalCrossentropy with label_smoothing=0.1",
  ),
  "subclass": (Focal(), "the loss Focal,"),
  "mse": ("mse", "the loss mse,"),
  "function": (lambda y, z: z, "the loss <lambda>,"),
  "sparse": ("sparse_categorical_crossentropy", None),
  "sparse function": (tf.keras.losses.sparse_categorical_crossentropy, None),
  "name of a class": ("SparseCategoricalCrossentropy", None),
  "cross-entropy": (tf.keras.losses.CategoricalCrossentropy(), None),
  "in a list": ([tf.keras.losses.SparseCategoricalCrossentropy()], None),
  "no loss": (None, None),
}


@pytest.mark.parametrize("kind", LOSSES)
def test_compiled_loss_is_cross_entropy_or_said_not_to_be_used(kind, recwarn):
  loss, message = LOSSES[kind]
  keras_model = logistic_regression()
  keras_model.compile(loss=loss)
  if kind == "smoothed":
    ts.from_keras(keras_model)
  else:
    keras_checks.check_loss(keras_model)
  texts = [str(warning.message) for warning in recwarn]
  said = [text for text in texts if "compiled with the loss" in text]
  assert len(said) == (message is not None)
  assert all(message in text for text in said)


@pytest.mark.long
def test_threads_build_models_and_call_others():
  def build():
    return sequential(
      layers.Dense(5),
      layers.BatchNormalization(),
      layers.LayerNormalization(),
      layers.Dropout(0.1),
      layers.Dense(3),
    )

  keras_model, x = build(), np.ones([2, 4], np.float32)
  expected = keras_model(x).numpy()
  is_done = threading.Event()

  def call():
    while not is_done.is_set():
      assert_equal(keras_model(x), expected)

  def make(_):
    model = ts.from_keras(build)
    ts.build_algorithm("fed_avg", model, ts.hparams("fed_avg"))
    return model.weight_names()

  with futures.ThreadPoolExecutor() as pool:
    calls = pool.submit(call)
    try:
      names = list(pool.map(make, range(3)))
    finally:
      is_done.set()
    calls.result()
  assert names == [names[0]] * 3
