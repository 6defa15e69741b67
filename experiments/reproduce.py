"""Runs a table of a paper and writes a page with the paper's and our values.

python -m experiments.reproduce --help
"""

from tff_shift.reproduction import reproduce

if __name__ == "__main__":
  reproduce.run()
