"""The 19 operations behind `corruptions.py`, each on a whole batch at once.

D. Hendrycks and T. Dietterich, "Benchmarking Neural Network Robustness to
Common Corruptions and Perturbations" (ICLR 2019), in the variant that made
CIFAR-10-C. Every operator has the signature

    operator(images, rngs, scale, *level) -> images

- images: `[N, height, width, channels]` float32 in [0, 1], 1 or 3 channels. The
  result has the same shape and is not yet clipped to [0, 1].
- rngs: one generator per image. The result for an image depends only on its own
  pixels and generator. The draws do not depend on the level, so that all levels
  have the same noise, flakes, angle and so on (except `shot_noise`, whose
  distribution depends on the level).
- scale: factor of the level's lengths in pixels; 1 at 32 x 32.
- level: the numbers of one severity, named in each operator.
"""

import io
import math

import numpy as np
from PIL import Image
from scipy import ndimage

from tff_shift.data.images import corruption_layers
from tff_shift.data.images import corruption_primitives as primitives
from tff_shift.data.images.corruption_primitives import Generators
from tff_shift.data.images.corruption_primitives import Images

# The colours of layers, red, green and blue.
_WATER = (175 / 255, 238 / 255, 238 / 255)
_MUD = (63 / 255, 42 / 255, 20 / 255)
# The most passes of `frosted_glass_blur`.
_MOST_PASSES = 2


def gaussian_noise(
  images: Images, rngs: Generators, scale: float, deviation: float
) -> Images:
  """Adds normal noise of one standard deviation to every value."""
  del scale
  return images + deviation * primitives.normal(rngs, images.shape[1:])


def shot_noise(
  images: Images, rngs: Generators, scale: float, photons: float
) -> Images:
  """Counts photons: Poisson noise, where white is `photons` on average."""
  del scale
  pairs = zip(images, rngs, strict=True)
  counts = [rng.poisson(image * photons) for image, rng in pairs]
  return np.stack(counts).astype(np.float32) / photons


def impulse_noise(
  images: Images, rngs: Generators, scale: float, amount: float
) -> Images:
  """Sets a fraction of the values to 0 or 1 with equal probabilities."""
  del scale
  chance = primitives.uniform(rngs, images.shape[1:])
  # Every image gets a 1: on a black image, zeros would have no effect.
  salt = np.minimum(1 - amount / 2, primitives.largest(chance))
  salted = np.where(chance >= salt, np.float32(1), images)
  return np.where(chance < amount / 2, np.float32(0), salted)


def speckle_noise(
  images: Images, rngs: Generators, scale: float, deviation: float
) -> Images:
  """Multiplies every value by 1 plus normal noise."""
  del scale
  return images * (1 + deviation * primitives.normal(rngs, images.shape[1:]))


def gaussian_blur(
  images: Images, rngs: Generators, scale: float, sigma: float
) -> Images:
  """Blurs with a Gaussian of standard deviation `sigma` pixels."""
  del rngs
  return primitives.blur(images, scale * sigma)


def defocus_blur(
  images: Images, rngs: Generators, scale: float, radius: float, edge: float
) -> Images:
  """Averages over a disk whose edge is smoothed by a Gaussian of `edge`."""
  del rngs
  radius, edge = scale * radius, scale * edge
  reach = math.ceil(radius) + math.ceil(2 * edge)
  offsets = np.arange(-reach, reach + 1)
  inside = np.hypot(offsets, offsets[:, np.newaxis]) <= radius
  disk = ndimage.gaussian_filter(
    inside / inside.sum(), edge, mode="constant", truncate=2
  )
  disk = (disk / disk.sum()).astype(np.float32)
  return ndimage.correlate(
    images, disk[np.newaxis, :, :, np.newaxis], mode="mirror"
  )


def frosted_glass_blur(
  images: Images,
  rngs: Generators,
  scale: float,
  sigma: float,
  reach: int,
  passes: int,
) -> Images:
  """Replaces each pixel by a nearby one, between two blurs.

  The blurs soften single pixels at any image size: `scale` applies only to
  `reach`. The result of the first blur is rounded down to 8 bits.

  The other pixel lies up to `reach` above and to the left, and less than that
  below and to the right. `reach + 1` rows and columns above and on the left
  keep their pixels, and `reach - 1` below and on the right.
  """
  height, width = images.shape[1:3]
  reach = max(1, round(scale * reach))
  down_to, right_to = height - reach + 1, width - reach + 1
  inner = np.s_[:, reach + 1 : down_to, reach + 1 : right_to]
  image = np.arange(len(images))[:, np.newaxis, np.newaxis]
  rows, columns = np.indices((1, height, width))[1:]
  # The maximum of all levels, so that all levels start with the same moves.
  shape = (_MOST_PASSES, 2, *rows[inner].shape[1:])
  moves = np.stack([rng.integers(-reach, reach, shape) for rng in rngs], axis=2)
  mixed = primitives.rounded_down(primitives.blur(images, sigma)) / 255
  for down, right in moves[:passes]:
    mixed[inner] = mixed[image, rows[inner] + down, columns[inner] + right]
  return primitives.blur(mixed, sigma)


