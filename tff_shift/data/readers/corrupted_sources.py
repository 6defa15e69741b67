"""The published corrupted test images CIFAR-10-C and CIFAR-100-C.

D. Hendrycks and T. Dietterich, "Benchmarking Neural Network Robustness to
Common Corruptions and Perturbations" (ICLR 2019): the 10,000 test images of
CIFAR under 19 corruptions at 5 severities. They are never downloaded here; they
are in the folder of all data sets (see `dataset`):

    cifar10_corrupted/brightness_1/1.0.0/, …   written by tensorflow-datasets
    CIFAR-100-C/brightness.npy, …, labels.npy  the unpacked archive

A file of the archive contains the five severities one after the other, each in
the order of CIFAR's test images. tensorflow-datasets stores the images in
another order, which is the same for every corruption and severity.
"""

import os
import pathlib

import numpy as np

from tff_shift.data import array_files
from tff_shift.data import dataset as dataset_lib
from tff_shift.data import partition
from tff_shift.data import table
from tff_shift.data.images import corruptions
from tff_shift.data.readers import tfds_archives

CIFAR100_FOLDER = "CIFAR-100-C"
CIFAR100_URL = "https://zenodo.org/record/3555552"

# The name in tensorflow-datasets -> the file in the archive.
_FILE_OF = {
  "brightness": "brightness.npy",
  "contrast": "contrast.npy",
  "defocus_blur": "defocus_blur.npy",
  "elastic": "elastic_transform.npy",
  "fog": "fog.npy",
  "frost": "frost.npy",
  "frosted_glass_blur": "glass_blur.npy",
  "gaussian_blur": "gaussian_blur.npy",
  "gaussian_noise": "gaussian_noise.npy",
  "impulse_noise": "impulse_noise.npy",
  "jpeg_compression": "jpeg_compression.npy",
  "motion_blur": "motion_blur.npy",
  "pixelate": "pixelate.npy",
  "saturate": "saturate.npy",
  "shot_noise": "shot_noise.npy",
  "snow": "snow.npy",
  "spatter": "spatter.npy",
  "speckle_noise": "speckle_noise.npy",
  "zoom_blur": "zoom_blur.npy",
}

# CIFAR's own names, which neither archive contains.
_CIFAR10_WORDS = """
    airplane automobile bird cat deer dog frog horse ship truck
"""
_CIFAR100_WORDS = """
    apple aquarium_fish baby bear beaver bed bee beetle bicycle bottle bowl
    boy bridge bus butterfly camel can castle caterpillar cattle chair
    chimpanzee clock cloud cockroach couch crab crocodile cup dinosaur
    dolphin elephant flatfish forest fox girl hamster house kangaroo
    keyboard lamp lawn_mower leopard lion lizard lobster man maple_tree
    motorcycle mountain mouse mushroom oak_tree orange orchid otter
    palm_tree pear pickup_truck pine_tree plain plate poppy porcupine possum
    rabbit raccoon ray road rocket rose sea seal shark shrew skunk
    skyscraper snail snake spider squirrel streetcar sunflower sweet_pepper
    table tank telephone television tiger tractor train trout tulip turtle
    wardrobe whale willow_tree wolf woman worm
"""
_CIFAR10_NAMES = tuple(_CIFAR10_WORDS.split())
_CIFAR100_NAMES = tuple(_CIFAR100_WORDS.split())


def corruption_names(dataset: str) -> tuple[str, ...]:
  """Returns the names of the 19 corruptions, those of tensorflow-datasets.

  Args:
    dataset: "cifar10_corrupted" or "cifar100_corrupted".

  Returns:
    The names, the same ones for both, in alphabetical order.

  Raises:
    ValueError: If the data set is unknown.
  """
  _check_dataset(dataset)
  return tuple(_FILE_OF)


