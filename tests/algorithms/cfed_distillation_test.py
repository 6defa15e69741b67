"""CFeD: the public inputs of the distillation."""

import dataclasses

import numpy as np
import pytest
import tensorflow as tf
from numpy.testing import assert_allclose
from numpy.testing import assert_array_equal
from sklearn import datasets

from tests.fixtures import refusals
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


def test_uniform_numbers_fill_the_range_of_each_feature():
  model = mlp.build((2,))
  x, again = (
    make_public_inputs(model, "uniform", 500, bound=3.0) for _ in range(2)
  )
  assert x.shape == (500, 2) and x.dtype == np.float32
  assert 2.9 < x.max() <= 3.0 and -3.0 <= x.min() < -2.9
  assert_array_equal(x, again)
  scaling = input_scaling.InputScaling((5.0, -100.0), (1.0, 50.0))
  scaled = split_model.with_input_scaling(model, scaling)
  found = make_public_inputs(scaled, "uniform", 500, bound=3.0)
  assert_allclose(found, x * [1, 50] + [5, -100], rtol=1e-5)


def test_uniform_images_have_all_values():
  model = mlp.build((4, 4, 3), input_dtype=tf.uint8)
  x = make_public_inputs(model, "uniform", 50)
  assert x.shape == (50, 4, 4, 3) and x.dtype == np.uint8
  assert set(np.unique(x)) == set(range(256))


def test_titles_have_all_lengths_and_all_words():
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


def test_digits_are_those_of_scikit_learn_in_the_size_of_the_model():
  x, larger, smaller = (
    make_public_inputs(mlp.build(size, input_dtype=tf.uint8), "digits", 5)
    for size in [(8, 8, 1), (16, 8, 3), (4, 8, 1)]
  )
  images = datasets.load_digits().images * (255 / 16)
  for image in x:
    distances = np.abs(images - image[..., 0])
    assert distances.max(axis=(1, 2)).min() <= 0.5
  assert len(np.unique(x, axis=0)) == 5
  assert_array_equal(larger, np.repeat(np.repeat(x, 2, axis=1), 3, axis=3))
  assert_array_equal(smaller, x[:, ::2])


@pytest.mark.parametrize(
  "name, number, dtype, message",
  [
    ("digits", 5, tf.float32, "^public_data=digits.*must be"),
    ("uniform", 5, tf.int32, "^public_data=uniform.*must be"),
    # Two float32 each, more than a graph holds.
    ("uniform", 2**28, tf.float32, "^public_examples=268435456: 2 GiB of"),
  ],
)
def test_inputs_that_there_are_not_are_refused(name, number, dtype, message):
  model = dataclasses.replace(mlp.build((2,)), input_dtype=dtype)
  with refusals.refused(message):
    make_public_inputs(model, name, number)
