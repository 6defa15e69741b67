"""The values of single clients at an evaluation, and their form in a file.

The mean over clients hides who is harmed. Evaluations therefore also keep a
vector over the clients for each metric, in float32 as measured: in results, and
in the file of a run.
"""

import hashlib
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

import numpy as np

# Values of more clients are not kept: an evaluation would take megabytes.
MAX_CLIENTS = 100_000


class ClientValues(Mapping):
  """The values of each client, by metric.

  Each is [num_places, num_clients] float32; NaN: the client has no value, for
  example because it was not evaluated. Accuracies are in percent.

  Attributes:
    step: The step of the run after which they were measured.
    places: The columns that identify each row within the run, such as
      `{"round": 5}`, as in `metrics.csv`.
  """

  def __init__(
    self,
    step: int,
    places: Sequence[Mapping[str, Any]],
    values: Mapping[str, np.ndarray],
  ):
    self.step = step
    self.places = tuple(map(dict, places))
    self._values = {
      name: np.ascontiguousarray(each, "<f4") for name, each in values.items()
    }
    self._digests: dict[str, str] | None = None

  def __getitem__(self, name: str) -> np.ndarray:
    return self._values[name]

  def __iter__(self) -> Iterator[str]:
    return iter(self._values)

  def __len__(self) -> int:
    return len(self._values)

  def __eq__(self, other: object) -> bool:
    """Returns whether all values are equal; NaN equals NaN."""
    if not isinstance(other, ClientValues):
      return NotImplemented
    return (self.step, self.places, self.digests) == (
      (other.step, other.places, other.digests)
    )

  __hash__ = None

  def __repr__(self):
    return f"ClientValues(step={self.step}, metrics={list(self)})"

  @property
  def digests(self) -> Mapping[str, str]:
    """The digest of each metric's values."""
    if self._digests is None:
      self._digests = {
        name: digest(self.step, name, each.tobytes()).hex()
        for name, each in self._values.items()
      }
    return self._digests


def digest(step: int, metric: str, content: bytes) -> bytes:
  """Returns the digest of a row of the table `measurements`."""
  found = hashlib.sha256(f"{step}/{metric}/".encode())
  found.update(content)
  return found.digest()


def of_some(
  step: int,
  place: Mapping[str, Any],
  num_clients: int,
  parts: Iterable[tuple[str, Iterable[int], Mapping[str, np.ndarray]]],
) -> ClientValues | None:
  """Returns the values of all clients from those of the evaluated ones.

  Args:
    step: The step.
    place: The columns of the evaluation in `metrics.csv`.
    num_clients: The number of clients.
    parts: The prefix of the names, the clients, and their values by metric.

  Returns:
    The values; None for more than `MAX_CLIENTS` clients.
  """
  if num_clients > MAX_CLIENTS:
    return None
  found = {}
  for prefix, clients, values in parts:
    for name, each in values.items():
      row = np.full([1, num_clients], np.nan, np.float32)
      row[0, list(clients)] = each
      found[f"{prefix}{name}"] = row
  return ClientValues(step, [place], found)


def found_in(value: Any) -> Iterator[ClientValues]:
  """Yields the values of clients in measurements."""
  if isinstance(value, ClientValues):
    yield value
  elif isinstance(value, Mapping):
    for each in value.values():
      yield from found_in(each)
  elif isinstance(value, list | tuple):
    for each in value:
      yield from found_in(each)


def mean(values: Iterable[np.ndarray]) -> np.ndarray:
  """Returns each client's mean over the rows in which it has a value.

  Args:
    values: Arrays [..., num_clients].

  Returns:
    [num_clients] float64; NaN for a client without values.
  """
  rows = np.concatenate(
    [
      np.asarray(each, np.float64).reshape(-1, each.shape[-1])
      for each in values
    ]
  )
  is_known = ~np.isnan(rows)
  counts = is_known.sum(axis=0)
  sums = np.where(is_known, rows, 0.0).sum(axis=0)
  return np.where(counts > 0, sums / np.maximum(counts, 1), np.nan)