def load_corrupted(
  dataset: str,
  corruption: str,
  severity: int,
  data_dir: str | os.PathLike[str] | None = None,
) -> table.Table:
  """Loads the test images of CIFAR under one corruption at one severity.

  Args:
    dataset: "cifar10_corrupted" or "cifar100_corrupted".
    corruption: One of `corruption_names(dataset)`.
    severity: 1 to 5; `datasets.load` has the images without corruption.
    data_dir: The folder of all data sets, see `dataset`.

  Returns:
    The images `[10000, 32, 32, 3]` uint8 and their labels. It has no training
    split: `num_train` is None.

  Raises:
    ValueError: If a name or the severity is unknown, or a file on the disk has
      another content than the archive's.
    DatasetNotFoundError: If the data set is not on the disk.
  """
  _check_dataset(dataset)
  if corruption not in _FILE_OF:
    raise ValueError(
      f"unknown corruption {corruption!r}; known are {', '.join(_FILE_OF)}"
    )
  partition.check_positive_integer("severity", severity)
  if severity > corruptions.MAX_SEVERITY:
    raise ValueError(
      f"severity must lie in 1..{corruptions.MAX_SEVERITY}, got {severity}"
    )
  folder = dataset_lib.data_folder(data_dir)
  return _LOADERS[dataset](folder, corruption, severity)


def _check_dataset(dataset: str) -> None:
  """Raises ValueError unless the data set has corrupted images."""
  if dataset not in _LOADERS:
    raise ValueError(
      f"unknown corrupted data set {dataset!r}; known are {', '.join(_LOADERS)}"
    )


def _cifar10(
  folder: pathlib.Path, corruption: str, severity: int
) -> table.Table:
  """Loads a configuration written by tensorflow-datasets."""
  images = tfds_archives.load(
    f"cifar10_corrupted/{corruption}_{severity}", folder, splits=("test",)
  )
  return table.of_classes(images.x, images.y, _CIFAR10_NAMES)


def _cifar100(
  folder: pathlib.Path, corruption: str, severity: int
) -> table.Table:
  """Reads one severity of a file of the archive."""
  archive = folder / CIFAR100_FOLDER
  paths = archive / _FILE_OF[corruption], archive / "labels.npy"
  for path in paths:
    if not path.is_file():
      raise dataset_lib.not_found(
        "cifar100_corrupted",
        path,
        f'mkdir -p "{folder}" && curl -L'
        f" {CIFAR100_URL}/files/{CIFAR100_FOLDER}.tar | tar -x -C"
        f' "{folder}"',
      )
  images, labels = map(_map_array, paths)
  if (
    labels.ndim != 1
    or not len(labels)
    or len(labels) % corruptions.MAX_SEVERITY
    or not np.issubdtype(labels.dtype, np.integer)
  ):
    raise ValueError(
      f"{paths[1]} holds {labels.dtype} {list(labels.shape)}; it must hold"
      f" integers [{corruptions.MAX_SEVERITY} * number of images]"
    )
  expected = (len(labels), 32, 32, 3)
  if images.shape != expected or images.dtype != np.uint8:
    raise ValueError(
      f"{paths[0]} holds {images.dtype} {list(images.shape)}; it must hold"
      f" uint8 {list(expected)}"
    )
  num_images = len(labels) // corruptions.MAX_SEVERITY
  rows = slice((severity - 1) * num_images, severity * num_images)
  y = np.array(labels[rows], np.int32)
  if y.min() < 0 or y.max() >= len(_CIFAR100_NAMES):
    raise ValueError(
      f"{paths[1]} holds labels {y.min()}..{y.max()}; they must lie in"
      f" 0..{len(_CIFAR100_NAMES) - 1}"
    )
  return table.of_classes(np.array(images[rows]), y, _CIFAR100_NAMES)


def _map_array(path: pathlib.Path) -> np.ndarray:
  """Maps a .npy file into memory: only the used rows are read."""
  try:
    return array_files.map_npy(path)
  except ValueError as error:
    raise ValueError(
      f"{path} cannot be read as an array ({error}); unpack the archive again"
    ) from error


_LOADERS = {"cifar10_corrupted": _cifar10, "cifar100_corrupted": _cifar100}
