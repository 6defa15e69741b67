"""Writes a report page of run folders.

python -m experiments.report --help
"""

from tff_shift.binaries import report

if __name__ == "__main__":
  report.run()
