import numpy as np
import pytest
from matplotlib import colors
from scipy import ndimage

from tff_shift.data import partition
from tff_shift.data.images import corruption_layers
from tff_shift.data.images import corruptions


def constant(value, channels=3, side=32, count=1):
  return np.full((count, side, side, channels), value, np.uint8)


def corrupt_one(image, name, severity, seed=0, levels="published"):
  """Corrupts one `[height, width, channels]` image; int64 for arithmetic."""
  result = corruptions.corrupt(
    image[np.newaxis], name, severity, [seed], corruption_levels=levels
  )
  return result[0].astype(np.int64)


def monotone(image, name, severity, seed=0):
  """Does so by the monotone levels, which are rounded to nearest."""
  return corrupt_one(image, name, severity, seed, "monotone")


class TestBlur:
  @pytest.mark.parametrize("side, sigma", [(16, 1), (32, 1), (64, 2)])
  def test_gaussian_blur_sigma_grows_with_larger_images(self, side, sigma):
    image = np.random.default_rng(1).integers(0, 256, (side, side, 1))
    expected = ndimage.gaussian_filter(
      image[..., 0].astype(np.float64), sigma, mode="nearest"
    )
    blurred = monotone(image.astype(np.uint8), "gaussian_blur", 5)
    np.testing.assert_allclose(blurred[..., 0], expected, atol=0.51)

  def test_defocus_blur_radius_of_one_and_a_half_is_a_square_of_nine(
    self, photographs
  ):
    image = photographs[3]
    # The pixels within 1.5 of the middle are 3 x 3, their edge is a Gaussian of
    # 0.3: along either axis three equal weights, blurred.
    edge = np.exp(-(np.arange(-1, 2) ** 2) / (2 * 0.3**2))
    weights = np.convolve(np.full(3, 1 / 3), edge / edge.sum())
    expected = image.astype(np.float64)
    for axis in (0, 1):
      expected = ndimage.correlate1d(expected, weights, axis, mode="mirror")
    np.testing.assert_allclose(
      monotone(image, "defocus_blur", 5), expected, atol=0.51
    )

  def test_zoom_blur_is_the_mean_of_zooms(self, photographs):
    image = photographs[4].astype(np.float64)
    zooms = [image]
    for factor in 1 + np.arange(26) / 100:
      # Source row of row r: middle + (r - middle) / factor.
      zooms.append(
        ndimage.affine_transform(
          image,
          np.diag([1 / factor, 1 / factor, 1]),
          offset=[15.5 * (1 - 1 / factor)] * 2 + [0],
          order=1,
          mode="nearest",
        )
      )
    np.testing.assert_allclose(
      monotone(photographs[4], "zoom_blur", 5),
      np.mean(zooms, axis=0),
      atol=0.51,
    )

  @pytest.mark.parametrize("severity, passes", [(3, 1), (5, 2)])
  def test_frosted_glass_blur_takes_pixels_from_above_left(
    self, severity, passes
  ):
    # Each level's blur of a quarter of a pixel weighs neighbours by 0.0003.
    for axis in (0, 1):
      place = np.indices((32, 32))[axis]
      image = (4 * place)[..., np.newaxis].astype(np.uint8)
      mixed = monotone(image, "frosted_glass_blur", severity)[..., 0]
      moved = place - mixed / 4
      assert set(np.unique(moved)) == set(range(passes + 1))
      assert np.mean(moved) == pytest.approx(passes / 2, abs=0.12 * passes)


class TestWeather:
  def test_frost_on_black_is_bluish_and_grey_has_its_luma(self):
    frosty = monotone(constant(0)[0], "frost", 5, seed=9)
    red, green, blue = np.moveaxis(frosty, -1, 0)
    assert np.all(red < green)
    assert np.all(green < blue)
    assert 0.5 * 0.6 * 255 < blue.max() <= 0.6 * 255
    assert blue.std() > 10
    grey = monotone(constant(0, channels=1)[0], "frost", 5, seed=9)[..., 0]
    np.testing.assert_allclose(
      grey, 0.299 * red + 0.587 * green + 0.114 * blue, atol=1.01
    )

  def test_published_frost_dims_and_adds_shares_of_one_piece_of_ice(self):
    keep_and_share = ((1, 0.2), (1, 0.3), (0.9, 0.4), (0.85, 0.4), (0.75, 0.45))
    rng = partition.generator("corruption frost", 3)
    (ice,) = corruption_layers.ice([rng], (32, 32, 3), 1.0)
    for severity, (keep, share) in enumerate(keep_and_share, 1):
      frosty = corrupt_one(constant(100)[0], "frost", severity, seed=3)
      expected = 100 * keep + 255 * share * ice
      # Rounded down.
      np.testing.assert_allclose(frosty, expected - 0.5, atol=0.51)

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
    wet = monotone(constant(0)[0], "spatter", 1)
    np.testing.assert_array_equal(wet[..., 1], wet[..., 2])
    # At most 0.3 of the pale turquoise (175, 238, 238).
    assert wet[..., 0].max() == pytest.approx(0.3 * 175, abs=0.51)
    assert wet[..., 1].max() == pytest.approx(0.3 * 238, abs=0.51)

  def test_mud_of_spatter_covers_by_four_fifths_or_not(self):
    muddy = monotone(constant(255)[0], "spatter", 5)
    clean = np.all(muddy == 255, axis=-1)
    assert 0.2 < clean.mean() < 0.9
    mud = np.array([63, 42, 20])
    assert np.all(muddy[~clean] >= mud)
    assert np.all(muddy[~clean] <= np.rint(0.2 * 255 + 0.8 * mud))


class TestColor:
  @pytest.mark.parametrize(
    "severity, factor, added", [(1, 1.5, 0), (3, 2, 0.1), (5, 2.5, 0.2)]
  )
  def test_saturate_changes_the_saturation_of_hsv(
    self, photographs, severity, factor, added
  ):
    image = photographs[1].copy()
    image[:4] = 120  # Grey, whose hue is that of red.
    hsv = colors.rgb_to_hsv(image / 255)
    hsv[..., 1] = np.minimum(hsv[..., 1] * factor + added, 1)
    np.testing.assert_allclose(
      monotone(image, "saturate", severity),
      255 * colors.hsv_to_rgb(hsv),
      atol=0.51,
    )

  def test_saturate_on_grey_changes_the_value(self):
    image = constant(100, channels=1)[0]
    image[0] = 0
    saturated = monotone(image, "saturate", 3)
    assert np.all(saturated[0] == round(0.1 * 255))
    assert np.all(saturated[1:] == round(2 * 100 + 0.1 * 255))


class TestDigital:
  def test_elastic_severity_1_maps_a_plane_to_a_plane(self):
    down, right = np.indices((32, 32))
    image = (40 + 3 * down + 2 * right)[..., np.newaxis].astype(np.uint8)
    moved = monotone(image, "elastic", 1)[..., 0]
    # Corners of the middle square move by up to 0.96 pixels, and so does
    # everything that is not near the edge by less than four.
    inner = np.s_[4:28, 4:28]
    basis = np.stack([np.ones((32, 32)), down, right], axis=-1)[inner]
    basis = basis.reshape(-1, 3)
    values = moved[inner].reshape(-1)
    plane, *_ = np.linalg.lstsq(basis, values, rcond=None)
    np.testing.assert_allclose(basis @ plane, values, atol=0.7)
    assert np.any(np.abs(plane - [40, 3, 2]) > 0.05)
