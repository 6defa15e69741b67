"""A deployed federation that adapts to unlabelled batches as they come.

    adapter = ts.Adapter(algorithm, deployment, "state")
    adapter.adapt({"ward_3": x})  # [n, ...], no labels
    adapter.predict("ward_3", x).classes
    adapter.save()

The rounds are those of `ts.run_online_adaptation`: the same batches give the
same bits. A process that opens the folder again goes on after the last `save`.
"""

import dataclasses
import os
import pathlib
from collections.abc import Hashable
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from tff_shift import arguments
from tff_shift import records
from tff_shift.data import examples as examples_lib
from tff_shift.learning import algorithm as algorithm_lib
from tff_shift.learning import frozen_weights
from tff_shift.models import fingerprint
from tff_shift.serving import export
from tff_shift.simulation.engine import checks
from tff_shift.simulation.engine import client_data
from tff_shift.simulation.engine import rounds as rounds_lib
from tff_shift.simulation.storage import array_cache
from tff_shift.simulation.storage import encoding
from tff_shift.simulation.storage import run_file
from tff_shift.techniques import adaptation

_FILE = "adapter.sqlite"
# The maximum number of names in a line.
_MOST_NAMES = 10


class _Saved(records.Record):
  """The record of a saved time step.

  Attributes:
    timestep: The number of time steps.
    round_num: The number of rounds.
    states: The states in the file.
  """

  timestep: records.PositiveInt
  round_num: records.Count
  states: run_file.Content


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


class Predictions(NamedTuple):
  """The predictions for a batch.

  Attributes:
    classes: The predicted labels, [n] int32.
    probabilities: [n, num_classes] float32.
  """

  classes: np.ndarray
  probabilities: np.ndarray


def _as_examples(deployment: adaptation.Deployment) -> adaptation.Deployment:
  """Returns the same with `Examples` instead of pairs (x, y)."""

  def converted(pair, what):
    if pair is None:
      return None
    try:
      x, y = pair
    except (TypeError, ValueError):
      raise ValueError(
        f"{what} must be a pair of examples and labels"
      ) from None
    return examples_lib.Examples(
      examples_lib.as_array(x, f"x of {what}"),
      examples_lib.as_array(y, f"y of {what}"),
    )

  return adaptation.Deployment(
    [
      converted(pair, f"deployment.initial of client {client}")
      for client, pair in enumerate(deployment.initial)
    ],
    deployment.confusion,
    converted(getattr(deployment, "held_out", None), "deployment.held_out"),
  )


def _shown(names: Sequence[Hashable]) -> str:
  """Returns the first and last of some names."""
  if len(names) <= _MOST_NAMES:
    return ", ".join(map(repr, names))
  return f"{names[0]!r}, {names[1]!r}, ..., {names[-1]!r} ({len(names)})"


