"""The 19 corruptions of CIFAR-10-C at 5 severities, on any image set.

D. Hendrycks and T. Dietterich, "Benchmarking Neural Network Robustness to
Common Corruptions and Perturbations" (ICLR 2019). Names are those of
`cifar10_corrupted` in tensorflow-datasets. Levels are those with which the
authors made CIFAR-10-C from images of 32 x 32. Lengths in pixels grow in
proportion to the shorter side of larger images; they do not shrink on smaller
images, where a fraction of a pixel would have no effect. `pixelate` shrinks to
a fraction of the size, and the blurs of `frosted_glass_blur` soften single
pixels: these do not depend on the size.

Every example has its own seed: its corruption does not depend on the batch, and
all severities use the same draws.

Levels and operations are the published ones, although the error does not
increase with each severity. To process batches at once, and without the
dependencies of the authors' code, some operations differ in detail:

- frost: noise with their colours, standard deviations and correlations replaces
  the authors' photographs, see `corruption_layers.ice`.
- motion_blur, snow: the blur is reimplemented from ImageMagick's definition.
- spatter: the shading of water is reimplemented from OpenCV's functions.
- frosted_glass_blur: pixels are copied and not swapped. So are those of
  CIFAR-10-C: the authors' swap assigns views of the array that it overwrites.
- impulse_noise, spatter: every image has at least one white value or drop.
- snow: flakes are not rounded to 8 bits before and after they are smeared.
- elastic: positions are not rounded to a 32nd of a pixel.
- All: computed in float32, so that a value close to a whole number may be
  rounded to the other side.

On grey images colours become their luma, and `saturate` changes the value
instead of the saturation, which grey does not have. An image without the
property that a corruption changes is not changed: black in `shot_noise`,
`speckle_noise` and `fog`, one constant value under blurs and `contrast`.

Choices:
  * Compared with the authors' script (github.com/hendrycks/robustness,
    `make_cifar_c.py`) as reimplemented in
    `tests/data/published_corruptions_test.py`: ratio, ours over the
    reference's, of the mean absolute change of 100 test images of CIFAR-10,
    with the same draws, at the worst severity (in brackets): defocus_blur 0.990
    (4), zoom_blur 0.994 (5), snow 1.001, frost 1.023 (5), gaussian_blur 0.998
    (1), spatter 1.001 (3), the other thirteen 1.000.
  * Frost is compared with the authors' photographs, which are not part of this
    repository, on 40 draws per image (standard error at most 0.008).
    ImageMagick and OpenCV were not run: for motion blur, the blur of snow,
    water and the affine part of elastic, the reference computes the definitions
    of their functions.
  * An image takes 0.4 ms on average over the corruptions at 32 x 32, 1.3 ms at
    64 x 64.
"""

from collections.abc import Callable

import numpy as np

from tff_shift._util import arguments
from tff_shift.data import partition
from tff_shift.data.images import corruption_operators as operators
from tff_shift.data.images import corruption_primitives as primitives

MAX_SEVERITY = 5
_SMALLEST_SIDE = 8
# The side of the images for which the levels are published.
_PUBLISHED_SIDE = 32

_Operator = Callable[..., operators.Images]
_Level = tuple[float, ...]

