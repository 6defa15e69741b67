"""A progress bar for rounds: round, loss, accuracy and remaining time.

A thin wrapper over tqdm, which estimates the remaining time. The bar goes to
standard error, so that standard output stays clean for tables and pipes.
"""

import contextlib
import os
import sys
from collections.abc import Iterator

import tqdm

# Without the speed, so that all else fits into 80 columns.
_BAR_FORMAT = (
  "{l_bar}{bar}| {n_fmt}/{total_fmt} [{elapsed}<{remaining}{postfix}]"
)


class ProgressBar:
  """What `progress` yields: moves the bar and shows the latest values."""

  def __init__(self, bar: tqdm.tqdm):
    self._bar = bar

  def update(
    self,
    round_number: int,
    loss: float | None = None,
    accuracy: float | None = None,
  ) -> None:
    """Moves the bar to a round and shows its values.

    Args:
      round_number: Rounds finished so far (1 after the first round). Rounds may
        be skipped: the bar moves by the difference.
      loss: Shown with four significant digits; None leaves it out.
      accuracy: In percent; None leaves it out.
    """
    values = {}
    if loss is not None:
      values["loss"] = f"{loss:.4g}"
    if accuracy is not None:
      values["accuracy"] = f"{accuracy:.1f}%"
    self._bar.set_postfix(values, refresh=False)
    self._bar.update(round_number - self._bar.n)


@contextlib.contextmanager
def progress(
  total: int, *, enabled: bool | None = None, description: str = ""
) -> Iterator[ProgressBar]:
  """Shows a progress bar while its `with` block runs.

  Args:
    total: Number of rounds of the whole run.
    enabled: False shows nothing, True always shows the bar, and None shows it
      if standard error is a terminal.
    description: Stands before the bar, for example algorithm and seed.

  Yields:
    A `ProgressBar`, to be updated after each round.
  """
  disable = None if enabled is None else not enabled
  with tqdm.tqdm(
    total=total,
    desc=description or None,
    file=sys.stderr,
    disable=disable,
    ncols=_terminal_width(),
    bar_format=_BAR_FORMAT,
  ) as bar:
    yield ProgressBar(bar)


def _terminal_width() -> int | None:
  """Returns the columns of the terminal; None where there is no terminal.

  Terminals in containers and under `script` may report a width of 0, for which
  tqdm would draw nothing: 80 stands in for it.
  """
  try:
    return os.get_terminal_size(sys.stderr.fileno()).columns or 80
  except (OSError, ValueError):
    return None
