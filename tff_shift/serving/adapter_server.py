"""The server of clients that adapt in processes of their own.

    names = ["north", "west"]
    server = ts.AdapterServer(algorithm, "state", client_names=names)
    broadcast = server.begin(names)  # Who has a batch.
    while broadcast.clients:
      # Send broadcast.to_bytes() to the clients of server.asked, and collect
      # what their `receive` returns.
      broadcast = server.receive({"north": ..., "west": ...})
    server.save()

The rounds are those of `ts.Adapter`, with the same bits. What a client sends is
a message of the type in `message_types`; see `ts.AdapterClient`.
"""

import os
from collections.abc import Hashable
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

import numpy as np

from tff_shift._util import arguments
from tff_shift._util import errors
from tff_shift._util import records
from tff_shift.algorithms.parts import adaptation
from tff_shift.learning import algorithm as algorithm_lib
from tff_shift.learning import phases
from tff_shift.learning import randomness
from tff_shift.serving import adapter_messages
from tff_shift.serving import adapter_state
from tff_shift.simulation.engine import checks
from tff_shift.simulation.engine import participation as participation_lib
from tff_shift.simulation.engine import rounds
from tff_shift.simulation.storage import encoding
from tff_shift.simulation.storage import run_file

_FILE = "adapter_server.sqlite"


class _Progress(adapter_state.Saved):
  """The record of a saved server.

  Attributes:
    phase: The phase whose messages it waits for, from 0.
    rounds_left: The rounds of the time step that are not completed.
    present: The clients with a batch at the time step, ascending.
    asked: The clients whose messages it waits for, ascending.
  """

  phase: records.Count = 0
  rounds_left: records.Count = 0
  present: tuple[records.Count, ...] = ()
  asked: tuple[records.Count, ...] = ()


def check(algorithm: algorithm_lib.FederatedAlgorithm) -> None:
  """Refuses an algorithm that cannot run in several processes."""
  checks.algorithm(algorithm)
  checks.data_kind(algorithm, adaptation.AdaptationData)
  if algorithm.hides_clients:
    raise ValueError(
      f"algorithm {algorithm.name} is not allowed with an aggregator that hides"
      " single updates: messages of clients in other processes reach the server"
      " before they are aggregated; use ts.Adapter, or another aggregator"
    )


