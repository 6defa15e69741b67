"""What cannot fit in memory is refused before memory is asked for."""

import os
import pathlib

# Of the control group of this process, such as that of a container.
_GROUP_LIMITS = (
  pathlib.Path("/sys/fs/cgroup/memory.max"),
  pathlib.Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"),
)
_UNITS = ("bytes", "KiB", "MiB", "GiB", "TiB", "PiB")


class TooLargeError(ValueError):
  """What is asked for cannot fit in memory; the message is one line."""


def limit() -> int:
  """Returns the memory that this process can have at most, in bytes."""
  limits = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
  for path in _GROUP_LIMITS:
    try:
      limits.append(int(path.read_text(encoding="ascii")))
    except (OSError, ValueError):
      continue  # There is none, or it is "max".
  return min(limits)


def described(num_bytes: int) -> str:
  """Returns a number of bytes in a unit that people read."""
  power = 0
  while num_bytes >= 1024 ** (power + 1) and power < len(_UNITS) - 1:
    power += 1
  number = num_bytes / 1024**power
  # Three digits, and never an exponent.
  shown = f"{number:.3g}" if number < 999.5 else f"{number:,.0f}"
  return f"{shown} {_UNITS[power]}"


def check(num_bytes: int, what: str) -> None:
  """Refuses what would need more memory than there is.

  Args:
    num_bytes: How much it needs at least.
    what: What needs it, with the setting that made it so large.

  Raises:
    TooLargeError: If it cannot fit.
  """
  if num_bytes > limit():
    raise TooLargeError(
      f"{what}: this would need {described(num_bytes)} of memory, and there are"
      f" {described(limit())}"
    )
