"""Reproduces a table of a paper and writes a page that compares the two.

python -m experiments.reproduce --help
"""

from tff_shift.reproduction import reproduce

if __name__ == "__main__":
  reproduce.run()
