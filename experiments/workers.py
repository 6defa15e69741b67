"""Starts TFF workers on this machine, for `--executor=remote`.

python -m experiments.workers --help
"""

from tff_shift.binaries import workers

if __name__ == "__main__":
  workers.run()
