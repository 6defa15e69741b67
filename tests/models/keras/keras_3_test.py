"""Models of Keras 3: converted with equal logits, or one line of refusal."""

import importlib.util
import pathlib
import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf

import tff_shift as ts
from tests.fixtures.arrays import assert_close
from tests.fixtures.refusals import refused
from tff_shift import models
from tff_shift.models import modes
from tff_shift.models import split_model

if not importlib.util.find_spec("tf_keras"):
  pytest.skip("Keras 3: only beside TensorFlow 2.21", allow_module_level=True)

import keras

layers = keras.layers
# Without the kernel for GPUs, which takes seconds to build.
WITHOUT_KERNEL = {"activation": "softsign"}
_ROOT = pathlib.Path(__file__).parents[3]


def sequential(*stack, shape=(4,), dtype=None):
  return keras.Sequential(
    [layers.Input(shape, dtype=dtype), *stack, layers.Dense(3)]
  )


def branches(**options):
  """Two ways that are merged, a layer that is used twice, arguments by name."""
  x = layers.Input((4, 3))
  twice = layers.Dense(3, activation="silu")
  y = layers.MultiHeadAttention(2, 3, dropout=0.1)(
    query=twice(x), value=twice(twice(x)), use_causal_mask=True
  )
  y = layers.GlobalAveragePooling1D()(layers.Add()([x, y]))
  _, state = layers.GRU(4, return_state=True, **options)(x)
  return keras.Model(x, layers.Dense(3)(layers.Concatenate()([y, state])))


def light_branches():
  return branches(**WITHOUT_KERNEL)


def nested():
  """A frozen base with batch normalisation, called twice, and its input."""
  x = layers.Input((7, 7, 2))
  y = layers.DepthwiseConv2D(3, padding="same")(x)
  y = layers.LeakyReLU(0.2)(layers.BatchNormalization()(y))
  inner = keras.Model(x, y)
  inner.trainable = False
  x = layers.Input((7, 7, 2))
  base = keras.Model(x, inner(inner(x)))
  y = layers.GlobalAveragePooling2D()(base(base(x), training=False))
  return keras.Model(x, layers.Dense(3)(y))


def in_both_directions():
  lstm = layers.LSTM(4, **WITHOUT_KERNEL)
  return sequential(layers.Bidirectional(lstm), shape=(5, 2))


def recurrent():
  cells = [layers.GRUCell(3), layers.LSTMCell(2)]
  return sequential(
    layers.Embedding(7, 2, mask_zero=True),
    layers.Bidirectional(
      layers.GRU(4, return_sequences=True, **WITHOUT_KERNEL)
    ),
    layers.TimeDistributed(layers.Dense(3)),
    layers.RNN(cells),
    shape=(5,),
    dtype="int32",
  )


def adapted():
  examples = np.random.default_rng(0).normal(5, 3, (50, 4)).astype("float32")
  normalization = layers.Normalization()
  normalization.adapt(examples)
  bins = layers.Discretization(num_bins=4)
  bins.adapt((examples - 5) / 3)
  return sequential(
    normalization, bins, layers.Embedding(4, 2), layers.Flatten()
  )


def masked(**options):
  """A mask that inputs carry through layers."""
  x = layers.Input((5, 3))
  y = layers.Dense(4)(layers.Masking()(x))
  y = layers.LSTM(4, return_sequences=True, **options)(y)
  gru = layers.GRU(2, return_sequences=True, **WITHOUT_KERNEL)
  y = layers.Bidirectional(gru)(y)
  return keras.Model(x, layers.Dense(3)(layers.GlobalAveragePooling1D()(y)))


def light_masked():
  return masked(**WITHOUT_KERNEL)


def masked_attention():
  x = layers.Input((5, 3))
  y = layers.Dense(4)(layers.Masking()(x))
  y = layers.Flatten()(layers.MultiHeadAttention(2, 3)(y, y))
  return keras.Model(x, layers.Dense(3)(y))


def masked_sum():
  x = layers.Input((5, 3))
  y = layers.Add()([layers.Dense(4)(layers.Masking()(x)), layers.Dense(4)(x)])
  return keras.Model(x, layers.Dense(3)(layers.GlobalAveragePooling1D()(y)))


