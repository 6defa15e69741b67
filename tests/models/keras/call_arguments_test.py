"""Arguments of the calls of layers: equal to Keras, or refused by name."""

import numpy as np
import pytest
import tensorflow as tf

from tests.fixtures import trees
from tests.fixtures.keras_models import randomized
from tff_shift import models
from tff_shift.models import modes

pytestmark = pytest.mark.slow

layers = tf.keras.layers
SEED = np.int32([1, 2])
# A mask of sequences of five steps.
MASK = np.arange(5) < np.array([5, 3, 2, 4, 1, 5])[:, None]
NONE: dict = {}
ON, OFF = {"training": True}, {"training": False}


def called(*calls):
  """A model that calls layers on sequences between dense layers.

  A call is a layer, its arguments and, if it is none of sequences, the kind of
  its inputs.
  """
  x = layers.Input((5, 3))
  # Zeros at the end are masked.
  values = {
    "mask": layers.Masking().compute_mask(x),
    "state": layers.Flatten()(x)[:, :4],
  }
  first = layers.Dense(4, name="first")(x)
  outputs = []
  for layer, arguments, *kind in calls:
    arguments = {
      key: values[value] if isinstance(value, str) else value
      for key, value in arguments.items()
    }
    if "initial_state" in arguments and isinstance(layer, layers.LSTM):
      arguments["initial_state"] = [arguments["initial_state"]] * 2
    hidden = first
    if kind == ["pictures"]:
      hidden = layers.Reshape((5, 2, 2))(hidden)
    if kind == ["pair"]:
      hidden = [hidden, layers.Dense(4)(x)]
    if kind == ["query"]:
      arguments = {"value": hidden, **arguments}
    outputs.append(layers.Flatten()(without_mask(layer(hidden, **arguments))))
  y = layers.Concatenate()(outputs) if len(outputs) > 1 else outputs[0]
  return tf.keras.Model(x, layers.Dense(3, name="last")(y))


def without_mask(y):
  return layers.Lambda(lambda y: y, mask=lambda *_: None)(y)


def base(*stack):
  return tf.keras.Sequential([layers.InputLayer((5, 4)), *stack])


def masked(layer):
  """The layer gets the mask of a layer before it."""
  x = layers.Input((5, 3))
  y = without_mask(layer(layers.Dense(4)(layers.Masking()(x))))
  return tf.keras.Model(x, layers.Dense(3, name="last")(layers.Flatten()(y)))


def twice(first, second):
  """A layer that is called twice with different arguments."""
  x = layers.Input((5, 3))
  layer, hidden = norm(), layers.Dense(4)(x)
  y = layers.Add()([layer(hidden, **first), layer(hidden * 2.0, **second)])
  return tf.keras.Model(x, layers.Dense(3, name="last")(layers.Flatten()(y)))


def norm(**options):
  return layers.BatchNormalization(momentum=0.6, **options)


def lstm(**options):
  """Without the kernel for GPUs, which takes seconds to build; so is `gru`."""
  return layers.LSTM(4, recurrent_activation="hard_sigmoid", **options)


def gru(**options):
  return layers.GRU(4, reset_after=False, **options)


