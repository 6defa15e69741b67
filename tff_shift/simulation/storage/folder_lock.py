"""A folder belongs to one process at a time."""

import fcntl
import os
import pathlib

from tff_shift import files

NAME = ".lock"


def take(folder: pathlib.Path) -> None:
  """Takes a folder for this process, until it ends, however it does.

  Args:
    folder: The folder, which exists.

  Raises:
    ValueError: If another process has it.
    files.WriteError: If the lock cannot be written.
  """
  # Never closed: that would give it back.
  lock = files.open_to_append(folder / NAME)
  try:
    fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
  except BlockingIOError as error:
    os.close(lock)
    raise ValueError(
      f"--output_dir: a run is still going on in {str(folder)!r}; wait for its"
      " end"
    ) from error
