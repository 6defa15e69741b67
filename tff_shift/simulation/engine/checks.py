"""Checks of arguments that all drivers share, beside `arguments`."""

from typing import Any

from tff_shift._util import arguments
from tff_shift.data import client_dataset
from tff_shift.learning import algorithm as algorithm_lib
from tff_shift.simulation.engine import participation


def algorithm(value: Any) -> None:
  """Raises a ValueError if it is not an `algorithm.FederatedAlgorithm`."""
  arguments.has("algorithm", value, ["phases"], "what algorithms.build returns")


def trains(value: algorithm_lib.FederatedAlgorithm) -> None:
  """Raises a ValueError if the rounds of an algorithm have no phase."""
  if not value.phases:
    raise ValueError(
      f"algorithm {value.name} is not allowed: it trains nothing, so it has no"
      " rounds to run"
    )


def data_kind(value: algorithm_lib.FederatedAlgorithm, *kinds: type) -> None:
  """Refuses an algorithm whose clients take data of another type.

  Args:
    value: The algorithm.
    *kinds: The named tuples that the driver passes to clients.

  Raises:
    ValueError: If its clients take another type.
  """
  data_type = value.evaluate_clients.type_signature.parameter[2].member
  found = data_type.python_container
  if not issubclass(found or object, kinds):
    if issubclass(found or object, client_dataset.ClientDataset):
      found = (
        client_dataset.ClientDataset
      )  # With padding, it is given the same.
    raise ValueError(
      f"algorithm {value.name} is not allowed: its clients take"
      f" {found and found.__name__}, and this driver gives"
      f" {' or '.join(kind.__name__ for kind in kinds)}"
    )


def checkpoint(value: Any) -> None:
  """Raises a ValueError unless it is a `checkpoints.Run` or None."""
  if value is not None:
    arguments.has(
      "checkpoint",
      value,
      ["steps", "storage"],
      "a checkpoints.Run, as Checkpoints.run returns it, or None",
    )


def reporting(value: Any) -> None:
  """Raises a ValueError unless it is a `participation.Reporting` or None."""
  if value is not None and not isinstance(value, participation.Reporting):
    raise ValueError(
      f"reporting={value!r:.50} is not allowed: it must be a"
      " participation.Reporting, or None"
    )
