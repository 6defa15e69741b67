"""What the tests of data share: the data sets that are on the disk."""

import pytest

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
