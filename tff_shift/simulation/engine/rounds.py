"""Rounds of an algorithm over a population of clients.

A round is the same in every scenario: sample the cohort, gather the states of
the clients that report in the order of client ids, run the phases, store the
states. Its time and memory depend on the cohort size, not on the number of
clients, unless a sampler compares all clients.
"""

import math
import time
from collections.abc import Callable
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

import numpy as np
from absl import logging

from tff_shift._util import arguments
from tff_shift._util import errors
from tff_shift._util import signals
from tff_shift.learning import algorithm as algorithm_lib
from tff_shift.learning import phases
from tff_shift.learning import randomness
from tff_shift.learning.aggregators import update_noise
from tff_shift.models import input_scaling
from tff_shift.simulation.engine import checks
from tff_shift.simulation.engine import client_data
from tff_shift.simulation.engine import client_states as client_states_lib
from tff_shift.simulation.engine import participation as participation_lib


def num_sampled(num_clients: int, participation: float) -> int:
  """Returns the cohort size, see `sample_clients`."""
  num_clients = arguments.integer("num_clients", num_clients)
  participation = arguments.participation(participation)
  return max(1, math.floor(participation * num_clients + 0.5))


def sample_clients(
  num_clients: int, participation: float, run_seed: int, round_num: int
) -> list[int]:
  """Samples the cohort of a round uniformly, a pure function of its arguments.

  See `participation.uniform`.

  Args:
    num_clients: The number of clients.
    participation: The client fraction, above 0 and at most 1. At least one
      client is sampled.
    run_seed: The run's seed.
    round_num: The round, from 0.

  Returns:
    The ids of different clients, in ascending order, since the order of clients
    changes the bits of a mean.

  Raises:
    ValueError: If an argument is out of range; one line that names it.
  """
  round_num = arguments.integer("round_num", round_num, 0)
  size = num_sampled(num_clients, participation)
  return participation_lib.sample_uniformly(
    num_clients, size, run_seed, round_num
  )


class DataOnDemand(Sequence):
  """The data of clients by position, built on request.

  Attributes:
    is_checked: Whether the data are already validated.
  """

  def __init__(
    self,
    num_clients: int,
    make: Callable[[int], Any],
    *,
    is_checked: bool = False,
  ):
    """Stores the arguments; builds nothing yet.

    Args:
      num_clients: The number of clients, at least 1.
      make: Maps a client to its data; a pure function.
      is_checked: Whether the data have already passed a
        `client_data.ClientDataValidator`. Otherwise they are validated each
        time that they are built.
    """
    self.is_checked = is_checked
    self._num_clients = arguments.integer("num_clients", num_clients)
    self._make = make

  def __len__(self) -> int:
    return self._num_clients

  def __getitem__(self, index: int | slice) -> Any:
    clients = range(self._num_clients)
    if isinstance(index, slice):
      return [self._make(client) for client in clients[index]]
    return self._make(clients[index])


