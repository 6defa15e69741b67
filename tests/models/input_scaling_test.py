"""Tests of what is done to pixels: numbers by hand, alone and in models."""

import hypothesis
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import strategies as st
from hypothesis.extra import numpy as hypothesis_numpy

from tests.fixtures import tables
from tests.fixtures.arrays import assert_close
from tests.fixtures.arrays import assert_equal
from tests.fixtures.arrays import normal
from tests.fixtures.keras_models import sequential
from tests.fixtures.refusals import refused
from tff_shift.models import guided_model
from tff_shift.models import input_scaling
from tff_shift.models import split_model
from tff_shift.models.networks import bi_lstm
from tff_shift.models.networks import mlp

layers = tf.keras.layers

# Two images of one pixel with two channels. Of the first channel, 0 and 102,
# the mean is 51 and so is the deviation; of the second 204 and 0.
IMAGES = np.array([[0, 204], [102, 204]], np.uint8).reshape(2, 1, 1, 2)
PIXELS = np.array([[0, 204], [51, 255]], np.uint8).reshape(2, 1, 1, 2)
# What becomes of PIXELS.
EXPECTED = {
  "zero_one": [[0, 0.8], [0.2, 1]],
  "minus_one_one": [[-1, 0.6], [-0.6, 1]],
  # The second channel is only moved: 204 / 255 to 0.
  "standardized": [[-1, 0], [0, 0.2]],
}


def build_linear(input_dtype):
  """A model whose embedding is what its backbone is given."""
  size = 2
  return split_model.build_split_model(
    "linear",
    backbone=lambda: sequential(
      (1, 1, size),
      layers.Flatten(),
      layers.Dense(size, use_bias=False, kernel_initializer="identity"),
    ),
    head=lambda: sequential((size,), layers.Dense(3)),
    input_dtype=input_dtype,
  )


class TestScalings:
  @pytest.mark.parametrize("name", input_scaling.NAMES)
  def test_pixels_by_hand(self, run_in_graph, name):
    scaled = run_in_graph(input_scaling.make(name, [IMAGES]), PIXELS)
    assert scaled.dtype == np.float32
    assert_close(scaled.reshape(2, 2), EXPECTED[name], 0, 1e-7)

  def test_ends_of_minus_one_one_are_exact(self, run_in_graph):
    ends = np.array([[0], [255]], np.uint8)
    scaled = run_in_graph(input_scaling.MINUS_ONE_ONE, ends)
    assert_equal(scaled, [[-1], [1]])

  def test_zero_one_divides_and_does_nothing_else(self, run_in_graph):
    pixels = np.arange(256, dtype=np.uint8)[:, np.newaxis]
    scaled, divided = run_in_graph(
      lambda x: (input_scaling.ZERO_ONE(x), tf.cast(x, tf.float32) / 255.0),
      pixels,
    )
    assert_equal(scaled, divided)

  def test_unknown_name_is_refused_with_those_that_there_are(self):
    with refused(
      "^input_scaling must be one of zero_one, minus_one_one, standardized, got"
      " 'zero'$"
    ):
      input_scaling.make("zero", [IMAGES])

  @pytest.mark.parametrize(
    "mean, deviation, message",
    tables.cases("""
(), ()
    at least 1
(0.0, 0.0), (1.0,)
    the same length
(0.0,), (0.0,)
    above 0
(1e999,), (1.0,)
    finite
(0.0,), (1e999,)
    finite
"""),
  )
  def test_wrong_numbers_are_refused(self, mean, deviation, message):
    with refused(message):
      input_scaling.InputScaling(mean, deviation)


class TestStandardized:
  def test_numbers_by_hand(self):
    scaling = input_scaling.standardized([IMAGES])
    assert scaling.mean == (0.2, 0.8)
    assert scaling.deviation == (0.2, 1.0)

  def test_numbers_of_random_images_are_those_of_numpy(self):
    images = np.random.default_rng(0).integers(0, 256, (50, 9, 7, 3), np.uint8)
    images[..., 1] //= 16
    scaling = input_scaling.standardized([images])
    pixels = images.reshape(-1, 3) / 255
    assert_close(scaling.mean, pixels.mean(axis=0), 1e-12)
    assert_close(scaling.deviation, pixels.std(axis=0), 1e-9)

  def test_order_and_parts_do_not_matter(self):
    generator = np.random.default_rng(1)
    images = generator.integers(0, 256, (40, 5, 5, 2), np.uint8)
    whole = input_scaling.standardized([images])
    mixed = generator.permutation(images)
    assert input_scaling.standardized([mixed[:7], mixed[7:]]) == whole

  def test_no_image_is_refused(self):
    for parts in ([], [IMAGES[:0]]):
      with refused("no image"):
        input_scaling.standardized(parts)


