"""Published levels against an oracle: CIFAR-10-C, one image after the other.

D. Hendrycks and T. Dietterich, "Benchmarking Neural Network Robustness to
Common Corruptions and Perturbations" (ICLR 2019). The oracle has the levels and
operations of their script, in float64, in SciPy's functions where it uses them,
and pixel by pixel where it uses OpenCV or ImageMagick. What it has from the
package is the order in which numbers are drawn, so that both see the same ones.
Frost is missing: the script cuts it out of photographs.
"""

import heapq
import io
import itertools
import math

import numpy as np
import pytest
from matplotlib import colors
from PIL import Image
from scipy import ndimage

from tff_shift.data import partition
from tff_shift.data.images import corruptions

SIDE = 32
# One line per corruption, one entry per severity.
LEVELS = {
  "gaussian_noise": [0.04, 0.06, 0.08, 0.09, 0.10],
  "shot_noise": [500, 250, 100, 75, 50],
  "impulse_noise": [0.01, 0.02, 0.03, 0.05, 0.07],
  "defocus_blur": [(0.3, 0.4), (0.4, 0.5), (0.5, 0.6), (1, 0.2), (1.5, 0.1)],
  "frosted_glass_blur": [(0.05, 1), (0.25, 1), (0.4, 1), (0.25, 2), (0.4, 2)],
  "motion_blur": [(6, 1), (6, 1.5), (6, 2), (8, 2), (9, 2.5)],
  "zoom_blur": [1.06, 1.11, 1.16, 1.21, 1.26],
  "snow": [
    (0.1, 0.2, 1, 0.6, 8, 3, 0.95),
    (0.1, 0.2, 1, 0.5, 10, 4, 0.9),
    (0.15, 0.3, 1.75, 0.55, 10, 4, 0.9),
    (0.25, 0.3, 2.25, 0.6, 12, 6, 0.85),
    (0.3, 0.3, 1.25, 0.65, 14, 12, 0.8),
  ],
  "fog": [(0.2, 3), (0.5, 3), (0.75, 2.5), (1, 2), (1.5, 1.75)],
  "brightness": [0.05, 0.1, 0.15, 0.2, 0.3],
  "contrast": [0.75, 0.5, 0.4, 0.3, 0.15],
  # Shares of the side, as the script has them.
  "elastic": [
    (0, 0, 0.08),
    (0.05, 0.2, 0.07),
    (0.08, 0.06, 0.06),
    (0.1, 0.04, 0.05),
    (0.1, 0.03, 0.03),
  ],
  "pixelate": [0.95, 0.9, 0.85, 0.75, 0.65],
  "jpeg_compression": [80, 65, 58, 50, 40],
  "gaussian_blur": [0.4, 0.6, 0.7, 0.8, 1],
  "saturate": [(0.3, 0), (0.1, 0), (1.5, 0), (2, 0.1), (2.5, 0.2)],
  "spatter": [
    (0.62, 0.1, 0.7, 0.7, 0.5, "water"),
    (0.65, 0.1, 0.8, 0.7, 0.5, "water"),
    (0.65, 0.3, 1, 0.69, 0.5, "water"),
    (0.65, 0.1, 0.7, 0.69, 0.6, "mud"),
    (0.65, 0.1, 0.5, 0.68, 0.6, "mud"),
  ],
  "speckle_noise": [0.06, 0.1, 0.12, 0.16, 0.2],
}


def oracle(image: np.ndarray, name: str, severity: int, seed: int):
  """Corrupts a `[32, 32, 3]` uint8 image; all values are rounded down."""
  rng = partition.generator(f"corruption {name}", seed)
  level = LEVELS[name][severity - 1]
  result = globals()[f"_{name}"](image / 255, level, rng)
  # A millionth keeps whole numbers that are so but for float64's rounding.
  return np.floor(255 * result.clip(0, 1) + 1e-6).astype(np.uint8)


def _normal(rng, mean, deviation, shape):
  return mean + deviation * rng.standard_normal(shape, np.float32).astype(float)


def _gaussian_noise(x, deviation, rng):
  return x + _normal(rng, 0, deviation, x.shape)


def _shot_noise(x, photons, rng):
  return rng.poisson(x * photons) / photons