class Rounds:
  """The state of a run, advanced round by round.

  Attributes:
    algorithm: The algorithm.
    data: The validated data for each client's training or adaptation; may be
      replaced between rounds. A round reads only the data of the clients that
      report, unless a sampler needs the sizes of all.
    present: The clients that may be sampled in the next round, ascending; None:
      all. Others may have no examples in a list of data, so it is set first.
    server_state: The server's state.
    states: The clients' states, see `client_states`.
    round_num: The number of completed rounds.
    seconds: The duration of each completed round, in seconds.
    losses: The training loss of each completed round, the mean over its
      clients; empty if rounds have no phase.
    starts: The rounds, from 0, that were the first of a process and include
      compilation.
    num_diverged: The number of diverged client updates so far, see `phases`.
    client_losses: The last training loss that each client reported,
      [num_clients] float64; NaN before the first one. None: the algorithm was
      built without `reports_losses`.
    client_names: The names of the clients, for who reads about them. None:
      unknown.
  """

  client_names: Sequence[str] | None = None

  def __init__(
    self,
    algorithm: algorithm_lib.FederatedAlgorithm,
    data: Sequence[Any],
    *,
    run_seed: int,
    participation: float = 1.0,
    sampler: participation_lib.Sampler = participation_lib.uniform,
    reporting: participation_lib.Reporting | None = None,
    storage: client_states_lib.Storage | None = None,
    on_loss: Callable[[int, float], None] = lambda round_num, loss: None,
    present: np.ndarray | Sequence[int] | None = None,
  ):
    """Draws the initial state of the server.

    A client's state is drawn when first needed, with the seed of its data.

    Args:
      algorithm: The algorithm.
      data: The data for each client's training or adaptation. A list or tuple
        is validated here and cast to the types of the algorithm. Any other
        sequence is validated client by client on request, such as a
        `DataOnDemand` if the data of all clients do not fit into memory.
      run_seed: The run's seed.
      participation: The client fraction per round, above 0 and at most 1.
      sampler: Samples the clients of a round, see `participation`.
      reporting: Which of the sampled clients report. None: all of them. Both
        are ignored if rounds have no phase.
      storage: The storage of client states in a file. None: all stay in
        memory.
      on_loss: Called after each round with the number of completed rounds and
        the training loss; `resume` first calls it for earlier rounds.
      present: The clients that may be sampled. None: all.

    Raises:
      ValueError: If an argument is not allowed, the data of a client do not
        match the algorithm, there are no clients or more than the algorithm
        can distinguish, or the sampler needs losses that the algorithm does not
        report.
    """
    checks.algorithm(algorithm)
    self._run_seed = arguments.seed("run_seed", run_seed)
    arguments.functions(on_loss=on_loss, sampler=sampler)
    checks.reporting(reporting)
    self._may_be_empty = getattr(sampler, "may_be_empty", False)
    if self._may_be_empty and reporting is not None:
      raise ValueError(
        "reporting is not allowed with a Poisson sampler, whose clients take"
        " part independently"
      )
    num_clients = arguments.sequence("data", data)
    max_clients = getattr(algorithm, "max_clients", None)
    if max_clients is not None and num_clients > max_clients:
      raise ValueError(
        f"data must have an entry for at most {max_clients} clients, the number"
        f" that {algorithm.name} was built for, got {num_clients}"
      )
    self._num_clients = num_clients
    if not algorithm.phases:
      # Nothing is trained, so it does not matter who takes part.
      sampler, reporting = participation_lib.uniform, None
      self._may_be_empty = False
    self.client_losses = _first_losses(algorithm, num_clients)
    if self.client_losses is None and getattr(sampler, "needs_losses", False):
      raise ValueError(
        f"algorithm {algorithm.name} is not allowed with this sampler, which"
        " needs the clients' losses: build it with reports_losses=True and"
        f" num_clients={num_clients}"
      )
    self.algorithm = algorithm
    self._validator = client_data.ClientDataValidator(algorithm)
    self._passed = []
    self._data: Sequence[Any]
    self._known_sizes: np.ndarray | None
    self._present: np.ndarray | None
    self.present = present
    self.data = data
    first_data = self.data
    self.server_state = algorithm.initialize(randomness.server_seed(run_seed))
    self.states = client_states_lib.ClientStates(
      len(first_data),
      # Before its first round a client knows no other weights than these.
      lambda seeds: self.algorithm.initialize_client(self.server_state, seeds),
      lambda client: first_data[client].seed,
      storage,
    )
    self.round_num = 0
    self.seconds = []
    self.losses = []
    self.starts = [0]
    self.num_diverged = 0
    # Validated by `num_sampled`.
    self._participation = participation
    self._sampler = sampler
    self._reporting = reporting
    self._on_loss = on_loss

  @property
  def data(self) -> Sequence[Any]:
    """The validated data for each client's training or adaptation."""
    return self._data

  @data.setter
  def data(self, data: Sequence[Any]) -> None:
    arguments.sequence("data", data, self._num_clients)
    self._known_sizes = None
    if isinstance(data, list | tuple):
      absent = set()
      if self._present is not None:
        absent = set(range(self._num_clients)).difference(self._present)
      self._passed = self._validator.training_of_all(data, self._passed, absent)
      self._data = [each.checked for each in self._passed]
    elif isinstance(data, DataOnDemand) and data.is_checked:
      self._data = data
    else:
      self._data = DataOnDemand(
        len(data), lambda client: self._validator.training(data[client], client)
      )

  @property
  def present(self) -> np.ndarray | Sequence[int] | None:
    """The clients that may be sampled in the next round; None: all."""
    return self._present

  @present.setter
  def present(self, clients: np.ndarray | Sequence[int] | None) -> None:
    if clients is None:
      self._present = None
      return
    self._present = _read_only(
      np.array(
        participation_lib.checked_cohort(clients, self._num_clients), np.int64
      )
    )

  def step(self) -> Mapping[str, Any]:
    """Runs a round.

    A round in which no client reports is abandoned: no phase runs, and only the
    round number increases, here and in the server's state. If the sampler may
    return no client, as `participation.poisson`, the phases run without one.

    Returns:
      The metrics of its last phase, without `phases.CLIENT_LOSSES`; empty if
      rounds have no phase. `num_diverged` is the maximum over the phases, see
      `phases`. If the round is abandoned, the loss is NaN and the numbers are
      0.

    Raises:
      errors.DivergedError: If all clients have diverged in a phase. The run
        stays as before the round.
      ValueError: If data built on request or the sampler's result are not
        valid. The run stays as before the round.
    """
    signals.check()
    start = time.perf_counter()
    chosen = self._reporters()
    if not chosen and not self._may_be_empty:
      return self._abandon(start)
    data = [self.data[client] for client in chosen]
    server_state, metrics, num_diverged = self.server_state, {}, 0
    states = self.states.take(chosen, [client.seed for client in data])
    for phase in self.algorithm.phases:
      server_state, states, metrics = phase(server_state, states, data)
      if chosen and metrics["num_diverged"] == metrics["num_clients"]:
        raise errors.DivergedError(
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
        "%s, round %d: the updates of %d of %d clients are not finite and are"
        " left out",
        self.algorithm.name,
        self.round_num + 1,
        num_diverged,
        len(chosen),
      )
    client_losses = self._losses_after(metrics)
    # Last, so that an interrupted round leaves the run unchanged.
    self.server_state = server_state
    self.states.put(chosen, states)
    self.client_losses = client_losses
    self.num_diverged += int(num_diverged)
    return self._finish(start, metrics)

  def _reporters(self) -> list[int]:
    """Returns the clients that are sampled and report, ascending."""
    num_present = self._num_clients
    if self._present is not None:
      num_present = len(self._present)
    known = participation_lib.Known(
      run_seed=self._run_seed,
      round_num=self.round_num,
      num_clients=self._num_clients,
      num_sampled=num_sampled(num_present, self._participation),
      sizes=self._sizes,
      losses=self.client_losses,
      present=self._present,
    )
    num_selected = known.num_sampled
    if self._reporting is not None:
      num_selected = self._reporting.num_selected(
        known.num_sampled, num_present
      )
    chosen = participation_lib.checked_cohort(
      self._sampler(known._replace(num_sampled=num_selected)),
      known.num_clients,
      known.present,
      self._may_be_empty,
    )
    if self._reporting is None:
      return chosen
    return self._reporting.reporters(known, chosen)

  def _sizes(self) -> np.ndarray:
    """Returns the clients' numbers of examples, see `participation.Known`."""
    if self._known_sizes is None:
      self._known_sizes = _read_only(
        np.array(list(map(client_data.num_examples, self.data)), np.int64)
      )
    return self._known_sizes

  def _losses_after(self, metrics: dict[str, Any]) -> np.ndarray | None:
    """Returns the new `client_losses`; removes them from the metrics."""
    losses, counts = (metrics.pop(each, None) for each in phases.CLIENT_LOSSES)
    if self.client_losses is None or losses is None:
      return self.client_losses
    return _read_only(
      np.where(
        np.asarray(counts) > 0,
        np.asarray(losses, np.float64),
        self.client_losses,
      )
    )

  def _abandon(self, start: float) -> Mapping[str, Any]:
    """Ends a round in which no client reports, see `step`."""
    logging.warning(
      "%s, round %d: no client reports, and the round is abandoned",
      self.algorithm.name,
      self.round_num + 1,
    )
    self.server_state = self.server_state._replace(
      round_num=np.int32(self.round_num + 1)
    )
    if self.round_num in self.starts:
      # The next round includes compilation instead.
      self.starts.append(self.round_num + 1)
    return self._finish(
      start, {"loss": math.nan, "num_clients": 0, "num_diverged": 0}
    )

  def _finish(
    self, start: float, metrics: Mapping[str, Any]
  ) -> Mapping[str, Any]:
    """Counts a round that began at a time; returns its metrics."""
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
    client_losses: Sequence[float] | None = None,
  ) -> None:
    """Restores the rounds of another process.

    Args:
      server_state: The server's state after them.
      client_states: All clients' states after them. None: `states` has them.
      seconds: The duration of each, in seconds.
      starts: The rounds that were the first of a process.
      num_diverged: The number of diverged client updates in them.
      losses: The training losses of the last ones, or of all.
      client_losses: The last loss of each client, [num_clients]; NaN: no loss
        yet. None: clients do not report losses.
    """
    self.server_state = server_state
    if client_losses is not None:
      self.client_losses = _read_only(np.array(client_losses, np.float64))
    if client_states is not None:
      self._put_states(client_states)
    self.round_num = len(seconds)
    self.seconds = list(seconds)
    self.starts = [*starts, self.round_num]
    self.num_diverged = num_diverged
    self.losses = list(losses)
    first = self.round_num - len(self.losses) + 1
    for round_num, loss in enumerate(self.losses, start=first):
      self._on_loss(round_num, loss)

  def close(self) -> None:
    """Closes the file of states, if there is one."""
    self.states.close()

  @property
  def client_states(self) -> list[Any]:
    """All clients' states by position, as computations take them.

    All of them are in memory, and changing the list changes no state.
    """
    return self.states[:]

  @client_states.setter
  def client_states(self, states: list[Any]) -> None:
    self._put_states(states)

  def _put_states(self, states: Sequence[Any]) -> None:
    self.states.put(range(len(self.states)), states)

  def kept_states(self) -> tuple[Any, Sequence[Any] | None]:
    """Returns the states that remain after `close`: of server and clients.

    The clients' states are None if not all of them are in memory.
    """
    return self.server_state, None if self.states.has_limit else self.states

  @property
  def seconds_per_round(self) -> float:
    """The mean duration of rounds without compilation, 0 without rounds."""
    compiled = [
      seconds
      for round_num, seconds in enumerate(self.seconds)
      if round_num not in self.starts
    ]
    return float(np.mean(compiled or self.seconds or [0.0]))


def _first_losses(
  algorithm: algorithm_lib.FederatedAlgorithm, num_clients: int
) -> np.ndarray | None:
  """Returns NaN for each client; None if the algorithm reports no losses."""
  num_reporting = getattr(algorithm, "reporting_clients", None)
  if num_reporting is None or not algorithm.phases:
    return None
  if num_reporting != num_clients:
    raise ValueError(
      f"data must have an entry for each of the {num_reporting} clients whose"
      f" losses {algorithm.name} was built to report, got {num_clients}"
    )
  return _read_only(np.full(num_clients, np.nan))


def _read_only(array: np.ndarray) -> np.ndarray:
  """Makes an array read-only, since samplers see it; returns it."""
  array.setflags(write=False)
  return array
