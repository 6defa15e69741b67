"""Trains, saves and loads twelve Keras models, and compares predictions.

  python -m benchmarks.keras_models
  python -m benchmarks.keras_models --models=cnn_dropout,mobilenet --seeds=0
  python -m benchmarks.keras_models --keras_3

Each is converted by `models.from_keras` and trained by FedAvg in process on
scikit-learn's digits: of the 1,797 images of 8x8, 400 are for evaluation, 300
for pre-training a base, and the rest is partitioned over five clients. Then the
server model is exported (`serving.export`) and loaded. Prints a Markdown table
with, for each model:

  trained, frozen   numbers of weights
  before, after     accuracy in percent on the images for evaluation
                    (`evaluate_server`), mean over seeds
  difference        the largest difference of a logit of these images between
                    the loaded model and the algorithm's prediction, over seeds
  seconds           from the Keras model to the comparison, mean over seeds

Ends with exit code 1 if a loaded model predicts another class than the trained
one for any image.

With `--keras_3`, Keras 3 builds the models, and two more columns show how far
those that `models.from_keras` has converted are from Keras 3's own; the exit
code is also 1 if one is farther than 1e-5:

  logits            the largest difference of a logit of the images for
                    evaluation, relative to the largest logit if above 1
  loss              the difference of the loss, with regularizers, after a step
                    of SGD without random numbers
"""

import functools
import importlib
import pathlib
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from collections.abc import Mapping
from typing import Any
from typing import NamedTuple

import numpy as np
import tensorflow as tf
from absl import app
from absl import flags
from absl import logging
from sklearn import datasets

import tff_shift
from tff_shift import algorithms
from tff_shift import execution
from tff_shift import models
from tff_shift.algorithms import fed_avg
from tff_shift.data import examples as examples_lib
from tff_shift.learning import evaluation
from tff_shift.learning import frozen_weights
from tff_shift.models.keras import keras_3
from tff_shift.serving import export
from tff_shift.simulation.engine import client_data
from tff_shift.simulation.engine import rounds

_MODELS = flags.DEFINE_list(
  "models", [], "Comma-separated names of models. Default: all."
)
_ROUNDS = flags.DEFINE_integer("rounds", 10, "Rounds of FedAvg.", lower_bound=1)
_SEEDS = flags.DEFINE_list("seeds", ["0", "1", "2"], "Seeds, comma-separated.")
_KERAS_3 = flags.DEFINE_boolean(
  "keras_3", False, "Models of Keras 3, also compared with their conversions."
)

_IMAGE = (8, 8, 1)
_NUM_CLASSES = 10
_NUM_TEST, _NUM_PUBLIC, _NUM_CLIENTS = 400, 300, 5
_BASE_WIDTH, _BASE_EPOCHS = 32, 30
_HPARAMS = fed_avg.HParams(
  optimizer="adam", learning_rate=0.01, local_steps=10, batch_size=32
)


class _Digits(NamedTuple):
  """Images between 0 and 1, and their classes."""

  public: examples_lib.Examples
  test: examples_lib.Examples
  clients: list[examples_lib.Examples]


class _Model(NamedTuple):
  """A row of the table.

  Attributes:
    title: Its description.
    build: `(images) -> Keras model`, from images that no client has.
    features: `(images) -> inputs of the model`.
    options: Options of `models.from_keras`.
  """

  title: str
  build: Callable[[np.ndarray], tf.keras.Model]
  features: Callable[[np.ndarray], np.ndarray] = lambda images: images
  options: Mapping[str, Any] = {}


def _keras() -> Any:
  """Returns the Keras that builds the models."""
  return importlib.import_module("keras") if _KERAS_3.value else tf.keras


def _load(seed: int) -> _Digits:
  """Loads and partitions scikit-learn's digits."""
  digits = datasets.load_digits()
  order = np.random.default_rng(seed).permutation(len(digits.target))
  x = (digits.images[order, ..., np.newaxis] / 16).astype(np.float32)
  y = digits.target[order].astype(np.int32)
  ends = [_NUM_TEST, _NUM_TEST + _NUM_PUBLIC]
  test, public, trained = (
    examples_lib.Examples(*each)
    for each in zip(np.split(x, ends), np.split(y, ends), strict=True)
  )
  clients = [
    examples_lib.Examples(*each)
    for each in zip(
      np.array_split(trained.x, _NUM_CLIENTS),
      np.array_split(trained.y, _NUM_CLIENTS),
      strict=True,
    )
  ]
  return _Digits(public, test, clients)


