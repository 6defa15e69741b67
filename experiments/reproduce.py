"""Runs a table of a paper, and makes a page of it: the paper beside ours.

python -m experiments.reproduce --help
"""

from tff_shift.reproduction import reproduce

if __name__ == "__main__":
  reproduce.run()
