"""Refuses sizes that exceed memory, before allocating it.

Choices:
  * Refused are sizes above the whole memory of the machine or container: swap
    and the current use by others are ignored. The estimate is a lower bound: a
    model's weights three times (current weights, gradients, new weights), one
    batch, one client's state, the data of all clients in a period or step.
    Weights are counted before they are drawn.
"""

import os
import pathlib

# Limits of the control group of this process, for example of a container.
_GROUP_LIMITS = (
  pathlib.Path("/sys/fs/cgroup/memory.max"),
  pathlib.Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"),
)
_UNITS = ("bytes", "KiB", "MiB", "GiB", "TiB", "PiB")


class TooLargeError(ValueError):
  """A size exceeds memory; the message is one line."""


def limit() -> int:
  """Returns the maximum memory of this process, in bytes."""
  limits = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
  for path in _GROUP_LIMITS:
    try:
      limits.append(int(path.read_text(encoding="ascii")))
    except (OSError, ValueError):
      continue  # There is no limit, or it is "max".
  return min(limits)


def described(num_bytes: int) -> str:
  """Formats a number of bytes in a readable unit."""
  power = 0
  while num_bytes >= 1024 ** (power + 1) and power < len(_UNITS) - 1:
    power += 1
  number = num_bytes / 1024**power
  # Three digits, without exponent.
  shown = f"{number:.3g}" if number < 999.5 else f"{number:,.0f}"
  return f"{shown} {_UNITS[power]}"


def check(num_bytes: int, what: str) -> None:
  """Checks that a size does not exceed memory.

  Args:
    num_bytes: The minimum size in bytes.
    what: The object of this size, and the setting that determines it.

  Raises:
    TooLargeError: If the size exceeds memory.
  """
  if num_bytes > limit():
    raise TooLargeError(
      f"{what}: this would need {described(num_bytes)} of memory, but only"
      f" {described(limit())} are available"
    )
