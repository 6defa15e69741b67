import fcntl
import io
import os
import pty
import struct
import subprocess
import sys
import termios

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest

from tff_shift.reporting.progress import LinePrinter
from tff_shift.reporting.progress import progress

_TWO_ROUNDS = """
from tff_shift.reporting.progress import progress
with progress(4, enabled={enabled}, description="fed_avg, seed 0") as bar:
  bar.update(1, 0.51234, 61.04)
  bar.update(4, loss=0.25, accuracy=80.0)
"""


class _Clock:
  """Time that passes when it is told to."""

  def __init__(self):
    self.now = 1000.0

  def __call__(self):
    return self.now

  def tick(self, seconds):
    self.now += seconds


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
@pytest.mark.parametrize("columns, width", [(100, 100), (0, 80)])
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


def test_progress_prints_lines_to_a_pipe_when_asked_to():
  result = _run(True, subprocess.PIPE)
  assert result.stdout == ""
  first, second = result.stderr.splitlines()
  assert first == "fed_avg, seed 0: round 0 of 4"
  # The last round has come, and nothing is left.
  assert second == (
    "fed_avg, seed 0: round 4 of 4, loss 0.25, accuracy 80.0%, 00:00 left"
  )


def test_progress_ends_its_line_when_the_block_fails(monkeypatch):
  terminal = _Terminal()
  monkeypatch.setattr(sys, "stderr", terminal)
  with pytest.raises(KeyboardInterrupt), progress(3) as bar:
    bar.update(1)
    raise KeyboardInterrupt
  assert terminal.getvalue().endswith("\n")


class TestLines:
  @pytest.fixture
  def clock(self):
    return _Clock()

  @pytest.fixture
  def show(self, clock):
    """Returns `show(total, **options)`: progress that shares a printer."""
    printer = LinePrinter(clock=clock)
    return lambda total, **options: progress(
      total, enabled=True, printer=printer, **options
    )

  def test_lines_tell_what_runs_and_how_long_it_takes(
    self, clock, show, capsys
  ):
    with show(100, description="fed_avg, seed 0", run=(2, 3)) as lines:
      # The first round compiles; the others take 2 seconds.
      clock.tick(20)
      lines.update(1, 0.5, 50.0)
      for round_num in range(2, 41):
        clock.tick(2)
        lines.update(round_num, 0.25, 60.0)
    title = "fed_avg, seed 0 (run 2 of 3): round"
    values = "loss 0.25, accuracy 60.0%"
    # 98, 83, 68 rounds of this run, and 100 of the third.
    assert capsys.readouterr().err.splitlines() == [
      f"{title} 0 of 100",
      f"{title} 2 of 100, {values}, 03:16 left, about 06:36 for all runs",
      f"{title} 17 of 100, {values}, 02:46 left, about 06:06 for all runs",
      f"{title} 32 of 100, {values}, 02:16 left, about 05:36 for all runs",
    ]

  def test_last_run_is_all_that_is_left(self, clock, show, capsys):
    with show(3, description="a", unit="epoch", run=(2, 2)) as lines:
      clock.tick(40)
      lines.update(1)
    # By the one epoch that there is.
    assert capsys.readouterr().err.splitlines() == [
      "a (run 2 of 2): epoch 0 of 3",
      "a (run 2 of 2): epoch 1 of 3, 01:20 left",
    ]

  def test_many_short_runs_give_few_lines(self, clock, show, capsys):
    for number in range(1, 101):
      with show(4, run=(number, 100)) as lines:
        for round_num in range(1, 5):
          clock.tick(0.25)
          lines.update(round_num)
    # 100 seconds: at once, with the first time left, then each 30 seconds.
    errors = capsys.readouterr().err.splitlines()
    assert len(errors) == 5
    assert [line.split(":")[0] for line in errors] == [
      f" (run {number} of 100)" for number in (1, 1, 31, 61, 91)
    ]

  def test_rounds_that_are_told_again_take_no_time(self, clock, show, capsys):
    with show(10, description="a", is_replayed=True) as lines:
      clock.tick(100)
      lines.update(4)
      assert capsys.readouterr().err == ""
      lines.start()
      for round_num in (5, 6, 7):
        clock.tick(15)
        lines.update(round_num)
    assert capsys.readouterr().err.splitlines() == [
      "a: round 4 of 10",
      "a: round 6 of 10, 01:00 left",
    ]

  def test_finished_run_gives_no_line(self, clock, show, capsys):
    with show(10, is_replayed=True) as lines:
      clock.tick(100)
      lines.update(10)
    assert capsys.readouterr().err == ""

  @hypothesis.given(
    st.lists(st.integers(0, 100), min_size=1, max_size=50), st.integers(1, 60)
  )
  def test_lines_are_an_interval_apart(self, durations, interval):
    clock = _Clock()
    times = []
    printer = LinePrinter(interval=interval, clock=clock)
    with pytest.MonkeyPatch.context() as patches:
      # A line is one call, with its end.
      stream = io.StringIO()
      patches.setattr(sys, "stderr", stream)
      with progress(len(durations), enabled=True, printer=printer) as lines:
        times.append(clock.now)
        for round_num, seconds in enumerate(durations, start=1):
          clock.tick(seconds)
          before = stream.tell()
          lines.update(round_num)
          if stream.tell() > before:
            times.append(clock.now)
    assert stream.getvalue().count("\n") == len(times)
    gaps = np.diff(times)
    # But for the first line with the time left.
    assert np.sum(gaps < interval) <= 1
    # A round that ends an interval after the last line has one.
    ends = times[0] + np.cumsum(durations)
    for end in ends:
      assert end - max(time for time in times if time <= end) < interval
