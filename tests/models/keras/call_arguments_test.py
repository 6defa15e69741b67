"""Arguments of the calls of layers: equal to Keras, or refused by name.

`python tests/models/keras/call_arguments_test.py` prints the table.
"""

import numpy as np
import pytest
import tensorflow as tf

from tff_shift import models
from tff_shift.models import modes

layers = tf.keras.layers
SEED = np.int32([1, 2])
# A mask of sequences of five steps.
MASK = np.arange(5) < np.array([5, 3, 2, 4, 1, 5])[:, None]
NONE: dict = {}
ON, OFF = {"training": True}, {"training": False}


def _sequences():
  """A sequence [5, 3] and its mask, made of zeros at the end."""
  x = layers.Input((5, 3))
  return x, layers.Masking().compute_mask(x)


def called(layer, arguments, *, inputs=None):
  """A model that calls a layer on sequences between dense layers."""
  x, mask = _sequences()
  values = {"mask": mask, "state": layers.Flatten()(x)[:, :4]}
  arguments = {
    key: values[value] if isinstance(value, str) else value
    for key, value in arguments.items()
  }
  if "initial_state" in arguments and isinstance(layer, layers.LSTM):
    arguments["initial_state"] = [arguments["initial_state"]] * 2
  hidden = layers.Dense(4, name="first")(x)
  if inputs == "pictures":
    hidden = layers.Reshape((5, 2, 2))(hidden)
  if inputs == "pair":
    hidden = [hidden, layers.Dense(4, name="second")(x)]
  if inputs == "query":
    arguments = {"value": hidden, **arguments}
  y = layer(hidden, **arguments)
  y = layers.Lambda(lambda y: y, mask=lambda *_: None)(y)
  y = layers.Flatten()(y)
  return tf.keras.Model(x, layers.Dense(3, name="last")(y))


def base(*stack):
  return tf.keras.Sequential([layers.InputLayer((5, 4)), *stack], name="layer")


def masked(layer, arguments):
  """The layer gets the mask of a layer before it."""
  x = layers.Input((5, 3))
  y = layer(layers.Dense(4)(layers.Masking()(x)), **arguments)
  y = layers.Lambda(lambda y: y, mask=lambda *_: None)(y)
  return tf.keras.Model(x, layers.Dense(3, name="last")(layers.Flatten()(y)))


def twice(first, second):
  """A layer that is called twice with different arguments."""
  x = layers.Input((5, 3))
  norm = layers.BatchNormalization(momentum=0.6, name="layer")
  hidden = layers.Dense(4)(x)
  y = layers.Add()([norm(hidden, **first), norm(hidden * 2.0, **second)])
  return tf.keras.Model(x, layers.Dense(3, name="last")(layers.Flatten()(y)))


def norm(**options):
  return layers.BatchNormalization(momentum=0.6, name="layer", **options)


