"""Signals that end a run.

A handler raises an exception, which also ends waiting. Python discards and
prints the exception if the handler happens to run in `__del__` or in a callback
of garbage collection or of C++. So it also sets a flag, which loops read, and
what was discarded is not printed.
"""

import contextlib
import signal
import sys
from collections.abc import Iterator
from typing import Any


class Terminated(KeyboardInterrupt):
  """Raised on SIGTERM; ends a binary as Ctrl-C does."""


# The signals, the handlers that are replaced, and what is raised instead.
# Others are of a parent process that ignores a signal, for example `nohup`.
_KINDS: tuple[tuple[signal.Signals, Any, type[KeyboardInterrupt]], ...] = (
  (signal.SIGINT, signal.default_int_handler, KeyboardInterrupt),
  (signal.SIGTERM, signal.SIG_DFL, Terminated),
)
_received: type[KeyboardInterrupt] | None = None


def _is_of_signal(error: BaseException | None) -> bool:
  """Is this the exception of a handler, or what C made of it?"""
  while error is not None:
    if isinstance(error, KeyboardInterrupt):
      return True
    error = error.__cause__ or error.__context__
  return False


@contextlib.contextmanager
def _discarded_in_silence() -> Iterator[None]:
  """Prints no exception of a signal that Python or C++ discards."""
  discarded, printed = sys.unraisablehook, sys.excepthook

  def show_discarded(arguments):
    if not _is_of_signal(arguments.exc_value):
      discarded(arguments)

  def show_printed(kind, error, traceback):
    if not _is_of_signal(error):
      printed(kind, error, traceback)

  sys.unraisablehook, sys.excepthook = show_discarded, show_printed
  try:
    yield
  finally:
    sys.unraisablehook, sys.excepthook = discarded, printed


@contextlib.contextmanager
def raised() -> Iterator[None]:
  """Raises an exception on the first SIGINT or SIGTERM of a block.

  A second one ends the process at once.
  """
  global _received
  kinds = {
    number: (default, kind)
    for number, default, kind in _KINDS
    if signal.getsignal(number) is default
  }

  def interrupt(number, _):
    global _received
    for each in kinds:
      signal.signal(each, signal.SIG_DFL)
    _received = kinds[number][1]
    raise _received

  _received = None
  for number in kinds:
    signal.signal(number, interrupt)
  try:
    with _discarded_in_silence():
      yield
  finally:
    _received = None
    for number, (default, _) in kinds.items():
      signal.signal(number, default)


def check() -> None:
  """Raises the exception of a signal that was received, see `raised`.

  Raises:
    KeyboardInterrupt: After SIGINT.
    Terminated: After SIGTERM.
  """
  if _received is not None:
    raise _received
