"""Names of clients and classes may be arrays, as pandas and NumPy give them."""

import numpy as np

from tff_shift.data.your_own import from_arrays


def pair(number):
  """Examples that no other number has."""
  x = np.arange(8, dtype=np.float32).reshape(4, 2) + 100 * number
  return x, np.array([0, 1, 0, 1])


def test_of_clients():
  clients = from_arrays.evolving(
    [[pair(0), pair(1)], [pair(2), pair(3)]],
    client_names=np.array(["north", "south"]),
  )
  assert [each.name for each in clients] == ["north", "south"]


def test_of_classes():
  data = from_arrays.evolving_domains(
    [pair(0), pair(1)], class_names=np.array(["cat", "dog"])
  )
  assert data.class_names == ("cat", "dog")
