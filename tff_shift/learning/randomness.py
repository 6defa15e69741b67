"""Seeds: every draw is a pure function of (run seed, round, client).

A seed is an int32 vector of length 2, the argument of TensorFlow's stateless
random operations. A client's seed is derived from the run's seed and the
client's id, outside of the graph, and is part of its data; the graph folds in
the round and the purpose. Results therefore do not depend on the order in which
clients run, and a resumed run draws the same values as an uninterrupted one.
"""

import enum

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tff_shift._util import arguments
from tff_shift._util import draws

SEED_SHAPE = (2,)
SEED_TYPE = tff.TensorType(np.int32, SEED_SHAPE)


class Purpose(enum.IntEnum):
  """The use of a seed; separates the random streams of a client."""

  INITIALIZE = 0
  TRAIN = 1
  STRAGGLE = 2
  PERSONALIZE = 3
  SAMPLE_CLIENTS = 4
  PRETRAIN = 5
  SEQUENCE = 6
  TEST_TIME = 7
  LAYERS = 8
  AVAILABILITY = 9
  REPORT = 10
  NOISE = 11


def derive(run_seed: int, *path: int) -> np.ndarray:
  """Derives a seed from the run's seed and a path of non-negative integers.

  Different paths give different seeds, except for trailing zeros, which NumPy
  ignores: all paths of a purpose must have the same length.

  Args:
    run_seed: The run's seed, from 0 to 2**32 - 1.
    *path: A purpose, client id, round and so on, each from 0 to 2**32 - 1.

  Returns:
    An int32 array of shape [2], non-negative: see `draws`.

  Raises:
    ValueError: If an integer is outside of this range.
  """
  words = [arguments.seed("run_seed", run_seed)]
  words += [arguments.seed("path", each) for each in path]
  generated = np.random.SeedSequence(words).generate_state(2)
  return generated.view(np.int32) & draws.POSITIVE


def client_seed(run_seed: int, client_id: int) -> np.ndarray:
  """Returns the seed of a client's data, int32 [2]."""
  return derive(run_seed, Purpose.TRAIN, client_id)


def server_seed(run_seed: int) -> np.ndarray:
  """Returns the seed, int32 [2], of the server's initial weights."""
  return derive(run_seed, Purpose.INITIALIZE)


def fold(seed, *values) -> tf.Tensor:
  """Folds integers (tensors or Python ints) into a seed, in the graph."""
  for value in values:
    seed = draws.fold_in(seed, value)
  return seed
