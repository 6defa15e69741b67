"""Adapting a deployed model to drifting streams, one time step at a time.

The driver of the scenario of Fed-ADE: Adaptive Learning Rate for Federated
Post-adaptation under Distribution Shift (Park, Joe, Kim, Im, Kwon; 2026),
Section 6.1: at each time step clients adapt to unlabelled data in a number of
rounds. They are evaluated on the same data with their classes, before and after
these rounds. Adaptation never sees the classes of the stream.

A client without examples at a time step is absent: it is not sampled and not
evaluated, and its state does not change. A client that joins later starts from
the server's state at that time.

Choices:
  * R rounds are per time step: Algorithm 1 is for one t (`--rounds_per_step`).
  * Clients outside of the cohort receive the new backbone, keep head and
    caches, and are evaluated like all others.
  * Accuracy is measured after the rounds of the step, and also before them
    (`accuracy_before`).
  * Localised methods have one round per step, with all clients: nothing is
    communicated.
  * With your own drift, a client that joins after the first domain has no
    labelled examples, which all methods except `source` need. It gets examples
    of the server's held-out part, since the server has them already; examples
    of other clients would leave their clients. The part is also used for early
    stopping, so a late client's examples are slightly easier for the deployed
    model.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any
from typing import NamedTuple
from typing import TYPE_CHECKING

import numpy as np

from tff_shift._util import arguments
from tff_shift.algorithms.parts import adaptation
from tff_shift.data import examples as examples_lib
from tff_shift.data.shifts import online_adaptation
from tff_shift.learning import algorithm as algorithm_lib
from tff_shift.learning import evaluation
from tff_shift.learning import metric as metric_lib
from tff_shift.simulation import bounds
from tff_shift.simulation.engine import callbacks as callbacks_lib
from tff_shift.simulation.engine import checkpoints
from tff_shift.simulation.engine import checks
from tff_shift.simulation.engine import client_data
from tff_shift.simulation.engine import client_states
from tff_shift.simulation.engine import driver
from tff_shift.simulation.engine import frames
from tff_shift.simulation.engine import participation as participation_lib
from tff_shift.simulation.engine import rounds
from tff_shift.simulation.storage import client_values
from tff_shift.simulation.storage import results

if TYPE_CHECKING:
  import pandas as pd


class Timestep(NamedTuple):
  """The measurements at a time step, accuracies in percent.

  Attributes:
    timestep: Counts from 1.
    omega: The weight of eq. 1, the mean over clients with their own; None if it
      is not known.
    before: The metrics of `evaluation.METRICS`, and those that the algorithm
      was built with, over the clients with examples, each with its own model,
      before the step's rounds.
    after: The same metrics after the step's rounds; those of before them if the
      method is scored before it adapts, see `adaptation.ScoredHParams`.
    learning_rates: Learning rates of all clients, [num_clients]; NaN if the
      client is absent or the algorithm has none.
    estimates: The clients' estimates of their label distributions,
      [num_clients, num_classes], NaN for absent clients; or None.
    tables: Tables of counts after the rounds by names such as
      `confusion_matrix`; None without any, and before the last time step.
    clients: The values of each client with examples, such as `accuracy_before`
      and `accuracy`, see `evaluation.client_metrics`. None: there are too many
      clients.
  """

  timestep: int
  omega: float | None
  before: Mapping[str, float]
  after: Mapping[str, float]
  learning_rates: np.ndarray
  estimates: np.ndarray | None
  tables: Mapping[str, np.ndarray] | None = None
  clients: client_values.ClientValues | None = None

  def measured(self) -> dict[str, float | None]:
    """Returns the measurements by name; `before` as `accuracy_before` etc.

    The mean learning rate is over the clients with examples; None if the
    algorithm has none. An unknown omega is left out.
    """
    rates = self.learning_rates[~np.isnan(self.learning_rates)]
    return {
      **({} if self.omega is None else {"omega": self.omega}),
      **{f"{name}_before": value for name, value in self.before.items()},
      **self.after,
      "mean_learning_rate": (float(np.mean(rates)) if rates.size else None),
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
    client_names: The names of the clients. None: unknown.
  """

  timesteps: tuple[Timestep, ...]
  seconds_per_round: float
  num_diverged: int = 0
  server_state: Any = None
  client_states: Sequence[Any] | None = None
  client_names: tuple[str, ...] | None = None

  def __repr__(self):
    found = {name: self.mean(name) for name in evaluation.METRICS}
    return results.short_repr(self, timesteps=len(self.timesteps), **found)

  def mean(self, name: str) -> float:
    """Returns the mean of a measurement over the time steps.

    Metrics that the algorithm was built with may not be defined at a time step,
    such as the recall of a class that does not occur. The mean is then over the
    other time steps.
    """
    values = [step.measured()[name] for step in self.timesteps]
    if name.removesuffix("_before") in evaluation.METRICS:
      return float(np.mean(values))
    return metric_lib.mean_of_defined(values)

  @property
  def client_accuracy(self) -> np.ndarray | None:
    """Each client's mean accuracy over its time steps, [num_clients] float64.

    None: there are too many clients.
    """
    if any(step.clients is None for step in self.timesteps):
      return None
    return client_values.mean(
      [step.clients["accuracy"] for step in self.timesteps]
    )

  def to_dataframe(self) -> pd.DataFrame:
    """Returns a row per time step, with the columns of `metrics.csv`."""
    return frames.of_rows(
      row for step in self.timesteps for row in step.rows(step.timestep)
    )

  def clients_to_dataframe(self) -> pd.DataFrame:
    """Returns a row per time step and client, see `frames.of_clients`."""
    return frames.of_clients(
      (step.clients for step in self.timesteps), self.client_names
    )


