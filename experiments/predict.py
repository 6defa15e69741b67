"""Predicts examples of a file with a model that a run has left.

python -m experiments.predict --help
"""

from tff_shift.command_line.binaries import predict

if __name__ == "__main__":
  predict.run()
