import numpy as np
import pytest
from scipy import ndimage

from tff_shift.data import partition
from tff_shift.data.images import corruption_layers
from tff_shift.data.images import corruptions


def constant(value, channels=3, side=32, count=1):
  return np.full((count, side, side, channels), value, np.uint8)


def corrupt_one(image, name, severity, seed=0):
  """Corrupts one `[height, width, channels]` image; int64 for arithmetic."""
  result = corruptions.corrupt(image[np.newaxis], name, severity, [seed])
  return result[0].astype(np.int64)


def assert_rounded_down(corrupted, expected):
  np.testing.assert_allclose(corrupted, expected - 0.5, atol=0.51)


class TestBlur:
  @pytest.mark.parametrize("side, sigma", [(16, 1), (32, 1), (64, 2)])
  def test_gaussian_blur_sigma_grows_with_larger_images(self, side, sigma):
    image = np.random.default_rng(1).integers(0, 256, (side, side, 1))
    expected = ndimage.gaussian_filter(
      image[..., 0].astype(np.float64), sigma, mode="nearest"
    )
    blurred = corrupt_one(image.astype(np.uint8), "gaussian_blur", 5)
    assert_rounded_down(blurred[..., 0], expected)


class TestWeather:
  def test_published_frost_dims_and_adds_shares_of_one_piece_of_ice(self):
    keep_and_share = ((1, 0.2), (1, 0.3), (0.9, 0.4), (0.85, 0.4), (0.75, 0.45))
    rng = partition.generator("corruption frost", 3)
    (ice,) = corruption_layers.ice([rng], (32, 32, 3), 1.0)
    for severity, (keep, share) in enumerate(keep_and_share, 1):
      frosty = corrupt_one(constant(100)[0], "frost", severity, seed=3)
      expected = 100 * keep + 255 * share * ice
      assert_rounded_down(frosty, expected)

  def test_ice_has_the_colors_and_deviations_of_the_photographs(self):
    rngs = [np.random.default_rng(seed) for seed in range(400)]
    ice = 255 * corruption_layers.ice(rngs, (32, 32, 3), 1.0)
    # One of the five photographs is there twice.
    colors_of = np.array(
      [[78, 149, 166], [201, 205, 214], [138, 153, 165], [112, 123, 135]]
    )
    distances = np.linalg.norm(
      ice.mean(axis=(1, 2))[:, np.newaxis] - colors_of, axis=-1
    )
    which = distances.argmin(axis=1)
    for index, (share, deviation) in enumerate(
      ((0.2, 18), (0.4, 22), (0.2, 28), (0.2, 43))
    ):
      pieces = ice[which == index]
      assert len(pieces) / 400 == pytest.approx(share, abs=0.07)
      assert pieces.mean(axis=(0, 1, 2)) == pytest.approx(
        colors_of[index], abs=8
      )
      assert pieces[..., 1].std() == pytest.approx(deviation, rel=0.15)
    # Neighbours in the photographs' pieces are correlated by 0.27 to 0.51.
    inner = ice[..., 1] - ice[..., 1].mean(axis=(1, 2), keepdims=True)
    products = inner[:, :, 1:] * inner[:, :, :-1]
    assert products.mean() / inner.var() == pytest.approx(0.38, abs=0.08)


def test_saturate_on_grey_changes_the_value():
  image = constant(100, channels=1)[0]
  image[0] = 0
  saturated = corrupt_one(image, "saturate", 4)
  assert np.all(saturated[0] == int(0.1 * 255))
  assert np.all(saturated[1:] == int(2 * 100 + 0.1 * 255))