class Adapter:
  """Clients of a deployed model, advanced one time step at a time.

  Use it within `ts.execution.use(...)`, as all that runs computations.

  Attributes:
    client_names: The name of each client.
  """

  def __init__(
    self,
    algorithm: algorithm_lib.FederatedAlgorithm,
    deployment: adaptation.Deployment,
    state_folder: str | os.PathLike[str],
    *,
    client_names: Sequence[Hashable] | None = None,
    seed: int = 0,
    rounds_per_step: int = 1,
    participation: float = 1.0,
  ):
    """Opens the state in a folder, or starts with the deployed model.

    Args:
      algorithm: An algorithm of online adaptation. Its model starts from the
        deployed weights, see `ts.with_pretrained` and, for a Keras model,
        `ts.from_keras(..., initial="given")`.
      deployment: Each client's labelled examples from before deployment, as
        `Examples` or pairs (x, y), and the confusion matrix of the deployed
        model.
      state_folder: The folder of the state; created by the first `save`.
      client_names: The name of each client, all different. None: its position
        in `deployment.initial`, from 0.
      seed: Determines batches and cohorts, from 0 to 2**32 - 1.
      rounds_per_step: The number of rounds per time step, at least 1; 1 if the
        algorithm's clients share nothing.
      participation: The fraction of the clients with a batch that take part in
        a round, above 0 and at most 1; 1 if they share nothing.

    Raises:
      ValueError: If an argument is not allowed, or the folder has the state of
        another deployment, of other arguments or a damaged one.
    """
    if isinstance(algorithm, str | os.PathLike):
      raise ValueError(
        f"algorithm={os.fspath(algorithm)!r} is not allowed: a saved model"
        " predicts and cannot be trained. Build its model, load weights.npz of"
        " its folder with split_model.load_weights, and pass the result of"
        " build_algorithm"
      )
    checks.algorithm(algorithm)
    checks.data_kind(algorithm, adaptation.AdaptationData)
    arguments.has(
      "deployment", deployment, ["initial", "confusion"], "a Deployment"
    )
    num_clients = arguments.sequence("deployment.initial", deployment.initial)
    if client_names is None:
      client_names = range(num_clients)
    arguments.sequence("client_names", client_names, num_clients)
    self.client_names = tuple(client_names)
    self._position = {name: i for i, name in enumerate(self.client_names)}
    if len(self._position) < num_clients:
      raise ValueError("client_names must be different")
    self._algorithm = algorithm
    self._deployment = _as_examples(deployment)
    self._seed = arguments.seed("seed", seed)
    rounds_per_step = arguments.integer("rounds_per_step", rounds_per_step)
    participation = arguments.participation(participation)
    if algorithm.is_local:
      rounds_per_step, participation = 1, 1.0
    self._rounds_per_step = rounds_per_step
    self._validator = client_data.ClientDataValidator(algorithm)
    self._timestep = self._saved = 0
    # Data without a batch are refused, so the first states have one.
    first = np.zeros((1, *algorithm.model.input_shape), self._dtype)
    self._batches = [first] * num_clients
    self._rounds = rounds_lib.Rounds(
      algorithm,
      self._data(),
      run_seed=self._seed,
      participation=participation,
    )
    self._batches = [first[:0]] * num_clients
    self._predict = tf.function(self._logits, reduce_retracing=True)
    self._file = run_file.RunFile(
      pathlib.Path(state_folder) / _FILE, self._key(participation)
    )
    self._restore()

  @property
  def timestep(self) -> int:
    """The number of completed time steps."""
    return self._timestep

  @property
  def learning_rates(self) -> dict[Hashable, float]:
    """The learning rate of each client, by name; NaN if it has none."""
    return dict(
      zip(
        self.client_names,
        self._rates(range(len(self.client_names))),
        strict=True,
      )
    )

  def adapt(self, batches: Mapping[Hashable, npt.ArrayLike]) -> Adapted:
    """Adapts clients to their batches, in a time step.

    Args:
      batches: The unlabelled examples of each client that has some, [n, ...],
        by the client's name. Other clients are absent and keep their state.

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
        self.client_names[client]: rate
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
    position = self._find(client)
    x = self._inputs(client, x)
    running = self._rounds
    shared = running.server_state.weights
    if frozen_weights.has_any(self._algorithm.model):
      shared = frozen_weights.Shared(shared, self._algorithm.model.frozen)
    data = [self._data_of(position)]
    (personal,) = export.personal_states(
      self._algorithm,
      running.server_state,
      running.states.take([position]),
      data,
    )
    given = tf.nest.map_structure(
      tf.convert_to_tensor, (shared, personal, data[0], x)
    )
    probabilities = tf.nn.softmax(self._predict(*given)).numpy()
    return Predictions(
      probabilities.argmax(axis=1).astype(np.int32), probabilities
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
    self._file.write([(run_file.SERVER, encoding.to_bytes(server, server))])
    self._file.write(
      (client, encoding.to_bytes(state, template))
      for client, state in running.states.in_memory.items()
    )
    record = _Saved(
      timestep=self._timestep,
      round_num=running.round_num,
      states=self._file.content,
    )
    self._file.commit(self._timestep, records.encode(record, indent=None))
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

  def _logits(self, shared, personal, data, x):
    return self._algorithm.spec.predict_as_client(
      shared, personal, data, export.to_predict(x, 0)
    )

  def _find(self, client: Hashable) -> int:
    """Returns the position of a client."""
    try:
      return self._position[client]
    except (KeyError, TypeError):
      raise ValueError(
        f"client {client!r} is unknown"
        f"{arguments.did_you_mean(client, map(str, self._position))}; the"
        f" clients are {_shown(self.client_names)}"
      ) from None

  def _inputs(self, client: Hashable, x: npt.ArrayLike) -> np.ndarray:
    """Returns valid examples without labels."""
    name = f"the batch of client {client!r}"
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
      position = self._find(client)
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

  def _key(self, participation: float) -> str:
    """Returns the key of everything that determines the states."""
    server = self._rounds.server_state
    deployed = [*self._deployment.initial, self._deployment.held_out or ()]
    return array_cache.key(
      {
        "algorithm": self._algorithm.name,
        "hparams": dataclasses.asdict(self._algorithm.hparams),
        "model": fingerprint.function_digest(self._algorithm.model),
        "arrays": [
          array_cache.array_digest(np.asarray(array))
          for array in (
            *tf.nest.flatten(server),
            self._deployment.confusion,
            *(array for each in deployed for array in each),
          )
        ],
        "client_names": list(map(repr, self.client_names)),
        "seed": self._seed,
        "rounds_per_step": self._rounds_per_step,
        "participation": participation,
      }
    )

  def _restore(self) -> None:
    """Restores the last saved time step, if there is one."""
    self._file.check_format()
    try:
      saved = self._file.checkpoints()
      if not saved:
        return
      timestep, text = next(iter(saved.items()))
      record = records.decode(text, _Saved)
      self._file.restore(timestep, record.states)
    except (run_file.UnusableError, ValueError) as error:
      raise ValueError(
        f"{self._file.path}: the saved state is of another model, deployment or"
        f" other arguments, or damaged ({error}); name another folder to start"
        " from the deployed model"
      ) from error
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
