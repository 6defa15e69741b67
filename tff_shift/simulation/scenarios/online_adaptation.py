"""Adapting a deployed model to drifting streams, one time step at a time.

The driver of the scenario of Fed-ADE: Adaptive Learning Rate for Federated
Post-adaptation under Distribution Shift (Park, Joe, Kim, Im, Kwon; 2026),
Section 6.1: at each time step clients adapt to unlabelled data in a number of
rounds. They are evaluated on the same data with their classes, before and after
these rounds. Adaptation never sees the classes of the stream.
"""

import functools
from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any
from typing import NamedTuple

import numpy as np

from tff_shift import arguments
from tff_shift.data import examples as examples_lib
from tff_shift.data.shifts import online_adaptation
from tff_shift.learning import algorithm as algorithm_lib
from tff_shift.learning import evaluation
from tff_shift.learning import randomness
from tff_shift.simulation.engine import callbacks as callbacks_lib
from tff_shift.simulation.engine import checkpoints
from tff_shift.simulation.engine import checks
from tff_shift.simulation.engine import client_data
from tff_shift.simulation.engine import client_states
from tff_shift.simulation.engine import driver
from tff_shift.simulation.engine import participation as participation_lib
from tff_shift.simulation.engine import rounds
from tff_shift.simulation.storage import results
from tff_shift.techniques import adaptation


class Timestep(NamedTuple):
  """The measurements at a time step, accuracies in percent.

  Attributes:
    timestep: Counts from 1.
    omega: The weight of eq. 1.
    before: The metrics of `evaluation.METRICS` over all clients, each with its
      own model, before the step's rounds.
    after: The same metrics after the step's rounds.
    learning_rates: Learning rates of all clients, [num_clients]; NaN if the
      algorithm has none.
    estimates: The clients' estimates of their label distributions,
      [num_clients, num_classes], or None.
  """

  timestep: int
  omega: float
  before: Mapping[str, float]
  after: Mapping[str, float]
  learning_rates: np.ndarray
  estimates: np.ndarray | None

  def measured(self) -> dict[str, float | None]:
    """Returns the measurements by name; `before` as `accuracy_before` etc.

    The mean learning rate is None if the algorithm has none.
    """
    has_rates = not np.isnan(self.learning_rates).any()
    return {
      "omega": self.omega,
      **{f"{name}_before": value for name, value in self.before.items()},
      **self.after,
      "mean_learning_rate": (
        float(np.mean(self.learning_rates)) if has_rates else None
      ),
    }

  def rows(self, step: int) -> Iterator[tuple[dict[str, int], dict[str, Any]]]:
    """See `callbacks.Measurements`."""
    yield {"timestep": step}, self.measured()


class OnlineResult(NamedTuple):
  """The measurements of all time steps of a run, and its speed.

  Attributes:
    timesteps: The measurements, step by step.
    seconds_per_round: The mean duration of a round; 0 without rounds.
    num_diverged: The number of diverged client updates, see `phases`.
    server_state: The server's state at the end; None if it was not kept.
    client_states: The clients' states at the end, by client: a sequence that
      draws the first state of clients without a round on request. None if they
      are in a file of a storage.
  """

  timesteps: tuple[Timestep, ...]
  seconds_per_round: float
  num_diverged: int = 0
  server_state: Any = None
  client_states: Sequence[Any] | None = None

  def __repr__(self):
    found = {name: self.mean(name) for name in evaluation.METRICS}
    return results.short_repr(self, timesteps=len(self.timesteps), **found)

  def mean(self, name: str) -> float:
    """Returns the mean of a measurement over the time steps."""
    return float(np.mean([step.measured()[name] for step in self.timesteps]))


class Deployment(NamedTuple):
  """The data available when a model is deployed.

  Attributes:
    initial: Each client's labelled examples.
    confusion: The confusion matrix of the pre-trained model,
      [num_classes, num_classes] float32, see `bbse.confusion_matrix`.
  """

  initial: Sequence[examples_lib.Examples]
  confusion: np.ndarray


def adaptation_data(
  deployment: Deployment,
  client: int,
  stream_x: np.ndarray,
  timestep: int,
  run_seed: int,
) -> adaptation.AdaptationData:
  """Returns a client's adaptation data, without classes of the stream."""
  return adaptation.AdaptationData(
    x=deployment.initial[client].x,
    y=deployment.initial[client].y,
    stream_x=stream_x,
    timestep=np.int32(timestep),
    confusion=deployment.confusion,
    seed=randomness.client_seed(run_seed, client),
    client_id=np.int32(client),
  )