def _impulse_noise(x, amount, rng):
  # Half of what is hit becomes white, half black.
  chance = rng.random(x.shape, np.float32)
  return np.where(np.abs(chance - 0.5) >= (1 - amount) / 2, chance > 0.5, x)


def _speckle_noise(x, deviation, rng):
  return x + x * _normal(rng, 0, deviation, x.shape)


def _blurred(x, sigma, **options):
  sigmas = (sigma, sigma, 0)[: x.ndim]
  return ndimage.gaussian_filter(x, sigmas, **{"mode": "nearest", **options})


def _gaussian_blur(x, sigma, rng):
  return _blurred(x, sigma)


def _frosted_glass_blur(x, level, rng):
  sigma, passes = level
  x = np.floor(255 * _blurred(x, sigma) + 1e-6) / 255
  moves = rng.integers(-1, 1, (2, 2, SIDE - 2, SIDE - 2))
  for index in range(passes):
    # From the lower right on: what is read has not yet been written.
    for row, column in itertools.product(range(SIDE - 1, 1, -1), repeat=2):
      down, right = moves[index, :, row - 2, column - 2]
      x[row, column] = x[row + down, column + right]
  return _blurred(x, sigma)


def _defocus_blur(x, level, rng):
  radius, edge = level
  disk = np.zeros((17, 17))
  for row, column in itertools.product(range(17), repeat=2):
    disk[row, column] = (row - 8) ** 2 + (column - 8) ** 2 <= radius**2
  beside = math.exp(-1 / (2 * edge**2))
  line = np.array([beside, 1, beside]) / (1 + 2 * beside)
  smooth = ndimage.convolve(disk / disk.sum(), np.outer(line, line))
  return ndimage.correlate(x, smooth[..., np.newaxis], mode="mirror")


def _along_a_line(x, radius, sigma, degrees):
  """What ImageMagick makes of a motion, in 8 bits."""
  reach = 2 * radius
  kernel = np.zeros((2 * reach + 1, 2 * reach + 1))
  for tap in range(reach + 1):
    row = math.ceil(tap * math.sin(math.radians(degrees)) - 0.5)
    column = math.ceil(tap * math.cos(math.radians(degrees)) - 0.5)
    weight = math.exp(-(tap**2) / (2 * sigma**2))
    kernel[reach + row, reach + column] += weight
  kernel = kernel[..., np.newaxis] / kernel.sum()
  return np.rint(255 * ndimage.correlate(x, kernel, mode="nearest")) / 255


def _motion_blur(x, level, rng):
  return _along_a_line(x, *level, rng.uniform(-45, 45))


def _zoomed(x, factor):
  piece = math.ceil(SIDE / factor)
  first = (SIDE - piece) // 2
  inner = x[first : first + piece, first : first + piece]
  larger = ndimage.zoom(inner, (factor, factor, 1), order=1)
  left_out = (len(larger) - SIDE) // 2
  return larger[left_out : left_out + SIDE, left_out : left_out + SIDE]


def _zoom_blur(x, stop, rng):
  zooms = [_zoomed(x, factor) for factor in np.arange(1, stop, 0.01)]
  return np.mean([x, *zooms], axis=0)


def _snow(x, level, rng):
  mean, deviation, zoom, threshold, radius, sigma, keep = level
  flakes = _normal(rng, mean, deviation, (SIDE, SIDE, 1))
  flakes = _zoomed(flakes, zoom)
  flakes = np.where(flakes < threshold, 0, np.clip(flakes, 0, 1))
  flakes = np.floor(255 * flakes) / 255
  flakes = _along_a_line(flakes, radius, sigma, rng.uniform(-135, -45))
  grey = x @ np.array([[0.299], [0.587], [0.114]])
  x = keep * x + (1 - keep) * np.maximum(x, 1.5 * grey + 0.5)
  return x + flakes + np.rot90(flakes, 2)


