"""The letters of EMNIST, in grey; `rotated_emnist_letters` is made of them.

G. Cohen, S. Afshar, J. Tapson and A. van Schaik, "EMNIST: Extending MNIST to
Handwritten Letters" (IJCNN 2017), as tensorflow-datasets stores it: the
training split, then the test split.
"""

import pathlib
import string

import numpy as np

from tff_shift.data import dataset
from tff_shift.data import table
from tff_shift.data.readers import tfds_archives


def _load(folder: pathlib.Path) -> table.Table:
  """Loads the letters, upright and with labels 0..25."""
  letters = tfds_archives.load("emnist/letters", folder)
  # EMNIST stores images column by column and numbers the letters from 1.
  upright = np.ascontiguousarray(letters.x.transpose(0, 2, 1, 3))
  return table.of_classes(
    upright,
    letters.y - 1,
    string.ascii_uppercase,
    num_train=letters.num_train,
  )


DATASET = dataset.DatasetInfo(
  shape=(28, 28, 1),
  dtype=np.uint8,
  num_classes=26,
  models={},
  load=_load,
)
