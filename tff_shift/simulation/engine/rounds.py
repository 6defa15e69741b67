"""Rounds of an algorithm over a population of clients.

Whatever the scenario, a round is the same: draw who takes part, gather their
states in the order of their ids, run the phases, put the states back. Its time
and memory depend on who takes part, not on how many clients there are.
"""

import math
import time
from collections.abc import Callable
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

import numpy as np
from absl import logging

from tff_shift import arguments
from tff_shift import errors
from tff_shift.learning import algorithm as algorithm_lib
from tff_shift.learning import randomness
from tff_shift.learning.aggregators import update_noise
from tff_shift.models import input_scaling
from tff_shift.simulation.engine import checks
from tff_shift.simulation.engine import client_data
from tff_shift.simulation.engine import client_states as client_states_lib

DivergedError = errors.DivergedError


def num_sampled(num_clients: int, participation: float) -> int:
  """Returns how many clients take part in a round, see `sample_clients`."""
  num_clients = arguments.integer("num_clients", num_clients)
  participation = arguments.participation(participation)
  return max(1, math.floor(participation * num_clients + 0.5))


def sample_clients(
  num_clients: int, participation: float, run_seed: int, round_num: int
) -> list[int]:
  """Draws the clients of a round, a pure function of its arguments.

  The time it takes depends on their number alone, unless that is above one in
  50 of more than 10,000 clients.

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
    ValueError: If an argument is out of range; one line that names it.
  """
  round_num = arguments.integer("round_num", round_num, 0)
  size = num_sampled(num_clients, participation)
  words = randomness.derive(
    run_seed, randomness.Purpose.SAMPLE_CLIENTS, round_num
  )
  generator = np.random.default_rng(words.view(np.uint32))
  chosen = generator.choice(num_clients, size=size, replace=False)
  return sorted(int(client) for client in chosen)


class DataOnDemand(Sequence):
  """The data of clients by position, each made when it is asked for.

  Attributes:
    is_checked: Whether what is made has been checked.
  """

  def __init__(
    self,
    num_clients: int,
    make: Callable[[int], Any],
    *,
    is_checked: bool = False,
  ):
    """Makes nothing yet.

    Args:
      num_clients: The number of clients, at least 1.
      make: A client to its data; a pure function.
      is_checked: Whether what is made has passed a
        `client_data.ClientDataValidator` already. Else it does each time that
        it is made.
    """
    self.is_checked = is_checked
    self._num_clients = arguments.integer("num_clients", num_clients)
    self._make = make

  def __len__(self) -> int:
    return self._num_clients

  def __getitem__(self, index: int | slice) -> Any:
    clients = range(self._num_clients)[index]
    if isinstance(index, slice):
      return [self._make(client) for client in clients]
    return self._make(clients)