# The data available when a model is deployed.
Deployment = adaptation.Deployment


def baseline(
  fit: Callable[[bounds.Training], bounds.Baseline],
  deployment: Deployment,
  client_streams: online_adaptation.Streams,
) -> bounds.Bound:
  """Returns the accuracy of a baseline that is fitted to labelled examples.

  Clients predict with their own predictors of the time before deployment at all
  time steps.

  Args:
    fit: The baseline, one of `bounds.BASELINES`.
    deployment: The data available at deployment.
    client_streams: The streams of all clients.
  """
  fitted = fit([part] for part in deployment.initial)
  by_step = np.array(
    [
      bounds.accuracy(
        fitted.clients,
        [
          client_streams.batch(client, timestep)
          for client in range(client_streams.num_clients)
        ],
      )
      for timestep in range(1, client_streams.num_timesteps + 1)
    ]
  )
  accuracy = float(np.mean(np.nanmean(by_step, axis=1)))
  return bounds.Bound(
    {"accuracy": accuracy, "before_adaptation_accuracy": accuracy},
    client_values.mean([by_step]),
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
    resets: bool = False,
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
      resets: Whether each time step starts from the deployed model and first
        client states, so that nothing accumulates.
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
    adaptation.check_deployment(deployment, algorithm.model.num_classes)
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
    self._resets = resets
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
      present=self.present(1),
      run_seed=run_seed,
      participation=participation,
      sampler=sampler,
      reporting=reporting,
      storage=storage,
      on_loss=on_loss,
    )
    self._deployed = self.rounds.server_state
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
      adaptation.adaptation_data(
        self._deployment,
        client,
        examples.x,
        timestep,
        self._run_seed,
      )
      for client, examples in enumerate(self._batches(timestep))
    ]

  def present(self, timestep: int) -> list[int]:
    """Returns the clients that have examples at a time step."""
    return [
      client
      for client, examples in enumerate(self._batches(timestep))
      if len(examples.y)
    ]

  def latest_data(self, timestep: int) -> list[adaptation.AdaptationData]:
    """Returns each client's data at its last time step with examples."""
    found, present = self.data(timestep), self.present(timestep)
    for client in set(range(len(found))).difference(present):
      for earlier in range(timestep - 1, 0, -1):
        x, y = self._validator.examples(
          self._streams.batch(client, earlier), client
        )
        if len(y):
          found[client] = adaptation.adaptation_data(
            self._deployment, client, x, earlier, self._run_seed
          )
          break
    return found

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
      if not any(len(each.y) for each in self._drawn[1]):
        raise ValueError(
          f"time step {timestep}: no client has examples; leave it out"
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
    present = self.present(timestep)
    self.rounds.present = present
    self.rounds.data = self.data(timestep)
    if self._resets:
      self._reset(present)
    self._prescribe(timestep, present)
    states = self.rounds.states.take(present)
    before, tables, own_before = self._evaluate(timestep, present, states)
    after, own = before, own_before
    if self.rounds.algorithm.phases:
      for _ in range(self._num_rounds):
        self.rounds.step()
      states = self.rounds.states.take(present)
      hparams = self.rounds.algorithm.hparams
      if not getattr(hparams, "is_scored_before", False):
        after, tables, own = self._evaluate(timestep, present, states)
    return Timestep(
      timestep=timestep,
      omega=_omega(self._streams, timestep),
      before=before,
      after=after,
      learning_rates=self._of_all(
        present, [getattr(state, "learning_rate", np.nan) for state in states]
      ),
      estimates=(
        self._of_all(present, [state.classes for state in states])
        # Empty if the algorithm estimates none with these hyper-parameters.
        if len(getattr(states[0], "classes", ()))
        else None
      ),
      tables=(
        tables if tables and timestep == self._streams.num_timesteps else None
      ),
      clients=client_values.of_some(
        timestep,
        {"timestep": timestep},
        self._streams.num_clients,
        [
          (
            "",
            present,
            {f"{name}_before": each for name, each in own_before.items()} | own,
          )
        ],
      ),
    )

  def _of_all(self, present: Sequence[int], values: list[Any]) -> np.ndarray:
    """Returns values of all clients, float32, from those of present ones."""
    values = np.array(values, np.float32)
    shape = self._streams.num_clients, *values.shape[1:]
    found = np.full(shape, np.nan, np.float32)
    found[present] = values
    return found

  def _reset(self, clients: Sequence[int]) -> None:
    """Returns server and clients to the deployed model."""
    running = self.rounds
    # The number of rounds determines random numbers, which go on.
    running.server_state = self._deployed._replace(
      round_num=running.server_state.round_num
    )
    seeds = [running.data[client].seed for client in clients]
    running.states.put(
      clients,
      list(running.algorithm.initialize_client(running.server_state, seeds)),
    )

  def _prescribe(self, timestep: int, clients: Sequence[int]) -> None:
    """Sets the clients' prescribed learning rates of a time step, if any."""
    if self._prescribed_rates is None:
      return
    rates = self._prescribed_rates[timestep - 1, clients]
    states = self.rounds.states.take(clients)
    self.rounds.states.put(
      clients,
      [
        state._replace(learning_rate=rate)
        for state, rate in zip(states, rates, strict=True)
      ],
    )

  def _evaluate(
    self, timestep, present, states
  ) -> tuple[dict[str, float], dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Returns metrics and tables of the present clients, and their values."""
    batches = self._batches(timestep)
    means, own = self.rounds.algorithm.evaluate_each_client(
      self.rounds.server_state,
      states,
      [self.rounds.data[client] for client in present],
      [
        client_data.to_predict(*batches[client], [len(batches[client].y)])
        for client in present
      ],
    )
    metrics = self.rounds.algorithm.metrics
    return (
      evaluation.report(means, lambda values: float(values[0]), metrics),
      evaluation.tables(means, metrics, domains=slice(None)),
      evaluation.report_clients(own, 0),
    )


def _omega(
  client_streams: online_adaptation.Streams, timestep: int
) -> float | None:
  """Returns the weight of eq. 1, the mean over clients with their own.

  None: it is not known.
  """
  omega = client_streams.omega
  return (
    None if omega is None else float(np.mean(np.asarray(omega)[..., timestep]))
  )


class _Timesteps(driver.Steps):
  """The time steps of a run."""

  client_names: tuple[str, ...] | None = None

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
    names = getattr(deployment, "client_names", None)
    if names is not None:
      arguments.sequence(
        "deployment.client_names", names, client_streams.num_clients
      )
      self.client_names = tuple(map(str, names))

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
      now = _omega(self._streams, each.timestep)
      if each.omega != now:
        was, now = (
          "unknown" if omega is None else f"{omega:g}"
          for omega in (each.omega, now)
        )
        raise ValueError(
          f"checkpoint: omega of time step {each.timestep} was {was} and is"
          f" {now}; a run can only resume with its original schedule"
        )
    # The last time step of a shorter run is an intermediate one.
    measured[:] = [
      each._replace(tables=None) if each.timestep < self.num_steps else each
      for each in measured
    ]
    return done

  def end(self, running, measured):
    # Also for a finished run that is resumed.
    last = measured[-1].timestep
    running.present = self._adaptation.present(last)
    running.data = self._adaptation.latest_data(last)


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
  resets: bool = False,
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
    resets: Whether each time step starts from the deployed model.
    callbacks: They follow the run; a step is a time step, and its measurements
      are a `Timestep`.
    checkpoint: Saves the run, and resumes it if it was interrupted or had fewer
      time steps of the same schedule.

  Returns:
    The measurements.

  Raises:
    ValueError: If an argument is not allowed, or a client's data do not match
      the algorithm.

  Examples:
    >>> x, y = np.random.default_rng(0).normal(size=(8, 2)), np.arange(8) % 2
    >>> data = ts.from_arrays(
    ...   "online_adaptation", [(x, y)] * 2, [[(x + 1, y), (x + 2, y)]] * 2
    ... )
    >>> model = ts.build_model("mlp", input_shape=(2,), num_classes=2, width=4)
    >>> algorithm = ts.build_algorithm("source", model)
    >>> confusion = np.eye(2, dtype=np.float32)
    >>> deployment = ts.Deployment(data.initial, confusion)
    >>> with ts.execution.use("in_process"):
    ...   result = ts.run_online_adaptation(
    ...     algorithm, data.streams, deployment, run_seed=0
    ...   )
    >>> len(result.to_dataframe())
    2
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
    resets=resets,
  )
  return OnlineResult(
    *driver.run(timesteps, callbacks, checkpoint), timesteps.client_names
  )
