"""Named data sets as typed arrays.

Nothing is ever downloaded here: a data set that is not on the disk ends in a
`DatasetNotFoundError` with the command that fetches it. All of them live in one
folder: `data_dir`, else the environment variable `TFDS_DATA_DIR`, else
`~/tensorflow_datasets`.

    mnist/3.0.1/, cifar10/3.0.2/, …   written by tensorflow-datasets
    emnist/letters/3.1.0/             written by tensorflow-datasets
    tiny-imagenet-200/, caltran/, …   archives of image files as they unpack,
                                      see `image_archives`

`digits` comes with scikit-learn, and `circle` is generated.

- digits: E. Alpaydin and C. Kaynak, "Optical Recognition of Handwritten Digits"
  (UCI), the 1,797 images that scikit-learn ships.
- MNIST, EMNIST, Fashion-MNIST, CIFAR-10, CIFAR-100: training and test split are
  pooled (training first, `num_train` of them), because every scenario makes its
  own split; within a split, examples are in the order in which
  tensorflow-datasets stores them. `cifar20` is CIFAR-100 with its 20
  superclasses as labels.
- Circle: A. Pesaranghader and H. L. Viktor (ECML PKDD 2016), in the version of
  "Federated Learning under Evolving Distribution Shifts", Appendix C.2.
"""

import functools
import os
import pathlib
import re
import string
from collections.abc import Callable
from collections.abc import Sequence

import numpy as np

from tff_shift.data import image_archives
from tff_shift.data import partition
from tff_shift.data import source

# The one door: callers need no other module than this one.
DatasetNotFoundError = source.DatasetNotFoundError
Source = source.Source
CALTRAN_FOLDER = image_archives.CALTRAN_FOLDER
CALTRAN_LABELS = image_archives.CALTRAN_LABELS
PORTRAITS_FOLDER = image_archives.PORTRAITS_FOLDER
TINY_IMAGENET_FOLDER = image_archives.TINY_IMAGENET_FOLDER

DEFAULT_DATA_DIR = "~/tensorflow_datasets"
DIGITS_SIZE = 28
DIGITS_MARGIN = 4

CIRCLE_RADIUS = 10.0
CIRCLE_STDDEV = 0.6

_DIGIT_NAMES = tuple(string.digits)
_LETTER_NAMES = tuple(string.ascii_uppercase)


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
  return _LOADERS[name](data_folder(data_dir))


def data_folder(data_dir: str | os.PathLike[str] | None) -> pathlib.Path:
  """Returns the folder of all data sets.

  Args:
    data_dir: The folder; None or empty: that of `TFDS_DATA_DIR`, else
      `~/tensorflow_datasets`.

  Returns:
    The folder, which need not exist.
  """
  folder = data_dir or os.environ.get("TFDS_DATA_DIR") or DEFAULT_DATA_DIR
  return pathlib.Path(folder).expanduser()


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


def _emnist_letters(folder: pathlib.Path) -> Source:
  """Loads the letters of EMNIST, upright and with labels 0..25."""
  letters = load_tfds("emnist/letters", folder)
  # EMNIST stores images column by column and counts the letters from 1.
  upright = np.ascontiguousarray(letters.x.transpose(0, 2, 1, 3))
  return letters._replace(x=upright, y=letters.y - 1, class_names=_LETTER_NAMES)


def load_tfds(
  name: str,
  folder: pathlib.Path,
  *,
  label: str = "label",
  splits: Sequence[str] = ("train", "test"),
) -> Source:
  """Loads images that tensorflow-datasets has written.

  Args:
    name: `data set` or `data set/configuration`.
    folder: The folder that contains the data set's own.
    label: Name of the feature that holds the labels.
    splits: The splits to read, in this order.

  Returns:
    The examples as they are stored, split by split; `num_train` is None unless
    the first split is the training split.

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
    raise source.not_found(
      name,
      folder / name,
      'python -c "import tensorflow_datasets as tfds;'
      f" tfds.load('{name}', data_dir='{folder}')\"",
    )
  import tensorflow_datasets as tfds

  newest = max(versions, key=lambda v: tuple(map(int, v.split("."))))
  builder = tfds.builder(f"{name}:{newest}", data_dir=os.fspath(folder))
  examples = tfds.as_numpy(
    builder.as_dataset(
      split="+".join(splits),
      decoders=tfds.decode.PartialDecoding({"image": True, label: True}),
      batch_size=-1,
      shuffle_files=False,
      # One file after the other, so that the order is the stored one.
      read_config=tfds.ReadConfig(interleave_cycle_length=1),
    )
  )
  num_train = None
  if splits[0] == "train":
    num_train = builder.info.splits["train"].num_examples
  return Source(
    examples["image"],
    examples[label].astype(np.int32),
    tuple(builder.info.features[label].names),
    num_train=num_train,
  )


_LOADERS: dict[str, Callable[[pathlib.Path], Source]] = {
  "digits": _digits,
  "mnist": functools.partial(load_tfds, "mnist"),
  "fashion_mnist": functools.partial(load_tfds, "fashion_mnist"),
  "emnist/letters": _emnist_letters,
  "cifar10": functools.partial(load_tfds, "cifar10"),
  "cifar100": functools.partial(load_tfds, "cifar100"),
  "cifar20": functools.partial(load_tfds, "cifar100", label="coarse_label"),
  "tiny_imagenet": image_archives.tiny_imagenet,
  "portraits": image_archives.portraits,
  "caltran": image_archives.caltran,
}
