"""Starts a program that is killed when its parent ends.

Run as a file: `python child.py <process id of the parent> <command>...`
"""

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def main() -> None:
  """Replaces this process by the command in the arguments."""
  ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
  if os.getppid() != int(sys.argv[1]):
    sys.exit(1)  # The parent ended before prctl took effect.
  # Background processes of a shell ignore Ctrl-C.
  signal.signal(signal.SIGINT, signal.SIG_DFL)
  os.execvp(sys.argv[2], sys.argv[2:])


if __name__ == "__main__":
  main()
