"""Compares algorithms on evolving domains; the last domain is unseen.

python -m experiments.evolving --help
"""

from tff_shift.binaries import evolving

if __name__ == "__main__":
  evolving.run()
