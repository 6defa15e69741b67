import numpy as np
import pytest
from matplotlib import colors
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

  def test_defocus_blur_radius_of_one_and_a_half_is_a_square_of_nine(
    self, photographs
  ):
    image = photographs[3]
    # The pixels within 1.5 of the middle are 3 x 3, and the Gaussian of 0.1 on
    # their edge has no width.
    expected = image.astype(np.float64)
    for axis in (0, 1):
      expected = ndimage.uniform_filter1d(expected, 3, axis, mode="mirror")
    assert_rounded_down(corrupt_one(image, "defocus_blur", 5), expected)

  @pytest.mark.parametrize("severity, passes", [(2, 1), (4, 2)])
  def test_frosted_glass_blur_takes_pixels_from_above_left(
    self, severity, passes
  ):
    # Each level's blur of a quarter of a pixel weighs neighbours by 0.0003.
    for axis in (0, 1):
      place = np.indices((32, 32))[axis]
      image = (4 * place)[..., np.newaxis].astype(np.uint8)
      mixed = corrupt_one(image, "frosted_glass_blur", severity)[..., 0]
      moved = place - np.rint(mixed / 4)
      assert set(np.unique(moved)) == set(range(passes + 1))
      assert np.mean(moved) == pytest.approx(passes / 2, abs=0.12 * passes)


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

  def test_water_of_spatter_has_its_color_on_black(self):
    wet = corrupt_one(constant(0)[0], "spatter", 1)
    np.testing.assert_array_equal(wet[..., 1], wet[..., 2])
    # At most half of the pale turquoise (175, 238, 238).
    assert wet[..., 0].max() == 87
    assert wet[..., 1].max() == 119

  def test_mud_of_spatter_covers_by_four_fifths_or_not(self):
    muddy = corrupt_one(constant(255)[0], "spatter", 5)
    clean = np.all(muddy == 255, axis=-1)
    assert 0.2 < clean.mean() < 0.95
    mud = np.array([63, 42, 20])
    assert np.all(muddy[~clean] >= mud)
    assert np.all(muddy[~clean] <= np.rint(0.2 * 255 + 0.8 * mud))


class TestColor:
  @pytest.mark.parametrize(
    "severity, factor, added", [(3, 1.5, 0), (4, 2, 0.1), (5, 2.5, 0.2)]
  )
  def test_saturate_changes_the_saturation_of_hsv(
    self, photographs, severity, factor, added
  ):
    image = photographs[1].copy()
    image[:4] = 120  # Grey, whose hue is that of red.
    hsv = colors.rgb_to_hsv(image / 255)
    hsv[..., 1] = np.minimum(hsv[..., 1] * factor + added, 1)
    assert_rounded_down(
      corrupt_one(image, "saturate", severity), 255 * colors.hsv_to_rgb(hsv)
    )

  def test_saturate_on_grey_changes_the_value(self):
    image = constant(100, channels=1)[0]
    image[0] = 0
    saturated = corrupt_one(image, "saturate", 4)
    assert np.all(saturated[0] == int(0.1 * 255))
    assert np.all(saturated[1:] == int(2 * 100 + 0.1 * 255))


class TestDigital:
  def test_elastic_severity_1_maps_a_plane_to_a_plane(self):
    down, right = np.indices((32, 32))
    image = (40 + 3 * down + 2 * right)[..., np.newaxis].astype(np.uint8)
    moved = corrupt_one(image, "elastic", 1)[..., 0]
    # Corners of the middle square move by up to 2.56 pixels, and everything
    # that is not near the edge by less than eight.
    inner = np.s_[8:24, 8:24]
    basis = np.stack([np.ones((32, 32)), down, right], axis=-1)[inner]
    basis = basis.reshape(-1, 3)
    values = moved[inner].reshape(-1)
    plane, *_ = np.linalg.lstsq(basis, values, rcond=None)
    np.testing.assert_allclose(basis @ plane, values, atol=0.7)
    assert np.any(np.abs(plane - [40, 3, 2]) > 0.05)
