"""Tests of the digits: all of them, and their pixels, which are upsampled."""

import numpy as np
import scipy.ndimage
from numpy.testing import assert_array_equal
from sklearn import datasets as sklearn_datasets

from tff_shift.data import datasets


def test_digits_are_all_there_in_order():
  source = datasets.load("digits")
  assert (source.x.min(), source.x.max()) == (0, 255)
  assert_array_equal(source.y, sklearn_datasets.load_digits().target)
  assert source.schema.classes == tuple("0123456789")
  assert source.num_train is None


def test_pixels_match_another_library():
  images = sklearn_datasets.load_digits().images * 255 / 16
  expected = scipy.ndimage.zoom(
    images, (1, 2.5, 2.5), order=1, mode="nearest", grid_mode=True
  )
  whole = datasets.load("digits").x[..., 0]
  actual = whole[:, 4:24, 4:24]
  assert whole.sum(dtype=int) == actual.sum(dtype=int)
  np.testing.assert_allclose(actual, expected, atol=0.5 + 1e-3)
