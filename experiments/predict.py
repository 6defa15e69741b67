"""Predicts the examples of a file with a saved model of a run.

python -m experiments.predict --help
"""

from tff_shift.binaries import predict

if __name__ == "__main__":
  predict.run()
