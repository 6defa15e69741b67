"""What is run less of than a paper says: seeds, settings, rounds, examples.

Written as in `--reduce`, comma-separated:

    num_seeds=2            the first two seeds
    seeds=0:1              these seeds
    num_settings=2         the two middle values of each hyper-parameter that
                           selection chooses
    learning_rate=0.1:0.2  these values of one, all of the paper's
    rounds=20              any other flag that is a number, at most so much
    rounds=50%             that share of what the paper says
    evaluate_every=20      at least so much: fewer evaluations
    model=guided_cnn       a smaller model
"""

import dataclasses
import math
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

from absl import flags

from tff_shift.reproduction import binary_flags

NUM_SEEDS = "num_seeds"
SEEDS = "seeds"
NUM_SETTINGS = "num_settings"
_FEWER = "evaluate_every"
_TEXTS = ("model",)


@dataclasses.dataclass(frozen=True)
class Reductions:
  """What is reduced.

  Attributes:
    items: By name, the text behind the "=" of `--reduce`; what comes later
      counts instead of what came before.
  """

  items: Mapping[str, str] = dataclasses.field(default_factory=dict)

  def then(self, more: "Reductions") -> "Reductions":
    """Returns these and more."""
    return Reductions({**self.items, **more.items})

  def seeds(self, of_paper: Sequence[int]) -> list[int]:
    """Returns the seeds that are left."""
    if SEEDS in self.items:
      return [int(part) for part in self.items[SEEDS].split(":")]
    return list(of_paper)[: int(self.items.get(NUM_SEEDS, len(of_paper)))]

  def values(self, name: str, of_paper: Sequence[Any]) -> list[Any]:
    """Returns the values of a hyper-parameter that are left.

    Args:
      name: The hyper-parameter.
      of_paper: All of its values.

    Raises:
      ValueError: If another one is asked for.
    """
    if name not in self.items:
      return middle(of_paper, int(self.items.get(NUM_SETTINGS, len(of_paper))))
    wanted = [_same(part) for part in self.items[name].split(":")]
    kept = [value for value in of_paper if _same(value) in wanted]
    if len(kept) != len(wanted):
      raise ValueError(
        f"--reduce: {name}={self.items[name]}: the paper's are"
        f" {':'.join(map(binary_flags.shown, of_paper))}"
      )
    return kept

  def number(self, name: str, of_paper: Any) -> Any:
    """Returns what a flag becomes, never more than what the paper says.

    Args:
      name: The flag.
      of_paper: Its value, or None if the paper, or the binary, sets no limit.
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
  """Returns what is equal for equal values, however they are written."""
  try:
    return float(value)
  except ValueError:
    return str(value)


def _is_whole(value: Any) -> bool:
  return str(value).lstrip("-").isdigit()


def middle(values: Sequence[Any], number: int) -> list[Any]:
  """Returns so many values from the middle; of an odd rest, the later ones.

  For rates in ascending order the later middle is the larger: with fewer rounds
  a larger step is needed.
  """
  left_out = max(0, len(values) - number)
  start = math.ceil(left_out / 2)
  return list(values)[start : start + min(number, len(values))]


def parse(text: str, binary: str) -> Reductions:
  """Reads `--reduce`.

  Args:
    text: See the module.
    binary: The binary whose flags are reduced.

  Returns:
    The reductions.

  Raises:
    ValueError: In one line, if a part is not understood.
  """
  items = {}
  known = binary_flags.of(binary)
  for part in filter(None, (each.strip() for each in text.split(","))):
    name, equals, value = part.partition("=")
    if not equals or not value or name in items:
      raise ValueError(f"--reduce: {part!r}: name=value wanted, none twice")
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
  wrong = ValueError(f"--reduce: {name}={value}: that is no value of it")
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
      raise ValueError(f"--reduce: {name} is no number, so it has no less")
    try:
      is_right = 0 < float(value.removesuffix("%")) < math.inf
    except ValueError:
      is_right = False
    if not is_right:
      raise wrong
