"""Shows the progress of a run: a bar on a terminal, otherwise lines.

The bar is a thin wrapper of tqdm, which estimates the remaining time. Bar and
lines go to standard error, so that standard output only has tables.
"""

import contextlib
import os
import sys
import time
from collections.abc import Callable
from collections.abc import Iterator
from typing import NamedTuple
from typing import Protocol

import tqdm

from tff_shift._util import shown_names

# Without the speed, to fit in 80 columns.
_BAR_FORMAT = (
  "{l_bar}{bar}| {n_fmt}/{total_fmt} [{elapsed}<{remaining}{postfix}]"
)
# Seconds between lines.
_INTERVAL = 30.0


class Progress(Protocol):
  """Receives the progress of a run; yielded by `progress`."""

  def start(self) -> None:
    """Starts time measurement, after rounds that are replayed."""

  def update(
    self,
    round_number: int,
    loss: float | None = None,
    accuracy: float | None = None,
  ) -> None:
    """Reports a finished round.

    Args:
      round_number: The number of finished rounds (1 after the first round).
        Rounds may be skipped.
      loss: The loss, shown with four significant digits. None: not shown.
      accuracy: The accuracy in percent. None: not shown.
    """


def _values(loss: float | None, accuracy: float | None) -> dict[str, str]:
  values = {}
  if loss is not None:
    values["loss"] = f"{loss:.4g}"
  if accuracy is not None:
    values["accuracy"] = f"{accuracy:.1f}%"
  return values


class _Bar:
  """A `Progress` that shows a bar."""

  def __init__(self, bar: tqdm.tqdm):
    self._bar = bar

  def start(self):
    pass

  def update(self, round_number, loss=None, accuracy=None):
    self._bar.set_postfix(_values(loss, accuracy), refresh=False)
    self._bar.update(round_number - self._bar.n)


class LinePrinter:
  """Limits the rate of progress lines.

  Prints the first line, the first line with a remaining time, and then one line
  per interval. All runs of a process share a printer, so that many short runs
  print few lines.
  """

  def __init__(
    self,
    *,
    interval: float = _INTERVAL,
    clock: Callable[[], float] = time.monotonic,
  ):
    """Initializes the printer.

    Args:
      interval: The minimum number of seconds between lines.
      clock: Returns the time in seconds.
    """
    self.clock = clock
    self._interval = interval
    self._last = -float("inf")
    self._has_shown_time = False

  def offer(self, line: str, *, is_sure: bool) -> None:
    """Prints a line to standard error, if one is due.

    Args:
      line: The line.
      is_sure: Whether the line has a remaining time that is not only based on
        the first round, which compiles.
    """
    now = self.clock()
    is_first = is_sure and not self._has_shown_time
    if is_first or now - self._last >= self._interval:
      self._last = now
      self._has_shown_time |= is_sure
      print(line, file=sys.stderr, flush=True)


class _Mark(NamedTuple):
  """The time at which a round ended."""

  seconds: float
  round_num: int


class _Lines:
  """A `Progress` that prints lines."""

  def __init__(self, printer, total, description, unit, run):
    self._printer = printer
    self._total = total
    self._unit = unit
    self._run = run
    self._title = description
    if run is not None:
      self._title += f" (run {run[0]} of {run[1]})"
    self._round_num = 0
    # None while earlier rounds are replayed.
    self._started = None
    # The end of the first round, which compiles.
    self._compiled = None

  def start(self):
    self._started = _Mark(self._printer.clock(), self._round_num)
    self._offer({}, None, is_sure=False)

  def update(self, round_number, loss=None, accuracy=None):
    self._round_num = round_number
    if self._started is None:
      return
    now = self._printer.clock()
    is_sure = self._compiled is not None
    since = self._compiled or self._started
    self._compiled = self._compiled or _Mark(now, round_number)
    seconds = None
    if round_number > since.round_num:
      seconds = (now - since.seconds) / (round_number - since.round_num)
    self._offer(_values(loss, accuracy), seconds, is_sure=is_sure)

  def _offer(self, values, seconds_per_round, *, is_sure):
    line = f"{self._title}: {self._unit} {self._round_num} of {self._total}"
    line += "".join(f", {name} {value}" for name, value in values.items())
    if seconds_per_round is not None:
      left = seconds_per_round * (self._total - self._round_num)
      line += f", {_duration(left)} left"
      number, num_runs = self._run or (1, 1)
      if number < num_runs:
        left += (num_runs - number) * seconds_per_round * self._total
        line += f", about {_duration(left)} for all runs"
    self._printer.offer(line, is_sure=is_sure)


def _duration(seconds: float) -> str:
  return tqdm.tqdm.format_interval(seconds)


@contextlib.contextmanager
def progress(
  total: int,
  *,
  enabled: bool | None = None,
  description: str = "",
  unit: str = "round",
  run: tuple[int, int] | None = None,
  is_replayed: bool = False,
  printer: LinePrinter | None = None,
) -> Iterator[Progress]:
  """Shows the progress of a run while its `with` block runs.

  Args:
    total: Number of rounds of the whole run.
    enabled: False shows nothing. True shows a bar if standard error is a
      terminal, otherwise lines. None only shows a bar.
    description: The text before the bar, for example algorithm and seed.
    unit: The name of a round in lines.
    run: The number of the run, starting at 1, and the number of runs, for
      lines.
    is_replayed: Whether the caller calls `start`. Before that, rounds of an
      earlier process are replayed and no line is printed.
    printer: Prints the lines. None: a new one.

  Yields:
    A `Progress` to update after each round.
  """
  description = shown_names.line(description)
  if enabled and not sys.stderr.isatty():
    lines = _Lines(printer or LinePrinter(), total, description, unit, run)
    if not is_replayed:
      lines.start()
    yield lines
    return
  disable = None if enabled is None else not enabled
  with tqdm.tqdm(
    total=total,
    desc=description or None,
    file=sys.stderr,
    disable=disable,
    ncols=_terminal_width(),
    bar_format=_BAR_FORMAT,
  ) as bar:
    yield _Bar(bar)


def _terminal_width() -> int | None:
  """Returns the columns of the terminal, or None without a terminal.

  Terminals in containers and under `script` may report a width of 0, for which
  tqdm would draw nothing. Then the width is 80.
  """
  try:
    return os.get_terminal_size(sys.stderr.fileno()).columns or 80
  except (OSError, ValueError):
    return None