def motion_blur(
  images: Images, rngs: Generators, scale: float, radius: float, sigma: float
) -> Images:
  """Smears towards one side, within 45 degrees of the horizontal.

  The result is rounded to 8 bits, to nearest, unlike other operators.
  """
  angles = np.array([rng.uniform(-45, 45) for rng in rngs])
  smeared = primitives.smear(images, angles, scale * radius, scale * sigma)
  return np.rint(255 * smeared) / 255


def zoom_blur(
  images: Images, rngs: Generators, scale: float, steps: int
) -> Images:
  """Averages the image with `steps` zooms into it, 1 % apart from 1.00 on."""
  del rngs, scale
  factors = (1.0, *(1 + np.arange(steps) / 100))
  return primitives.zoom(images, factors)


def snow(
  images: Images,
  rngs: Generators,
  scale: float,
  mean: float,
  deviation: float,
  zoom: float,
  threshold: float,
  radius: float,
  sigma: float,
  keep: float,
) -> Images:
  """Whitens the image and adds falling flakes, once from each side.

  The flakes are the values above `threshold` of noise of `mean` and
  `deviation`, enlarged by `zoom` and smeared. The image is mixed from `keep` of
  itself and its whitened version.
  """
  flakes = primitives.normal(rngs, (*images.shape[1:3], 1))
  flakes = mean + deviation * flakes
  flakes = primitives.zoom(flakes, (zoom * scale,))
  flakes = np.where(flakes < threshold, np.float32(0), flakes.clip(0, 1))
  angles = np.array([rng.uniform(-135, -45) for rng in rngs])
  flakes = primitives.smear(flakes, angles, scale * radius, scale * sigma)
  whitened = np.maximum(images, 1.5 * primitives.grey(images) + 0.5)
  images = keep * images + (1 - keep) * whitened
  return images + flakes + flakes[:, ::-1, ::-1]


def frost(
  images: Images, rngs: Generators, scale: float, keep: float, share: float
) -> Images:
  """Adds `share` times ice to `keep` times the image."""
  ice = corruption_layers.ice(rngs, images.shape[1:], scale)
  return keep * images + share * ice


def fog(
  images: Images,
  rngs: Generators,
  scale: float,
  thickness: float,
  decay: float,
) -> Images:
  """Adds a plasma fractal, and dims to keep the maximum value."""
  del scale
  height, width = images.shape[1:3]
  plasma = primitives.plasma(rngs, max(height, width), decay)
  plasma = plasma[:, :height, :width, np.newaxis]
  brightest = images.max(axis=(1, 2, 3), keepdims=True)
  hazy = images + thickness * plasma
  return hazy * brightest / (brightest + thickness)


def brightness(
  images: Images, rngs: Generators, scale: float, added: float
) -> Images:
  """Increases the value of HSV and keeps hue and saturation."""
  del rngs, scale
  value = images.max(axis=3, keepdims=True)
  brighter = np.minimum(value + added, 1)
  # Black has no hue or saturation and becomes grey.
  ratio = brighter / np.where(value > 0, value, 1)
  return np.where(value > 0, images * ratio, brighter)


def contrast(
  images: Images, rngs: Generators, scale: float, factor: float
) -> Images:
  """Shrinks the distance of every value from its channel's mean."""
  del rngs, scale
  mean = images.mean(axis=(1, 2), keepdims=True, dtype=np.float64)
  mean = mean.astype(np.float32)
  return mean + factor * (images - mean)


def saturate(
  images: Images, rngs: Generators, scale: float, factor: float, added: float
) -> Images:
  """Multiplies the saturation of HSV and adds to it.

  Grey images have no saturation; instead their value is changed in the same
  way, so that bright parts saturate in the sense of photography. A grey pixel
  of a colour image has the hue of red, by the convention of HSV.
  """
  del rngs, scale
  if images.shape[3] == 1:
    return factor * images + added
  value = images.max(axis=3, keepdims=True)
  below = value - images
  chroma = below.max(axis=3, keepdims=True)
  saturation = chroma / np.where(value > 0, value, 1)
  changed = (factor * saturation + added).clip(0, 1)
  # With hue and value fixed, the distances below the value are proportional to
  # the saturation. Red: green and blue are one whole chroma below.
  red = np.array([0, 1, 1], np.float32)
  share = np.where(chroma > 0, below / np.where(chroma > 0, chroma, 1), red)
  return value - share * changed * value


