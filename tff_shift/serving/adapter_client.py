"""A client that adapts in a process of its own, such as a device.

    client = ts.AdapterClient(algorithm, deployment, "state", client=1)
    message = client.receive(broadcast, x)  # x: [n, ...], no labels
    client.predict(x).classes
    client.save()

The client does the clients' half of the computations of the simulation. Its
state, its examples and its batches stay with it. What it sends to the server,
see `ts.AdapterServer`, is the message that it returns, of the type in
`message_types`.

Choices:
  * The whole phase and its halves (`phases.Phase`) are made of the same
    functions. TFF's `DistributeAggregateForm` would split the aggregation too,
    but all its results are at the server, and clients have states here. A
    message is therefore the value that is aggregated, and aggregators that hide
    it from the server are refused.
  * A broadcast is the weights, the round and, if all clients start equal, the
    seed: neither the aggregator's state nor the optimizer's leaves the server.
  * A client that does not answer is left out of the rest of its round, and
    keeps its earlier changes, since no server can take them back.
"""

import os
from typing import Any

import numpy as np
import numpy.typing as npt

from tff_shift._util import arguments
from tff_shift._util import records
from tff_shift.algorithms.parts import adaptation
from tff_shift.data import examples as examples_lib
from tff_shift.learning import algorithm as algorithm_lib
from tff_shift.learning import phases
from tff_shift.learning import randomness
from tff_shift.serving import adapter_messages
from tff_shift.serving import adapter_server
from tff_shift.serving import adapter_state
from tff_shift.serving import columns
from tff_shift.serving import own_models
from tff_shift.simulation.engine import client_data
from tff_shift.simulation.storage import encoding
from tff_shift.simulation.storage import run_file

_FILE = "adapter_client.sqlite"
# The owner of the client's state in the file.
_OWN = 0


class _Progress(adapter_state.Saved, kw_only=True):
  """The record of a saved client.

  Attributes:
    phase: The phase of the last broadcast.
    answered: The round and the phase of the last message; None before it.
    batch: The batch of the time step, see `encoding.to_json`.
  """

  phase: records.Count
  answered: tuple[records.Count, records.Count] | None
  batch: dict[str, Any]


