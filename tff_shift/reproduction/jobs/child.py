"""Starts a Python program that ends when its parent does, however that ends.

Run as a file: `python child.py <process id of the parent> <arguments>...`
"""

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def main() -> None:
  """Becomes the program that the arguments name."""
  ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
  if os.getppid() != int(sys.argv[1]):
    sys.exit(1)  # It has ended before it could be watched.
  # What is started in the background of a shell ignores Ctrl-C.
  signal.signal(signal.SIGINT, signal.SIG_DFL)
  os.execv(sys.executable, [sys.executable, *sys.argv[2:]])


if __name__ == "__main__":
  main()