# The model of each row, and whether it is equal to Keras or refused.
_RECURRENT = {
  "SimpleRNN": lambda: layers.SimpleRNN(4, name="layer"),
  "GRU": lambda: layers.GRU(4, name="layer"),
  "LSTM": lambda: layers.LSTM(4, name="layer", return_sequences=True),
  "RNN of a cell": lambda: layers.RNN(layers.GRUCell(4), name="layer"),
}
_RANDOM = {
  "Dropout": lambda: layers.Dropout(0.5, name="layer"),
  "SpatialDropout1D": lambda: layers.SpatialDropout1D(0.5, name="layer"),
  "GaussianNoise": lambda: layers.GaussianNoise(0.5, name="layer"),
  "GaussianDropout": lambda: layers.GaussianDropout(0.5, name="layer"),
  "AlphaDropout": lambda: layers.AlphaDropout(0.5, name="layer"),
  "LSTM, dropout": lambda: layers.LSTM(4, dropout=0.5, name="layer"),
  "GRU, recurrent_dropout": lambda: layers.GRU(
    4, recurrent_dropout=0.5, name="layer"
  ),
}
EQUAL = {
  ("BatchNormalization", "-"): lambda: called(norm(), NONE),
  ("BatchNormalization", "training=False"): lambda: called(norm(), OFF),
  ("BatchNormalization", "training=None"): lambda: called(
    norm(), {"training": None}
  ),
  ("BatchNormalization", "training=0"): lambda: called(norm(), {"training": 0}),
  ("BatchNormalization", "mask"): lambda: called(norm(), {"mask": "mask"}),
  ("BatchNormalization", "mask, training=False"): lambda: called(
    norm(), {"mask": "mask", **OFF}
  ),
  ("BatchNormalization", "mask of a layer"): lambda: masked(norm(), NONE),
  ("BatchNormalization of pictures", "-"): lambda: called(
    norm(), NONE, inputs="pictures"
  ),
  ("BatchNormalization of pictures", "training=False"): lambda: called(
    norm(), OFF, inputs="pictures"
  ),
  ("BatchNormalization, frozen", "training=True"): lambda: called(
    norm(trainable=False), ON
  ),
  ("BatchNormalization twice", "-, training=False"): lambda: twice(NONE, OFF),
  ("BatchNormalization twice", "training=False, -"): lambda: twice(OFF, NONE),
  ("Sequential", "training=False"): lambda: called(
    base(layers.Dense(4), norm(), layers.Dropout(0.5)), OFF
  ),
  ("Sequential in a Sequential", "training=False"): lambda: called(
    base(base(layers.Dense(4), norm())), OFF
  ),
  ("Sequential", "mask"): lambda: called(base(norm()), {"mask": "mask"}),
  ("Bidirectional", "mask"): lambda: called(
    layers.Bidirectional(layers.GRU(4), name="layer"), {"mask": "mask"}
  ),
  ("Bidirectional", "training=False"): lambda: called(
    layers.Bidirectional(layers.GRU(4, dropout=0.5), name="layer"), OFF
  ),
  ("TimeDistributed", "training=False"): lambda: called(
    layers.TimeDistributed(layers.Dropout(0.5), name="layer"), OFF
  ),
  ("TimeDistributed", "mask"): lambda: called(
    layers.TimeDistributed(layers.Dense(2), name="layer"), {"mask": "mask"}
  ),
  ("LayerNormalization", "-"): lambda: called(
    layers.LayerNormalization(name="layer"), NONE
  ),
  ("GlobalAveragePooling1D", "mask"): lambda: called(
    layers.GlobalAveragePooling1D(name="layer"), {"mask": "mask"}
  ),
  ("MultiHeadAttention", "use_causal_mask"): lambda: called(
    layers.MultiHeadAttention(2, 3, name="layer"),
    {"use_causal_mask": True},
    inputs="query",
  ),
  ("MultiHeadAttention, dropout", "training=False"): lambda: called(
    layers.MultiHeadAttention(2, 3, dropout=0.5, name="layer"),
    OFF,
    inputs="query",
  ),
  ("Attention", "use_causal_mask"): lambda: called(
    layers.Attention(name="layer"), {"use_causal_mask": True}, inputs="pair"
  ),
  ("AdditiveAttention, dropout", "training=False"): lambda: called(
    layers.AdditiveAttention(dropout=0.5, name="layer"), OFF, inputs="pair"
  ),
  **{
    (name, "training=False"): lambda make=make: called(make(), OFF)
    for name, make in _RANDOM.items()
  },
  **{
    (name, "mask"): lambda make=make: called(make(), {"mask": "mask"})
    for name, make in _RECURRENT.items()
  },
  **{
    (name, "initial_state"): lambda make=make: called(
      make(), {"initial_state": "state"}
    )
    for name, make in _RECURRENT.items()
  },
}
REFUSED = {
  ("Softmax", "mask"): lambda: called(
    layers.Softmax(axis=1, name="layer"),
    {"mask": np.ones([1, 5, 4]) * (np.arange(5) < 3)[:, None] > 0},
  ),
  ("MultiHeadAttention", "attention_mask"): lambda: called(
    layers.MultiHeadAttention(2, 3, name="layer"),
    {"attention_mask": np.tri(5)[None] > 0},
    inputs="query",
  ),
  ("BatchNormalization", "training=True"): lambda: called(norm(), ON),
  ("BatchNormalization", "training=1"): lambda: called(norm(), {"training": 1}),
  ("BatchNormalization twice", "-, training=True"): lambda: twice(NONE, ON),
  ("Sequential", "training=True"): lambda: called(
    base(layers.Dense(4), norm()), ON
  ),
  ("Bidirectional", "training=True"): lambda: called(
    layers.Bidirectional(layers.GRU(4, dropout=0.5, name="layer")), ON
  ),
  ("TimeDistributed", "training=True"): lambda: called(
    layers.TimeDistributed(layers.Dropout(0.5, name="layer")), ON
  ),
  ("MultiHeadAttention, dropout", "training=True"): lambda: called(
    layers.MultiHeadAttention(2, 3, dropout=0.5, name="layer"),
    ON,
    inputs="query",
  ),
  **{
    (name, "training=True"): lambda make=make: called(make(), ON)
    for name, make in _RANDOM.items()
  },
}


def randomize(keras_model):
  generator = np.random.default_rng(4)
  keras_model.set_weights(
    [np.abs(generator.normal(size=w.shape)) for w in keras_model.get_weights()]
  )
  return keras_model


def sequences():
  x = np.random.default_rng(5).normal(size=(6, 5, 3)).astype(np.float32)
  return x * MASK[..., None]


def compare(build):
  """Compares a model with Keras in evaluation and in a training step."""
  keras_model, x = randomize(build()), sequences()
  factors = np.random.default_rng(6).normal(size=(6, 3)).astype(np.float32)
  expected = [keras_model(x).numpy()]
  model = models.from_keras(keras_model, initial="given")
  with tf.GradientTape() as tape:
    y = keras_model(x, training=True)
    loss = tf.reduce_sum(y * factors)
  gradients = tape.gradient(loss, keras_model.trainable_variables)
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
    tf.GradientTape() as tape,
  ):
    flat = tf.nest.flatten(weights)
    tape.watch(flat)
    y = model.predict(weights, x)
    loss = tf.reduce_sum(y * factors)
  gradients = tape.gradient(loss, flat)
  found += [y, *gradients]
  found += list(statistics.values())
  for one, other in zip(found, expected, strict=True):
    np.testing.assert_allclose(one, other, rtol=2e-4, atol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("kind", EQUAL, ids=" ".join)
def test_output_gradient_and_statistics_are_those_of_keras(kind):
  compare(EQUAL[kind])


@pytest.mark.slow
@pytest.mark.parametrize("kind", REFUSED, ids=" ".join)
def test_calls_that_no_function_of_weights_can_honour_are_refused(kind):
  with pytest.raises(ValueError, match=r"'\w+' is called with (train|a con)"):
    models.from_keras(REFUSED[kind])


def _outcome(build):
  try:
    compare(build)
  except AssertionError:
    return "DIFFERENT"
  except Exception as error:  # Every failure is a row of the table.
    return f"{type(error).__name__}: {str(error)[:200]}"
  return "equal"


if __name__ == "__main__":
  for (name, arguments), build in {**EQUAL, **REFUSED}.items():
    print(f"| {name} | {arguments} | {_outcome(build)} |", flush=True)
