"""The progress of a run: a bar on a terminal, elsewhere a line now and then.

The bar is a thin wrapper over tqdm, which estimates the remaining time. Bar and
lines go to standard error, so that standard output stays clean for tables and
pipes.
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

from tff_shift import shown_names

# Without the speed, so that all else fits into 80 columns.
_BAR_FORMAT = (
  "{l_bar}{bar}| {n_fmt}/{total_fmt} [{elapsed}<{remaining}{postfix}]"
)
# Seconds between two lines.
_INTERVAL = 30.0


class Progress(Protocol):
  """What `progress` yields."""

  def start(self) -> None:
    """Tells that from here on time is spent, see `progress`."""

  def update(
    self,
    round_number: int,
    loss: float | None = None,
    accuracy: float | None = None,
  ) -> None:
    """Takes a round and its values.

    Args:
      round_number: Rounds finished so far (1 after the first round). Rounds may
        be skipped.
      loss: Shown with four significant digits; None leaves it out.
      accuracy: In percent; None leaves it out.
    """


def _values(loss: float | None, accuracy: float | None) -> dict[str, str]:
  values = {}
  if loss is not None:
    values["loss"] = f"{loss:.4g}"
  if accuracy is not None:
    values["accuracy"] = f"{accuracy:.1f}%"
  return values


class _Bar:
  """A bar that moves, see `Progress`."""

  def __init__(self, bar: tqdm.tqdm):
    self._bar = bar

  def start(self):
    pass

  def update(self, round_number, loss=None, accuracy=None):
    self._bar.set_postfix(_values(loss, accuracy), refresh=False)
    self._bar.update(round_number - self._bar.n)


class LinePrinter:
  """Prints seldom: at once, with the first time left, and at intervals.

  One for all that a process does, so that many short runs give few lines.
  """

  def __init__(
    self,
    *,
    interval: float = _INTERVAL,
    clock: Callable[[], float] = time.monotonic,
  ):
    """Prints nothing yet.

    Args:
      interval: The seconds from one line to the next, at least.
      clock: Gives the time in seconds.
    """
    self.clock = clock
    self._interval = interval
    self._last = -float("inf")
    self._has_told_time = False

  def offer(self, line: str, *, is_sure: bool) -> None:
    """Prints a line to standard error, if one is due.

    Args:
      line: The line.
      is_sure: Whether it says how much time is left, by more than the round
        that compiles.
    """
    now = self.clock()
    is_first = is_sure and not self._has_told_time
    if is_first or now - self._last >= self._interval:
      self._last = now
      self._has_told_time |= is_sure
      print(line, file=sys.stderr, flush=True)


class _Mark(NamedTuple):
  """When so many rounds were done."""

  seconds: float
  round_num: int


class _Lines:
  """Lines of a run, see `Progress`."""

  def __init__(self, printer, total, description, unit, run):
    self._printer = printer
    self._total = total
    self._unit = unit
    self._run = run
    self._title = description
    if run is not None:
      self._title += f" (run {run[0]} of {run[1]})"
    self._round_num = 0
    # None while rounds of before are told again.
    self._started = None
    # After the first round, which compiles.
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
      terminal, else a line now and then. None shows the bar only.
    description: Stands before it, for example algorithm and seed.
    unit: What lines call a round.
    run: The number of the run, from 1, and how many there are, for lines.
    is_replayed: Whether `start` will be called: until then, rounds that another
      process has done are told again, and no line is due.
    printer: Prints the lines. None: one of its own.

  Yields:
    A `Progress`, to be updated after each round.
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
  """Returns the columns of the terminal; None where there is no terminal.

  Terminals in containers and under `script` may report a width of 0, for which
  tqdm would draw nothing: 80 stands in for it.
  """
  try:
    return os.get_terminal_size(sys.stderr.fileno()).columns or 80
  except (OSError, ValueError):
    return None
