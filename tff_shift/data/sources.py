"""Named data sets as typed arrays.

Nothing is ever downloaded here: a data set that is not on the disk ends in a
`DatasetNotFoundError` with the command that fetches it. All of them live in one
folder: `data_dir`, else the environment variable `TFDS_DATA_DIR`, else
`~/tensorflow_datasets`.

    mnist/3.0.1/           written by tensorflow-datasets
    emnist/letters/3.1.0/  written by tensorflow-datasets
    faces_aligned_small_mirrored_co_aligned_cropped_cleaned/{F,M}/1905_….png
        the archive of Portraits as it unpacks
    caltran/2013-03-04-08-00.jpg, …, caltran/caltran_dataset_labels.mat
        the images of Caltran and its labels, side by side

`digits` comes with scikit-learn, and `circle` is generated.

- digits: E. Alpaydin and C. Kaynak, "Optical Recognition of Handwritten Digits"
  (UCI), the 1,797 images that scikit-learn ships.
- MNIST, EMNIST: training and test split are pooled (training first), because
  every scenario makes its own split; within a split, examples are in the order
  in which tensorflow-datasets stores them.
- Portraits: S. Ginosar et al., "A Century of Portraits" (ICCV Workshops 2015).
  Grey faces from yearbooks of 1905 to 2013; the folder is the class, the file
  name starts with the year.
- Caltran: J. Hoffman et al., "Continuous Manifold Based Adaptation for Evolving
  Visual Domains" (CVPR 2014). A traffic camera; the file name is
  year-month-day-hour-minute; the MATLAB file holds `names` (without suffix) and
  `labels` (above 0: a car in or near the intersection).
- Circle: A. Pesaranghader and H. L. Viktor (ECML PKDD 2016), in the version of
  "Federated Learning under Evolving Distribution Shifts", Appendix C.2.
"""

import os
import pathlib
import re
import string
from collections.abc import Callable
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from tff_shift.data import partition

DEFAULT_DATA_DIR = "~/tensorflow_datasets"
PORTRAITS_FOLDER = "faces_aligned_small_mirrored_co_aligned_cropped_cleaned"
PORTRAITS_URL = (
    f"https://www.dropbox.com/s/ubjjoo0b2wz4vgz/{PORTRAITS_FOLDER}.tar.gz?dl=1"
)
PORTRAITS_SIZE = 32
CALTRAN_FOLDER = "caltran"
CALTRAN_LABELS = "caltran_dataset_labels.mat"
CALTRAN_URL = "http://cma.berkeleyvision.org"
CALTRAN_SIZE = 224
DIGITS_SIZE = 28
DIGITS_MARGIN = 4

CIRCLE_RADIUS = 10.0
CIRCLE_STDDEV = 0.6

_DIGIT_NAMES = tuple(string.digits)
_LETTER_NAMES = tuple(string.ascii_uppercase)


class DatasetNotFoundError(FileNotFoundError):
  """A data set is not on this machine; the message says how to fetch it."""


class Source(NamedTuple):
  """A whole data set.

  Attributes:
    x: `[N, height, width, channels]` uint8 images, or `[N, features]` float32.
    y: `[N]` int32 labels, which count from 0.
    class_names: The name of each label.
    time: `[N]` int32, when an example was taken (the year for portraits, the
      hour for caltran, the position along the half circle for circle), or None.
  """

  x: np.ndarray
  y: np.ndarray
  class_names: tuple[str, ...]
  time: np.ndarray | None = None


def names() -> tuple[str, ...]:
  """Returns the names that `load` knows."""
  return tuple(_LOADERS)


def load(
    name: str, *, data_dir: str | os.PathLike[str] | None = None
) -> Source:
  """Loads a data set from the disk.

  Args:
    name: One of `names()`.
    data_dir: The folder of all data sets; see the module's docstring.

  Returns:
    The data set, always in the same order.

  Raises:
    ValueError: The name is unknown, or a file on the disk is not what the
      archive holds.
    DatasetNotFoundError: The data set is not on the disk.
  """
  if name not in _LOADERS:
    raise ValueError(
        f"unknown data set {name!r}; known are {', '.join(names())}"
    )
  folder = data_dir or os.environ.get("TFDS_DATA_DIR") or DEFAULT_DATA_DIR
  return _LOADERS[name](pathlib.Path(folder).expanduser())


