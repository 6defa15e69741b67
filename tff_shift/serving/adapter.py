"""A deployed federation that adapts to unlabelled batches as they come.

    adapter = ts.Adapter(algorithm, deployment, "state")
    adapter.adapt({"ward_3": x})  # [n, ...], no labels
    adapter.predict("ward_3", x).classes
    adapter.save()

The rounds are those of `ts.run_online_adaptation`: the same batches give the
same bits. A process that opens the folder again goes on after the last `save`.
"""

import os
from collections.abc import Hashable
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from tff_shift._util import arguments
from tff_shift.algorithms.parts import adaptation
from tff_shift.data import examples as examples_lib
from tff_shift.learning import algorithm as algorithm_lib
from tff_shift.models import split_model
from tff_shift.serving import adapter_state
from tff_shift.serving import columns
from tff_shift.serving import deployed
from tff_shift.serving import own_models
from tff_shift.simulation.engine import checks
from tff_shift.simulation.engine import client_data
from tff_shift.simulation.engine import rounds as rounds_lib
from tff_shift.simulation.storage import encoding
from tff_shift.simulation.storage import run_file

_FILE = "adapter.sqlite"


class Adapted(NamedTuple):
  """What a time step has done.

  Attributes:
    timestep: The time step, from 1.
    loss: The mean training loss of the last round; NaN if the algorithm trains
      nothing.
    learning_rates: The learning rate of each client with a batch, by name; NaN
      if the algorithm sets none.
  """

  timestep: int
  loss: float
  learning_rates: dict[Hashable, float]


Predictions = own_models.Predictions


