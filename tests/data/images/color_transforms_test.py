import colorsys

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from tff_shift.data.images import color_transforms
from tff_shift.data.images.color_transforms import ColorTransform


def apply_to_color(color, **transform):
  """Returns what becomes of one pixel, as a tuple."""
  images = np.array(color, np.uint8).reshape(1, 1, 1, 3)
  result = color_transforms.apply(images, ColorTransform(**transform))
  assert result.dtype == np.uint8
  assert result.shape == images.shape
  return tuple(result.flat)


def random_images(num_images=3, num_channels=3):
  shape = (num_images, 5, 4, num_channels)
  return np.random.default_rng(1).integers(0, 256, shape, dtype=np.uint8)


class TestPool:
  @pytest.mark.parametrize(
    "intensity, gammas, hues, saturations",
    [
      ("low", (0.9, 1.1), (-0.01, 0.01), (0.9, 1.1)),
      ("mid", (0.75, 1.25), (-0.05, 0.05), (0.7, 1.3)),
      ("high", (0.6, 1.4), (-0.1, 0.1), (0.5, 1.5)),
    ],
  )
  def test_eight_clients_have_the_bits_of_their_number(
    self, intensity, gammas, hues, saturations
  ):
    pool = color_transforms.pool(8, intensity)
    for client, transform in enumerate(pool):
      assert transform == ColorTransform(
        gammas[client & 1], hues[client >> 1 & 1], saturations[client >> 2]
      )
    assert color_transforms.pool(5, intensity) == pool[:5]

  def test_more_clients_have_the_first_of_54(self):
    pool = color_transforms.pool(54)
    assert len(set(pool)) == 54
    for client, transform in enumerate(pool):
      assert transform == (
        (0.6, 1.0, 1.4)[client % 3],
        (-0.15, 0.0, 0.15)[client // 3 % 3],
        (0.4, 1.0, 1.6)[client // 9 % 3],
        (8, 2)[client // 27],
      )
    assert color_transforms.pool(9) == pool[:9]

  @pytest.mark.parametrize("num_clients", [1, 60])
  def test_none_moves_nothing_for_any_number(self, num_clients):
    found = color_transforms.pool(num_clients, "none")
    assert found == (color_transforms.ColorTransform(),) * num_clients


class TestApply:
  def test_posterisation_keeps_the_highest_bits(self):
    color = (63, 64, 255)
    assert apply_to_color(color, posterize_bits=2) == (0, 64, 192)
    assert apply_to_color(color, posterize_bits=1) == (0, 0, 128)
    assert apply_to_color(color, posterize_bits=8) == color

  def test_steps_are_taken_in_their_order(self):
    # Saturation: (200, 150, 125); hue: (125, 200, 150); gamma 2: 255 times
    # (0.2403, 0.6151, 0.3460) = (61.3, 156.9, 88.2); two bits of these.
    color, order = (200, 100, 50), {"saturation": 0.5, "hue": 1 / 3}
    assert apply_to_color(color, **order) == (125, 200, 150)
    assert apply_to_color(color, gamma=2.0, **order) == (61, 157, 88)
    assert apply_to_color(color, gamma=2.0, posterize_bits=2, **order) == (
      0,
      128,
      64,
    )
    # Gamma first would give (157, 39, 10), and then paler colours.
    assert apply_to_color(color, gamma=2.0) == (157, 39, 10)
    assert apply_to_color((157, 39, 10), **order) == (84, 157, 98)

  # The second is cut off at a saturation of 1.
  @pytest.mark.parametrize(
    "transform",
    [
      *color_transforms.pool(8),
      ColorTransform(saturation=9.0),
      ColorTransform(hue=1 / 3),
    ],
  )
  def test_transforms_match_another_library(self, transform):
    images = random_images()
    gamma, hue, saturation, _ = transform
    expected = []
    for color in images.reshape(-1, 3) / 255:
      h, s, v = colorsys.rgb_to_hsv(*color)
      color = colorsys.hsv_to_rgb((h + hue) % 1, min(1, s * saturation), v)
      expected.append(255 * np.array(color) ** gamma)
    np.testing.assert_allclose(
      color_transforms.apply(images, transform).reshape(-1, 3),
      expected,
      atol=0.5 + 1e-2,
    )

  def test_default_returns_a_copy_bit_for_bit(self):
    images = random_images()
    result = color_transforms.apply(images, ColorTransform())
    assert_array_equal(result, images)
    result[:] = 0
    assert images.any()

  def test_many_images_are_those_of_one_at_a_time(self):
    # More than two chunks, the last of which is not full.
    images = np.tile(random_images(), (700, 1, 1, 1))
    transform = color_transforms.pool(8)[6]
    result = color_transforms.apply(images, transform)
    three = [
      color_transforms.apply(images[i : i + 1], transform) for i in range(3)
    ]
    assert_array_equal(result, np.tile(np.concatenate(three), (700, 1, 1, 1)))


def test_tint_grey_becomes_a_shade_of_orange():
  images = np.uint8([0, 100, 255]).reshape(3, 1, 1, 1)
  result = color_transforms.tint(images)
  assert result.dtype == np.uint8
  assert_array_equal(
    result.reshape(3, 3), [[0, 0, 0], [100, 75, 50], [255, 191, 128]]
  )


@pytest.mark.parametrize(
  "function, arguments, message",
  [
    ("pool", (0,), "num_clients must be 1 to 54, "),
    ("pool", (55,), "num_clients must be 1 to 54, "),
    ("pool", (0, "none"), "num_clients must be "),
    ("pool", (9, "low"), "intensity must be high when num_clients is above 8"),
    ("pool", (8, "max"), "intensity must be one of "),
    *(
      ("apply", (images, ColorTransform()), "images must be uint8 [N, ")
      for images in (
        random_images()[0],
        random_images(3, 1),
        random_images() / 255,
      )
    ),
    *(
      ("apply", (random_images(), ColorTransform(**transform)), message)
      for transform, message in (
        ({"gamma": 0.0}, "gamma > 0"),
        ({"gamma": float("nan")}, "gamma > 0"),
        ({"hue": 1.5}, "hue in"),
        ({"saturation": -0.1}, "saturation >= 0"),
        ({"posterize_bits": 0}, "posterize_bits must be 1 to 8, got 0"),
        ({"posterize_bits": 9}, "posterize_bits must be 1 to 8, got 9"),
      )
    ),
    ("tint", (random_images(),), "images must be uint8 [N, "),
  ],
)
def test_bad_arguments_are_refused(function, arguments, message, refusal):
  assert message in refusal(getattr(color_transforms, function), *arguments)