class Rounds:
  """The state of a run and the step to the next round.

  Attributes:
    algorithm: The algorithm.
    data: What each client trains on or adapts to, checked; may be replaced
      between rounds. A round asks for that of its participants only.
    server_state: The server's state.
    states: The clients' states, of which those of some can be had; see
      `client_states`.
    round_num: The number of rounds done.
    seconds: The duration of each round done, in seconds.
    losses: The training loss of each round done, the mean over its clients;
      empty where a round has no phase.
    starts: The rounds, from 0, that were the first of a process: they compile.
    num_diverged: How many clients' work was left out so far, see `phases`.
  """

  def __init__(
    self,
    algorithm: algorithm_lib.FederatedAlgorithm,
    data: Sequence[Any],
    *,
    run_seed: int,
    participation: float = 1.0,
    storage: client_states_lib.Storage | None = None,
    on_loss: Callable[[int, float], None] = lambda round_num, loss: None,
  ):
    """Draws the initial state of the server.

    A client's is drawn when it is first needed, with the seed of its data here.

    Args:
      algorithm: The algorithm.
      data: What each client trains on or adapts to. A list or tuple is checked
        here, and cast to the types that the algorithm takes; any other sequence
        client by client when it is asked for, such as a `DataOnDemand` where
        the data of all clients do not fit into memory.
      run_seed: The run's seed.
      participation: The share of clients in a round, above 0 and at most 1.
      storage: Where clients' states go that are not to stay in memory. None:
        all stay.
      on_loss: Called after each round with the number of rounds done and its
        training loss; by `resume` first for those of before.

    Raises:
      ValueError: If an argument is not allowed, the data of a client are not
        what the algorithm takes, or there are no clients or more than the
        algorithm can tell apart.
    """
    checks.algorithm(algorithm)
    self._run_seed = arguments.seed("run_seed", run_seed)
    arguments.functions(on_loss=on_loss)
    num_clients = arguments.sequence("data", data)
    max_clients = getattr(algorithm, "max_clients", None)
    if max_clients is not None and num_clients > max_clients:
      raise ValueError(
        f"data must have an entry for at most {max_clients} clients, whom"
        f" {algorithm.name} as it was built can tell apart, got {num_clients}"
      )
    self._num_clients = num_clients
    self.algorithm = algorithm
    self._door = client_data.ClientDataValidator(algorithm)
    self._passed = []
    self.data = data
    first_data = self.data
    self.server_state = algorithm.initialize(randomness.server_seed(run_seed))
    self.states = client_states_lib.ClientStates(
      len(first_data),
      # A client that has not taken part yet knows no other weights than these.
      lambda seeds: self.algorithm.initialize_client(self.server_state, seeds),
      lambda client: first_data[client].seed,
      storage,
    )
    self.round_num = 0
    self.seconds = []
    self.losses = []
    self.starts = [0]
    self.num_diverged = 0
    # Checked where it is used.
    self._participation = participation
    self._on_loss = on_loss

  @property
  def data(self) -> Sequence[Any]:
    """What each client trains on or adapts to, checked."""
    return self._data

  @data.setter
  def data(self, data: Sequence[Any]) -> None:
    arguments.sequence("data", data, self._num_clients)
    if isinstance(data, list | tuple):
      self._passed = self._door.training_of_all(data, self._passed)
      self._data = [each.checked for each in self._passed]
    elif isinstance(data, DataOnDemand) and data.is_checked:
      self._data = data
    else:
      self._data = DataOnDemand(
        len(data), lambda client: self._door.training(data[client], client)
      )

  def step(self) -> Mapping[str, Any]:
    """Runs a round.

    Returns:
      The metrics of its last phase; none where a round has no phase. But
      `num_diverged` is the largest of all phases: how many clients' work was
      left out, see `phases`.

    Raises:
      DivergedError: If the work of all clients in a phase has diverged. The run
        stays as it was before the round.
      ValueError: If data that are made on demand are wrong; likewise.
    """
    start = time.perf_counter()
    chosen = sample_clients(
      len(self.data), self._participation, self._run_seed, self.round_num
    )
    data = [self.data[client] for client in chosen]
    server_state, metrics, num_diverged = self.server_state, {}, 0
    states = self.states.take(chosen, [client.seed for client in data])
    for phase in self.algorithm.phases:
      server_state, states, metrics = phase(server_state, states, data)
      if metrics["num_diverged"] == metrics["num_clients"]:
        raise DivergedError(
          self.algorithm.name,
          self.round_num + 1,
          len(chosen),
          update_noise.what_may_help(
            self.algorithm.noise_ratio,
            input_scaling.advice(
              self.algorithm.model.input_dtype,
              self.algorithm.model.input_scaling,
              [each.x for each in data],
            ),
          ),
        )
      num_diverged = max(metrics["num_diverged"], num_diverged)
      metrics["num_diverged"] = num_diverged
    if num_diverged:
      logging.warning(
        "%s, round %d: what %d of %d clients trained is not finite and is"
        " left out",
        self.algorithm.name,
        self.round_num + 1,
        num_diverged,
        len(chosen),
      )
    # Only now, so that an interrupted round leaves the run as it was.
    self.server_state = server_state
    self.states.put(chosen, states)
    self.num_diverged += int(num_diverged)
    self.round_num += 1
    self.seconds.append(time.perf_counter() - start)
    if "loss" in metrics:
      self.losses.append(float(metrics["loss"]))
      self._on_loss(self.round_num, self.losses[-1])
    return metrics

  def resume(
    self,
    server_state: Any,
    client_states: Sequence[Any] | None,
    seconds: Sequence[float],
    starts: Sequence[int],
    num_diverged: int = 0,
    losses: Sequence[float] = (),
  ) -> None:
    """Takes over the rounds that another process has done.

    Args:
      server_state: The server's state after them.
      client_states: All clients' states after them. None: `states` has them.
      seconds: The duration of each, in seconds.
      starts: Those that were the first of a process.
      num_diverged: How many clients' work was left out in them.
      losses: The training loss of each.
    """
    self.server_state = server_state
    if client_states is not None:
      self.client_states = client_states
    self.round_num = len(seconds)
    self.seconds = list(seconds)
    self.starts = [*starts, self.round_num]
    self.num_diverged = num_diverged
    self.losses = list(losses)
    for round_num, loss in enumerate(self.losses, start=1):
      self._on_loss(round_num, loss)

  def close(self) -> None:
    """Ends the use of a file of states, if there is one."""
    self.states.close()

  @property
  def client_states(self) -> list[Any]:
    """All clients' states by position, as computations take them.

    They are in memory at once, and a change of the list changes no state.
    """
    return self.states[:]

  @client_states.setter
  def client_states(self, states: Sequence[Any]) -> None:
    self.states.replace(dict(enumerate(states)))

  def kept_states(self) -> tuple[Any, Sequence[Any] | None]:
    """Returns what stays after `close`: the states of server and clients.

    Those of the clients are None where a file has them.
    """
    in_file = self.states.storage is not None
    return self.server_state, None if in_file else self.states

  @property
  def seconds_per_round(self) -> float:
    """The mean duration of a round but for those that compile.

    It is 0 if there was no round.
    """
    compiled = [
      seconds
      for round_num, seconds in enumerate(self.seconds)
      if round_num not in self.starts
    ]
    return float(np.mean(compiled or self.seconds or [0.0]))