class Adapter:
  """Clients of a deployed model, advanced one time step at a time.

  Use it within `ts.execution.use(...)`, as all that runs computations.

  Attributes:
    client_names: The name of each client.

  Examples:
    >>> model = ts.build_model("mlp", input_shape=(2,), num_classes=2, width=4)
    >>> algorithm = ts.build_algorithm("lame", model)
    >>> labelled = np.eye(2), np.arange(2)
    >>> deployment = ts.Deployment([labelled] * 2, np.eye(2, dtype=np.float32))
    >>> with ts.execution.use("in_process"):
    ...   with ts.Adapter(algorithm, deployment, folder) as adapter:
    ...     adapted = adapter.adapt({1: np.eye(2)})
    ...     adapter.save()
    >>> adapted.timestep, list(adapted.learning_rates)  # Client 0 is absent.
    (1, [1])
  """

  def __init__(
    self,
    algorithm: algorithm_lib.FederatedAlgorithm | str | os.PathLike[str],
    deployment: adaptation.Deployment | None,
    state_folder: str | os.PathLike[str],
    *,
    model: split_model.SplitModel | None = None,
    client_names: Sequence[Hashable] | None = None,
    seed: int = 0,
    rounds_per_step: int = 1,
    participation: float = 1.0,
  ):
    """Opens the state in a folder, or starts with the deployed model.

    Args:
      algorithm: An algorithm of online adaptation. Its model starts from the
        deployed weights, see `ts.with_pretrained` and, for a Keras model,
        `ts.from_keras(..., initial="given")`. Or the folder of a saved model
        of such an algorithm.
      deployment: Each client's labelled examples from before deployment, as
        `Examples` or pairs (x, y), and the confusion matrix of the deployed
        model. None: those of the folder.
      state_folder: The folder of the state, which no other object may use. It
        may be a link.
      model: The network of a folder that cannot build it, such as that of a
        Keras model; its weights come from the folder.
      client_names: The name of each client, all different. None:
        `deployment.client_names`, or its position in `deployment.initial`, from
        0. A saved state needs the names of its clients, in any order. Further
        clients join: they start from the weights of their first round.
      seed: Determines batches and cohorts, from 0 to 2**32 - 1.
      rounds_per_step: The number of rounds per time step, at least 1; 1 if the
        algorithm's clients share nothing.
      participation: The fraction of the clients with a batch that take part in
        a round, above 0 and at most 1; 1 if they share nothing.

    Raises:
      FileNotFoundError: If there is no folder of a saved model.
      ValueError: If an argument is not allowed, a saved model lacks what is
        needed, the folder is in use, or it has a damaged state or one of
        another deployment or of other arguments, which the line names.
    """
    schema = None
    if isinstance(algorithm, str | os.PathLike):
      folder = algorithm
      schema = deployed.schema(folder)
      if deployment is None:
        deployment = deployed.deployment(folder)
      algorithm = deployed.algorithm(
        folder, model, len(getattr(deployment, "initial", ()))
      )
    elif model is not None or deployment is None:
      raise ValueError(
        "model and deployment=None are allowed only if algorithm is the folder"
        " of a saved model"
      )
    checks.algorithm(algorithm)
    checks.data_kind(algorithm, adaptation.AdaptationData)
    adaptation.check_deployment(deployment, algorithm.model.num_classes)
    num_clients = arguments.sequence("deployment.initial", deployment.initial)
    if client_names is None:
      client_names = getattr(deployment, "client_names", None)
    if client_names is None:
      client_names = range(num_clients)
    arguments.sequence("client_names", client_names, num_clients)
    self.client_names = adapter_state.Names(client_names).names
    self._algorithm = algorithm
    self._seed = arguments.seed("seed", seed)
    rounds_per_step = arguments.integer("rounds_per_step", rounds_per_step)
    participation = arguments.participation(participation)
    if algorithm.is_local:
      rounds_per_step, participation = 1, 1.0
    self._rounds_per_step = rounds_per_step
    self._validator = client_data.ClientDataValidator(algorithm)
    self._models = own_models.OwnModels(algorithm)
    self._timestep = self._saved = 0
    deployment, self._schema = adapter_state.with_examples(
      deployment, algorithm.model.input_shape, schema
    )
    self._file = adapter_state.StateFile(state_folder, _FILE)
    try:
      self._open(deployment, participation)
    except BaseException:
      self._file.close()
      raise

  def _open(
    self, deployment: adaptation.Deployment, participation: float
  ) -> None:
    """Starts with the deployed model, or restores the last saved time step."""
    record = self._file.restore(adapter_state.Saved)
    names = () if record is None else record.client_names
    order = adapter_state.order(self._file.path, names, self.client_names)
    self._names = adapter_state.Names([self.client_names[i] for i in order])
    self._deployment = deployment._replace(
      initial=[deployment.initial[i] for i in order]
    )
    # Data without a batch are refused, so the first states have one.
    first = np.zeros((1, *self._algorithm.model.input_shape), self._dtype)
    self._batches = [first] * len(order)
    self._rounds = rounds_lib.Rounds(
      self._algorithm,
      self._data(),
      run_seed=self._seed,
      participation=participation,
    )
    self._batches = [first[:0]] * len(order)
    self._initial = tuple(map(adapter_state.digest, self._deployment.initial))
    self._origin = adapter_state.origin(
      self._algorithm,
      self._rounds.server_state,
      **adapter_state.of_deployment(self._deployment),
      seed=self._seed,
      rounds_per_step=self._rounds_per_step,
      participation=participation,
    )
    if record is None:
      return
    before = adapter_state.by_client(names, record.initial)
    now = adapter_state.by_client(names, self._initial)
    self._file.check_origin(record.origin | before, self._origin | now)
    self._restore(record)

  @property
  def timestep(self) -> int:
    """The number of completed time steps."""
    return self._timestep

  @property
  def learning_rates(self) -> dict[Hashable, float]:
    """The learning rate of each client, by name; NaN if it has none."""
    positions = map(self._names.position, self.client_names)
    return dict(
      zip(self.client_names, self._rates(list(positions)), strict=True)
    )

  def adapt(self, batches: Mapping[Hashable, npt.ArrayLike]) -> Adapted:
    """Adapts clients to their batches, in a time step.

    Args:
      batches: The unlabelled examples of each client that has some, [n, ...],
        or a data frame with the columns `deployment.feature_names`, by the
        client's name. Other clients are absent and keep their state. A frame
        may have the columns that the saved model knows as label, client or
        time.

    Returns:
      What the time step has done.

    Raises:
      ValueError: If a client is unknown or a batch is not valid; one line. The
        state stays as before.
      errors.DivergedError: If the updates of all clients are not finite. The
        state stays as before.
    """
    checked = self._checked(batches)
    running = self._rounds
    before = running.server_state, running.round_num
    states, earlier = running.states.in_memory, self._batches
    self._timestep += 1
    try:
      self._batches = [
        checked.get(client, batch[:0]) for client, batch in enumerate(earlier)
      ]
      present = sorted(checked)
      running.present = present
      running.data = self._data()
      if self._algorithm.phases:
        for _ in range(self._rounds_per_step):
          running.step()
    except BaseException:
      self._timestep -= 1
      self._batches = earlier
      running.server_state, running.round_num = before
      running.states.replace(states)
      raise
    loss = running.losses[-1] if running.losses else np.nan
    # A service runs for years.
    running.seconds, running.losses = [], []
    rates = self._rates(present)
    return Adapted(
      self._timestep,
      float(loss),
      {
        self._names.names[client]: rate
        for client, rate in zip(present, rates, strict=True)
      },
    )

  def predict(self, client: Hashable, x: npt.ArrayLike) -> Predictions:
    """Predicts with a client's own model, and changes nothing.

    Args:
      client: The client's name.
      x: The examples, [n, ...]. If the algorithm predicts a batch as one, they
        are one.

    Returns:
      The predictions.

    Raises:
      ValueError: If the client is unknown or x is not valid; one line.
    """
    position = self._names.position(client)
    x = self._inputs(client, x)
    running = self._rounds
    (state,) = running.states.take([position])
    return self._models.predict(
      running.server_state, state, self._data_of(position), x
    )

  def save(self) -> None:
    """Saves the state; an interrupted call leaves the last saved one.

    Raises:
      files.WriteError: If it cannot be written.
    """
    if self._timestep == self._saved:
      return
    running = self._rounds
    template = running.states.template
    server = running.server_state

    def states():
      yield run_file.SERVER, encoding.to_bytes(server, server)
      for client, state in running.states.in_memory.items():
        yield client, encoding.to_bytes(state, template)

    self._file.save(
      states(),
      adapter_state.Saved,
      timestep=self._timestep,
      round_num=running.round_num,
      origin=self._origin,
      client_names=self._names.texts,
      initial=self._initial,
    )
    self._saved = self._timestep

  def close(self) -> None:
    """Closes the file of the state; what was not saved is lost."""
    self._file.close()

  def __enter__(self) -> "Adapter":
    return self

  def __exit__(self, *error: Any) -> None:
    self.close()

  @property
  def _dtype(self) -> type[np.generic]:
    return self._algorithm.model.input_dtype.as_numpy_dtype

  def _data(self) -> list[adaptation.AdaptationData]:
    return [self._data_of(client) for client in range(len(self.client_names))]

  def _data_of(self, client: int) -> adaptation.AdaptationData:
    return adaptation.adaptation_data(
      self._deployment,
      client,
      self._batches[client],
      self._timestep,
      self._seed,
    )

  def _inputs(self, client: Hashable, x: npt.ArrayLike) -> np.ndarray:
    """Returns valid examples without labels."""
    name = f"the batch of client {client!r}"
    x = columns.matched(x, self._schema, name)
    return self._validator.queries(examples_lib.as_array(x, name), name)

  def _checked(
    self, batches: Mapping[Hashable, npt.ArrayLike]
  ) -> dict[int, np.ndarray]:
    """Returns valid batches by position."""
    if not isinstance(batches, Mapping) or not batches:
      raise ValueError(
        "batches must be a dictionary of client and batch, with at least one"
        " client"
      )
    checked = {}
    for client, x in batches.items():
      position = self._names.position(client)
      checked[position] = self._inputs(client, x)
      if not len(checked[position]):
        raise ValueError(
          f"the batch of client {client!r} has no examples; leave the client"
          " out"
        )
    return checked

  def _rates(self, clients: Sequence[int]) -> Iterator[float]:
    for state in self._rounds.states.take(clients):
      yield float(getattr(state, "learning_rate", np.nan))

  def _restore(self, record: adapter_state.Saved) -> None:
    """Restores a saved time step; clients without a state are to join."""
    running = self._rounds
    running.server_state = encoding.from_bytes(
      self._file.read(run_file.SERVER), running.server_state
    )
    template = running.states.template
    running.states.replace(
      {
        client: encoding.from_bytes(content, template)
        for client, content in self._file.read_clients()
      }
    )
    running.round_num = record.round_num
    self._timestep = self._saved = record.timestep