def _sequential(keras, *stack, shape=_IMAGE) -> Any:
  layers = keras.layers
  return keras.Sequential(
    [layers.InputLayer(shape), *stack, layers.Dense(_NUM_CLASSES)]
  )


def _convolutions(layers, convolution="Conv2D", **options) -> list:
  return [
    layers.Conv2D(16, 3, activation="relu", **options),
    getattr(layers, convolution)(32, 3, activation="relu", **options),
    layers.GlobalAveragePooling2D(),
  ]


def _base(keras) -> Any:
  """Builds the pre-trained base: a CNN with batch normalisation."""
  layers = keras.layers
  return keras.Sequential(
    [
      layers.InputLayer(_IMAGE),
      layers.Conv2D(16, 3, use_bias=False),
      layers.BatchNormalization(),
      layers.ReLU(),
      layers.Conv2D(_BASE_WIDTH, 3, use_bias=False),
      layers.BatchNormalization(),
      layers.ReLU(),
      layers.GlobalAveragePooling2D(),
    ],
    name="base",
  )


def _mobilenet(keras) -> Any:
  """Builds a MobileNetV2 for images enlarged four times."""
  layers = keras.layers
  base = keras.applications.MobileNetV2(
    (32, 32, 3), alpha=0.35, include_top=False, weights=None, pooling="avg"
  )
  for layer in base.layers:
    if isinstance(layer, layers.BatchNormalization):
      # Keras's momentum of 0.999 needs many more steps.
      layer.momentum = 0.9
  x = layers.Input(_IMAGE)
  larger = layers.UpSampling2D(4, interpolation="bilinear")(x)
  colored = layers.Concatenate()([larger] * 3)
  return keras.Model(x, base(layers.Rescaling(2.0, -1.0)(colored)))


@functools.cache
def _pretrained_weights(
  keras, build: Callable[[Any], Any], seed: int
) -> list[np.ndarray]:
  """Trains a base with Keras, on images that no client has."""
  keras.utils.set_random_seed(seed)
  base, public = build(keras), _load(seed).public
  model = keras.Sequential([base, keras.layers.Dense(_NUM_CLASSES)])
  model.compile(
    "adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True)
  )
  model.fit(public.x, public.y, epochs=_BASE_EPOCHS, verbose=0)
  return base.get_weights()


def _frozen(keras, build: Callable[[Any], Any], seed: int) -> Any:
  """Builds a pre-trained base and freezes it."""
  base = build(keras)
  base.set_weights(_pretrained_weights(keras, build, seed))
  base.trainable = False
  return base


def _attention(keras, images: np.ndarray) -> Any:
  """Builds an attention block over the rows of an image."""
  del images
  layers = keras.layers
  x = layers.Input(_IMAGE)
  rows = layers.Dense(32)(layers.Reshape(_IMAGE[:2])(x))
  attended = layers.MultiHeadAttention(4, 8, dropout=0.1)(rows, rows)
  rows = layers.LayerNormalization()(layers.Add()([rows, attended]))
  return keras.Model(x, layers.Dense(_NUM_CLASSES)(layers.Flatten()(rows)))


def _two_inputs(keras, images: np.ndarray) -> Any:
  """Builds a model with the upper and the lower half of an image as inputs."""
  del images
  layers = keras.layers
  upper = layers.Input((4, 8, 1), name="upper")
  lower = layers.Input((32,), name="lower")
  convolved = layers.Conv2D(16, 3, activation="relu")(upper)
  joined = layers.Concatenate()(
    [
      layers.Flatten()(convolved),
      layers.Dense(32, activation="relu")(lower),
    ]
  )
  return keras.Model([upper, lower], layers.Dense(_NUM_CLASSES)(joined))


def _normalized(keras, images: np.ndarray) -> Any:
  """Builds an MLP after a layer that was adapted to images."""
  layers = keras.layers
  normalization = layers.Normalization(axis=None)
  normalization.adapt(images)
  return _sequential(
    keras, normalization, layers.Flatten(), layers.Dense(32, activation="relu")
  )


