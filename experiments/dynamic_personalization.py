"""Compares algorithms on clients with label shift between periods.

python -m experiments.dynamic_personalization --help
"""

from tff_shift.binaries import dynamic_personalization

if __name__ == "__main__":
  dynamic_personalization.run()
