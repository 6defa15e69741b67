"""Federated learning under distribution shift, as TFF computations."""

import os

# TensorFlow reads it when it is imported. Its notes, on start and on optimising
# graphs, are of no use to who trains models. A value that is set counts.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
# gRPC reads it when it is imported. What it logs of a connection that fails,
# such as a refused certificate, comes as an error as well.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")


def load(folder):
  """Loads what a run learned, see `serving.predictor.load`."""
  # Not before it is needed: it takes seconds, and TFF is not needed for it.
  from tff_shift.serving import predictor

  return predictor.load(folder)
