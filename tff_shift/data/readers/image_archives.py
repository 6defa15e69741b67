"""Data sets that are published as folders of image files.

Each function takes the folder of all data sets and reads the unpacked archive
in it; `datasets` has an entry for each.

    faces_aligned_small_mirrored_co_aligned_cropped_cleaned/{F,M}/1905_….png
    caltran/2013-03-04-08-00.jpg, …, caltran/caltran_dataset_labels.mat
    tiny-imagenet-200/wnids.txt, words.txt
    tiny-imagenet-200/train/n01443537/images/n01443537_0.JPEG, …
    tiny-imagenet-200/val/val_annotations.txt, val/images/val_0.JPEG, …

- Portraits: S. Ginosar et al., "A Century of Portraits" (ICCV Workshops 2015).
  Grey faces from yearbooks of 1905 to 2013; the folder is the class, the file
  name starts with the year.
- Caltran: J. Hoffman et al., "Continuous Manifold Based Adaptation for Evolving
  Visual Domains" (CVPR 2014). A traffic camera; the file name is
  year-month-day-hour-minute; the MATLAB file holds `names` (without suffix) and
  `labels` (above 0: a car in or near the intersection).
- Tiny ImageNet: Y. Le and X. Yang, "Tiny ImageNet Visual Recognition Challenge"
  (CS 231N, Stanford, 2015). 200 classes of ImageNet with 500 training and 50
  validation images each; some of the files are grey. The labels of the test
  images were never published, so these are not read.
"""

import pathlib
import re
from collections.abc import Sequence

import numpy as np

from tff_shift.data import array_files
from tff_shift.data import dataset
from tff_shift.data import table

PORTRAITS_FOLDER = "faces_aligned_small_mirrored_co_aligned_cropped_cleaned"
PORTRAITS_URL = (
  f"https://www.dropbox.com/s/ubjjoo0b2wz4vgz/{PORTRAITS_FOLDER}.tar.gz?dl=1"
)
PORTRAITS_SIZE = 32
CALTRAN_FOLDER = "caltran"
CALTRAN_LABELS = "caltran_dataset_labels.mat"
CALTRAN_URL = "http://cma.berkeleyvision.org"
CALTRAN_SIZE = 224
TINY_IMAGENET_FOLDER = "tiny-imagenet-200"
TINY_IMAGENET_URL = f"http://cs231n.stanford.edu/{TINY_IMAGENET_FOLDER}.zip"
TINY_IMAGENET_SIZE = 64


def portraits(folder: pathlib.Path) -> table.Table:
  """Loads Portraits, 32x32 and grey, with the year of each face.

  Args:
    folder: The folder of all data sets.

  Returns:
    The data set; `time` is the year.

  Raises:
    ValueError: If a file has another content than the archive's.
    DatasetNotFoundError: If the data set is not on the disk.
  """
  archive = folder / PORTRAITS_FOLDER
  class_of = {"F": 0, "M": 1}
  paths = [p for c in class_of for p in sorted((archive / c).glob("*.png"))]
  if not paths:
    raise dataset.not_found(
      "portraits",
      archive,
      f'mkdir -p "{folder}" && curl -L "{PORTRAITS_URL}" | tar -xz -C'
      f' "{folder}"',
    )
  years = [_number_in_name(path, r"(\d{4})_.*") for path in paths]
  labels = [class_of[path.parent.name] for path in paths]
  return table.of_classes(
    _read_images(paths, "L", PORTRAITS_SIZE),
    np.array(labels, np.int32),
    ("female", "male"),
    np.array(years, np.int32),
  )


def caltran(folder: pathlib.Path) -> table.Table:
  """Loads Caltran, 224x224 in colour, with the hour of each image.

  Args:
    folder: The folder of all data sets.

  Returns:
    The data set; `time` is the hour.

  Raises:
    ValueError: If a file has another content than the archive's.
    DatasetNotFoundError: If the data set is not on the disk.
  """
  archive = folder / CALTRAN_FOLDER
  if not (archive / CALTRAN_LABELS).is_file():
    raise dataset.not_found(
      "caltran",
      archive,
      f'mkdir -p "{archive}", then unpack there the images and'
      f" {CALTRAN_LABELS} from {CALTRAN_URL}",
    )
  from scipy import io

  path = archive / CALTRAN_LABELS
  try:
    content = io.loadmat(path, squeeze_me=True)
    stems, labels = (
      np.atleast_1d(content[name]) for name in ("names", "labels")
    )
  except KeyError as error:
    raise ValueError(
      f"{path} does not hold {error}; it must hold 'names' and 'labels'"
    ) from error
  # The type of the error depends on the damaged bytes.
  except Exception as error:
    reason = array_files.first_line(error)
    raise ValueError(
      f"{path} cannot be read as a MATLAB file before version 7.3 ({reason});"
      " unpack the archive again"
    ) from error
  if len(stems) != len(labels):
    raise ValueError(
      f"{path} holds {len(stems)} names and {len(labels)} labels; it must hold"
      " as many of each"
    )
  if (
    not np.issubdtype(labels.dtype, np.number) or not np.isfinite(labels).all()
  ):
    raise ValueError(f"{path} holds labels that are not finite numbers")
  paths = [archive / f"{stem}.jpg" for stem in stems]
  pattern = r"\d{4}-\d{2}-\d{2}-([01]\d|2[0-3])-\d{2}\.jpg"
  hours = [_number_in_name(path, pattern) for path in paths]
  return table.of_classes(
    _read_images(paths, "RGB", CALTRAN_SIZE),
    (labels > 0).astype(np.int32),
    ("no car", "car"),
    np.array(hours, np.int32),
  )


