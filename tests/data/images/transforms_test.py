import math

import numpy as np
import pytest
from numpy.testing import assert_allclose
from numpy.testing import assert_array_equal

from tff_shift.data.images import transforms


def random_images(shape, dtype=np.uint8):
  values = np.random.default_rng(5).integers(0, 256, shape)
  return values.astype(dtype)


def rotate_by_formula(image, degrees):
  """Rotates one `[height, width]` image: bilinear, zeros outside, in loops."""
  height, width = image.shape
  padded = np.pad(image.astype(np.float64), 2)
  centre_row, centre_column = (height - 1) / 2, (width - 1) / 2
  angle = math.radians(degrees)
  cosine, sine = math.cos(angle), math.sin(angle)
  result = np.zeros((height, width))
  for row in range(height):
    for column in range(width):
      down, right = row - centre_row, column - centre_column
      # Where the pixel was before the image turned counter-clockwise.
      source_row = centre_row + right * sine + down * cosine
      source_column = centre_column + right * cosine - down * sine
      top, left = math.floor(source_row), math.floor(source_column)
      if not (-2 < top < height and -2 < left < width):
        continue
      a, b = source_row - top, source_column - left
      corners = padded[top + 2 : top + 4, left + 2 : left + 4]
      result[row, column] = np.array([1 - a, a]) @ corners @ [1 - b, b]
  return result


class TestRotate:
  @pytest.mark.parametrize("dtype", [np.uint8, np.float32])
  @pytest.mark.parametrize("quarter_turns", [-2, -1, 1, 2, 3, 5])
  def test_quarter_turns_equal_rot90(self, quarter_turns, dtype):
    images = random_images((3, 28, 28, 2), dtype)
    rotated = transforms.rotate(images, 90 * quarter_turns)
    assert rotated.dtype == dtype
    assert_array_equal(rotated, np.rot90(images, quarter_turns, axes=(1, 2)))

  @pytest.mark.parametrize("degrees", [15, 8, -23.5, 100, 170])
  @pytest.mark.parametrize("shape", [(6, 6), (7, 5)])
  def test_values_match_the_bilinear_formula(self, degrees, shape):
    images = random_images((2, *shape, 2), np.float64)
    expected = np.empty_like(images)
    for image, channel in np.ndindex(2, 2):
      expected[image, ..., channel] = rotate_by_formula(
        images[image, ..., channel], degrees
      )
    assert_allclose(transforms.rotate(images, degrees), expected, atol=1e-9)
    # Integers are the same values, rounded.
    whole = transforms.rotate(images.astype(np.uint8), degrees)
    assert whole.dtype == np.uint8
    assert_allclose(whole, expected, atol=0.5 + 1e-9)

  @pytest.mark.parametrize("degrees", [0, 0.0, 360, -720])
  def test_full_turns_are_an_exact_copy(self, degrees):
    images = random_images((2, 4, 6, 1))
    rotated = transforms.rotate(images, degrees)
    assert_array_equal(rotated, images)
    assert not np.shares_memory(rotated, images)

  @pytest.mark.parametrize(
    "shape, degrees, message",
    [
      ((3, 28, 28), 15, "images must be [N, height, width, channels], got"),
      ((1, 4, 4, 1), math.nan, "degrees must be a finite number"),
    ],
  )
  def test_bad_arguments_are_refused(self, shape, degrees, message, refusal):
    told = refusal(transforms.rotate, np.zeros(shape), degrees)
    assert told.startswith(message)