def circle(
    seed: int, num_domains: int = 30, examples_per_domain: int = 1000
) -> Source:
  """Generates Circle: Gaussian clouds along a half circle.

  The centre of cloud m of M lies at the angle pi m / (M - 1) on the circle of
  radius 10 about the origin: the clouds run counter-clockwise from (10, 0) to
  (-10, 0). The standard deviation is 0.6 in both coordinates. A point is of
  class "inside" when x^2 + y^2 <= 10^2.

  Args:
    seed: Seed of the draw; cloud m depends on (seed, m) and its centre only.
    num_domains: Number of clouds M.
    examples_per_domain: Number of points of each cloud.

  Returns:
    `x` `[num_domains * examples_per_domain, 2]` float32, cloud by cloud; `time`
    is the index of the cloud.

  Raises:
    ValueError: A number is below 1, or the seed below 0.
  """
  partition.check_positive_integer("num_domains", num_domains)
  partition.check_positive_integer("examples_per_domain", examples_per_domain)
  angles = np.linspace(0, np.pi, num_domains)
  centres = CIRCLE_RADIUS * np.stack([np.cos(angles), np.sin(angles)], axis=1)
  points = [
      partition.generator("circle", [seed, domain]).normal(
          centre, CIRCLE_STDDEV, size=(examples_per_domain, 2)
      )
      for domain, centre in enumerate(centres)
  ]
  x = np.concatenate(points).astype(np.float32)
  # From the points as they are stored: no label contradicts its point.
  squared_radius = np.square(x.astype(np.float64)).sum(axis=1)
  y = (squared_radius <= CIRCLE_RADIUS**2).astype(np.int32)
  time = np.repeat(np.arange(num_domains, dtype=np.int32), examples_per_domain)
  return Source(x, y, ("outside", "inside"), time)


def _digits(folder: pathlib.Path) -> Source:
  """Loads scikit-learn's digits, upsampled from 8x8 to 20x20 in 28x28.

  The margin is MNIST's: with it a digit stays in the image when that is turned.
  """
  del folder  # They come with scikit-learn.
  from PIL import Image
  from sklearn import datasets

  bunch = datasets.load_digits()
  # 0..16 -> 0..255. Pillow puts samples at pixel centres and repeats the edge.
  images = (bunch.images * (255 / 16)).astype(np.float32)
  size = (DIGITS_SIZE - 2 * DIGITS_MARGIN,) * 2
  bilinear = Image.Resampling.BILINEAR
  upsampled = np.stack(
      [np.asarray(Image.fromarray(i).resize(size, bilinear)) for i in images]
  )
  margin = (DIGITS_MARGIN, DIGITS_MARGIN)
  x = np.pad(np.rint(upsampled).astype(np.uint8), ((0, 0), margin, margin))
  return Source(x[..., np.newaxis], bunch.target.astype(np.int32), _DIGIT_NAMES)


def _mnist(folder: pathlib.Path) -> Source:
  """Loads MNIST."""
  x, y = _load_tfds("mnist", folder)
  return Source(x, y, _DIGIT_NAMES)


def _emnist_letters(folder: pathlib.Path) -> Source:
  """Loads the letters of EMNIST, upright and with labels 0..25."""
  x, y = _load_tfds("emnist/letters", folder)
  # EMNIST stores images column by column and counts the letters from 1.
  upright = np.ascontiguousarray(x.transpose(0, 2, 1, 3))
  return Source(upright, y - 1, _LETTER_NAMES)