class Adaptation:
  """A run, advanced one time step at a time.

  Attributes:
    rounds: The rounds, with the states of server and clients.
  """

  def __init__(
    self,
    algorithm: algorithm_lib.FederatedAlgorithm,
    client_streams: online_adaptation.Streams,
    deployment: Deployment,
    *,
    run_seed: int,
    rounds_per_step: int = 1,
    participation: float = 1.0,
    sampler: participation_lib.Sampler = participation_lib.uniform,
    reporting: participation_lib.Reporting | None = None,
    prescribed_rates: np.ndarray | None = None,
    storage: client_states.Storage | None = None,
    on_loss: Callable[[int, float], None] = lambda round_num, loss: None,
  ):
    """Draws the initial states.

    Args:
      algorithm: An algorithm whose clients take `AdaptationData`.
      client_streams: The streams of all clients.
      deployment: The data available at deployment.
      run_seed: Determines batches and cohorts.
      rounds_per_step: The number of rounds per time step, at least 1; 1 if the
        algorithm's clients share nothing, since they do not communicate.
      participation: The client fraction per round, above 0 and at most 1.
        Clients that share nothing adapt at each time step, without sampler and
        reporting.
      sampler: Samples the clients of a round, see `participation`.
      reporting: Which of the sampled clients report. None: all of them.
      prescribed_rates: The learning rate of each client at each time step,
        [timesteps, num_clients] float32, for an algorithm whose clients have a
        constant rate in their states, such as FixLR. None: clients use their
        own rates.
      storage: The storage of client states that do not stay in memory. None:
        all stay.
      on_loss: Called after each round with the number of completed rounds and
        the training loss; see `rounds.Rounds`.

    Raises:
      ValueError: If an argument is not allowed, or a client's data do not match
        the algorithm; so does `step`.
    """
    checks.algorithm(algorithm)
    rounds_per_step = arguments.integer("rounds_per_step", rounds_per_step)
    participation = arguments.participation(participation)
    run_seed = arguments.seed("run_seed", run_seed)
    arguments.has(
      "client_streams",
      client_streams,
      ["batch", "num_clients", "num_timesteps", "omega"],
      "an online_adaptation.Streams",
    )
    arguments.has(
      "deployment", deployment, ["initial", "confusion"], "a Deployment"
    )
    arguments.sequence(
      "deployment.initial", deployment.initial, client_streams.num_clients
    )
    arguments.integer("num_timesteps", client_streams.num_timesteps)
    if prescribed_rates is not None:
      prescribed_rates = examples_lib.checked_array(
        prescribed_rates,
        "prescribed_rates [timesteps, num_clients]",
        shape=(client_streams.num_timesteps, client_streams.num_clients),
        dtype=np.float32,
      )
    self._streams = client_streams
    self._deployment = deployment
    self._run_seed = run_seed
    self._prescribed_rates = prescribed_rates
    self._drawn = 0, []
    self._validator = client_data.ClientDataValidator(algorithm)
    self._num_rounds = 1 if algorithm.is_local else rounds_per_step
    data = self.data(1)
    checks.data_kind(algorithm, adaptation.AdaptationData)
    arguments.functions(sampler=sampler)
    checks.reporting(reporting)
    if algorithm.is_local:
      participation = 1.0
      sampler, reporting = participation_lib.uniform, None
    self.rounds = rounds.Rounds(
      algorithm,
      data,
      run_seed=run_seed,
      participation=participation,
      sampler=sampler,
      reporting=reporting,
      storage=storage,
      on_loss=on_loss,
    )
    if prescribed_rates is not None and not hasattr(
      self.rounds.states.template, "learning_rate"
    ):
      raise ValueError(
        "prescribed_rates are not allowed: a client of"
        f" {algorithm.name} has no learning_rate in its state"
      )

  def data(self, timestep: int) -> list[adaptation.AdaptationData]:
    """Returns the adaptation data of each client at a time step."""
    return [
      adaptation_data(
        self._deployment,
        client,
        examples.x,
        timestep,
        self._run_seed,
      )
      for client, examples in enumerate(self._batches(timestep))
    ]

  def _batches(self, timestep: int) -> list[examples_lib.Examples]:
    """Draws each client's examples, once, since corruption is slow."""
    if self._drawn[0] != timestep:
      self._drawn = (
        timestep,
        [
          self._validator.examples(
            self._streams.batch(client, timestep), client
          )
          for client in range(self._streams.num_clients)
        ],
      )
    return self._drawn[1]

  def step(self, timestep: int) -> Timestep:
    """Runs the rounds of a time step and evaluates before and after.

    Args:
      timestep: Counts from 1.

    Returns:
      The measurements.

    Raises:
      ValueError: If there is no such time step, or a client's data do not match
        the algorithm.
    """
    timestep = arguments.integer(
      "timestep", timestep, 1, self._streams.num_timesteps
    )
    self.rounds.data = self.data(timestep)
    labelled = [
      client_data.to_predict(each.x, each.y, [len(each.y)])
      for each in self._batches(timestep)
    ]
    self._prescribe(timestep)
    states = self.rounds.client_states
    before = self._evaluate(labelled, states)
    after = before
    if self.rounds.algorithm.phases:
      for _ in range(self._num_rounds):
        self.rounds.step()
      states = self.rounds.client_states
      after = self._evaluate(labelled, states)
    has_estimates = hasattr(states[0], "classes")
    return Timestep(
      timestep=timestep,
      omega=float(self._streams.omega[timestep]),
      before=before,
      after=after,
      learning_rates=np.array(
        [getattr(state, "learning_rate", np.nan) for state in states],
        np.float32,
      ),
      estimates=(
        np.array([state.classes for state in states]) if has_estimates else None
      ),
    )

  def _prescribe(self, timestep: int) -> None:
    """Sets each client's prescribed learning rate of a time step, if any."""
    if self._prescribed_rates is None:
      return
    rates = self._prescribed_rates[timestep - 1]
    clients = range(len(rates))
    states = self.rounds.states.take(clients)
    self.rounds.states.put(
      clients,
      [
        state._replace(learning_rate=rate)
        for state, rate in zip(states, rates, strict=True)
      ],
    )

  def _evaluate(self, labelled, states) -> dict[str, float]:
    means = self.rounds.algorithm.evaluate_clients(
      self.rounds.server_state,
      states,
      self.rounds.data,
      labelled,
    )
    return evaluation.report(means, lambda values: float(values[0]))


