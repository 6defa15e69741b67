"""The plan of a reproduction on the disk, so that it is made once."""

import pathlib
from typing import Annotated
from typing import ClassVar

import msgspec

from tff_shift import files
from tff_shift import records
from tff_shift.reproduction import binary_flags
from tff_shift.reproduction import reductions

NAME = "plan.json"


class Plan(records.Record):
  """What is run, beside the table's specification: `plan.json`.

  Attributes:
    reduce: The items of `reductions.Reductions`.
    more_flags: `--flags`, argument by argument.
    budget: `--budget`, where the reductions come from it.
    estimate: What was estimated for them, in seconds, or None.
  """

  FORMAT = 1
  # Files without a format have the same fields.
  UPGRADES: ClassVar = {0: dict}

  reduce: dict[str, str]
  more_flags: tuple[str, ...] = ()
  budget: str = ""
  estimate: Annotated[float, msgspec.Meta(ge=0)] | None = None

  def is_of(self, kept: "Plan") -> bool:
    """Whether a plan that is kept is what these flags lead to.

    A budget leads to what was estimated once, then kept.
    """
    if self.more_flags != kept.more_flags:
      return False
    if self.budget or kept.budget:
      return self.budget == kept.budget
    return self.reduce == kept.reduce

  def check(self, binary: str) -> None:
    """Refuses what the command line would refuse.

    Args:
      binary: The binary that the table runs.

    Raises:
      ValueError: In one line.
    """
    text = ",".join(f"{name}={value}" for name, value in self.reduce.items())
    try:
      if reductions.parse(text, binary).items != self.reduce:
        raise ValueError(f"--reduce={text}: name=value wanted")
      binary_flags.parsed(list(self.more_flags), binary)
    except ValueError as error:
      raise ValueError(records.one_line(f"{NAME}: {error}")) from error


def read(folder: pathlib.Path) -> Plan | None:
  """Returns the plan of a folder; None if there is none.

  Raises:
    ValueError: If the file is not what `write` has written.
  """
  try:
    return records.read(
      folder / NAME, Plan, "put it back, or remove it and give the flags again"
    )
  except FileNotFoundError:
    return None


def write(folder: pathlib.Path, plan: Plan) -> None:
  """Writes the plan into a folder, which is made if needed."""
  with files.writing(folder):
    folder.mkdir(parents=True, exist_ok=True)
  records.write(folder / NAME, plan)
