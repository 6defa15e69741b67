import fcntl
import io
import os
import pty
import struct
import subprocess
import sys
import termios

import pytest

from tff_shift.simulation.progress import progress

_TWO_ROUNDS = """
from tff_shift.simulation.progress import progress
with progress(4, enabled={enabled}, description="fed_avg, seed 0") as bar:
  bar.update(1, 0.51234, 61.04)
  bar.update(4, loss=0.25, accuracy=80.0)
"""


class _Terminal(io.StringIO):
  def isatty(self):
    return True


def _run(enabled, stderr):
  return subprocess.run(
    [sys.executable, "-c", _TWO_ROUNDS.format(enabled=enabled)],
    stdout=subprocess.PIPE,
    stderr=stderr,
    check=True,
    text=True,
  )


def _run_on_terminal(enabled, columns=100):
  """Returns what a program writes to a real terminal, and its stdout."""
  reader, terminal = pty.openpty()
  size = struct.pack("HHHH", 24, columns, 0, 0)
  fcntl.ioctl(terminal, termios.TIOCSWINSZ, size)
  try:
    result = _run(enabled, terminal)
  finally:
    os.close(terminal)
  written = b""
  try:
    while chunk := os.read(reader, 4096):
      written += chunk
  except OSError:  # Linux reports the closed other side as an error.
    pass
  finally:
    os.close(reader)
  return written.decode(), result.stdout


# A terminal that reports no width is common in containers.
@pytest.mark.parametrize(("columns", "width"), [(100, 100), (0, 80)])
def test_progress_shows_values_on_a_terminal(columns, width):
  written, stdout = _run_on_terminal(None, columns)
  assert stdout == ""
  last = written.rstrip().split("\r")[-1]
  assert "fed_avg, seed 0: 100%" in last
  assert len(last) <= width
  assert "█| 4/4 [" in last
  assert "loss=0.25" in last
  assert "accuracy=80.0%" in last
  # Elapsed and remaining time.
  assert "<00:00" in last


def test_progress_is_silent_on_a_terminal_when_disabled():
  assert _run_on_terminal(False) == ("", "")


def test_progress_is_silent_when_stderr_is_a_pipe():
  result = _run(None, subprocess.PIPE)
  assert (result.stdout, result.stderr) == ("", "")


def test_progress_shows_in_a_pipe_when_forced():
  result = _run(True, subprocess.PIPE)
  assert result.stdout == ""
  assert "accuracy=80.0%" in result.stderr


@pytest.mark.parametrize(
  ("rounds", "expected"), [([1], "1/10"), ([1, 5], "5/10"), ([10], "10/10")]
)
def test_update_moves_to_the_given_round(monkeypatch, rounds, expected):
  terminal = _Terminal()
  monkeypatch.setattr(sys, "stderr", terminal)
  with progress(10) as bar:
    for round_number in rounds:
      bar.update(round_number)
  last = terminal.getvalue().rstrip().split("\r")[-1]
  assert f" {expected} " in last
  assert "loss" not in last


def test_progress_ends_its_line_when_the_block_fails(monkeypatch):
  terminal = _Terminal()
  monkeypatch.setattr(sys, "stderr", terminal)
  with pytest.raises(KeyboardInterrupt), progress(3) as bar:
    bar.update(1)
    raise KeyboardInterrupt
  assert terminal.getvalue().endswith("\n")