def elastic(
  images: Images,
  rngs: Generators,
  scale: float,
  amplitude: float,
  sigma: float,
  affine: float,
) -> Images:
  """Moves pixels by a random affine map, then by smooth noise.

  The affine map moves three corners of a square by up to `affine` pixels along
  each axis; the noise is uniform, blurred by `sigma`, `amplitude` times.
  """
  height, width = images.shape[1:3]
  corners = np.stack([rng.uniform(-1, 1, (3, 2)) for rng in rngs])
  corners = scale * affine * corners
  noise = 2 * primitives.uniform(rngs, (height, width, 2)) - 1
  spread = scale * sigma
  noise = ndimage.gaussian_filter(
    noise, (0, spread, spread, 0), mode="reflect", truncate=3
  )
  mapped = primitives.sample(images, _affine_moves(corners, height, width))
  # Blurred twice as widely, noise is half as strong: the scale enters twice.
  moves = scale**2 * amplitude * noise
  return primitives.sample(mapped, moves.astype(np.float32), repeat_edge=True)


def _affine_moves(corners: np.ndarray, height: int, width: int) -> np.ndarray:
  """Returns the displacements of pixels for three moved corners.

  Args:
    corners: `[N, 3, 2]`, the moves, in pixels down and right, of the lower
      right, upper right and upper left corner of a square that is about two
      thirds as large as the image.
    height: The height of the images.
    width: The width of the images.

  Returns:
    `[N, height, width, 2]` float32: the source of a pixel, relative to it.
  """
  side = min(height, width) // 3
  # Positions in sides of the square about the middle: (down, right) moves by
  # shift + down * (lower - upper) + right * (righter - lefter).
  lower_right, upper_right, upper_left = np.moveaxis(corners / side, 1, 0)
  shift = (lower_right + upper_left) / 2
  change = np.stack([lower_right - upper_right, upper_right - upper_left], 2)
  inverse = np.linalg.inv(np.eye(2) + change / 2)[:, np.newaxis, np.newaxis]
  pixels = np.indices((height, width)).transpose(1, 2, 0)
  places = (pixels - [height // 2, width // 2]) / side
  after = places - shift[:, np.newaxis, np.newaxis]
  before = (inverse * after[..., np.newaxis, :]).sum(axis=-1)
  return (side * (before - places)).astype(np.float32)


def pixelate(
  images: Images, rngs: Generators, scale: float, share: float
) -> Images:
  """Shrinks to a fraction of the size, and back to blocks of one colour."""
  del rngs, scale
  height, width = images.shape[1:3]
  small = (int(width * share), int(height * share))

  def coarsen(image: Image.Image) -> Image.Image:
    box = Image.Resampling.BOX
    return image.resize(small, box).resize((width, height), box)

  return primitives.by_pillow(images, coarsen)


def jpeg_compression(
  images: Images, rngs: Generators, scale: float, quality: int
) -> Images:
  """Writes and reads a JPEG file of a quality from 1 to 95."""
  del rngs, scale

  def compress(image: Image.Image) -> Image.Image:
    file = io.BytesIO()
    image.save(file, "JPEG", quality=quality)
    return Image.open(file, formats=("JPEG",))

  return primitives.by_pillow(images, compress)


def spatter(
  images: Images,
  rngs: Generators,
  scale: float,
  mean: float,
  deviation: float,
  sigma: float,
  threshold: float,
  strength: float,
  mud: bool,
) -> Images:
  """Adds drops where blurred noise exceeds `threshold`.

  Water adds the light on drops, scaled to the maximum `strength`.
  Mud covers the image where drops, blurred by `strength`, reach 0.8.
  """
  channels = images.shape[3]
  noise = primitives.normal(rngs, (*images.shape[1:3], 1))
  # Blurred twice as widely, noise is half as strong.
  surface = mean + scale * deviation * primitives.blur(noise, scale * sigma)
  # Every image has a drop, at least at the maximum of the noise.
  inside = surface >= np.minimum(threshold, primitives.largest(surface))
  if mud:
    cover = primitives.blur(inside.astype(np.float32), scale * strength)
    cover = np.where(cover < 0.8, np.float32(0), cover)
    return images * (1 - cover) + primitives.tinted(cover, _MUD, channels)
  relief = corruption_layers.light(surface, inside, scale)
  shine = strength * relief / primitives.largest(relief)
  return images + primitives.tinted(shine, _WATER, channels)