def _plasma(rng, decay):
  """Diamonds and squares on a torus, one point after the other."""
  noise = 2 * rng.random((SIDE, SIDE), np.float32) - 1
  heights = np.zeros((SIDE, SIDE))
  step, amplitude = SIDE, 1.0

  def set_to_mean(row, column, offsets):
    around = [
      heights[(row + down) % SIDE, (column + right) % SIDE]
      for down, right in offsets
    ]
    heights[row, column] = sum(around) / 4 + amplitude * noise[row, column]

  while step > 1:
    half = step // 2
    corners = list(itertools.product((-half, half), repeat=2))
    sides = [(-half, 0), (half, 0), (0, -half), (0, half)]
    for row in range(half, SIDE, step):
      for column in range(half, SIDE, step):
        set_to_mean(row, column, corners)
    for row in range(0, SIDE, half):
      for column in range(half - row % step, SIDE, step):
        set_to_mean(row, column, sides)
    step, amplitude = half, amplitude / decay**2
  heights -= heights.min()
  return heights / heights.max()


def _fog(x, level, rng):
  thickness, decay = level
  fog = thickness * _plasma(rng, decay)
  return (x + fog[..., np.newaxis]) * x.max() / (x.max() + thickness)


def _brightness(x, added, rng):
  hsv = colors.rgb_to_hsv(x)
  hsv[..., 2] = np.minimum(hsv[..., 2] + added, 1)
  return colors.hsv_to_rgb(hsv)


def _saturate(x, level, rng):
  factor, added = level
  hsv = colors.rgb_to_hsv(x)
  hsv[..., 1] = np.clip(factor * hsv[..., 1] + added, 0, 1)
  return colors.hsv_to_rgb(hsv)


def _contrast(x, factor, rng):
  mean = x.mean(axis=(0, 1))
  return factor * x + (1 - factor) * mean


def _pillow(x):
  return Image.fromarray(np.rint(255 * x).astype(np.uint8))


def _pixelate(x, share, rng):
  for side in (int(SIDE * share), SIDE):
    x = np.asarray(_pillow(x).resize((side, side), Image.Resampling.BOX)) / 255
  return x


def _jpeg_compression(x, quality, rng):
  file = io.BytesIO()
  _pillow(x).save(file, "JPEG", quality=quality)
  return np.asarray(Image.open(file)) / 255


def _elastic(x, level, rng):
  amplitude, sigma, affine = (SIDE * share for share in level)
  # OpenCV counts (right, down); three corners of a square of 20 pixels.
  before = np.array([[26, 26, 1], [26, 6, 1], [6, 6, 1]], float)
  # The package draws (down, right).
  after = before[:, :2] + affine * rng.uniform(-1, 1, (3, 2))[:, ::-1]
  forward = np.eye(3)
  forward[:, :2] = np.linalg.solve(before, after)
  down, right = np.indices((SIDE, SIDE), float)
  places = np.stack([right, down, np.ones_like(down)], axis=-1)
  sources = places @ np.linalg.inv(forward)
  # OpenCV knows places to a 32nd of a pixel.
  columns, rows = np.rint(32 * np.moveaxis(sources[..., :2], -1, 0)) / 32
  x = _read(x, rows, columns, "mirror")
  noise = 2 * rng.random((SIDE, SIDE, 2), np.float32).astype(float) - 1
  moves = amplitude * _blurred(noise, sigma, mode="reflect", truncate=3)
  return _read(x, down + moves[..., 0], right + moves[..., 1], "reflect")


def _read(x, rows, columns, mode):
  return np.stack(
    [
      ndimage.map_coordinates(x[..., i], [rows, columns], order=1, mode=mode)
      for i in range(x.shape[2])
    ],
    axis=-1,
  )


def _spatter(x, level, rng):
  mean, deviation, sigma, threshold, strength, liquid = level
  layer = _blurred(_normal(rng, mean, deviation, (SIDE, SIDE)), sigma)
  layer[layer < threshold] = 0
  if liquid == "mud":
    cover = _blurred((layer > threshold).astype(float), strength)
    cover[cover < 0.8] = 0
    cover = cover[..., np.newaxis]
    return (1 - cover) * x + cover * np.array([63, 42, 20]) / 255
  shine = shade((255 * layer).astype(np.uint8))
  shine = strength * shine / shine.max()
  return x + shine[..., np.newaxis] * np.array([175, 238, 238]) / 255


def _box(x):
  return ndimage.correlate(x, np.full((3, 3), 1 / 9), mode="mirror")


