"""Tests of the digest of a model's function."""

import pytest
import tensorflow as tf

from tests.fixtures.keras_models import sequential
from tff_shift.models import fingerprint
from tff_shift.models import input_scaling
from tff_shift.models import split_model
from tff_shift.models.keras import keras_parts
from tff_shift.models.networks import mlp


def build_mlp(**options):
  return mlp.build(**({"width": 8, "head_width": 4} | options))


def build_convolution(strides=1, epsilon=1e-3, input_dtype=tf.uint8):
  """A model whose options leave its weights as they are."""
  layers = tf.keras.layers

  def backbone():
    image = layers.Input((6, 6, 1))
    x = layers.Conv2D(4, 3, strides=strides, activation="relu")(image)
    x = layers.GroupNormalization(2, epsilon=epsilon)(x)
    return tf.keras.Model(image, layers.GlobalAveragePooling2D()(x))

  def head():
    return sequential((4,), layers.Dense(3))

  return split_model.build_split_model(
    "convolution", backbone=backbone, head=head, input_dtype=input_dtype
  )


@pytest.fixture(scope="module")
def convolution():
  """The model without options, and its digest."""
  model = build_convolution()
  return model, fingerprint.function_digest(model)


def test_equal_models_have_equal_digests_whatever_was_built_before():
  first = fingerprint.function_digest(build_mlp())
  build_mlp(width=5)
  second = fingerprint.function_digest(build_mlp())
  assert first == second
  assert len(first) == 64


def test_digest_is_the_same_on_all_supported_platforms(convolution):
  # Computed with TensorFlow 2.14.
  assert convolution[1] == (
    "1a13b8e4c4ceecef46cebeef75e11cdbac557dd83a1057bd14c23d4caf40fd0a"
  )


@pytest.mark.slow
@pytest.mark.parametrize(
  "option",
  [
    {"strides": 2},
    {"epsilon": 1e-5},
    {"input_dtype": tf.float32},
  ],
)
def test_option_without_trace_in_the_weights_changes_the_digest(
  option, convolution
):
  one, digest = convolution
  other = build_convolution(**option)
  assert one.backbone.shapes == other.backbone.shapes
  assert fingerprint.function_digest(other) != digest


@pytest.mark.slow
def test_differently_scaled_models_have_different_digests(convolution):
  model, digest = convolution
  digests = [
    fingerprint.function_digest(split_model.with_input_scaling(model, scaling))
    for scaling in (
      input_scaling.ZERO_ONE,
      input_scaling.MINUS_ONE_ONE,
      input_scaling.InputScaling((0.5,), (0.25,)),
      input_scaling.InputScaling((0.25,), (0.5,)),
    )
  ]
  assert digests[0] == digest
  assert len(set(digests)) == 4


def build_frozen(kernel=1.0, bias=0.0, activation="relu"):
  layers = tf.keras.layers
  return split_model.build_split_model(
    "frozen",
    backbone=lambda: sequential(
      (2,),
      layers.Dense(
        2,
        activation=activation,
        kernel_initializer=tf.keras.initializers.Constant(kernel),
        bias_initializer=tf.keras.initializers.Constant(bias),
        trainable=False,
      ),
    ),
    head=lambda: keras_parts.linear_head(2, 3),
    input_dtype=tf.float32,
  )


def test_frozen_weights_are_part_of_the_function():
  digest = fingerprint.function_digest(build_frozen())
  assert fingerprint.function_digest(build_frozen()) == digest
  others = [
    fingerprint.function_digest(build_frozen(**changed))
    for changed in ({"kernel": 2.0}, {"bias": 1.0}, {"activation": "elu"})
  ]
  assert len({digest, *others}) == 4


@pytest.mark.slow
def test_recurrent_models_have_digests():
  def build(layer):
    layers = tf.keras.layers
    return split_model.build_split_model(
      "recurrent",
      backbone=lambda: sequential(
        (4,), layers.Embedding(5, 2, mask_zero=True), layer, dtype="int32"
      ),
      head=lambda: keras_parts.linear_head(3, 3),
      input_dtype=tf.int32,
    )

  lstm = tf.keras.layers.LSTM
  digest = fingerprint.function_digest(build(lstm(3)))
  assert fingerprint.function_digest(build(lstm(3))) == digest
