"""Progress of rounds: a bar on a terminal, a line at intervals elsewhere.

The bar is that of tqdm, which estimates the remaining time. Both go to standard
error, so that standard output stays clean for tables and pipes.
"""

import contextlib
import datetime
import os
import sys
import time
from collections.abc import Callable
from collections.abc import Iterator
from typing import Protocol

import tqdm

from tff_shift import shown_names

# Without the speed, so that all else fits into 80 columns.
_BAR_FORMAT = (
  "{l_bar}{bar}| {n_fmt}/{total_fmt} [{elapsed}<{remaining}{postfix}]"
)
# Seconds of a run before its first line, and between two lines.
_FIRST_LINE = 5.0
_INTERVAL = 30.0


class Progress(Protocol):
  """What `progress` yields: moves on and shows the latest values."""

  def update(
    self,
    round_number: int,
    loss: float | None = None,
    accuracy: float | None = None,
  ) -> None:
    """Moves to a round and shows its values.

    Args:
      round_number: Rounds finished so far (1 after the first round). Rounds may
        be skipped.
      loss: Shown with four significant digits; None leaves it out.
      accuracy: In percent; None leaves it out.
    """


class _Bar:
  """A bar."""

  def __init__(self, bar: tqdm.tqdm):
    self._bar = bar

  def update(self, round_number, loss=None, accuracy=None):
    self._bar.set_postfix(_shown(loss, accuracy), refresh=False)
    self._bar.update(round_number - self._bar.n)


class _Lines:
  """A line at intervals: what runs, round of how many, values, time left."""

  def __init__(self, total, description, clock):
    self._total = total
    self._before = f"{description}: " if description else ""
    self._clock = clock
    self._start = clock()
    self._due = self._start + _FIRST_LINE

  def update(self, round_number, loss=None, accuracy=None):
    now = self._clock()
    if now < self._due or not round_number:
      return
    self._due = now + _INTERVAL
    left = (self._total - round_number) * (now - self._start) / round_number
    parts = [
      f"{round_number} of {self._total}",
      *(f"{name} {text}" for name, text in _shown(loss, accuracy).items()),
      f"{datetime.timedelta(seconds=round(left))} left",
    ]
    print(self._before + ", ".join(parts), file=sys.stderr, flush=True)


class _Nothing:
  """Nothing is shown."""

  def update(self, round_number, loss=None, accuracy=None):
    pass


def _shown(loss: float | None, accuracy: float | None) -> dict[str, str]:
  values = {}
  if loss is not None:
    values["loss"] = f"{loss:.4g}"
  if accuracy is not None:
    values["accuracy"] = f"{accuracy:.1f}%"
  return values


@contextlib.contextmanager
def progress(
  total: int,
  *,
  enabled: bool | None = None,
  description: str = "",
  position: str = "",
  clock: Callable[[], float] = time.monotonic,
) -> Iterator[Progress]:
  """Shows the progress of a run while its `with` block runs.

  Args:
    total: Number of rounds of the whole run.
    enabled: False shows nothing. True shows a bar if standard error is a
      terminal, and else a line after 5 seconds and then every 30. None shows
      the bar alone.
    description: Stands before it, for example algorithm and seed.
    position: Stands before the description in a line, such as `run 2 of 6`; a
      bar has no room for it.
    clock: Returns seconds.

  Yields:
    A `Progress`, to be updated after each round.
  """
  is_terminal = sys.stderr.isatty()
  position, description = map(shown_names.line, (position, description))
  if enabled is False or not (enabled or is_terminal):
    yield _Nothing()
  elif not is_terminal:
    yield _Lines(total, ", ".join(filter(None, (position, description))), clock)
  else:
    with tqdm.tqdm(
      total=total,
      desc=description or None,
      file=sys.stderr,
      ncols=_terminal_width(),
      bar_format=_BAR_FORMAT,
    ) as bar:
      yield _Bar(bar)


def _terminal_width() -> int | None:
  """Returns the columns of the terminal; None where there is no terminal.

  Terminals in containers and under `script` may report a width of 0, for which
  tqdm would draw nothing: 80 stands in for it.
  """
  try:
    return os.get_terminal_size(sys.stderr.fileno()).columns or 80
  except (OSError, ValueError):
    return None