def shade(layer: np.ndarray) -> np.ndarray:
  """Returns the light on water, float64, of its `[32, 32]` uint8 thickness."""
  layer = layer.astype(float)
  levels = np.floor(_box(np.minimum(chamfer(canny(layer)), 20)) + 1e-6)
  values, counts = np.unique(levels, return_counts=True)
  if len(values) > 1:
    # Equal shares: the lowest level is 0, the highest 255.
    above = np.cumsum(counts) - counts[0]
    shares = np.rint(255 * above / above[-1])
    levels = shares[np.searchsorted(values, levels)]
  emboss = np.array([[-2, -1, 0], [-1, 1, 1], [0, 1, 2]], float)
  embossed = ndimage.correlate(levels, emboss, mode="mirror").clip(0, 255)
  return layer * np.rint(_box(embossed))


def canny(x: np.ndarray) -> np.ndarray:
  """Returns the edges of a `[32, 32]` image of 0..255, bool: Canny, 50, 150."""
  down = ndimage.sobel(x, 0, mode="nearest")
  right = ndimage.sobel(x, 1, mode="nearest")
  size = np.abs(down) + np.abs(right)

  def at(row, column):
    inside = 0 <= row < SIDE and 0 <= column < SIDE
    return size[row, column] if inside else 0

  def is_ridge(row, column):
    dy, dx = down[row, column], right[row, column]
    angle = math.degrees(math.atan2(abs(dy), abs(dx)))
    here = size[row, column]
    if angle < 22.5:
      return here > at(row, column - 1) and here >= at(row, column + 1)
    if angle > 67.5:
      return here > at(row - 1, column) and here >= at(row + 1, column)
    side = -1 if dx * dy < 0 else 1
    return here > at(row - 1, column - side) and here > at(
      row + 1, column + side
    )

  edges = np.zeros((SIDE, SIDE), bool)
  places = set(itertools.product(range(SIDE), repeat=2))
  ridges = {place for place in places if size[place] > 50 and is_ridge(*place)}
  waiting = [place for place in ridges if size[place] > 150]
  while waiting:
    row, column = waiting.pop()
    edges[row, column] = True
    ridges.discard((row, column))
    for down_by, right_by in itertools.product((-1, 0, 1), repeat=2):
      beside = row + down_by, column + right_by
      if beside in ridges:
        ridges.discard(beside)
        waiting.append(beside)
  return edges


def chamfer(edges: np.ndarray) -> np.ndarray:
  """Returns the cheapest way from each pixel to an edge, by Dijkstra."""
  # OpenCV keeps distances in steps of 2**-16.
  costs = {
    pair: round(cost * 2**16) / 2**16
    for pair, cost in (((0, 1), 1), ((1, 1), 1.4), ((1, 2), 2.1969))
  }
  distance = np.where(edges, 0.0, np.inf)
  queue = [(0.0, *place) for place in np.argwhere(edges).tolist()]
  while queue:
    so_far, row, column = heapq.heappop(queue)
    if so_far > distance[row, column]:
      continue
    for down, right in itertools.product(range(-2, 3), repeat=2):
      cost = costs.get(tuple(sorted((abs(down), abs(right)))))
      y, x = row + down, column + right
      if cost is None or not (0 <= y < SIDE and 0 <= x < SIDE):
        continue
      if so_far + cost < distance[y, x] - 1e-9:
        distance[y, x] = so_far + cost
        heapq.heappush(queue, (so_far + cost, y, x))
  return distance


def test_oracle_has_all_but_frost():
  assert {*LEVELS, "frost"} == set(corruptions.names())


@pytest.mark.parametrize("severity", range(1, 6))
@pytest.mark.parametrize("name", LEVELS)
def test_published_corruption_is_that_of_the_script(
  name, severity, photographs
):
  images = photographs[::3]
  seeds = np.arange(len(images))
  ours = corruptions.corrupt(images, name, severity, seeds).astype(int)
  pairs = zip(images, seeds, strict=True)
  theirs = np.stack([oracle(image, name, severity, i) for image, i in pairs])
  change = np.abs(theirs - images.astype(int)).mean()
  # Most are equal but for rounding. Elastic does not round places to a 32nd of
  # a pixel; SciPy's zoom by 1.25 counts the last row and column as outside; the
  # mean of five pixels in defocus_blur 4 is whole but for a millionth.
  assert np.abs(ours - theirs).mean() < 0.025 * change
  assert np.abs(ours - images).mean() == pytest.approx(change, rel=0.02)
