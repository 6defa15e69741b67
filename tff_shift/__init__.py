"""Federated learning under distribution shift, as TFF computations."""


def load(folder):
  """Loads what a run learned, see `serving.predictor.load`."""
  # Not before it is needed: it takes seconds, and TFF is not needed for it.
  from tff_shift.serving import predictor

  return predictor.load(folder)
