"""A folder is that of one process, and of the next when that has ended."""

import contextlib
import subprocess
import sys

import pytest

from tff_shift.simulation.storage import folder_lock
from tff_shift.simulation.storage import results

_LOCK = (
  "import fcntl, sys; file = open(sys.argv[1], 'w');"
  " fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB);"
  " print('held', flush=True); sys.stdin.read()"
)


@contextlib.contextmanager
def _other_process(folder):
  """Another process holds the folder, until the block ends."""
  with subprocess.Popen(
    [sys.executable, "-c", _LOCK, folder / folder_lock.NAME],
    stdin=subprocess.PIPE,
    stdout=subprocess.PIPE,
  ) as holder:
    assert holder.stdout.readline() == b"held\n"
    yield
    holder.stdin.close()


def test_another_process_is_refused(tmp_path):
  folder_lock.take(tmp_path)
  refused = subprocess.run(
    [sys.executable, "-c", _LOCK, tmp_path / folder_lock.NAME],
    stderr=subprocess.DEVNULL,
    stdin=subprocess.DEVNULL,
  )
  assert refused.returncode == 1


def test_folder_is_free_when_the_other_process_has_ended(tmp_path):
  with _other_process(tmp_path):
    with pytest.raises(ValueError, match="still going on") as error:
      folder_lock.take(tmp_path)
    assert "\n" not in str(error.value)
  folder_lock.take(tmp_path)


@pytest.mark.parametrize("opened", ["overwritten", "resumed"])
def test_run_that_is_going_on_stays_as_it_is(tmp_path, opened):
  path = tmp_path / "run"
  path.mkdir()
  # As a run of another process has left it so far.
  for name in ("metrics.csv", "summary.json"):
    (path / name).write_text("what was measured")
  with _other_process(path), pytest.raises(ValueError, match="still going on"):
    if opened == "overwritten":
      results.RunFolder.create(path, overwrite=True)
    else:
      results.RunFolder.resume(path)
  for name in ("metrics.csv", "summary.json"):
    assert (path / name).read_text() == "what was measured"


def test_lock_alone_is_an_empty_folder(tmp_path):
  folder_lock.take(tmp_path)
  results.RunFolder.create(tmp_path)
  assert (tmp_path / "metrics.csv").is_file()
