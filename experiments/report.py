"""Makes a page of run folders, to be read, sorted and printed.

python -m experiments.report --help
"""

from tff_shift.command_line.binaries import report

if __name__ == "__main__":
  report.run()
