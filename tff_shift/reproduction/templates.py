"""Texts with names in braces, such as `{evaluated}_accuracy`.

A name stands for a value, and nothing else can be said: no attribute, index,
conversion or format. `{{` and `}}` are braces.
"""

import re
from collections.abc import Collection
from collections.abc import Mapping
from typing import Any

_PART = re.compile(r"\{\{|\}\}|\{([^{}]*)\}|[{}]")


def check(template: str, known: Collection[str]) -> None:
  """Refuses what is in braces and is no known name.

  Args:
    template: The text.
    known: The names that may stand in it.

  Raises:
    ValueError: In one line that shows the part.
  """
  for found in _PART.finditer(template):
    if found[0] not in ("{{", "}}") and found[1] not in known:
      allowed = ", ".join(f"{{{name}}}" for name in known) or "nothing"
      raise ValueError(
        f"{found[0]} in {template!r} is not allowed; in braces there may be"
        f" {allowed}"
      )


def fill(template: str, values: Mapping[str, Any]) -> str:
  """Puts values in the places of their names.

  Args:
    template: The text, see `check`.
    values: By name.

  Raises:
    ValueError: See `check`.
  """
  check(template, values)
  return _PART.sub(
    lambda found: found[0][0] if found[1] is None else str(values[found[1]]),
    template,
  )
