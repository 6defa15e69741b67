"""Signals whose exceptions Python or C++ discards."""

import gc
import os
import signal
import sys
import weakref

import pytest

from tff_shift._util import signals


class Cycle:
  """Ends only when garbage is collected."""

  def __init__(self):
    self.itself = self


def collected_with(callback):
  cycle = Cycle()
  # Held, so that the callback runs.
  reference = weakref.ref(cycle, callback)
  del cycle
  gc.collect()
  assert reference() is None


@pytest.fixture
def discarded(monkeypatch):
  """The exceptions that Python discards and prints."""
  exceptions = []
  monkeypatch.setattr(
    sys, "unraisablehook", lambda arguments: exceptions.append(arguments)
  )
  return exceptions


def test_signal_in_a_callback_of_garbage_collection_is_not_lost(discarded):
  with pytest.raises(signals.Terminated), signals.raised():
    collected_with(lambda _: os.kill(os.getpid(), signal.SIGTERM))
    signals.check()
  signals.check()
  assert not discarded


def test_other_exceptions_that_are_discarded_are_printed(discarded):
  with signals.raised():
    collected_with(lambda _: 1 // 0)
  assert [exception.exc_type for exception in discarded] == [ZeroDivisionError]


def test_what_c_makes_of_the_exception_is_not_printed(monkeypatch):
  printed = []
  monkeypatch.setattr(sys, "excepthook", lambda *error: printed.append(error))
  with pytest.raises(signals.Terminated), signals.raised():
    # As CPython does where a function of C returned in spite of an exception.
    try:
      os.kill(os.getpid(), signal.SIGTERM)
    except signals.Terminated as error:
      made = SystemError("returned a result with an exception set")
      made.__cause__ = error
      sys.excepthook(SystemError, made, None)
    sys.excepthook(ValueError, ValueError("a fault"), None)
    signals.check()
  assert [kind for kind, *_ in printed] == [ValueError]