def built_later():
  model = keras.Sequential([layers.Dense(5), layers.Dense(3)])
  model.build((None, 4))
  return model


BUILDS = branches, nested, recurrent, adapted, masked, built_later


def randomized(model):
  """Gives weights values that differ, but for those of `Normalization`."""
  generator = np.random.default_rng(1)
  for weight in model.weights:
    if weight.name not in ("mean", "variance", "count"):
      # Variances are above 0.
      weight.assign(generator.uniform(0.1, 1, weight.shape))
  return model


def examples(model):
  generator = np.random.default_rng(2)
  shape = (6, *model.inputs[0].shape[1:])
  if model.inputs[0].dtype == "int32":
    return generator.integers(0, 7, shape).astype(np.int32)
  x = generator.normal(2, 3, shape).astype(np.float32)
  if len(shape) == 3:
    x[1::2, 2:] = 0  # What `Masking` masks.
  return x


def predict(model, x):
  return model.predict(model.initial_weights(tf.constant([1, 2])), x)


def assert_equal(logits, expected):
  assert_close(logits, expected, 1e-5, 1e-5)
  assert np.ptp(logits) > 1e-2


@pytest.mark.slow
class TestLogits:
  @pytest.mark.parametrize("build", BUILDS)
  def test_are_those_of_keras_3(self, build):
    model = randomized(build())
    x = examples(model)
    expected = model(x)
    converted = ts.from_keras(model, initial="given")
    assert_equal(predict(converted, x), expected)
    np.testing.assert_array_equal(model(x), expected)
    trained, frozen = (
      sum(np.prod(weight.shape) for weight in weights)
      for weights in (model.trainable_weights, model.non_trainable_weights)
    )
    assert converted.num_parameters == trained
    if build is not adapted:
      assert converted.num_frozen_parameters == frozen

  @pytest.mark.parametrize(
    ("build", "kind"),
    # Keras 3 itself cannot load masks from .h5.
    [
      (light_branches, "keras"),
      (light_branches, "h5"),
      (light_masked, "keras"),
    ],
  )
  def test_of_loaded_models_are_those_of_keras_3(self, tmp_path, build, kind):
    model = randomized(build())
    x = examples(model)
    model.save(tmp_path / f"model.{kind}")
    loaded = keras.saving.load_model(tmp_path / f"model.{kind}")
    assert_equal(predict(ts.from_keras(loaded, initial="given"), x), model(x))

  @pytest.mark.parametrize(
    "build", [light_branches, nested, in_both_directions]
  )
  @pytest.mark.parametrize("kind", ["keras", "h5", "weights.h5"])
  def test_of_files_of_weights_are_those_of_keras_3(
    self, tmp_path, build, kind
  ):
    model = randomized(build())
    x = examples(model)
    path = tmp_path / f"model.{kind}"
    (model.save_weights if "weights" in kind else model.save)(path)
    given = split_model.load_weights(ts.from_keras(build), path)
    assert_equal(predict(given, x), model(x))

  def test_of_several_inputs_are_those_of_keras_3(self):
    first, second = (layers.Input((3,), name=name) for name in ("b", "a"))
    merged = layers.Concatenate()([first, second])
    model = keras.Model(
      {"b": first, "a": second}, layers.Dense(3)(merged), name="two"
    )
    x = np.random.default_rng(0).normal(size=(5, 6)).astype(np.float32)
    converted = ts.from_keras(
      model, initial="given", inputs={"b": slice(3), "a": slice(3, 6)}
    )
    expected = model({"b": x[:, :3], "a": x[:, 3:]})
    assert_equal(predict(converted, x), expected)


@pytest.mark.slow
def functional(layer):
  x = layers.Input((4, 4, 1))
  return keras.Model(x, layers.Dense(3)(layers.Flatten()(layer(x))))


