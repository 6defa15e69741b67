"""Checks of arguments.

A check returns the value as a Python type. So NumPy numbers and Python numbers
give bit-identical runs.
"""

import difflib
import numbers
import re
import sys
from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Mapping
from collections.abc import Sequence
from collections.abc import Set
from typing import Any

import numpy as np

from tff_shift._util import shown_names

# Describes the range of numbers that are converted to float32, in messages.
FLOAT32 = "of a size that float32 holds, 1.2e-38 to 3.4e+38"
# Python numbers: NumPy 2 compares a Python number with a float32 in float32.
_SMALLEST = float(np.finfo(np.float32).tiny)
_LARGEST = float(np.finfo(np.float32).max)
_LONGEST_VALUE = 50

# Seeds, and seeds derived from them, have 32 bits.
_LARGEST_SEED = 2**32 - 1


def as_python(value: Any) -> Any:
  """Converts NumPy scalars to Python types; returns other values unchanged."""
  if not isinstance(value, np.generic):
    return value
  if isinstance(value, np.floating):
    # `item` does not convert long doubles.
    return float(value)
  return value.item()


def integer(
  name: str, value: Any, minimum: int = 1, maximum: int | None = None
) -> int:
  """Checks an integer.

  Args:
    name: The argument, for the message.
    value: The value.
    minimum: The smallest allowed value.
    maximum: The largest allowed value. None: no limit.

  Returns:
    The value as an `int`.

  Raises:
    ValueError: If it is not an integer (nor are True and False), or out of
      range.
  """
  found = as_python(value)
  if (
    isinstance(found, bool)
    or not isinstance(found, int)
    or found < minimum
    or (maximum is not None and found > maximum)
  ):
    limits = f"at least {minimum}"
    if maximum is not None:
      limits += f" and at most {maximum}"
    raise ValueError(
      f"{name}={value!r} is not allowed: it must be an integer {limits}"
    )
  return int(found)


def is_number(value: Any) -> bool:
  """Returns whether a value is a finite number, other than True and False."""
  found: Any = as_python(value)
  is_real = isinstance(found, numbers.Real) and not isinstance(found, bool)
  # Excludes infinity, NaN, and integers beyond the range of floats.
  return is_real and abs(found) <= sys.float_info.max


def is_float32(value: float) -> bool:
  """Returns whether a number is in the range of float32.

  Then it does not become infinite or 0 in float32.
  """
  return not value or bool(_SMALLEST <= abs(value) <= _LARGEST)


def shown(value: Any) -> str:
  """Formats a value for messages, in one line of limited length."""
  return shown_names.shortened(repr(value), _LONGEST_VALUE)


def number(
  name: str,
  value: Any,
  limits: str = "",
  is_allowed: Callable[[float], bool] = lambda value: True,
) -> float:
  """Checks a finite number.

  Args:
    name: The argument, for the message.
    value: The value.
    limits: Describes the allowed numbers, for the message.
    is_allowed: Returns whether a finite number is allowed.

  Returns:
    The value as a `float`.

  Raises:
    ValueError: If it is not a finite number, or not allowed.
  """
  if not is_number(value) or not is_allowed(value):
    wanted = f"a number {limits}" if limits else "a finite number"
    raise ValueError(f"{name}={value!r} is not allowed: it must be {wanted}")
  return float(value)


def participation(value: Any) -> float:
  """Checks a client fraction, above 0 and at most 1; returns a `float`."""
  return number(
    "participation",
    value,
    "above 0 and at most 1",
    lambda share: 0 < share <= 1,
  )


def seed(name: str, value: Any) -> int:
  """Checks a seed, an integer in [0, 2**32); returns an `int`."""
  try:
    return integer(name, value, 0, _LARGEST_SEED)
  except ValueError:
    raise ValueError(
      f"{name}={value!r} is not allowed: it must be a non-negative integer"
      " below 2**32"
    ) from None


def choice(name: str, value: Any, choices: Sequence[str]) -> str:
  """Returns a value; raises a ValueError unless it is one of the choices."""
  if not isinstance(value, str) or value not in choices:
    raise ValueError(
      f"{name} must be one of {', '.join(choices)}, got"
      f" {value!r}{did_you_mean(value, choices)}"
    )
  return value


def did_you_mean(value: Any, known: Iterable[str]) -> str:
  """Suggests a known name for an unknown one, to append to a message.

  Args:
    value: The unknown name. Case, hyphens, underscores and spaces are ignored.
    known: The known names.

  Returns:
    `; did you mean fed_avg?`, or "" if no name is similar.
  """

  def plain(text):
    return re.sub(r"[\W_]+", "", str(text)).lower()

  by_plain_name = {plain(each): each for each in known}
  found = difflib.get_close_matches(plain(value), by_plain_name, 1, cutoff=0.75)
  return f"; did you mean {by_plain_name[found[0]]}?" if found else ""


def has(name: str, value: Any, attributes: Sequence[str], kind: str) -> None:
  """Checks that a value has attributes.

  Args:
    name: The argument, for the message.
    value: The value.
    attributes: The required attributes.
    kind: Describes the expected value, for the message.

  Raises:
    ValueError: If an attribute is missing.
  """
  if not all(hasattr(value, each) for each in attributes):
    raise ValueError(
      f"{name} must be {kind}, got {type(value).__name__} {value!r:.50}"
    )


def functions(**given: Any) -> None:
  """Raises a ValueError unless all arguments are callable."""
  for name, value in given.items():
    if not callable(value):
      raise ValueError(
        f"{name}={value!r} is not allowed: it must be a function"
      )


def sequence(
  name: str, values: Any, length: int | None = None, what: str = "client"
) -> int:
  """Checks a sequence with one entry per client, or per something else.

  Args:
    name: The argument, for the message.
    values: The sequence.
    length: The required number of entries. None: at least one.
    what: What each entry is for, for the message.

  Returns:
    The number of entries.

  Raises:
    ValueError: If it is not a sequence, or has another number of entries.
  """
  if not hasattr(values, "__len__") or isinstance(
    values, str | bytes | Mapping | Set
  ):
    raise ValueError(
      f"{name} must be a sequence with an entry for each {what}, got"
      f" {type(values).__name__}"
    )
  if not len(values) and length is None:
    raise ValueError(
      f"{name} must have an entry for each {what}, at least one, got none"
    )
  if length is not None and len(values) != length:
    raise ValueError(
      f"{name} must have {length} entries, one for each {what}, got"
      f" {len(values)}"
    )
  return len(values)
