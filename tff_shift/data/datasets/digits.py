"""scikit-learn's digits at the size of MNIST.

E. Alpaydin and C. Kaynak, "Optical Recognition of Handwritten Digits" (UCI):
the 1,797 images of 8x8 that scikit-learn ships.
"""

import functools
import pathlib
import string

import numpy as np

from tff_shift.data import dataset
from tff_shift.data import examples
from tff_shift.data import table

_SIZE = 28
_MARGIN = 4


def _load(folder: pathlib.Path) -> table.Table:
  """Loads the digits."""
  del folder  # They come with scikit-learn.
  return _upsampled()


# Each seed of a comparison loads the digits.
@functools.cache
def _upsampled() -> table.Table:
  """Returns the digits, upsampled from 8x8 to 20x20 in 28x28.

  The margin is MNIST's: with it, rotated digits stay in the image.
  """
  from PIL import Image
  from sklearn import datasets

  bunch = datasets.load_digits()
  # 0..16 -> 0..255. Pillow samples at pixel centres and repeats the edge.
  images = (bunch.images * (255 / 16)).astype(np.float32)
  size = (_SIZE - 2 * _MARGIN,) * 2
  bilinear = Image.Resampling.BILINEAR
  upsampled = np.stack(
    [np.asarray(Image.fromarray(i).resize(size, bilinear)) for i in images]
  )
  margin = (_MARGIN, _MARGIN)
  x = np.pad(np.rint(upsampled).astype(np.uint8), ((0, 0), margin, margin))
  return table.of_classes(
    examples.read_only(x[..., np.newaxis]),
    examples.read_only(bunch.target.astype(np.int32)),
    tuple(string.digits),
  )


DATASET = dataset.DatasetInfo(
  shape=(_SIZE, _SIZE, 1),
  dtype=np.uint8,
  num_classes=10,
  models={
    "online_adaptation": "residual_cnn",
    "guidance": "guided_cnn",
    "dynamic_personalization": "mlp",
  },
  load=_load,
)
