"""Templates: texts with names in braces, such as `{evaluated}_accuracy`.

Names are replaced by values. Attributes, indices, conversions and formats are
not supported. `{{` and `}}` are literal braces.
"""

import re
from collections.abc import Collection
from collections.abc import Mapping
from typing import Any

_PART = re.compile(r"\{\{|\}\}|\{([^{}]*)\}|[{}]")


def check(template: str, known: Collection[str]) -> None:
  """Refuses unknown names in braces.

  Raises:
    ValueError: If the template has another name or an unmatched brace.
  """
  for found in _PART.finditer(template):
    if found[0] not in ("{{", "}}") and found[1] not in known:
      allowed = ", ".join(f"{{{name}}}" for name in known) or "nothing"
      raise ValueError(
        f"{found[0]} in {template!r} is not allowed; the allowed names in"
        f" braces are {allowed}"
      )


def fill(template: str, values: Mapping[str, Any]) -> str:
  """Replaces names in braces by values.

  Raises:
    ValueError: If the template has another name or an unmatched brace.
  """
  check(template, values)
  return _PART.sub(
    lambda found: found[0][0] if found[1] is None else str(values[found[1]]),
    template,
  )
