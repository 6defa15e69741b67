"""Image files as one array, and folders of them as a frame.

Pillow decodes the files, of the formats of `SUFFIXES` only: for other formats,
it may start other programs. An image of 8 bits per channel in any mode is read:
grayscale if all images are grayscale, RGB otherwise. The EXIF orientation is
applied. An alpha channel that is opaque everywhere is dropped; transparency is
refused, because the colours below it are undefined.
"""

import io
import itertools
import os
import pathlib
import re
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from tff_shift._util import arguments
from tff_shift._util import memory
from tff_shift._util import shown_names
from tff_shift.data import array_files

if TYPE_CHECKING:
  import pandas
  from PIL import Image

LEVELS = ("client", "domain", "class")
SUFFIXES = (
  *(".png", ".jpg", ".jpeg", ".bmp"),
  *(".ppm", ".pgm", ".tif", ".tiff", ".webp"),
)
# Their names in Pillow.
FORMATS = ("PNG", "JPEG", "BMP", "PPM", "TIFF", "WEBP")
# The maximum height and width after resizing.
MAX_IMAGE_SIZE = 4096
# Names that operating systems give to files and folders of their own; hidden
# ones, which begin with a dot, are ignored too.
IGNORED = ("Thumbs.db", "desktop.ini", "__MACOSX")

_GRAYSCALE = ("1", "L", "LA")
_COLOUR = ("P", "PA", "RGB", "RGBA", "CMYK", "YCbCr")
# The column of a frame that has the path of each image.
IMAGE = "image"


def read(
  images: Iterable[tuple[str, bytes]],
  number: int,
  image_size: int | None = None,
) -> np.ndarray:
  """Decodes images of one size, or resizes them.

  Args:
    images: The name and the content of each file.
    number: The number of files, at least 1.
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
      x = _empty(number, pixels.shape, name)
    if pixels.shape[:2] != x.shape[1:3]:
      raise ValueError(
        f"{name} has {_size(pixels)} pixels and {first} has {_size(x[0])};"
        " image_size=32, for example, resizes all images to 32x32"
      )
    if pixels.shape[2] > x.shape[3]:
      gray = x
      x = _empty(number, pixels.shape, name)
      x[:position] = gray[:position]
    x[position] = pixels
  return x


def _empty(number: int, shape: tuple[int, ...], name: str) -> np.ndarray:
  num_bytes = number * int(np.prod(shape))
  memory.check(
    num_bytes,
    f"{number} images of {shape[1]}x{shape[0]} pixels, as {name} has, are one"
    " array; image_size makes them smaller",
  )
  return np.empty((number, *shape), np.uint8)


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
    raw, *rest = tile[3] if isinstance(tile[3], tuple) else (tile[3],)
    if image.format == "PPM" and any(
      isinstance(largest, int) and largest > 255 for largest in rest
    ):
      return True
    # BGR;16 of a BMP file has 16 bits in all.
    if image.format != "BMP" and ";16" in str(raw):
      return True
  return False


def folder_frame(
  folder: pathlib.Path, levels: Sequence[str] | None
) -> "pandas.DataFrame":
  """Lists a folder of images, a row for each one.

  Args:
    folder: The folder; images lie below as many folders as there are levels.
    levels: What the folders are, from the outside to the inside: `class`, and
      optionally `client` and `domain`. None: the class.

  Returns:
    A column for each level, and `IMAGE`, the path in the folder; by path.
    Domains and clients are categories in natural order, see `_in_order`.

  Raises:
    ValueError: If the folder has other content; one line that names it.
  """
  import pandas

  if levels is not None:
    _check_levels(levels)
  paths = sorted(_images(folder), key=lambda path: path.parts)
  if not paths:
    raise ValueError(f"{folder} has no images ({', '.join(SUFFIXES)})")
  depth = len(levels or ("class",))
  for path in paths:
    if len(path.parts) != depth + 1:
      raise ValueError(_wrong_depth(folder, path, levels))
  levels = levels or ("class",)
  frame = pandas.DataFrame([path.parts[:-1] for path in paths], columns=levels)
  frame[IMAGE] = list(map(str, paths))
  for level in levels:
    names = frame[level].unique()
    for name in names:
      if not shown_names.is_encodable(name):
        raise ValueError(f"{folder}: UTF-8 cannot encode the folder {name!r}")
    if level != "class":
      frame[level] = pandas.Categorical(
        frame[level], _in_order(names), ordered=True
      )
  if "domain" in levels and "client" not in levels:
    _check_classes(folder, frame)
  return frame


def _check_levels(levels: Sequence[str]) -> None:
  if (
    "class" not in levels
    or len({*levels}) < len(levels)
    or not {*levels} <= {*LEVELS}
  ):
    raise ValueError(
      f"folder_levels={','.join(levels)}: it must have class, and may have"
      " client and domain, once each, such as domain,class"
    )


def _images(folder: pathlib.Path, depth: int = 0) -> Iterator[pathlib.Path]:
  """Yields the path of each image in a folder, and refuses other files."""
  entries = [
    entry
    for entry in os.scandir(folder)
    if not entry.name.startswith(".") and entry.name not in IGNORED
  ]
  if not entries and depth:
    raise ValueError(f"{folder} is empty; a folder of a class must have images")
  for entry in entries:
    path = pathlib.Path(entry.name)
    if entry.is_dir():
      # A link to a folder above would never end.
      if depth == len(LEVELS):
        raise ValueError(
          f"{entry.path}: folders may be {depth} deep ({', '.join(LEVELS)})"
        )
      for image in _images(pathlib.Path(entry.path), depth + 1):
        yield path / image
    elif path.suffix.lower() in SUFFIXES:
      yield path
    else:
      raise ValueError(
        f"{entry.path} is not an image ({', '.join(SUFFIXES)}); move it out of"
        " the folder"
      )


def _wrong_depth(
  folder: pathlib.Path, path: pathlib.Path, levels: Sequence[str] | None
) -> str:
  found = len(path.parts) - 1
  deep = f"{folder / path} lies {found} folder{'s' * (found != 1)} deep"
  if levels is None and found > 1:
    example = ("domain,class or client,class", "client,domain,class")[found - 2]
    return f"{deep}; folder_levels must say what they are, such as {example}"
  wanted = "/".join(f"<{level}>" for level in levels or ("class",))
  given = f" (folder_levels={','.join(levels)})" if levels else ""
  return f"{deep}, and {wanted}/<image> is wanted{given}"


def _check_classes(folder: pathlib.Path, frame: "pandas.DataFrame") -> None:
  """Refuses a domain without a folder of a class: often a misspelt name."""
  domains = frame["domain"].unique()
  held = set(zip(frame["domain"], frame["class"], strict=True))
  for domain, label in itertools.product(domains, frame["class"].unique()):
    if (domain, label) not in held:
      raise ValueError(
        f"{folder}: domain {domain!r} has no folder of class {label!r}; if it"
        " has no such example, list the images in a table (image=<column>)"
      )


def _in_order(names: Iterable[str]) -> list[str]:
  """Sorts names: numbers by value, and by value inside of names."""
  names = sorted(names)
  if all(re.fullmatch(r"[+-]?\d+(\.\d+)?", name) for name in names):
    return sorted(names, key=float)
  return sorted(
    names,
    key=lambda name: [
      int(part) if part.isdecimal() else part
      for part in re.split(r"(\d+)", name)
    ],
  )