def _flat(images: np.ndarray) -> np.ndarray:
  return images.reshape(len(images), -1)


def _table(seed: int, keras: Any) -> dict[str, _Model]:
  """Returns the models by name, as `tf.keras` or Keras 3 builds them."""
  layers = keras.layers

  def features(images):
    return _frozen(keras, _base, seed)(images).numpy()

  l2 = keras.regularizers.L2(1e-3)
  return {
    "logistic": _Model(
      "logistic regression", lambda _: _sequential(keras, layers.Flatten())
    ),
    "head": _Model(
      "a head of two layers, on features of a base",
      lambda _: _sequential(
        keras,
        layers.Dense(32, activation="relu", name="hidden"),
        shape=(_BASE_WIDTH,),
      ),
      features,
      {"cut": "hidden"},
    ),
    "cnn_dropout": _Model(
      "CNN with dropout",
      lambda _: _sequential(keras, *_convolutions(layers), layers.Dropout(0.3)),
    ),
    "cnn_augmentation": _Model(
      "CNN with translation, rotation and noise inside",
      lambda _: _sequential(
        keras,
        layers.RandomTranslation(0.1, 0.1),
        layers.RandomRotation(0.05),
        layers.GaussianNoise(0.05),
        *_convolutions(layers),
      ),
    ),
    "cnn_l2": _Model(
      "CNN with L2 regularizers",
      lambda _: _sequential(
        keras, *_convolutions(layers, kernel_regularizer=l2)
      ),
    ),
    "base": _Model(
      "frozen base with batch normalisation, trained before",
      lambda _: _sequential(keras, _frozen(keras, _base, seed)),
    ),
    "mobilenet": _Model(
      "frozen MobileNetV2 (alpha 0.35, 32x32), trained before",
      lambda _: _sequential(keras, _frozen(keras, _mobilenet, seed)),
    ),
    "attention": _Model(
      "MultiHeadAttention with dropout", functools.partial(_attention, keras)
    ),
    "bi_gru": _Model(
      "bidirectional GRU with recurrent dropout",
      lambda _: _sequential(
        keras,
        layers.Reshape(_IMAGE[:2]),
        layers.Bidirectional(layers.GRU(16, recurrent_dropout=0.1)),
      ),
    ),
    "two_inputs": _Model(
      "two inputs",
      functools.partial(_two_inputs, keras),
      _flat,
      {"inputs": {"upper": slice(0, 32), "lower": slice(32, 64)}},
    ),
    "normalization": _Model(
      "adapted Normalization and an MLP", functools.partial(_normalized, keras)
    ),
    "separable": _Model(
      "depthwise and separable convolutions",
      lambda _: _sequential(
        keras,
        layers.DepthwiseConv2D(3, depth_multiplier=8, activation="relu"),
        *_convolutions(layers, "SeparableConv2D"),
      ),
    ),
  }


class _Measured(NamedTuple):
  """The measurements of a model with a seed."""

  num_trained: int
  num_frozen: int
  before: float
  after: float
  difference: float
  same_classes: bool
  seconds: float


def _measure(row: _Model, digits: _Digits, seed: int) -> _Measured:
  """Trains, exports and loads a model."""
  _keras().utils.set_random_seed(seed)
  keras_model = row.build(digits.public.x)
  start = time.perf_counter()
  model = models.from_keras(keras_model, **row.options)
  algorithm = algorithms.build(fed_avg, model, _HPARAMS)
  running = rounds.Rounds(
    algorithm,
    client_data.training_data(
      [each._replace(x=row.features(each.x)) for each in digits.clients], seed
    ),
    run_seed=seed,
  )
  x = row.features(digits.test.x)
  test = client_data.to_predict(x, digits.test.y, [len(x)])

  def accuracy():
    found = algorithm.evaluate_server(running.server_state, running.data, test)
    return evaluation.report(found, lambda means: float(means[0]))["accuracy"]

  before = accuracy()
  for _ in range(_ROUNDS.value):
    running.step()
  weights = running.server_state.weights
  if frozen_weights.has_any(model):
    weights = frozen_weights.Shared(weights, model.frozen)
  expected = algorithm.spec.predict_as_server(weights, (), test)
  with tempfile.TemporaryDirectory() as folder:
    path = pathlib.Path(folder, "model")
    export.export(
      algorithm,
      running.server_state,
      running.client_states,
      running.data,
      path,
    )
    found = tff_shift.load(path).predict(x)
  found, expected = found.numpy(), expected.numpy()
  return _Measured(
    model.num_parameters,
    model.num_frozen_parameters,
    before,
    accuracy(),
    float(np.max(np.abs(found - expected))),
    np.array_equal(found.argmax(axis=1), expected.argmax(axis=1)),
    time.perf_counter() - start,
  )


