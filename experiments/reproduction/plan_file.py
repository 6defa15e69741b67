"""The plan of a reproduction on the disk, so that it is made once."""

import dataclasses
import json
import pathlib
from collections.abc import Mapping
from collections.abc import Sequence

from tff_shift import files

NAME = "plan.json"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Plan:
  """What is run, beside the table's specification.

  Attributes:
    reduce: The items of `reductions.Reductions`.
    more_flags: `--flags`, argument by argument.
    budget: `--budget`, where the reductions come from it.
    estimate: What was estimated for them, in seconds, or None.
  """

  reduce: Mapping[str, str]
  more_flags: Sequence[str] = ()
  budget: str = ""
  estimate: float | None = None

  def is_of(self, kept: "Plan") -> bool:
    """Whether a plan that is kept is what these flags lead to.

    A budget leads to what was estimated once, then kept.
    """
    if list(self.more_flags) != list(kept.more_flags):
      return False
    if self.budget or kept.budget:
      return self.budget == kept.budget
    return dict(self.reduce) == dict(kept.reduce)


def read(folder: pathlib.Path) -> Plan | None:
  """Returns the plan of a folder; None if there is none.

  Raises:
    ValueError: If the file is not what `write` has written.
  """
  path = folder / NAME
  try:
    return Plan(**json.loads(path.read_text(encoding="utf-8")))
  except FileNotFoundError:
    return None
  except (ValueError, TypeError) as error:
    raise ValueError(
      f"{path} is damaged; put it back, or remove it and give the flags again"
    ) from error


def write(folder: pathlib.Path, plan: Plan) -> None:
  """Writes the plan into a folder, which is made if needed."""
  with files.writing(folder):
    folder.mkdir(parents=True, exist_ok=True)
  text = json.dumps(dataclasses.asdict(plan), indent=2)
  files.write_atomically(folder / NAME, text + "\n")
