"""Image files as one array.

Pillow decodes the files, of the formats of `SUFFIXES` only: for other formats,
it may start other programs. An image of 8 bits per channel in any mode is read:
grayscale if all images are grayscale, RGB otherwise. The EXIF orientation is
applied. An alpha channel that is opaque everywhere is dropped; transparency is
refused, because the colours below it are undefined.
"""

import io
from collections.abc import Iterable
from typing import TYPE_CHECKING

import numpy as np

from tff_shift._util import arguments
from tff_shift._util import memory
from tff_shift.data import array_files

if TYPE_CHECKING:
  from PIL import Image

SUFFIXES = (
  *(".png", ".jpg", ".jpeg", ".bmp"),
  *(".ppm", ".pgm", ".tif", ".tiff", ".webp"),
)
# Their names in Pillow.
FORMATS = ("PNG", "JPEG", "BMP", "PPM", "TIFF", "WEBP")
# The maximum height and width after resizing.
MAX_IMAGE_SIZE = 4096

_GRAYSCALE = ("1", "L", "LA")
_COLOUR = ("P", "PA", "RGB", "RGBA", "CMYK", "YCbCr")


def read(
  images: Iterable[tuple[str, bytes]],
  num_images: int,
  image_size: int | None = None,
) -> np.ndarray:
  """Decodes images of one size, or resizes them.

  Args:
    images: The name and the content of each file.
    num_images: The number of files, at least 1.
    image_size: Height and width of all images after resizing (bilinear,
      anti-aliased). None: the files have one size.

  Returns:
    [number, height, width, 1 or 3] uint8.

  Raises:
    ValueError: If a file is not an image that can be read, or sizes differ; one
      line that names it.
    memory.TooLargeError: If the array exceeds memory.
  """
  if image_size is not None:
    arguments.integer("image_size", image_size, maximum=MAX_IMAGE_SIZE)
  x, first = None, ""
  for position, (name, content) in enumerate(images):
    pixels = _decoded(name, content, image_size)
    if x is None:
      first = name
      x = _empty(num_images, pixels.shape, name)
    if pixels.shape[:2] != x.shape[1:3]:
      raise ValueError(
        f"{name} has {_size(pixels)} pixels and {first} has {_size(x[0])};"
        " image_size=32, for example, resizes all images to 32x32"
      )
    if pixels.shape[2] > x.shape[3]:
      gray = x
      x = _empty(num_images, pixels.shape, name)
      x[:position] = gray[:position]
    x[position] = pixels
  return x


def _empty(num_images: int, shape: tuple[int, ...], name: str) -> np.ndarray:
  num_bytes = num_images * int(np.prod(shape))
  memory.check(
    num_bytes,
    f"{num_images} images of {shape[1]}x{shape[0]} pixels, as {name} has, are"
    " one array; image_size makes them smaller",
  )
  return np.empty((num_images, *shape), np.uint8)


def _size(pixels: np.ndarray) -> str:
  """Returns width x height, as image viewers show them."""
  return f"{pixels.shape[1]}x{pixels.shape[0]}"


def _decoded(name: str, content: bytes, size: int | None) -> np.ndarray:
  """Returns an image, [height, width, 1 or 3] uint8."""
  import PIL
  from PIL import Image
  from PIL import ImageOps

  try:
    with Image.open(io.BytesIO(content), formats=FORMATS) as stored:
      _check(name, stored)
      is_gray = stored.mode in _GRAYSCALE
      image = ImageOps.exif_transpose(stored).convert("L" if is_gray else "RGB")
      if size is not None:
        image = image.resize((size, size), Image.Resampling.BILINEAR)
  except PIL.UnidentifiedImageError as error:
    raise ValueError(
      f"{name} is not an image of a known format: {', '.join(FORMATS)}"
    ) from error
  except _RefusedError:
    raise
  # Pillow's errors for damaged and for too large images have no common type.
  except Exception as error:
    raise ValueError(
      f"{name} cannot be read as an image ({array_files.first_line(error)})"
    ) from error
  pixels = np.asarray(image)
  return pixels[..., np.newaxis] if is_gray else pixels


class _RefusedError(ValueError):
  """An image that Pillow can read, and that would be changed silently."""


def _check(name: str, image: "Image.Image") -> None:
  if image.mode not in _GRAYSCALE + _COLOUR:
    raise _RefusedError(
      f"{name} has pixels of Pillow's mode {image.mode}; images of 8 bits per"
      " channel wanted"
    )
  if _is_deep(image):
    raise _RefusedError(
      f"{name} has more than 8 bits per channel; images of 8 bits per channel"
      " wanted"
    )
  num_frames = getattr(image, "n_frames", 1)
  if num_frames > 1:
    raise _RefusedError(f"{name} has {num_frames} frames; one is wanted")
  if image.mode.endswith("A") or "transparency" in image.info:
    opacity = np.asarray(image.convert("RGBA").getchannel("A"))
    if opacity.min() < 255:
      raise _RefusedError(
        f"{name} has transparent pixels; paste it on a background"
      )


def _is_deep(image: "Image.Image") -> bool:
  """Returns whether Pillow reduces the channels of an image to 8 bits."""
  for tile in image.tile:  # type: ignore[attr-defined]  # Of image files.
    # The format of the pixels in the file, and further arguments.
    raw, *details = tile[3] if isinstance(tile[3], tuple) else (tile[3],)
    if image.format == "PPM" and any(
      isinstance(largest, int) and largest > 255 for largest in details
    ):
      return True
    # BGR;16 of a BMP file has 16 bits in all.
    if image.format != "BMP" and ";16" in str(raw):
      return True
  return False