class TestTraining:
  def test_functional_model_draws(self):
    """Keras 3 stores the default of `training`, False, in each call."""
    x = layers.Input((4,))
    y = layers.Dense(30, kernel_initializer="zeros", bias_initializer="ones")(x)
    y = layers.GaussianNoise(0.1)(layers.Dropout(0.5)(y))
    y = layers.Dense(2, kernel_initializer="ones")(y)
    model = ts.from_keras(keras.Model(x, y), initial="given")
    weights = model.initial_weights(tf.constant([1, 2]))
    with modes.training(lambda: tf.constant([3, 4])):
      logits = model.predict(weights, np.zeros([500, 4], np.float32))
    # 30 units that are 2 or 0, with noise of variance 0.01.
    assert_close(np.mean(logits), 30, 0.05)
    assert_close(np.var(logits[:, 0]), 30.3, 0.2)

  @pytest.mark.parametrize("axis", ["horizontal", "vertical"])
  def test_images_are_flipped(self, axis):
    """Although Keras 3 stores the default of such a call, training=True."""
    keras_model = functional(layers.RandomFlip(axis))
    model = ts.from_keras(keras_model, initial="given")
    weights = model.initial_weights(tf.constant([0, 1]))
    x = tf.random.stateless_normal((1, 4, 4, 1), (0, 1))
    with modes.training(lambda: tf.constant([1, 2])):
      drawn = model.predict(weights, tf.repeat(x, 50, 0)).numpy()
    flipped = tf.reverse(x, [2 if axis == "horizontal" else 1])
    expected = model.predict(weights, tf.concat([x, flipped], 0)).numpy()
    flips = np.abs(drawn[:, None] - expected).max(axis=2).argmin(axis=1)
    assert set(flips) == {0, 1}
    # The product of a row may depend on the size of the batch.
    assert_close(drawn, expected[flips], atol=1e-6)
    in_evaluation = keras_model(x, training=False)
    assert_close(in_evaluation, expected[:1], atol=1e-6)

  def test_batches_normalise_as_in_fit(self):
    """Also if a call says training=False, which `fit` replaces."""
    x = layers.Input((4,))
    norm = layers.BatchNormalization(momentum=0.6)
    y = layers.Dense(3)(norm(layers.Dense(4)(x), training=False))
    keras_model = randomized(keras.Model(x, y))
    batch = examples(keras_model)
    model = ts.from_keras(keras_model, initial="given")
    expected = keras_model(batch, training=True)
    with (
      modes.with_statistics(model.statistics) as statistics,
      modes.training(lambda: tf.constant([3, 4])),
    ):
      assert_equal(predict(model, batch), expected)
    for value, wanted in zip(
      statistics.values(), norm.non_trainable_weights, strict=True
    ):
      assert_close(value, wanted, 1e-5)


@pytest.mark.slow
def test_group_normalization_takes_the_place_of_batch_normalization():
  """Its numbers are checked for models of `tf.keras`."""
  stack = layers.Conv2D(4, 3), layers.BatchNormalization(), layers.Flatten()
  model = randomized(sequential(*stack, shape=(5, 5, 2)))
  *first, _, _, kernel, bias = model.get_weights()
  copied = models.with_group_normalization(model, groups=4)
  assert isinstance(copied.layers[1], tf.keras.layers.GroupNormalization)
  assert copied.layers[1].groups == 4
  np.testing.assert_equal(copied.get_weights(), [*first, kernel, bias])


@pytest.mark.slow
def test_model_of_a_file_may_be_of_keras_3(tmp_path):
  file = tmp_path / "mine.py"
  file.write_text(
    "import keras\n\n\n"
    "def build(input_shape, num_classes):\n"
    "  return keras.Sequential(\n"
    "    [keras.Input(input_shape), keras.layers.Dense(num_classes)]\n"
    "  )\n"
  )
  model = models.build(f"{file}:build", input_shape=(2,), num_classes=3)
  assert model.num_parameters == 9


def test_loss_of_keras_3_is_known(recwarn):
  model = sequential()
  model.compile(
    loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True)
  )
  ts.from_keras(model)
  assert not [w for w in recwarn if "compiled" in str(w.message)]
  model.compile(loss="mse")
  with pytest.warns(UserWarning, match="the loss mse, which is not used"):
    ts.from_keras(model)


class Own(layers.Layer):
  def call(self, x):
    return x


class Subclassed(keras.Model):
  def call(self, x):
    return x


def shared():
  dense = layers.Dense(4)
  base = keras.Sequential([layers.Input((4,)), dense])
  return sequential(base, dense)


def with_adapters():
  model = sequential(layers.Dense(4, name="adapted"))
  model.get_layer("adapted").enable_lora(2)
  return model