class _Compared(NamedTuple):
  """How far a converted model is from that of Keras 3."""

  logits: float
  loss: float


def _compare(name: str, seed: int) -> _Compared:
  """Converts a model of Keras 3, and takes one step with both."""
  keras = _keras()
  keras.utils.set_random_seed(seed)
  digits, row = _load(seed), _table(seed, keras)[name]
  x, y = row.features(digits.test.x), digits.test.y
  theirs = row.build(digits.public.x)
  model = models.from_keras(theirs, initial="given", **row.options)
  logits = model.predict(model.initial_weights(tf.constant([seed, 1])), x)
  rebuilt = keras_3.rebuild(theirs)
  keras_3.copy_weights(theirs, rebuilt)
  if row.options.get("inputs"):
    x = [
      x[:, features].reshape(-1, *tensor.shape[1:])
      for features, tensor in zip(
        row.options["inputs"].values(), rebuilt.inputs, strict=True
      )
    ]
  wanted = theirs(x, training=False)
  return _Compared(
    float(np.max(np.abs(logits - wanted)) / max(1, np.max(np.abs(wanted)))),
    abs(_loss_after_step(theirs, x, y) - _loss_after_step(rebuilt, x, y)),
  )


def _loss_after_step(model: Any, x: Any, y: np.ndarray) -> float:
  """Takes a step of SGD; random numbers would differ, so it is without them."""

  def loss():
    logits = model(x, training=False)
    return tf.reduce_mean(
      tf.nn.sparse_softmax_cross_entropy_with_logits(y, logits)
    ) + sum(model.losses)

  variables = model.trainable_variables
  with tf.GradientTape() as tape:
    before = loss()
  if keras_3.is_keras_3(model):
    # They wrap TensorFlow's.
    variables = [variable.value for variable in variables]
  gradients = tape.gradient(before, variables)
  for variable, gradient in zip(variables, gradients, strict=True):
    variable.assign_sub(0.1 * gradient)
  return float(loss())


def main(_) -> None:
  """Measures all models and prints the table."""
  # TFF logs each compilation at INFO.
  logging.set_verbosity(logging.WARNING)
  seeds = [int(each) for each in _SEEDS.value]
  tables = {seed: _table(seed, _keras()) for seed in seeds}
  known = list(tables[seeds[0]])
  wrong = [each for each in _MODELS.value if each not in known]
  if wrong:
    raise app.UsageError(
      f"--models: unknown model {wrong[0]!r}; known: {', '.join(known)}"
    )
  columns = ["model", "trained", "frozen", "before", "after", "difference"]
  columns.append("seconds")
  if _KERAS_3.value:
    columns += ["logits", "loss"]
  for cells in columns, ["---"] * len(columns):
    print(f"| {' | '.join(cells)} |", flush=True)
  all_equal = True
  with execution.use("in_process"):
    for name in _MODELS.value or known:
      found = [
        _measure(tables[seed][name], _load(seed), seed) for seed in seeds
      ]
      before, after, seconds = (
        statistics.mean(getattr(each, field) for each in found)
        for field in ("before", "after", "seconds")
      )
      difference = max(each.difference for each in found)
      all_equal &= all(each.same_classes for each in found)
      cells = [
        tables[seeds[0]][name].title,
        f"{found[0].num_trained:,}",
        f"{found[0].num_frozen:,}",
        f"{before:.1f}",
        f"{after:.1f}",
        f"{difference:.2g}",
        f"{seconds:.1f}",
      ]
      if _KERAS_3.value:
        compared = np.max([_compare(name, seed) for seed in seeds], axis=0)
        all_equal &= bool(np.max(compared) <= 1e-5)
        cells += [f"{value:.2g}" for value in compared]
      print(f"| {' | '.join(cells)} |", flush=True)
  sys.exit(0 if all_equal else 1)


if __name__ == "__main__":
  app.run(main)