class TestFeatures:
  # Of the first, mean 2 and variance (4 + 0 + 4) / 3; the second is constant.
  X = np.float32([[0, 10], [2, 10], [4, 10]])

  def test_numbers_by_hand(self):
    scaling = input_scaling.standardized([self.X[:1], self.X[1:], self.X[:0]])
    assert scaling.mean == (2.0, 10.0)
    assert_close(scaling.deviation, [(8 / 3) ** 0.5, 1.0])
    assert_close(
      scaling.of_array(np.float32([[2, 10], [4, 11]])),
      [[0, 0], [1.5**0.5, 1]],
      1e-6,
    )

  @hypothesis.given(
    hypothesis_numpy.arrays(
      np.float32,
      st.tuples(st.integers(2, 30), st.integers(1, 4)),
      elements=st.floats(-(2.0**99), 2.0**99, width=32),
    )
  )
  def test_every_feature_has_mean_0_and_deviation_1_or_is_moved(self, x):
    x[:, 0] = x[0, 0]
    scaled = input_scaling.standardized([x]).of_array(x)
    assert scaled.dtype == np.float32 and np.isfinite(scaled).all()
    assert not scaled[:, 0].any()
    wide = x.astype(np.float64)
    spread = wide.std(axis=0)
    # Where float32 does not round the spread away.
    told = spread > 1e-3 * np.abs(wide).max(axis=0) + 1e-30
    assert_close(
      scaled[:, told],
      ((wide - wide.mean(axis=0)) / np.where(spread, spread, 1))[:, told],
      atol=2e-3,
    )

  def test_scaling_can_be_undone(self):
    x = np.float32([[1, 200], [3, 600]])
    scaling = input_scaling.standardized([x])
    assert (scaling.mean, scaling.deviation) == ((2, 400), (1, 200))
    assert_equal(scaling.undone(scaling.of_array(x)), x)

  def test_advice_names_the_size_of_features_that_are_not_scaled(self):
    told = input_scaling.advice(
      tf.float32, input_scaling.ZERO_ONE, [self.X, np.float32([[-7e4, 0]])]
    )
    assert "7e+04" in told and "--input_scaling=standardized" in told
    assert not input_scaling.advice(
      tf.float32, input_scaling.ZERO_ONE, [self.X]
    )
    assert "--input_scaling" in input_scaling.advice(
      tf.float32, input_scaling.ZERO_ONE
    )
    scaling = input_scaling.standardized([self.X])
    assert not input_scaling.advice(tf.float32, scaling, [self.X])
    assert not input_scaling.advice(tf.uint8, input_scaling.ZERO_ONE, [IMAGES])


class TestModels:
  @pytest.mark.parametrize("dtype", [np.uint8, np.float32])
  def test_model_is_given_scaled_examples(self, run_in_graph, dtype):
    model = build_linear(tf.as_dtype(dtype))
    scaled = split_model.with_input_scaling(
      model, input_scaling.standardized([IMAGES.astype(dtype)])
    )
    plain, embedding = run_in_graph(
      lambda x: [
        version.embed(model.initial_backbone([0, 0]), x)
        for version in (model, scaled)
      ],
      PIXELS.astype(dtype),
    )
    unit = 1 if dtype == np.uint8 else 255
    # The second channel is only moved.
    expected = EXPECTED["standardized"] * np.array([1, unit])
    assert_close(embedding, expected, 0, 1e-6)
    if dtype == np.float32:
      # Features stay as they are.
      assert_equal(plain, PIXELS.reshape(2, 2))

  def test_scaling_stays_with_a_model_that_is_changed(self):
    model = split_model.with_input_scaling(
      mlp.build((4, 4, 1), 3, width=8, head_width=4, input_dtype=tf.uint8),
      input_scaling.MINUS_ONE_ONE,
    )
    guided = guided_model.with_guide(model, num_clients=2, width=3)
    for changed in (guided, split_model.with_head(guided, "last_layer")):
      assert changed.input_scaling == input_scaling.MINUS_ONE_ONE

  def test_rounding_is_not_a_deviation(self):
    # A stuck sensor in kelvin: neighbours in float32 are 3e-5 apart.
    stuck = np.float32(293.15)
    near = np.nextafter(stuck, np.float32(400))
    x = np.stack([[stuck, near] * 50, np.arange(100)], axis=1)
    scaling = input_scaling.standardized([np.float32(x)])
    assert scaling.deviation[0] == 1
    assert scaling.deviation[1] == pytest.approx(np.arange(100).std())
    later = scaling.of_array(np.float32([[294, 0]]))
    assert later[0, 0] == pytest.approx(294 - 293.15, abs=1e-4)
    # A deviation of more than a step is real.
    x[::2, 0] -= np.float32(0.001)
    scaling = input_scaling.standardized([np.float32(x)])
    assert scaling.deviation[0] == pytest.approx(0.0005, rel=0.1)

  def test_extreme_features_are_named(self):
    x = normal(0, 200, 5)
    scaling = input_scaling.standardized([x])
    names = ("age", "kelvin", "dose", "pulse", "weight")
    assert input_scaling.extremes(scaling, [x], names) == ""
    later = x[:3].copy()
    later[1, 1] = -5e3
    listed = input_scaling.extremes(scaling, [x, later], names)
    assert listed.startswith("kelvin (") and "," not in listed
    assert input_scaling.extremes(scaling, [later]).startswith("feature 1 (")
    later *= 1e6
    assert "and 2 more" in input_scaling.extremes(scaling, [later], names)
    assert input_scaling.extremes(input_scaling.ZERO_ONE, [later]) == ""

  def test_words_are_not_scaled(self):
    model = bi_lstm.build((4,), 2, vocabulary_size=9, width=2)
    with refused("int32, which is not scaled"):
      split_model.with_input_scaling(model, input_scaling.ZERO_ONE)

  def test_other_examples_than_the_model_takes_are_refused(self):
    three = input_scaling.InputScaling((0.5,) * 3, (0.5,) * 3)
    for kind, dtype in ("channels", tf.uint8), ("features", tf.float32):
      with refused(rf"2 {kind}, .* of 3"):
        split_model.with_input_scaling(build_linear(dtype), three)
