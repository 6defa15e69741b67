"""Seeds: every draw is a pure function of (run seed, round, client).

A seed is an int32 vector of length 2, as TensorFlow's stateless random
operations take it. A client's own seed is derived outside the graph from the
run's seed and the client's id and travels with its data; inside the graph the
round and the purpose are folded in. So the order in which clients happen to run
changes nothing, and a resumed run draws what one that never stopped draws.
"""

import enum

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tff_shift import arguments

SEED_SHAPE = (2,)
SEED_TYPE = tff.TensorType(np.int32, SEED_SHAPE)


class Purpose(enum.IntEnum):
  """What a seed is used for; keeps the streams of one client apart."""

  INITIALIZE = 0
  TRAIN = 1
  STRAGGLE = 2
  PERSONALIZE = 3
  SAMPLE_CLIENTS = 4
  PRETRAIN = 5
  SEQUENCE = 6
  TEST_TIME = 7
  LAYERS = 8


def derive(run_seed: int, *path: int) -> np.ndarray:
  """Derives a seed from the run's seed and a path of non-negative integers.

  Different paths give different seeds, but for zeros at their end, which NumPy
  does not tell from nothing: a purpose has paths of one length.

  Args:
    run_seed: The run's seed, from 0 to 2**32 - 1.
    *path: Where in the run: a purpose, a client id, a round; each likewise.

  Returns:
    An int32 array of shape [2].

  Raises:
    ValueError: If an integer is out of this range.
  """
  words = [arguments.seed("run_seed", run_seed)]
  words += [arguments.seed("path", each) for each in path]
  return np.random.SeedSequence(words).generate_state(2).view(np.int32)


def client_seed(run_seed: int, client_id: int) -> np.ndarray:
  """Returns the seed, int32 [2], that travels with a client's data."""
  return derive(run_seed, Purpose.TRAIN, client_id)


def server_seed(run_seed: int) -> np.ndarray:
  """Returns the seed, int32 [2], of the server's initial weights."""
  return derive(run_seed, Purpose.INITIALIZE)


def fold(seed, *values) -> tf.Tensor:
  """Folds integers (tensors or Python's) into a seed, inside the graph."""
  for value in values:
    seed = tf.random.experimental.stateless_fold_in(
      seed, tf.cast(value, tf.int32)
    )
  return seed
