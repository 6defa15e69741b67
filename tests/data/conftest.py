"""What the tests of data share: the data sets that are on the disk."""

import numpy as np
import pytest
from PIL import Image
from sklearn import datasets as sklearn_datasets

from tff_shift.data import datasets
from tff_shift.data import source


@pytest.fixture(scope="session")
def load_once():
  """Returns `load(name)`, which reads what has one loader once for all tests.

  It gives the `source.Source`, checked as that of the name; the test is skipped
  where the data set is not on the disk.
  """
  loaded = {}

  def load(name):
    entry = datasets.get(name)
    loader = entry.load or entry.generate
    if loader not in loaded:
      try:
        loaded[loader] = datasets.load(name)
      except source.DatasetNotFoundError as error:
        pytest.skip(str(error))
    return datasets.checked(loaded[loader], entry, name)

  return load


@pytest.fixture(scope="session")
def photographs():
  """`[12, 32, 32, 3]`: pieces of the two photographs of scikit-learn."""
  pieces = []
  for file in ("china.jpg", "flower.jpg"):
    photograph = Image.fromarray(sklearn_datasets.load_sample_image(file))
    small = np.asarray(photograph.resize((96, 64), Image.Resampling.BOX))
    pieces += [
      small[top : top + 32, left : left + 32]
      for top in (0, 32)
      for left in (0, 32, 64)
    ]
  return np.stack(pieces)
