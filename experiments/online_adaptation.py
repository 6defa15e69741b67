"""Compares algorithms that adapt a deployed model to unlabelled drifting data.

python -m experiments.online_adaptation --help
"""

from tff_shift.binaries import online_adaptation

if __name__ == "__main__":
  online_adaptation.run()
