"""Reductions of a table: fewer seeds, settings, rounds and examples.

The format of `--reduce` is comma-separated:

    num_seeds=2            the first two seeds
    seeds=0:1              these seeds
    num_settings=2         the two middle values of each selected
                           hyper-parameter
    learning_rate=0.1:0.2  these of the paper's values of a hyper-parameter
    rounds=20              at most 20; the same for any other numeric flag
    rounds=50%             50 % of the paper's value
    evaluate_every=20      at least 20, for fewer evaluations
    model=guided_cnn       a smaller model

Choices:
  * With two rates of a list of odd length, the middle one and the one above are
    used: fewer rounds need larger steps.
  * Steps of the head (FedRep, FLUTE, ...) are at most the local steps if these
    are reduced.
"""

import dataclasses
import math
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

from absl import flags

from experiments.papers import binary_flags

NUM_SEEDS = "num_seeds"
SEEDS = "seeds"
NUM_SETTINGS = "num_settings"
_FEWER = "evaluate_every"
_TEXTS = ("model",)


@dataclasses.dataclass(frozen=True)
class Reductions:
  """Reductions by name.

  Attributes:
    items: The text after the "=" in `--reduce`, by name.
  """

  items: Mapping[str, str] = dataclasses.field(default_factory=dict)

  def then(self, more: "Reductions") -> "Reductions":
    """Returns the reductions, overridden and extended by more."""
    return Reductions({**self.items, **more.items})

  def seeds(self, of_paper: Sequence[int]) -> list[int]:
    """Returns the reduced seeds."""
    if SEEDS in self.items:
      return [int(part) for part in self.items[SEEDS].split(":")]
    return list(of_paper)[: int(self.items.get(NUM_SEEDS, len(of_paper)))]

  def values(self, name: str, of_paper: Sequence[Any]) -> list[Any]:
    """Returns the reduced values of a hyper-parameter.

    Args:
      name: The hyper-parameter.
      of_paper: All values of the paper.

    Raises:
      ValueError: If a value is not in the paper.
    """
    if name not in self.items:
      return middle(of_paper, int(self.items.get(NUM_SETTINGS, len(of_paper))))
    wanted = [_same(part) for part in self.items[name].split(":")]
    kept = [value for value in of_paper if _same(value) in wanted]
    if len(kept) != len(wanted):
      raise ValueError(
        f"--reduce: {name}={self.items[name]}: the values must be of the"
        f" paper's {':'.join(map(binary_flags.shown, of_paper))}"
      )
    return kept

  def number(self, name: str, of_paper: Any) -> Any:
    """Returns the reduced value of a flag, never more than the paper's.

    Args:
      name: The flag.
      of_paper: The paper's value. None: no limit.
    """
    if name not in self.items:
      return of_paper
    text = self.items[name]
    if name in _TEXTS:
      return text
    if text.endswith("%"):
      if of_paper is None:
        return None
      share = float(of_paper) * float(text[:-1]) / 100
      return max(1, round(share)) if _is_whole(of_paper) else share
    value = int(text) if _is_whole(text) else float(text)
    if of_paper is None:
      return value
    limit = max if name == _FEWER else min
    return limit(value, type(value)(of_paper), key=float)


def _same(value: Any) -> float | str:
  """Returns a key that is equal for equal values in any notation."""
  try:
    return float(value)
  except ValueError:
    return str(value)


def _is_whole(value: Any) -> bool:
  return str(value).lstrip("-").isdigit()


def middle(values: Sequence[Any], number: int) -> list[Any]:
  """Returns the given number of middle values; ties go to later values.

  Of ascending learning rates this prefers larger ones, because fewer rounds
  need larger steps.
  """
  left_out = max(0, len(values) - number)
  start = math.ceil(left_out / 2)
  return list(values)[start : start + min(number, len(values))]


def parse(text: str, binary: str) -> Reductions:
  """Parses `--reduce`.

  Args:
    text: The text, in the format of the module docstring.
    binary: The binary whose flags are reduced.

  Returns:
    The reductions.

  Raises:
    ValueError: If an item is invalid.
  """
  items = {}
  known = binary_flags.of(binary)
  for part in filter(None, (each.strip() for each in text.split(","))):
    name, equals, value = part.partition("=")
    if not equals or not value or name in items:
      raise ValueError(
        f"--reduce: {part!r}: it must be name=value, without duplicates"
      )
    if name not in (NUM_SEEDS, NUM_SETTINGS, SEEDS) and name not in known:
      raise ValueError(
        f"--reduce: {name}: experiments.{binary} has no such flag"
      )
    _check_value(name, value, known, binary)
    items[name] = value
  return Reductions(items)


def _check_value(
  name: str, value: str, known: Mapping[str, flags.Flag], binary: str
) -> None:
  wrong = ValueError(f"--reduce: {name}={value}: invalid value")
  if name in _TEXTS:
    return
  if name in (NUM_SEEDS, NUM_SETTINGS):
    if not value.isdigit() or int(value) < 1:
      raise wrong
  elif name == SEEDS:
    parts = value.split(":")
    if not all(map(str.isdigit, parts)) or len(set(parts)) != len(parts):
      raise wrong
  elif binary_flags.is_hparam(name, binary):
    for part in value.removesuffix("%").split(":"):
      try:
        binary_flags.check(name, part, binary)
      except ValueError as error:
        raise ValueError(f"--reduce: {error}") from error
  else:
    numbers = (flags.IntegerParser, flags.FloatParser)
    if not isinstance(known[name].parser, numbers):
      raise ValueError(f"--reduce: {name} is not a number")
    try:
      is_right = 0 < float(value.removesuffix("%")) < math.inf
    except ValueError:
      is_right = False
    if not is_right:
      raise wrong