class _Timesteps(driver.Steps):
  """The time steps of a run."""

  make = Timestep

  def __init__(
    self,
    algorithm: algorithm_lib.FederatedAlgorithm,
    client_streams: online_adaptation.Streams,
    deployment: Deployment,
    **options: Any,
  ):
    self._start = functools.partial(
      Adaptation, algorithm, client_streams, deployment, **options
    )
    self._streams = client_streams

  def start(self, storage, callback):
    self._adaptation = self._start(storage=storage, on_loss=callback.on_loss)
    # Validated by `Adaptation`.
    self.num_steps = self._streams.num_timesteps
    return self._adaptation.rounds

  def step(self, running, step, measured):
    measured.append(self._adaptation.step(step))

  def told(self, measured):
    return measured.timestep, None, measured

  def revise(self, running, measured, done):
    for each in measured:
      now = float(self._streams.omega[each.timestep])
      if each.omega != now:
        raise ValueError(
          f"checkpoint: omega of time step {each.timestep} was {each.omega:g}"
          f" and is {now:g}; a run can only resume with its original schedule"
        )
    return done

  def end(self, running, measured):
    # Also for a finished run that is resumed.
    running.data = self._adaptation.data(measured[-1].timestep)


def run(
  algorithm: algorithm_lib.FederatedAlgorithm,
  client_streams: online_adaptation.Streams,
  deployment: Deployment,
  *,
  run_seed: int,
  rounds_per_step: int = 1,
  participation: float = 1.0,
  sampler: participation_lib.Sampler = participation_lib.uniform,
  reporting: participation_lib.Reporting | None = None,
  prescribed_rates: np.ndarray | None = None,
  callbacks: Sequence[callbacks_lib.Callback] = (),
  checkpoint: checkpoints.Run | None = None,
) -> OnlineResult:
  """Adapts an algorithm through all time steps.

  Args:
    algorithm: An algorithm whose clients take `AdaptationData`.
    client_streams: The streams of all clients.
    deployment: The data available at deployment.
    run_seed: Determines batches and cohorts.
    rounds_per_step: The number of rounds per time step, see `Adaptation`.
    participation: The client fraction per round, see `Adaptation`.
    sampler: Samples the clients of a round, see `Adaptation`.
    reporting: Which of the sampled clients report, see `Adaptation`.
    prescribed_rates: Learning rates for FixLR, see `Adaptation`.
    callbacks: They follow the run; a step is a time step, and its measurements
      are a `Timestep`.
    checkpoint: Saves the run, and resumes it if it was interrupted or had fewer
      time steps of the same schedule.

  Returns:
    The measurements.

  Raises:
    ValueError: If an argument is not allowed, or a client's data do not match
      the algorithm.
  """
  driver.check(checkpoint, callbacks)
  timesteps = _Timesteps(
    algorithm,
    client_streams,
    deployment,
    run_seed=run_seed,
    rounds_per_step=rounds_per_step,
    participation=participation,
    sampler=sampler,
    reporting=reporting,
    prescribed_rates=prescribed_rates,
  )
  return OnlineResult(
    *driver.run(timesteps, callbacks, checkpoint),
  )
