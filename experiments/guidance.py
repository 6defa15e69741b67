"""Compares algorithms that answer queries, each routed to a client.

python -m experiments.guidance --help
"""

from tff_shift.binaries import guidance

if __name__ == "__main__":
  guidance.run()
