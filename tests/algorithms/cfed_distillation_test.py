"""CFeD: the public inputs of the distillation."""

import dataclasses

import numpy as np
import pytest
import tensorflow as tf
from numpy.testing import assert_allclose
from numpy.testing import assert_array_equal
from sklearn import datasets

from tff_shift.algorithms import cfed
from tff_shift.models import input_scaling
from tff_shift.models import split_model
from tff_shift.models.networks import bi_lstm
from tff_shift.models.networks import mlp

pytestmark = pytest.mark.slow


def make_public_inputs(model, public_data, number, bound=1.0):
  return cfed.make_public_inputs(
    model,
    cfed.HParams(
      public_data=public_data, public_examples=number, public_bound=bound
    ),
  )


class TestPublicInputs:
  def test_uniform_numbers_fill_the_range(self):
    x = make_public_inputs(mlp.build((2,)), "uniform", 500, bound=3.0)
    assert x.shape == (500, 2) and x.dtype == np.float32
    assert 2.9 < x.max() <= 3.0 and -3.0 <= x.min() < -2.9
    assert_array_equal(
      x, make_public_inputs(mlp.build((2,)), "uniform", 500, bound=3.0)
    )

  def test_uniform_numbers_fill_the_range_of_each_scaled_feature(self):
    scaling = input_scaling.InputScaling((5.0, -100.0), (1.0, 50.0))
    model = split_model.with_input_scaling(mlp.build((2,)), scaling)
    x = make_public_inputs(model, "uniform", 500, bound=3.0)
    plain = make_public_inputs(mlp.build((2,)), "uniform", 500, bound=3.0)
    assert_allclose(x, plain * [1, 50] + [5, -100], rtol=1e-5)

  def test_uniform_images_have_all_values(self):
    model = mlp.build((4, 4, 3), input_dtype=tf.uint8)
    x = make_public_inputs(model, "uniform", 50)
    assert x.shape == (50, 4, 4, 3) and x.dtype == np.uint8
    assert set(np.unique(x)) == set(range(256))

  def test_titles_have_all_lengths_and_all_words(self):
    model = bi_lstm.build(input_shape=(4,), vocabulary_size=9, width=1)
    x = make_public_inputs(model, "uniform", 400)
    assert x.shape == (400, 4) and x.dtype == np.int32
    # Padding is where a title has ended, and nowhere else.
    lengths = np.sum(x > 0, axis=1)
    assert_array_equal(x > 0, np.arange(4) < lengths[:, np.newaxis])
    # Five standard errors: 5 * sqrt(400 * 3 / 16), and 5 * sqrt(1000 / 8).
    assert_allclose(np.bincount(lengths), [0] + [100] * 4, atol=44)
    counts = np.bincount(x[x > 0], minlength=9)
    assert counts[0] == 0
    assert_allclose(counts[1:], lengths.sum() / 8, atol=56)

  def test_digits_are_those_of_scikit_learn(self):
    model = mlp.build((8, 8, 1), input_dtype=tf.uint8)
    x = make_public_inputs(model, "digits", 5)
    distances = [
      np.abs(datasets.load_digits().images * (255 / 16) - image[..., 0])
      for image in x
    ]
    assert all(each.max(axis=(1, 2)).min() <= 0.5 for each in distances)
    assert len(np.unique(x, axis=0)) == 5

  def test_digits_have_the_size_of_the_model(self):
    sizes = [(8, 8, 1), (16, 8, 3), (4, 8, 1)]
    plain, larger, smaller = (
      make_public_inputs(mlp.build(size, input_dtype=tf.uint8), "digits", 5)
      for size in sizes
    )
    assert_array_equal(
      larger, np.repeat(np.repeat(plain, 2, axis=1), 3, axis=3)
    )
    assert_array_equal(smaller, plain[:, ::2])

  @pytest.mark.parametrize(
    "name, dtype", [("digits", tf.float32), ("uniform", tf.int32)]
  )
  def test_model_of_other_inputs_is_refused(self, name, dtype):
    model = dataclasses.replace(mlp.build((2,)), input_dtype=dtype)
    with pytest.raises(ValueError, match=f"^public_data={name}.*must be"):
      make_public_inputs(model, name, 5)


def test_inputs_that_no_graph_holds_are_refused():
  # Two float32 each.
  with pytest.raises(ValueError, match=r"^public_examples=268435456: 2 GiB of"):
    make_public_inputs(mlp.build((2,)), "uniform", 2**28)