# For each corruption its operator and the operator's numbers per severity.
_CORRUPTIONS: dict[str, tuple[_Operator, tuple[_Level, ...]]] = {
  "gaussian_noise": (
    operators.gaussian_noise,
    ((0.04,), (0.06,), (0.08,), (0.09,), (0.10,)),
  ),
  "shot_noise": (
    operators.shot_noise,
    ((500,), (250,), (100,), (75,), (50,)),
  ),
  "impulse_noise": (
    operators.impulse_noise,
    ((0.01,), (0.02,), (0.03,), (0.05,), (0.07,)),
  ),
  "defocus_blur": (
    operators.defocus_blur,
    ((0.3, 0.4), (0.4, 0.5), (0.5, 0.6), (1, 0.2), (1.5, 0.1)),
  ),
  "frosted_glass_blur": (
    operators.frosted_glass_blur,
    ((0.05, 1, 1), (0.25, 1, 1), (0.4, 1, 1), (0.25, 1, 2), (0.4, 1, 2)),
  ),
  "motion_blur": (
    operators.motion_blur,
    ((6, 1), (6, 1.5), (6, 2), (8, 2), (9, 2.5)),
  ),
  "zoom_blur": (
    operators.zoom_blur,
    ((7,), (12,), (16,), (21,), (26,)),
  ),
  "snow": (
    operators.snow,
    (
      (0.1, 0.2, 1, 0.6, 8, 3, 0.95),
      (0.1, 0.2, 1, 0.5, 10, 4, 0.9),
      (0.15, 0.3, 1.75, 0.55, 10, 4, 0.9),
      (0.25, 0.3, 2.25, 0.6, 12, 6, 0.85),
      (0.3, 0.3, 1.25, 0.65, 14, 12, 0.8),
    ),
  ),
  "frost": (
    operators.frost,
    ((1, 0.2), (1, 0.3), (0.9, 0.4), (0.85, 0.4), (0.75, 0.45)),
  ),
  "fog": (
    operators.fog,
    ((0.2, 3), (0.5, 3), (0.75, 2.5), (1, 2), (1.5, 1.75)),
  ),
  "brightness": (
    operators.brightness,
    ((0.05,), (0.1,), (0.15,), (0.2,), (0.3,)),
  ),
  "contrast": (
    operators.contrast,
    ((0.75,), (0.5,), (0.4,), (0.3,), (0.15,)),
  ),
  "elastic": (
    operators.elastic,
    (
      (0, 0, 2.56),
      (1.6, 6.4, 2.24),
      (2.56, 1.92, 1.92),
      (3.2, 1.28, 1.6),
      (3.2, 0.96, 0.96),
    ),
  ),
  "pixelate": (
    operators.pixelate,
    ((0.95,), (0.9,), (0.85,), (0.75,), (0.65,)),
  ),
  "jpeg_compression": (
    operators.jpeg_compression,
    ((80,), (65,), (58,), (50,), (40,)),
  ),
  "gaussian_blur": (
    operators.gaussian_blur,
    ((0.4,), (0.6,), (0.7,), (0.8,), (1,)),
  ),
  "saturate": (
    operators.saturate,
    ((0.3, 0), (0.1, 0), (1.5, 0), (2, 0.1), (2.5, 0.2)),
  ),
  "spatter": (
    operators.spatter,
    (
      (0.62, 0.1, 0.7, 0.7, 0.5, False),
      (0.65, 0.1, 0.8, 0.7, 0.5, False),
      (0.65, 0.3, 1, 0.69, 0.5, False),
      (0.65, 0.1, 0.7, 0.69, 0.6, True),
      (0.65, 0.1, 0.5, 0.68, 0.6, True),
    ),
  ),
  "speckle_noise": (
    operators.speckle_noise,
    ((0.06,), (0.1,), (0.12,), (0.16,), (0.2,)),
  ),
}


def names() -> tuple[str, ...]:
  """Returns the names: the 15 of the benchmark, then its 4 extra ones."""
  return tuple(_CORRUPTIONS)


def check_images(images: np.ndarray) -> None:
  """Raises ValueError for arrays that are not images, or too small ones.

  Args:
    images: The images to corrupt, see `corrupt`.

  Raises:
    ValueError: If they cannot be corrupted.
  """
  if images.dtype != np.uint8:
    raise ValueError(f"images must be uint8, got {images.dtype}")
  if (
    images.ndim != 4
    or images.shape[3] not in (1, 3)
    or min(images.shape[1:3]) < _SMALLEST_SIDE
  ):
    raise ValueError(
      "images must be [N, height, width, 1 or 3] with sides of at least"
      f" {_SMALLEST_SIDE}, got shape {list(images.shape)}"
    )


def corrupt(
  images: np.ndarray, name: str, severity: int, seeds: np.ndarray
) -> np.ndarray:
  """Corrupts every image of a batch, each by its own seed.

  Args:
    images: `[N, height, width, channels]` uint8, with 1 or 3 channels and sides
      of at least 8 pixels.
    name: One of `names()`.
    severity: 0 (the images unchanged) to 5 (most corrupted).
    seeds: `[N]` non-negative integers. The draws for an image are a function of
      `name` and its seed.

  Returns:
    A new `[N, height, width, channels]` uint8 array.

  Raises:
    ValueError: If the images have another dtype or shape, the corruption or the
      severity does not exist, or the seeds are not one non-negative integer per
      image.
  """
  images, seeds = np.asarray(images), np.asarray(seeds)
  check_images(images)
  arguments.choice("corruption", name, names())
  if (
    not isinstance(severity, int | np.integer)
    or not 0 <= severity <= MAX_SEVERITY
  ):
    raise ValueError(
      f"severity must be an integer from 0 to {MAX_SEVERITY}, got {severity!r}"
    )
  if seeds.shape != (len(images),):
    raise ValueError(
      f"seeds must be one integer for each of {len(images)} images, got"
      f" shape {list(seeds.shape)}"
    )
  rngs = [partition.generator(f"corruption {name}", seed) for seed in seeds]
  if severity == 0 or not rngs:
    return images.copy()
  operator, levels = _CORRUPTIONS[name]
  scale = max(1.0, min(images.shape[1:3]) / _PUBLISHED_SIDE)
  unit = images.astype(np.float32) / 255
  corrupted = operator(unit, rngs, scale, *levels[severity - 1])
  return primitives.rounded_down(corrupted).astype(np.uint8)