_RANDOM = {
  "Dropout": lambda: layers.Dropout(0.5),
  "GaussianNoise": lambda: layers.GaussianNoise(0.5),
  "LSTM": lambda: lstm(dropout=0.5),
  "GRU": lambda: gru(recurrent_dropout=0.5),
  "Bidirectional": lambda: layers.Bidirectional(
    layers.SimpleRNN(4, dropout=0.5)
  ),
  "TimeDistributed": lambda: layers.TimeDistributed(layers.Dropout(0.5)),
}
EQUAL = {
  "normalization": lambda: called(
    (norm(), NONE),
    (norm(), OFF),
    (norm(), {"training": None}),
    (norm(), {"training": 0}),
    (norm(), {"mask": "mask"}),
    (norm(), {"mask": "mask", **OFF}),
    (norm(), NONE, "pictures"),
    (norm(), OFF, "pictures"),
    (base(layers.Dense(4), norm(), layers.Dropout(0.5)), OFF),
    (base(base(layers.Dense(4), norm())), OFF),
    (base(norm()), {"mask": "mask"}),
    (layers.LayerNormalization(), NONE),
  ),
  "mask of a layer": lambda: masked(norm()),
  "frozen": lambda: called((norm(trainable=False), ON)),
  "twice": lambda: twice(NONE, OFF),
  "twice, training last": lambda: twice(OFF, NONE),
  "recurrent": lambda: called(
    (layers.SimpleRNN(4), {"mask": "mask"}),
    (gru(), {"initial_state": "state"}),
    (lstm(return_sequences=True), {"initial_state": "state"}),
    (layers.RNN(layers.GRUCell(4)), {"mask": "mask"}),
    (layers.Bidirectional(layers.SimpleRNN(4)), {"mask": "mask"}),
    (layers.TimeDistributed(layers.Dense(2)), {"mask": "mask"}),
    (layers.GlobalAveragePooling1D(), {"mask": "mask"}),
  ),
  "attention": lambda: called(
    (layers.MultiHeadAttention(2, 3), {"use_causal_mask": True}, "query"),
    (layers.MultiHeadAttention(2, 3, dropout=0.5), OFF, "query"),
    (layers.Attention(), {"use_causal_mask": True}, "pair"),
    (layers.AdditiveAttention(dropout=0.5), OFF, "pair"),
  ),
  "random": lambda: called(*((make(), OFF) for make in _RANDOM.values())),
}
REFUSED = {
  "Softmax, mask": lambda: called(
    (
      layers.Softmax(axis=1),
      {"mask": np.ones([1, 5, 4]) * (np.arange(5) < 3)[:, None] > 0},
    )
  ),
  "MultiHeadAttention, attention_mask": lambda: called(
    (
      layers.MultiHeadAttention(2, 3),
      {"attention_mask": np.tri(5)[None] > 0},
      "query",
    )
  ),
  "BatchNormalization": lambda: called((norm(), ON)),
  "BatchNormalization, training=1": lambda: called((norm(), {"training": 1})),
  "BatchNormalization twice": lambda: twice(NONE, ON),
  "Sequential": lambda: called((base(layers.Dense(4), norm()), ON)),
  "MultiHeadAttention": lambda: called(
    (layers.MultiHeadAttention(2, 3, dropout=0.5), ON, "query")
  ),
  **{
    name: lambda make=make: called((make(), ON))
    for name, make in _RANDOM.items()
  },
}


def sequences():
  x = np.random.default_rng(5).normal(size=(6, 5, 3)).astype(np.float32)
  return x * MASK[..., None]


def compare(build):
  """Compares a model with Keras in evaluation and in a training step."""
  keras_model, x = randomized(build()), sequences()
  factors = np.random.default_rng(6).normal(size=(6, 3)).astype(np.float32)

  def with_gradients(call, weights):
    with tf.GradientTape() as tape:
      tape.watch(weights)
      y = call()
      loss = tf.reduce_sum(y * factors)
    return y, tape.gradient(loss, weights)

  expected = [keras_model(x).numpy()]
  model = models.from_keras(keras_model, initial="given")
  y, gradients = with_gradients(
    lambda: keras_model(x, training=True), keras_model.trainable_variables
  )
  expected.append(y)
  # Weights are created in another order; their values tell them apart.
  gradient_of = {
    variable.numpy().tobytes(): tf.convert_to_tensor(gradient)
    for variable, gradient in zip(
      keras_model.trainable_variables, gradients, strict=True
    )
  }
  weights = model.initial_weights(SEED)
  expected += [
    gradient_of[weight.numpy().tobytes()] for weight in tf.nest.flatten(weights)
  ]
  if model.statistics:  # Those of a frozen layer are frozen weights.
    expected += [w for w in keras_model.weights if "moving" in w.name]
  found = [model.predict(weights, x)]
  with (
    modes.with_statistics(model.statistics) as statistics,
    modes.training(lambda: tf.constant(SEED)),
  ):
    y, gradients = with_gradients(lambda: model.predict(weights, x), weights)
  found += [y, *tf.nest.flatten(gradients)]
  found += list(statistics.values())
  trees.assert_close(found, expected, 2e-4, 1e-4)


@pytest.mark.parametrize("kind", EQUAL)
def test_output_gradient_and_statistics_are_those_of_keras(kind):
  compare(EQUAL[kind])


@pytest.mark.parametrize("kind", REFUSED)
def test_calls_that_no_function_of_weights_can_honour_are_refused(kind):
  with pytest.raises(ValueError, match=r"'\w+' is called with (train|a con)"):
    models.from_keras(REFUSED[kind])
