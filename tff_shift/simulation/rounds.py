"""Rounds of an algorithm over a population of clients.

Whatever the scenario, a round is the same: draw who takes part, gather their
states in the order of their ids, run the phases, put the states back.
"""

import math
import time
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

import numpy as np

from tff_shift.learning import process
from tff_shift.learning import randomness


def sample_clients(
    num_clients: int, participation: float, run_seed: int, round_num: int
) -> list[int]:
  """Draws the clients of a round, a pure function of its arguments.

  Args:
    num_clients: The number of clients there are.
    participation: The share that takes part, above 0 and at most 1. At least
      one client does.
    run_seed: The run's seed.
    round_num: The round, from 0.

  Returns:
    The ids of different clients, in ascending order: the order of clients
    changes the bits of a mean.

  Raises:
    ValueError: If the participation is out of range.
  """
  if not 0 < participation <= 1:
    raise ValueError(
        f"participation={participation!r} is not allowed: it must be a number"
        " above 0 and at most 1"
    )
  size = max(1, math.floor(participation * num_clients + 0.5))
  words = randomness.derive(
      run_seed, randomness.Purpose.SAMPLE_CLIENTS, round_num
  )
  generator = np.random.default_rng(words.view(np.uint32))
  chosen = generator.choice(num_clients, size=size, replace=False)
  return sorted(int(client) for client in chosen)


class Rounds:
  """The state of a run and the step to the next round.

  Attributes:
    algorithm: The algorithm.
    data: What each client trains on or adapts to; may be replaced between
      rounds.
    server_state: The server's state.
    client_states: The clients' states, by position.
    round_num: The number of rounds done.
    seconds: The duration of each round done, in seconds.
  """

  def __init__(
      self,
      algorithm: process.FederatedAlgorithm,
      data: Sequence[Any],
      *,
      run_seed: int,
      participation: float = 1.0,
  ):
    """Draws the initial states; all clients' at once.

    Args:
      algorithm: The algorithm.
      data: What each client trains on or adapts to.
      run_seed: The run's seed.
      participation: The share of clients in a round, above 0 and at most 1.
    """
    self.algorithm = algorithm
    self.data = data
    self.server_state = algorithm.initialize(randomness.server_seed(run_seed))
    self.client_states = list(
        algorithm.initialize_client([client.seed for client in data])
    )
    self.round_num = 0
    self.seconds = []
    self._run_seed = run_seed
    self._participation = participation

  def step(self) -> Mapping[str, Any]:
    """Runs a round.

    Returns:
      The metrics of its last phase; none where a round has no phase.
    """
    start = time.perf_counter()
    chosen = sample_clients(
        len(self.data), self._participation, self._run_seed, self.round_num
    )
    data = [self.data[client] for client in chosen]
    server_state, metrics = self.server_state, {}
    states = [self.client_states[client] for client in chosen]
    for phase in self.algorithm.phases:
      server_state, states, metrics = phase(server_state, states, data)
    # Only now, so that an interrupted round leaves the run as it was.
    self.server_state = server_state
    for client, state in zip(chosen, states, strict=True):
      self.client_states[client] = state
    self.round_num += 1
    self.seconds.append(time.perf_counter() - start)
    return metrics

  @property
  def seconds_per_round(self) -> float:
    """The mean duration of a round but for the first, which compiles.

    It is 0 if there was no round.
    """
    return float(np.mean(self.seconds[1:] or self.seconds or [0.0]))
