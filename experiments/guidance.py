"""Compares algorithms that answer queries from anywhere in a federation.

python -m experiments.guidance --help
"""

from tff_shift.command_line.binaries import guidance

if __name__ == "__main__":
  guidance.run()
