"""Levels of severity whose error increases with every severity.

The error of CIFAR-10-C does not increase with each severity. Where it does not,
or only just, these levels differ from the published ones, and the mean squared
error, averaged over images, is monotone in the severity:

- defocus_blur: levels 4 and 5 smooth the edge of the disk by 0.5 and 0.3
  instead of 0.2 and 0.1: on images of 64 x 64 the published level 4 is below
  level 3, whose edge is smoothed by 0.6.
- frosted_glass_blur: displaced pixels differ less when they are blurred. The
  published levels 2 to 5 are sorted by their error, that is 3, 2, 5, 4, after a
  level with a blur of 0.5 and one pass; level 1 blurs by 0.05, which has as
  little effect as the 0.25 of level 2.
- motion_blur: level 4 is as level 3 but with a longer line, beyond the reach of
  the Gaussian along it; its sigma is 2.25 instead of 2.
- zoom_blur: levels 1 and 2 average one zoom less.
- snow: the threshold of flakes in level 3 is 0.52 instead of 0.55, with which
  it is hardly above level 2.
- frost: levels 4 and 5 add 0.5 and 0.6 instead of 0.4 and 0.45 of the ice: in
  the published levels the dimming of the image cancels the added ice.
- elastic: the published affine part decreases from 2.56 to 0.96 pixels and
  dominates; its five values are sorted.
- spatter: water adds up to 0.3 instead of 0.5, and mud covers values above 0.67
  and 0.65 instead of 0.69 and 0.68: dark mud changes dark images little.
- saturate: levels 3 to 5 are published as 1.5, 2 and 2.5 times the saturation
  plus 0, 0.1 and 0.2; levels 1 and 2, which remove it, would change more than
  level 3. Here the five levels go from 1.5 and 0 to 2.5 and 0.2 evenly.

Operators are simplified where this makes the error increase evenly: zooms are
exact about the middle, elastic interpolates once, water is shaded by an emboss
filter on the surface of the drops, ice consists of noise ridges only, and glass
is not rounded between its blurs.
"""

import functools
from collections.abc import Callable
from collections.abc import Sequence
from typing import Any

import numpy as np
from scipy import ndimage

from tff_shift.data.images import corruption_layers
from tff_shift.data.images import corruption_operators as operators
from tff_shift.data.images import corruption_primitives as primitives
from tff_shift.data.images.corruption_primitives import Generators
from tff_shift.data.images.corruption_primitives import Images

# Red, green and blue of ice.
_ICE = (0.82, 0.91, 1.0)
# The octaves of ice: the blur of the noise in pixels, and their fractions.
_ICE_OCTAVES = ((4.0, 0.4), (2.0, 0.35), (1.0, 0.25))


def _ridges(rngs: Generators, shape: Sequence[int], scale: float) -> np.ndarray:
  """Draws ice, see `corruption_layers.ice`, as ridges of smooth noise."""
  noise = primitives.normal(rngs, (*shape[:2], len(_ICE_OCTAVES)))
  texture: Any = np.float32(0)
  for octave, (sigma, share) in enumerate(_ICE_OCTAVES):
    smooth = primitives.blur(noise[..., octave, np.newaxis], scale * sigma)
    valleys = np.abs(smooth)
    ridges = (1 - valleys / primitives.largest(valleys)) ** 3
    texture = texture + share * ridges
  return primitives.tinted(texture, _ICE, shape[2])