class AdapterClient:
  """A client of a `ts.AdapterServer`, with its own state.

  Use it within `ts.execution.use(...)`.

  Attributes:
    client: The client's position among the clients of the server.
    message_types: The TFF type of its message in each phase of a round: all
      that leaves the client.

  Examples:
    >>> model = ts.build_model("mlp", input_shape=(2,), num_classes=2, width=4)
    >>> algorithm = ts.build_algorithm("fth", model)
    >>> labelled = np.eye(2), np.arange(2)
    >>> deployment = ts.Deployment([labelled], np.eye(2, dtype=np.float32))
    >>> with ts.execution.use("in_process"):
    ...   client = ts.AdapterClient(algorithm, deployment, folder, client=1)
    >>> print(client.message_types[0].report)
    <loss=float32,counts=float32,diverged=float32>
    >>> client.close()
  """

  def __init__(
    self,
    algorithm: algorithm_lib.FederatedAlgorithm,
    deployment: adaptation.Deployment,
    state_folder: str | os.PathLike[str],
    *,
    client: int,
    seed: int = 0,
  ):
    """Opens the state in a folder, or starts with the deployed model.

    Args:
      algorithm: The algorithm of the server.
      deployment: As for `ts.Adapter`; `initial` has the examples of this client
        alone.
      state_folder: The client's own folder, which no other object may use. It
        may be a link. It has the client's state, the last broadcast and the
        last batch.
      client: The client's position in the server's `client_names`, from 0.
      seed: The seed of the server.

    Raises:
      ValueError: If an argument is not allowed, the folder is in use, or it has
        a damaged state or one of other arguments, which the line names.
    """
    adapter_server.check(algorithm)
    adaptation.check_deployment(deployment, algorithm.model.num_classes)
    arguments.sequence("deployment.initial", deployment.initial, 1)
    most = algorithm.max_clients or np.iinfo(np.int32).max
    self.client = arguments.integer("client", client, 0, most - 1)
    self.message_types = adapter_messages.message_types(algorithm)
    self._algorithm = algorithm
    self._deployment, self._schema = adapter_state.with_examples(
      deployment, algorithm.model.input_shape
    )
    self._seed = arguments.seed("seed", seed)
    self._validator = client_data.ClientDataValidator(algorithm)
    model = algorithm.model
    first = np.zeros((1, *model.input_shape), model.input_dtype.as_numpy_dtype)
    self._batch = first
    self._timestep = self._round_num = self._phase = 0
    self._answered: tuple[int, int] | None = None
    # Validates the labelled examples.
    self._data()
    self._batch = first[:0]
    state = algorithm.initialize(randomness.server_seed(self._seed))
    self._received = phases.Broadcast(
      state.weights, state.round_num, state.seed
    )
    self._state: Any = None
    self._key = adapter_state.key(algorithm, state, self._seed)
    self._models = own_models.OwnModels(
      algorithm, algorithm.join.type_signature.parameter[0]
    )
    self._origin = adapter_state.origin(
      algorithm,
      state,
      **adapter_state.of_deployment(self._deployment),
      **adapter_state.by_client(
        [str(self.client)],
        [adapter_state.digest(self._deployment.initial[0])],
      ),
      seed=self._seed,
      client=self.client,
    )
    self._file = adapter_state.StateFile(state_folder, _FILE)
    try:
      self._restore()
    except BaseException:
      self._file.close()
      raise

  @property
  def timestep(self) -> int:
    """The time step of the last broadcast, 0 before it."""
    return self._timestep

  @property
  def learning_rate(self) -> float:
    """The client's learning rate; NaN if it has none."""
    return float(getattr(self._own_state(), "learning_rate", np.nan))

  def receive(
    self,
    broadcast: adapter_messages.Broadcast | bytes,
    x: npt.ArrayLike | None = None,
  ) -> adapter_messages.Message | None:
    """Takes a broadcast, and does the work that it asks the client for.

    Args:
      broadcast: The broadcast, or its bytes.
      x: The client's unlabelled examples of the time step, [n, ...], with the
        first broadcast of the time step. None: it has them, or there are none.

    Returns:
      The message for the server; None if the broadcast does not ask this
      client.

    Raises:
      ValueError: If the broadcast is of another model, an earlier round, has
        numbers that no server sends, or is damaged, or the batch is missing or
        not valid; one line. The state stays as before.
    """
    found = adapter_messages.received(
      broadcast,
      adapter_messages.Broadcast,
      self._key,
      [adapter_messages.broadcast_type(self._algorithm)]
      * max(1, len(self._algorithm.phases)),
      "the broadcast",
    )
    adapter_messages.check_broadcast(found, self._algorithm)
    is_asked = self.client in found.clients
    self._check_order(found, is_asked)
    batch = self._batch
    if found.timestep > self._timestep:
      batch = batch[:0]
    if x is not None:
      batch = self._checked(x, found, has_batch=bool(len(batch)))
    before = self._timestep, self._batch
    state, message = self._state, None
    self._timestep, self._batch = found.timestep, batch
    try:
      if is_asked:
        if not len(batch):
          raise ValueError(
            f"the broadcast asks client {self.client} in time step"
            f" {found.timestep}: receive needs its batch x"
          )
        (state,), (value,) = self._algorithm.client_halves[found.phase](
          found.value, [self._own_state(found.value)], [self._data()]
        )
        message = adapter_messages.Message(
          self._key,
          found.timestep,
          found.round_num,
          found.phase,
          (self.client,),
          value,
          self.message_types[found.phase],
        )
    except BaseException:
      self._timestep, self._batch = before
      raise
    self._received, self._state = found.value, state
    self._round_num, self._phase = found.round_num, found.phase
    if is_asked:
      self._answered = found.round_num, found.phase
    return message

  def predict(self, x: npt.ArrayLike) -> own_models.Predictions:
    """Predicts with the client's own model, and changes nothing.

    The weights of the server are those of the last broadcast.

    Args:
      x: The examples, [n, ...]. If the algorithm predicts a batch as one, they
        are one.

    Returns:
      The predictions.

    Raises:
      ValueError: If x is not valid; one line.
    """
    return self._models.predict(
      self._received,
      self._own_state(),
      self._data(allow_empty=True),
      self._inputs(x),
    )

  def save(self) -> None:
    """Saves the state; an interrupted call leaves the last saved one.

    Raises:
      files.WriteError: If it cannot be written.
    """
    states = [
      (run_file.SERVER, encoding.to_bytes(self._received, self._received))
    ]
    if self._state is not None:
      states.append((_OWN, encoding.to_bytes(self._state, self._state)))
    self._file.save(
      states,
      _Progress,
      timestep=self._timestep,
      round_num=self._round_num,
      phase=self._phase,
      answered=self._answered,
      batch=encoding.to_json(self._batch),
      origin=self._origin,
    )

  def close(self) -> None:
    """Closes the file of the state; what was not saved is lost."""
    self._file.close()

  def __enter__(self) -> "AdapterClient":
    return self

  def __exit__(self, *error: Any) -> None:
    self.close()

  def _own_state(self, broadcast: phases.Broadcast | None = None) -> Any:
    """Returns the state; before the first round, what a client starts with."""
    if self._state is not None:
      return self._state
    seed = randomness.client_seed(self._seed, self.client)
    (state,) = self._algorithm.join(broadcast or self._received, [seed])
    return state

  def _data(self, *, allow_empty: bool = False) -> adaptation.AdaptationData:
    data = adaptation.adaptation_data(
      self._deployment, 0, self._batch, self._timestep, self._seed
    )
    return self._validator.training(
      data._replace(
        seed=randomness.client_seed(self._seed, self.client),
        client_id=np.int32(self.client),
      ),
      self.client,
      allow_empty=allow_empty,
    )

  def _inputs(self, x: npt.ArrayLike) -> np.ndarray:
    name = f"the batch of client {self.client}"
    x = columns.matched(x, self._schema, name)
    return self._validator.queries(examples_lib.as_array(x, name), name)

  def _checked(
    self, x: npt.ArrayLike, found: adapter_messages.Broadcast, has_batch: bool
  ) -> np.ndarray:
    """Returns the batch of a time step."""
    if has_batch or not found.timestep:
      raise ValueError(
        f"x is not allowed: client {self.client} already has its batch of time"
        f" step {found.timestep}"
        if has_batch
        else "x is not allowed: no time step has begun"
      )
    batch = self._inputs(x)
    if not len(batch):
      raise ValueError(
        f"the batch of client {self.client} has no examples; leave x out"
      )
    return batch

  def _check_order(
    self, found: adapter_messages.Broadcast, is_asked: bool
  ) -> None:
    """Refuses a broadcast of the past, and one after a missed phase."""
    now = found.timestep, found.round_num, found.phase
    last = self._timestep, self._round_num, self._phase
    at = found.round_num, found.phase
    if now < last or (is_asked and (self._answered or (-1, 0)) >= at):
      raise ValueError(
        f"the broadcast is of time step {now[0]}, round {now[1]}, phase"
        f" {now[2]}: client {self.client} has already received those of time"
        f" step {last[0]}, round {last[1]}, phase {last[2]}"
      )
    if is_asked and found.phase and self._answered != (at[0], at[1] - 1):
      raise ValueError(
        f"the broadcast is of phase {at[1]} of round {at[0]}: client"
        f" {self.client} has not sent a message in phase {at[1] - 1}"
      )

  def _restore(self) -> None:
    """Restores the last saved state, if there is one."""
    found = self._file.restore(_Progress)
    if found is None:
      return
    self._file.check_origin(found.origin, self._origin)
    self._received = encoding.from_bytes(
      self._file.read(run_file.SERVER), self._received
    )
    content = self._file.read(_OWN)
    if content is not None:
      self._state = encoding.from_bytes(content, self._own_state())
    self._timestep, self._round_num = found.timestep, found.round_num
    self._phase, self._answered = found.phase, found.answered
    self._batch = encoding.from_json(found.batch)
