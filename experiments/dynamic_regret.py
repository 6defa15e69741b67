"""Measures how the dynamic regret of Fed-ADE grows with the number of steps.

python -m experiments.dynamic_regret --help
"""

from tff_shift.binaries import dynamic_regret

if __name__ == "__main__":
  dynamic_regret.run()