def _elastic(
  images: Images,
  rngs: Generators,
  scale: float,
  amplitude: float,
  sigma: float,
  affine: float,
) -> Images:
  """Moves pixels by the sum of a random affine map and of smooth noise.

  The affine map moves three corners of a square by up to `affine` pixels along
  each axis. The noise is uniform, blurred by `sigma` and multiplied by
  `amplitude`.
  """
  height, width = images.shape[1:3]
  corners = np.stack([rng.uniform(-1, 1, (3, 2)) for rng in rngs])
  corners = corners.astype(np.float32) * scale * affine
  noise = 2 * primitives.uniform(rngs, (height, width, 2)) - 1
  # Blurred twice as widely, noise is half as strong: the scale enters twice.
  moves = scale**2 * amplitude * primitives.blur(noise, scale * sigma)
  # Positions in sides of a square about the middle. Its corners (1, 1), (1, -1)
  # and (-1, -1), down and right, determine the affine map.
  side = min(height, width) // 3
  places = np.indices((height, width), np.float32)[..., np.newaxis]
  down = (places[0] - height // 2) / side
  right = (places[1] - width // 2) / side
  weights = ((1 + right) / 2, (down - right) / 2, (1 - down) / 2)
  for corner, weight in enumerate(weights):
    moves = moves + weight * corners[:, corner, np.newaxis, np.newaxis]
  return primitives.sample(images, moves)


def _light(surface: np.ndarray, inside: np.ndarray, scale: float) -> np.ndarray:
  """Returns the light on drops, see `corruption_layers.light`."""
  del scale
  relief = ndimage.correlate(
    np.where(inside, surface, np.float32(0)),
    corruption_layers.EMBOSS[np.newaxis, :, :, np.newaxis],
    mode="nearest",
  )
  return ndimage.uniform_filter(relief.clip(0), (0, 3, 3, 0), mode="nearest")


# The corruptions that differ from the published ones: the operator, and its
# numbers per severity.
CORRUPTIONS: dict[str, tuple[Callable[..., Any], Any]] = {
  "defocus_blur": (
    operators.defocus_blur,
    ((0.3, 0.4), (0.4, 0.5), (0.5, 0.6), (1, 0.5), (1.5, 0.3)),
  ),
  "frosted_glass_blur": (
    functools.partial(operators.frosted_glass_blur, whole=False),
    ((0.5, 1, 1), (0.4, 1, 1), (0.25, 1, 1), (0.4, 1, 2), (0.25, 1, 2)),
  ),
  "motion_blur": (
    operators.motion_blur,
    ((6, 1), (6, 1.5), (6, 2), (8, 2.25), (9, 2.5)),
  ),
  "zoom_blur": (
    functools.partial(operators.zoom_blur, whole_pixels=False),
    ((6,), (11,), (16,), (21,), (26,)),
  ),
  "snow": (
    functools.partial(operators.snow, whole_pixels=False),
    (
      (0.1, 0.2, 1, 0.6, 8, 3, 0.95),
      (0.1, 0.2, 1, 0.5, 10, 4, 0.9),
      (0.15, 0.3, 1.75, 0.52, 10, 4, 0.9),
      (0.25, 0.3, 2.25, 0.6, 12, 6, 0.85),
      (0.3, 0.3, 1.25, 0.65, 14, 12, 0.8),
    ),
  ),
  "frost": (
    functools.partial(operators.frost, ice=_ridges),
    ((1, 0.2), (1, 0.3), (0.9, 0.4), (0.85, 0.5), (0.75, 0.6)),
  ),
  "elastic": (
    _elastic,
    (
      (0, 0, 0.96),
      (1.6, 6.4, 1.6),
      (2.56, 1.92, 1.92),
      (3.2, 1.28, 2.24),
      (3.2, 0.96, 2.56),
    ),
  ),
  "saturate": (
    operators.saturate,
    ((1.5, 0), (1.75, 0.05), (2, 0.1), (2.25, 0.15), (2.5, 0.2)),
  ),
  "spatter": (
    functools.partial(operators.spatter, light=_light),
    (
      (0.62, 0.1, 0.7, 0.7, 0.3, False),
      (0.65, 0.1, 0.8, 0.7, 0.3, False),
      (0.65, 0.3, 1, 0.69, 0.3, False),
      (0.65, 0.1, 0.7, 0.67, 0.6, True),
      (0.65, 0.1, 0.5, 0.65, 0.6, True),
    ),
  ),
}