def _load_tfds(
    name: str, folder: pathlib.Path
) -> tuple[np.ndarray, np.ndarray]:
  """Reads all examples of a data set that tensorflow-datasets has written.

  Args:
    name: `data set` or `data set/configuration`.
    folder: The folder that contains the data set's own.

  Returns:
    Images `[N, height, width, channels]` uint8 and labels `[N]` int32, the
    training split before the test split.

  Raises:
    DatasetNotFoundError: There is no written version of it in the folder.
  """
  # Looked up before the import: a missing data set is reported at once, and
  # tensorflow-datasets never has a reason to ask the network.
  versions = [
      info.parent.name
      for info in (folder / name).glob("*/dataset_info.json")
      if re.fullmatch(r"\d+\.\d+\.\d+", info.parent.name)
  ]
  if not versions:
    raise _not_found(
        name,
        folder / name,
        'python -c "import tensorflow_datasets as tfds;'
        f" tfds.load('{name}', data_dir='{folder}')\"",
    )
  import tensorflow_datasets as tfds

  newest = max(versions, key=lambda v: tuple(map(int, v.split("."))))
  images, labels = tfds.as_numpy(
      tfds.load(
          f"{name}:{newest}",
          split="train+test",
          data_dir=os.fspath(folder),
          download=False,
          as_supervised=True,
          batch_size=-1,
          shuffle_files=False,
          # One file after the other, so that the order is the stored one.
          read_config=tfds.ReadConfig(interleave_cycle_length=1),
      )
  )
  return images, labels.astype(np.int32)


def _portraits(folder: pathlib.Path) -> Source:
  """Loads Portraits, 32x32 and grey, with the year of each face."""
  archive = folder / PORTRAITS_FOLDER
  class_of = {"F": 0, "M": 1}
  paths = [p for c in class_of for p in sorted((archive / c).glob("*.png"))]
  if not paths:
    raise _not_found(
        "portraits",
        archive,
        f'mkdir -p "{folder}" && curl -L "{PORTRAITS_URL}" | tar -xz -C'
        f' "{folder}"',
    )
  years = [_number_in_name(path, r"(\d{4})_.*") for path in paths]
  labels = [class_of[path.parent.name] for path in paths]
  return Source(
      _read_images(paths, "L", PORTRAITS_SIZE),
      np.array(labels, np.int32),
      ("female", "male"),
      np.array(years, np.int32),
  )


def _caltran(folder: pathlib.Path) -> Source:
  """Loads Caltran, 224x224 in colour, with the hour of each image."""
  archive = folder / CALTRAN_FOLDER
  if not (archive / CALTRAN_LABELS).is_file():
    raise _not_found(
        "caltran",
        archive,
        f'mkdir -p "{archive}", then unpack there the images and'
        f" {CALTRAN_LABELS} from {CALTRAN_URL}",
    )
  from scipy import io

  table = io.loadmat(archive / CALTRAN_LABELS, squeeze_me=True)
  stems = np.atleast_1d(table["names"])
  labels = np.atleast_1d(table["labels"])
  if len(stems) != len(labels):
    raise ValueError(
        f"{archive / CALTRAN_LABELS} holds {len(stems)} names and"
        f" {len(labels)} labels; it must hold as many of each"
    )
  paths = [archive / f"{stem}.jpg" for stem in stems]
  pattern = r"\d{4}-\d{2}-\d{2}-([01]\d|2[0-3])-\d{2}\.jpg"
  hours = [_number_in_name(path, pattern) for path in paths]
  return Source(
      _read_images(paths, "RGB", CALTRAN_SIZE),
      (labels > 0).astype(np.int32),
      ("no car", "car"),
      np.array(hours, np.int32),
  )


def _number_in_name(path: pathlib.Path, pattern: str) -> int:
  """Returns the number in a file name that the first group of `pattern` is."""
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
    ValueError: A file is missing or is not a whole image.
  """
  from PIL import Image

  x = np.empty((len(paths), size, size, len(mode)), np.uint8)
  for position, path in enumerate(paths):
    try:
      with Image.open(path) as image:
        resized = image.convert(mode).resize(
            (size, size), Image.Resampling.BILINEAR
        )
    except (OSError, SyntaxError) as error:
      raise ValueError(
          f"{path} cannot be read as an image ({error}); unpack the archive"
          " again"
      ) from error
    x[position] = np.asarray(resized).reshape(size, size, len(mode))
  return x


def _not_found(
    name: str, searched: pathlib.Path, fetch: str
) -> DatasetNotFoundError:
  """Makes the one-line error of a data set that is not on the disk."""
  return DatasetNotFoundError(
      f"data set {name!r} is not in {searched}; fetch it with: {fetch}"
  )


_LOADERS: dict[str, Callable[[pathlib.Path], Source]] = {
    "digits": _digits,
    "mnist": _mnist,
    "emnist/letters": _emnist_letters,
    "portraits": _portraits,
    "caltran": _caltran,
}
