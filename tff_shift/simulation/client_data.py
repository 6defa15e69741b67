"""What a client trains on and what it predicts, made of its examples."""

from collections.abc import Sequence

import numpy as np

from tff_shift.data import examples as examples_lib
from tff_shift.learning import local_training
from tff_shift.learning import randomness


def training_data(
  examples: Sequence[examples_lib.Examples], run_seed: int
) -> list[local_training.ClientData]:
  """Returns what each client trains on; a client's id is its position.

  Args:
    examples: The examples of each client; they are one domain.
    run_seed: Fixes the clients' batches.

  Returns:
    The data of each client.
  """
  return [
    local_training.ClientData(
      x=each.x,
      y=each.y,
      domain_sizes=np.array([len(each.y)], np.int32),
      seed=randomness.client_seed(run_seed, client),
      client_id=np.int32(client),
    )
    for client, each in enumerate(examples)
  ]


def to_predict(
  x: np.ndarray, y: np.ndarray, domain_sizes: Sequence[int], client_id: int = 0
) -> local_training.ClientData:
  """Returns examples to predict.

  Args:
    x: The examples, [n, ...].
    y: Their classes, [n] int32.
    domain_sizes: How many belong to each domain, in order, [num_domains].
    client_id: The client.

  Returns:
    The data. Its seed is no client's: predictions draw nothing.
  """
  return local_training.ClientData(
    x=x,
    y=y,
    domain_sizes=np.asarray(domain_sizes, np.int32),
    seed=np.zeros(randomness.SEED_SHAPE, np.int32),
    client_id=np.int32(client_id),
  )