class AdapterServer:
  """A server that aggregates the messages of `ts.AdapterClient`s.

  Use it within `ts.execution.use(...)`.

  Attributes:
    client_names: The name of each client.
    message_types: The TFF type of a client's message in each phase of a round.
    loss: The mean training loss of the last phase; NaN before the first one.

  Examples:
    >>> model = ts.build_model("mlp", input_shape=(2,), num_classes=2, width=4)
    >>> algorithm = ts.build_algorithm("fth", model)
    >>> with ts.execution.use("in_process"):
    ...   server = ts.AdapterServer(
    ...     algorithm, folder, client_names=["north", "south"]
    ...   )
    >>> broadcast = server.begin(["south"])
    >>> server.asked, broadcast.clients
    (('south',), (1,))
    >>> server.close()
  """

  def __init__(
    self,
    algorithm: algorithm_lib.FederatedAlgorithm,
    state_folder: str | os.PathLike[str],
    *,
    client_names: Sequence[Hashable],
    seed: int = 0,
    rounds_per_step: int = 1,
    participation: float = 1.0,
  ):
    """Opens the state in a folder, or starts with the deployed model.

    Args:
      algorithm: As for `ts.Adapter`; clients build the same one.
      state_folder: The folder of the state, which no other object may use. It
        may be a link.
      client_names: The name of each client, all different. A client's position
        among them is its `client` in `ts.AdapterClient`. Those of a saved state
        come first, in the same order; further clients join.
      seed: As for `ts.Adapter`; clients have the same one.
      rounds_per_step: As for `ts.Adapter`.
      participation: As for `ts.Adapter`.

    Raises:
      ValueError: If an argument is not allowed, the folder is in use, or it has
        a damaged state or one of other arguments, which the line names.
    """
    check(algorithm)
    num_clients = arguments.sequence("client_names", client_names)
    if num_clients > (algorithm.max_clients or num_clients):
      raise ValueError(
        f"client_names must have at most {algorithm.max_clients} names, the"
        f" number that {algorithm.name} was built for, got {num_clients}"
      )
    self._names = adapter_state.Names(client_names)
    self.client_names = self._names.names
    self.message_types = adapter_messages.message_types(algorithm)
    self.loss = np.nan
    self._algorithm = algorithm
    self._seed = arguments.seed("seed", seed)
    rounds_per_step = arguments.integer("rounds_per_step", rounds_per_step)
    participation = arguments.participation(participation)
    if algorithm.is_local:
      rounds_per_step, participation = 1, 1.0
    self._rounds_per_step = rounds_per_step if algorithm.phases else 0
    self._participation = participation
    self._state = algorithm.initialize(randomness.server_seed(self._seed))
    self._key = adapter_state.key(algorithm, self._state, self._seed)
    self._origin = adapter_state.origin(
      algorithm,
      self._state,
      seed=self._seed,
      rounds_per_step=rounds_per_step,
      participation=participation,
    )
    self._progress = _Progress(
      timestep=0,
      round_num=0,
      origin=self._origin,
      client_names=self._names.texts,
    )
    self._file = adapter_state.StateFile(state_folder, _FILE)
    try:
      self._restore()
    except BaseException:
      self._file.close()
      raise

  def _restore(self) -> None:
    """Restores the last saved state, if there is one."""
    record = self._file.restore(_Progress)
    if record is None:
      return
    self._file.check_origin(record.origin, self._origin)
    names = self._names.texts
    if names[: len(record.client_names)] != record.client_names:
      raise ValueError(
        f"{self._file.path}: client_names must begin with the saved ones,"
        f" {', '.join(record.client_names)}, and has {', '.join(names)}."
        " Clients know their positions; new names follow"
      )
    self._progress = record.replace(client_names=names)
    self._state = encoding.from_bytes(
      self._file.read(run_file.SERVER), self._state
    )

  @property
  def timestep(self) -> int:
    """The number of time steps that have begun."""
    return self._progress.timestep

  @property
  def asked(self) -> tuple[Hashable, ...]:
    """The names of the clients whose messages the server waits for."""
    return tuple(self.client_names[each] for each in self._progress.asked)

  @property
  def broadcast(self) -> adapter_messages.Broadcast:
    """What the server sends now; between time steps it asks no client.

    Every client may receive it, and then predicts with its weights.
    """
    state = self._state
    return adapter_messages.Broadcast(
      self._key,
      self._progress.timestep,
      self._progress.round_num,
      self._progress.phase,
      self._progress.asked,
      phases.Broadcast(state.weights, state.round_num, state.seed),
      adapter_messages.broadcast_type(self._algorithm),
    )

  def begin(self, clients: Sequence[Hashable]) -> adapter_messages.Broadcast:
    """Begins a time step.

    Args:
      clients: The names of the clients with a batch. The others are absent.

    Returns:
      The broadcast.

    Raises:
      ValueError: If a client is unknown, or the last time step has not ended;
        one line. The state stays as before.
    """
    if self._progress.asked:
      raise ValueError(
        f"time step {self.timestep} has not ended: messages of"
        f" {self._names.shown(self._progress.asked)} are missing;"
        " receive({}) ends its round without them"
      )
    arguments.sequence("clients", clients)
    present = sorted({self._names.position(each) for each in clients})
    self._progress = self._next_round(
      self._progress.replace(
        timestep=self.timestep + 1,
        present=tuple(present),
        rounds_left=self._rounds_per_step,
      )
    )
    return self.broadcast

  def receive(
    self, messages: Mapping[Hashable, adapter_messages.Message | bytes]
  ) -> adapter_messages.Broadcast:
    """Aggregates the messages of a phase.

    Args:
      messages: The messages of `asked`, or their bytes, by the client's name. A
        client without one is left out of the rest of the round. Without any,
        the round ends here; what its earlier phases have done stays.

    Returns:
      The next broadcast. If it asks no client, the time step has ended.

    Raises:
      ValueError: If a message is of another client, round, phase or type, has
        numbers that no client sends, or is damaged; one line. The state stays
        as before.
      errors.DivergedError: If the updates of all clients are not finite. The
        state stays as before.
    """
    now = self._progress
    if not now.asked:
      raise ValueError("no message is awaited; begin starts a time step")
    if not isinstance(messages, Mapping):
      raise ValueError("messages must be a dictionary of client and message")
    values = {}
    for name, content in messages.items():
      position = self._names.position(name)
      values[position] = self._message(name, position, content).value
    if not values:
      self._state = self._state._replace(round_num=np.int32(now.round_num + 1))
      self._progress = self._next_round(_after_round(now))
      return self.broadcast
    state, metrics = self._algorithm.server_halves[now.phase](
      # The order of clients changes the bits of a mean.
      self._state,
      [values[each] for each in sorted(values)],
    )
    if metrics["num_diverged"] == metrics["num_clients"]:
      raise errors.DivergedError(
        self._algorithm.name, now.round_num + 1, len(values)
      )
    if not adapter_messages.is_finite(state.weights):
      raise ValueError(
        f"the messages of {self._names.shown(sorted(values))} give weights that"
        " are not finite; leave out a client whose update or weight is too"
        " large"
      )
    if now.phase + 1 < len(self._algorithm.phases):
      now = now.replace(phase=now.phase + 1, asked=tuple(sorted(values)))
    else:
      now = self._next_round(_after_round(now))
    self._state, self._progress = state, now
    self.loss = float(metrics["loss"])
    return self.broadcast

  def save(self) -> None:
    """Saves the state; an interrupted call leaves the last saved one.

    Raises:
      files.WriteError: If it cannot be written.
    """
    fields = {
      name: getattr(self._progress, name)
      for name in _Progress.__struct_fields__
      if name != "states"
    }
    self._file.save(
      [(run_file.SERVER, encoding.to_bytes(self._state, self._state))],
      _Progress,
      **fields,
    )

  def close(self) -> None:
    """Closes the file of the state; what was not saved is lost."""
    self._file.close()

  def __enter__(self) -> "AdapterServer":
    return self

  def __exit__(self, *error: Any) -> None:
    self.close()

  def _next_round(self, now: _Progress) -> _Progress:
    """Asks the cohort of the next round, if the time step has one."""
    if not now.rounds_left:
      return now.replace(asked=())
    known = participation_lib.Known(
      run_seed=self._seed,
      round_num=now.round_num,
      num_clients=len(self.client_names),
      num_sampled=rounds.num_sampled(len(now.present), self._participation),
      # `uniform` uses neither.
      sizes=lambda: np.zeros([0], np.int64),
      losses=None,
      present=np.array(now.present),
    )
    return now.replace(asked=tuple(participation_lib.uniform(known)))

  def _message(
    self, name: Hashable, position: int, given: Any
  ) -> adapter_messages.Message:
    """Returns a valid message of a client that was asked for it."""
    now, what = self._progress, f"the message of client {name!r}"
    if position not in now.asked:
      raise ValueError(
        f"{what} is not awaited in round {now.round_num}; the awaited clients"
        f" are {self._names.shown(now.asked)}"
      )
    found = adapter_messages.received(
      given, adapter_messages.Message, self._key, self.message_types, what
    )
    if found.clients != (position,):
      raise ValueError(
        f"{what}, which has position {position}, was sent by the client at"
        f" position {', '.join(map(str, found.clients)) or 'none'}"
      )
    for field in ("timestep", "round_num", "phase"):
      if getattr(found, field) != getattr(now, field):
        raise ValueError(
          f"{what} has {field}={getattr(found, field)}, and the server is at"
          f" {field}={getattr(now, field)}"
        )
    adapter_messages.check_message(found.value, what)
    return found


def _after_round(now: _Progress) -> _Progress:
  """Returns the progress after a round."""
  return now.replace(
    round_num=now.round_num + 1, phase=0, rounds_left=now.rounds_left - 1
  )
