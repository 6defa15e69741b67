"""Reads and writes `plan.json`, the plan of a reproduction."""

import pathlib
from typing import Annotated

import msgspec

from experiments.papers import binary_flags
from experiments.papers import reductions
from tff_shift._util import files
from tff_shift._util import records
from tff_shift._util import shown_names

NAME = "plan.json"


class Plan(records.Record):
  """How much of a table is run, the content of `plan.json`.

  Attributes:
    reduce: The items of `reductions.Reductions`.
    more_flags: The arguments in `--flags`.
    budget: `--budget`, if it determined the reductions.
    estimate: The estimated seconds, or None.
  """

  FORMAT = 1

  reduce: dict[str, str]
  more_flags: tuple[str, ...] = ()
  budget: str = ""
  estimate: Annotated[float, msgspec.Meta(ge=0)] | None = None

  def is_of(self, kept: "Plan") -> bool:
    """Returns whether the stored plan agrees with this one.

    The reductions of a budget are estimated once and then stored.
    """
    if self.more_flags != kept.more_flags:
      return False
    if self.budget or kept.budget:
      return self.budget == kept.budget
    return self.reduce == kept.reduce

  def check(self, binary: str) -> None:
    """Checks the plan as the command line would be checked.

    Args:
      binary: The binary of the table.

    Raises:
      ValueError: If a reduction or a flag is wrong.
    """
    text = ",".join(f"{name}={value}" for name, value in self.reduce.items())
    try:
      if reductions.parse(text, binary).items != self.reduce:
        raise ValueError(f"--reduce={text}: it must be name=value")
      binary_flags.parsed(list(self.more_flags), binary)
    except ValueError as error:
      raise ValueError(shown_names.line(f"{NAME}: {error}")) from error


def read(folder: pathlib.Path) -> Plan | None:
  """Returns the plan of a folder, or None if it has none.

  Raises:
    ValueError: If the file was changed since `write`.
  """
  try:
    return records.read(
      folder / NAME, Plan, "restore it, or remove it and set the flags again"
    )
  except FileNotFoundError:
    return None


def write(folder: pathlib.Path, plan: Plan) -> None:
  """Writes the plan to a folder, which is created if needed."""
  with files.writing(folder):
    folder.mkdir(parents=True, exist_ok=True)
  records.write(folder / NAME, plan)