def tiny_imagenet(folder: pathlib.Path) -> table.Table:
  """Loads Tiny ImageNet, 64x64 in colour: the training images class by class.

  Labels follow the order of `wnids.txt`; `words.txt` gives the name of a class.
  The validation images come last, in the order of their annotations.

  Args:
    folder: The folder of all data sets.

  Returns:
    The data set; `num_train` is the number of training images.

  Raises:
    ValueError: If a file has another content than the archive's.
    DatasetNotFoundError: If the data set is not on the disk.
  """
  archive = folder / TINY_IMAGENET_FOLDER
  if not (archive / "wnids.txt").is_file():
    zip_file = f"{folder / TINY_IMAGENET_FOLDER}.zip"
    raise dataset.not_found(
      "tiny_imagenet",
      archive,
      f'mkdir -p "{folder}" && curl -L "{TINY_IMAGENET_URL}" -o "{zip_file}"'
      f' && unzip -q "{zip_file}" -d "{folder}"',
    )
  wnids = [row[0] for row in _read_table(archive / "wnids.txt", 1)]
  label_of = {wnid: label for label, wnid in enumerate(wnids)}
  words = dict(row[:2] for row in _read_table(archive / "words.txt", 2))
  unnamed = [wnid for wnid in wnids if wnid not in words]
  if unnamed:
    raise ValueError(
      f"{archive / 'words.txt'} does not name {unnamed[0]}, which"
      " wnids.txt lists; unpack the archive again"
    )
  paths, labels = [], []
  for wnid, label in label_of.items():
    images = archive / "train" / wnid / "images"
    files = sorted(images.glob("*.JPEG"))
    if not files:
      raise ValueError(f"{images} holds no *.JPEG; unpack the archive again")
    paths += files
    labels += [label] * len(files)
  num_train = len(paths)
  annotations = archive / "val" / "val_annotations.txt"
  for name, wnid, *_ in _read_table(annotations, 2):
    if wnid not in label_of:
      raise ValueError(
        f"{annotations} gives {name} the class {wnid}, which is not in"
        " wnids.txt; unpack the archive again"
      )
    paths.append(archive / "val" / "images" / name)
    labels.append(label_of[wnid])
  return table.of_classes(
    _read_images(paths, "RGB", TINY_IMAGENET_SIZE),
    np.array(labels, np.int32),
    tuple(words[wnid] for wnid in wnids),
    num_train=num_train,
  )


def _read_table(path: pathlib.Path, num_columns: int) -> list[list[str]]:
  """Reads a table with columns separated by tabs.

  Args:
    path: The file.
    num_columns: The minimum number of columns.

  Returns:
    The fields of each line; empty lines are skipped.

  Raises:
    ValueError: If the file is missing, or a line has too few fields.
  """
  try:
    text = path.read_text(encoding="utf-8")
  except (OSError, UnicodeDecodeError) as error:
    raise ValueError(
      f"{path} cannot be read ({error}); unpack the archive again"
    ) from error
  rows = [line.split("\t") for line in text.splitlines() if line.strip()]
  for row in rows:
    if len(row) < num_columns:
      raise ValueError(
        f"{path} has the line {row[0]!r}; each line must have at least"
        f" {num_columns} columns, separated by tabs"
      )
  return rows


def _number_in_name(path: pathlib.Path, pattern: str) -> int:
  """Returns the number in a file name, the first group of `pattern`."""
  match = re.fullmatch(pattern, path.name)
  if match is None:
    raise ValueError(f"{path} does not carry its time as {pattern} in its name")
  return int(match[1])


def _read_images(
  paths: Sequence[pathlib.Path], mode: str, size: int
) -> np.ndarray:
  """Reads image files and resizes them to squares (bilinear, anti-aliased).

  Args:
    paths: The files.
    mode: Pillow's colour mode, "L" (grey) or "RGB".
    size: Height and width of the result.

  Returns:
    `[len(paths), size, size, channels]` uint8.

  Raises:
    ValueError: If a file is missing or not a complete image.
  """
  from PIL import Image

  x = np.empty((len(paths), size, size, len(mode)), np.uint8)
  for position, path in enumerate(paths):
    try:
      with Image.open(path, formats=("JPEG", "PNG")) as image:
        resized = image.convert(mode).resize(
          (size, size), Image.Resampling.BILINEAR
        )
    # Pillow's errors for damaged and for too large images have no common type.
    except Exception as error:
      reason = array_files.first_line(error)
      raise ValueError(
        f"{path} cannot be read as an image ({reason}); unpack the archive"
        " again"
      ) from error
    x[position] = np.asarray(resized).reshape(size, size, len(mode))
  return x
