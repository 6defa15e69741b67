"""Federated learning under distribution shift, as TFF computations."""

import os

# TensorFlow reads it on import. Its messages about startup and graph
# optimization do not help users. An existing value is kept.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
# gRPC reads it on import. Failed connections, for example because of a refused
# certificate, also raise errors.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")


def load(folder):
  """Loads a saved model, see `serving.predictor.load`."""
  # Imported on use because it takes seconds. It does not need TFF.
  from tff_shift.serving import predictor

  return predictor.load(folder)