def with_query_mask():
  x, mask = layers.Input((5, 4)), layers.Input((5,), dtype="bool")
  attention = layers.MultiHeadAttention(2, 3, name="attended")
  y = layers.Flatten()(attention(x, x, query_mask=mask))
  return keras.Model([x, mask], layers.Dense(3)(y))


def in_training():
  x = layers.Input((4,))
  return keras.Model(
    x, layers.Dense(3)(layers.Dropout(0.5, name="always")(x, training=True))
  )


def trained_in_part():
  model = sequential(layers.Dense(4, name="kept"))
  model.get_layer("kept").bias.trainable = False
  return model


REFUSED = {
  # tf.keras's Add masks a step if one of the inputs does, Keras 3's if all do.
  "mask of sums": (
    masked_sum,
    ", first in layer 'global_average_pooling1d",
  ),
  # Of a step all of whose scores are masked: equal outputs, other gradients.
  "gradients": (
    masked_attention,
    "gradients of tf.keras's layers differ from its own",
  ),
  "argument": (
    with_query_mask,
    "layer 'attended' is called with query_mask=, which tf.keras does not know",
  ),
  # In Keras 3 one draw decides about both.
  "flips": (
    lambda: functional(layers.RandomFlip(name="flips")),
    "layer 'flips' flips both axes of an image or none",
  ),
  "training": (
    in_training,
    "layer 'always' is called with training=True, which Keras 3 does not",
  ),
  "trained in part": (
    trained_in_part,
    "some weights of layer 'kept' are not trained; freeze the layer",
  ),
  "own layer": (lambda: sequential(Own(name="own")), "'own' is a layer of"),
  "subclassed": (Subclassed, "is a subclassed model (Subclassed)"),
  "unknown layer": (
    lambda: sequential(layers.RMSNormalization(name="rms")),
    "layer 'rms' needs keras.layers.RMSNormalization, which tf.keras does not",
  ),
  "unknown field": (with_adapters, "layer 'adapted' has lora_rank=2, which"),
  "unknown activation": (
    lambda: sequential(layers.Dense(4, activation="glu", name="gated")),
    "layer 'gated' raises an error (ValueError: Unknown activation",
  ),
  "function": (
    lambda: sequential(layers.Lambda(lambda x: x, name="function")),
    "layer 'function' calls a Python function",
  ),
  "shared layer": (shared, "is in two models"),
  "other weights": (
    lambda: sequential(layers.SpectralNormalization(layers.Dense(3), name="s")),
    "layer 's' has other weights in tf.keras",
  ),
}


class TestRefusal:
  @pytest.mark.parametrize("case", REFUSED)
  def test_names_the_generation_and_the_layer(self, case, refusal):
    build, reason = REFUSED[case]
    line = refusal(ts.from_keras, build())
    assert "it is a Keras 3 model, and cannot be converted: " in line
    assert reason in line
    assert line.endswith("; build it by tf.keras (import tf_keras as keras)")

  def test_names_another_backend(self, monkeypatch):
    monkeypatch.setattr(keras.backend, "backend", lambda: "jax")
    with refused("Keras's backend is jax, not tensorf"):
      ts.from_keras(sequential)

  def test_of_a_model_that_was_not_built_says_what_is_missing(self):
    with refused("begins with an InputLayer"):
      ts.from_keras(keras.Sequential([layers.Dense(3)]))


def run(*arguments):
  return subprocess.run(
    [sys.executable, *arguments],
    cwd=_ROOT,
    capture_output=True,
    text=True,
    check=False,
  )


@pytest.mark.slow
def test_keras_3_is_not_imported():
  result = run(
    "-c",
    "import sys, tff_shift as ts\n"
    "import tensorflow as tf\n"
    "x = tf.keras.layers.Input((2,))\n"
    "ts.from_keras(tf.keras.Model(x, tf.keras.layers.Dense(2)(x)))\n"
    "sys.exit('keras' in sys.modules)\n",
  )
  assert result.returncode == 0, result.stderr


@pytest.mark.long
def test_twelve_models_are_converted():
  result = run(
    "-m", "benchmarks.keras_models", "--keras_3", "--seeds=0", "--rounds=1"
  )
  assert result.returncode == 0, result.stderr
  assert len(result.stdout.splitlines()) == 2 + 12
