"""A lock that reserves a folder for one process.

Choices:
  * The lock is a file in the folder, taken before anything in it is replaced,
    and until the process ends.
"""

import fcntl
import os
import pathlib

from tff_shift._util import files

NAME = ".lock"


def take(folder: pathlib.Path) -> None:
  """Locks a folder for this process until it ends.

  Args:
    folder: An existing folder.

  Raises:
    ValueError: If another process has locked it.
    files.WriteError: If the lock cannot be written.
  """
  # Never closed: closing releases the lock.
  with files.writing(folder / NAME):
    lock = os.open(folder / NAME, os.O_WRONLY | os.O_CREAT, 0o666)
  try:
    fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
  except BlockingIOError as error:
    os.close(lock)
    raise ValueError(
      f"--output_dir: a run is still going on in {str(folder)!r}; wait for its"
      " end"
    ) from error
