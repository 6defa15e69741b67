"""Training in periods, then deployment on data that drift between periods.

The driver of the scenario of Fed-3DA: A Dynamic and Personalized Federated
Learning Framework (Wang, Sun, Wo, Liu; ICASSP 2023), Algorithms 1 and 2. In
training, a round is a period: every client draws new data. In deployment there
is no training. Clients measure the distance of their data to the previous
period. If the algorithm answers requests, clients that detect a drift send r
and receive another model.

Choices:
  * A client requests its first model in deployment with the r of period 0,
    which only starts the stream and is not measured.
  * VACC of eq. 4 and 5 is one number per algorithm, the mean over clients and
    IID periods of held-out examples. A client requests its model with the r of
    one more such period.
  * The model for a drift is used one period after the one that showed it
    (theta^{p+1}, as in Algorithm 2), or at once (`apply_update`).
  * A distribution lasts 5 periods in deployment (`--periods_per_distribution`):
    with one period, weights for the next period always come too late. In
    training each round has a new one.
  * Learning rates are constant. On CIFAR-10 a cosine (`--cosine_rounds`) raises
    VACC by 0.7 (FedAvg) and 2.6 (Fed-3DA), both within the standard deviation,
    and by 6.9 (pFedHN) (results/dynamic_personalization.md).
  * With your own drift, period 0 of the stream is the last training period.
    Otherwise the first domain after training would be lost.

A client without examples in a period is absent: it is not sampled, not measured
and sends no request. After a gap, its distance is to its last period with
examples. A client that joins a stream later requests its first model with the r
of its first period, before it predicts; it has no distance in this period.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any
from typing import NamedTuple
from typing import TYPE_CHECKING

import numpy as np

from tff_shift._util import arguments
from tff_shift.data import client_dataset
from tff_shift.data import examples as examples_lib
from tff_shift.data.shifts import dynamic_personalization
from tff_shift.data.shifts import fixed_batches
from tff_shift.learning import algorithm as algorithm_lib
from tff_shift.learning import evaluation
from tff_shift.learning import metric as metric_lib
from tff_shift.learning import periods as period_data
from tff_shift.scenarios.dynamic_personalization import deployment
from tff_shift.scenarios.dynamic_personalization import (
  drift_detector as instruments_lib,
)
from tff_shift.shift import choices
from tff_shift.simulation import bounds
from tff_shift.simulation.engine import callbacks as callbacks_lib
from tff_shift.simulation.engine import checkpoints
from tff_shift.simulation.engine import checks
from tff_shift.simulation.engine import client_data
from tff_shift.simulation.engine import driver
from tff_shift.simulation.engine import frames
from tff_shift.simulation.engine import participation as participation_lib
from tff_shift.simulation.engine import rounds
from tff_shift.simulation.storage import client_values
from tff_shift.simulation.storage import results

if TYPE_CHECKING:
  import pandas as pd

# The number of IID periods of each client for the validation accuracy.
NUM_VALIDATION_PERIODS = 10
# The number of examples that a period needs for a distance.
_LEAST_OF_DISTANCE = 2

_Represent = deployment.Represent
_Drawn = dynamic_personalization.Periods | fixed_batches.Periods


class Stream(NamedTuple):
  """The clients' data in deployment, and their distances between periods.

  Attributes:
    drawn: The periods of all clients, from 0 on.
    distances: Distances to the previous period, computed without labels, for
      the periods 1 to num_periods, [num_periods, num_clients] float64. NaN:
      there is none, because the client is absent or has no earlier period, or
      because one of them has a single example.
    drifted: Whether the distribution differs from the previous period,
      [num_periods, num_clients] bool. Clients do not use it. None: not known.
  """

  drawn: _Drawn
  distances: np.ndarray
  drifted: np.ndarray | None


class Inference(NamedTuple):
  """The results of deployment on a stream, each [num_periods, num_clients].

  Attributes:
    measured: The metrics of `evaluation.METRICS`, and those that the algorithm
      was built with, of each client's current model, by name; NaN for an absent
      client.
    distances: Distances to the previous period, see `Stream`.
    drifted: Whether the distribution differs from the previous period; None if
      it is not known.
    detected: Whether the distance is above the threshold.
    requested: Whether the client received another model.
    tables: Tables of counts of all clients in the last period, by names such as
      `confusion_matrix`.
  """

  measured: Mapping[str, np.ndarray]
  distances: np.ndarray
  drifted: np.ndarray | None
  detected: np.ndarray
  requested: np.ndarray
  tables: Mapping[str, np.ndarray] = types.MappingProxyType({})

  @property
  def accuracy(self) -> np.ndarray:
    """The accuracy in percent, [num_periods, num_clients]."""
    return self.measured["accuracy"]

  @property
  def is_present(self) -> np.ndarray:
    """Whether a client has examples, [num_periods, num_clients] bool."""
    return ~np.isnan(self.accuracy)

  @property
  def client_accuracy(self) -> np.ndarray:
    """Each client's mean accuracy over its periods, [num_clients] float64."""
    return client_values.mean([self.accuracy])

  def clients(
    self, distribution: str, step: int
  ) -> client_values.ClientValues | None:
    """Returns the values of each client; None: there are too many clients.

    Args:
      distribution: The name of the stream.
      step: The step of the run.
    """
    num_periods, num_clients = self.accuracy.shape
    if num_clients > client_values.MAX_CLIENTS:
      return None
    # The accuracy of all examples of a client is its accuracy.
    others = evaluation.METRICS.keys() - evaluation.CLIENT_METRICS
    return client_values.ClientValues(
      step,
      [_place(distribution, period) for period in range(1, num_periods + 1)],
      {
        name: each for name, each in self.measured.items() if name not in others
      },
    )

  def of_period(self, period: int) -> dict[str, float | int | None]:
    """Returns the means over the clients in a period, from 1, by name.

    They are over the clients with examples, and those of drift detection over
    the clients with a distance. None: there is no such client.
    """
    index = period - 1
    is_present = self.is_present[index]
    has_distance = ~np.isnan(self.distances[index])
    drifted = {}
    if self.drifted is not None:
      drifted["drifted_share"] = _percent(self.drifted[index], is_present)
    return {
      **{
        name: mean_over_present(name, values[index][is_present])
        for name, values in self.measured.items()
      },
      "distance": (
        float(np.mean(self.distances[index][has_distance]))
        if has_distance.any()
        else None
      ),
      **drifted,
      "detected_share": _percent(self.detected[index], has_distance),
      "requests": int(np.sum(self.requested[index])),
    }


def mean_over_present(name: str, values: np.ndarray) -> float:
  """Returns the mean of a metric of clients that have examples.

  Metrics that an algorithm was built with may not be defined for a client. The
  mean is then over the others.
  """
  if name in evaluation.METRICS:
    return float(np.mean(values))
  return metric_lib.mean_of_defined(values)


def _percent(happened: np.ndarray, counts: np.ndarray) -> float | None:
  """Returns the percentage over the clients that count; None without any."""
  return 100 * float(np.mean(happened[counts])) if counts.any() else None


def _place(distribution: str, period: int) -> dict[str, Any]:
  """Returns the columns of a period in `metrics.csv`."""
  return {"test_distribution": distribution, "period": period}


class Deployed(NamedTuple):
  """The results of deployment on one stream of a run.

  Attributes:
    distribution: The name of the stream.
    validation_accuracy: VACC, in percent.
    inference: The results.
    clients: The values of each client in each period, for the file of the run.
  """

  distribution: str
  validation_accuracy: float
  inference: Inference
  clients: client_values.ClientValues | None = None

  def rows(self, step: int) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """See `callbacks.Measurements`; a row for each period."""
    for period in range(1, len(self.inference.distances) + 1):
      yield _place(self.distribution, period), self.inference.of_period(period)


class DynamicResult(NamedTuple):
  """The result of a run.

  Attributes:
    validation_accuracy: VACC, in percent.
    inferences: By the name of the stream's distribution.
    seconds_per_round: The mean duration of a training round, without drawing
      data and r.
    num_diverged: The number of diverged client updates, see `phases`.
    server_state: The server's state at the end; None if it was not kept.
    client_states: The clients' states at the end, by client: a sequence that
      draws the first state of clients without a round on request. None if they
      are in a file of a storage.
    client_names: The names of the clients. None: unknown.
  """

  validation_accuracy: float
  inferences: Mapping[str, Inference]
  seconds_per_round: float
  num_diverged: int = 0
  server_state: Any = None
  client_states: Sequence[Any] | None = None
  client_names: tuple[str, ...] | None = None

  def __repr__(self):
    found = {
      f"accuracy_{name}": float(np.nanmean(inference.accuracy))
      for name, inference in self.inferences.items()
    }
    return results.short_repr(
      self, validation_accuracy=self.validation_accuracy, **found
    )

  def to_dataframe(self) -> pd.DataFrame:
    """Returns a row per stream and period, as in `metrics.csv`."""
    return frames.of_rows(
      row
      for name, inference in self.inferences.items()
      for row in Deployed(name, self.validation_accuracy, inference).rows(0)
    )

  def clients_to_dataframe(self) -> pd.DataFrame:
    """Returns a row per stream, period and client, see `frames.of_clients`."""
    return frames.of_clients(
      (
        inference.clients(name, step)
        for step, (name, inference) in enumerate(
          self.inferences.items(), start=1
        )
      ),
      self.client_names,
    )


def batches(drawn: _Drawn, period: int) -> list[examples_lib.Examples]:
  """Returns the examples of all clients in a period."""
  return [drawn.batch(client, period) for client in range(drawn.num_clients)]


def takes_representation(algorithm: algorithm_lib.FederatedAlgorithm) -> bool:
  """Returns whether clients train on a `PeriodData`, which has an r."""
  data_at_clients = algorithm.phases[0].type_signature.parameter[2]
  return data_at_clients.member.python_container is period_data.PeriodData


def training_data(
  algorithm: algorithm_lib.FederatedAlgorithm,
  drawn: _Drawn,
  period: int,
  represent: _Represent | None,
  run_seed: int,
) -> list[Any]:
  """Returns the training data of each client in a period.

  Args:
    algorithm: The algorithm; it determines the type of the data, not the
      examples.
    drawn: The periods.
    period: The period, from 0.
    represent: Maps examples to r. None: the algorithm takes none.
    run_seed: Determines the clients' batches.

  Returns:
    A `PeriodData` for each client if `takes_representation`, otherwise a
    `ClientDataset`.

  Raises:
    ValueError: If the examples do not match the algorithm.
  """
  validator = client_data.ClientDataValidator(algorithm)
  examples = [
    validator.examples(each, client)
    for client, each in enumerate(batches(drawn, period))
  ]
  if not any(len(each.y) for each in examples):
    raise ValueError(f"period {period}: no client has examples; leave it out")
  data = client_data.training_data(examples, run_seed)
  if not takes_representation(algorithm):
    return data
  found = [represent(each.x) if len(each.y) else None for each in data]
  # Absent clients do not train; their r only has the right shape.
  nothing = np.zeros_like(next(each for each in found if each is not None))
  return [
    period_data.PeriodData(*each, nothing if r is None else r)
    for each, r in zip(data, found, strict=True)
  ]


def _give(running: rounds.Rounds, data: Sequence[Any]) -> None:
  """Replaces the data of the next round, and the clients that are present."""
  running.present = _present(data)
  running.data = data


def _present(data: Sequence[Any]) -> list[int]:
  """Returns the clients that have examples."""
  return [client for client, each in enumerate(data) if len(each.y)]


def validate(
  running: rounds.Rounds,
  drawn: _Drawn,
  represent: _Represent | None,
) -> float:
  """Measures VACC, the accuracy on IID periods.

  Args:
    running: The rounds, after training; they are not changed.
    drawn: IID periods of held-out examples.
    represent: Maps examples to r. None: the algorithm takes none.

  Returns:
    Percent, the mean over clients with examples and periods.
  """
  clients = deployment.Clients(running, represent)
  first = batches(drawn, 0)
  clients.request(first, _have_examples(first))
  found = np.array(
    [
      clients.measure(batches(drawn, period))["accuracy"]
      for period in range(1, NUM_VALIDATION_PERIODS + 1)
    ]
  )
  if not np.isnan(found).any():
    return float(np.mean(found))
  return float(np.nanmean(found))


def _have_examples(batches_of_all: Sequence[examples_lib.Examples]):
  """Returns which clients have examples, [num_clients] bool."""
  return np.array([len(each.y) > 0 for each in batches_of_all])


def measure_stream(
  drawn: _Drawn,
  num_periods: int,
  instruments: instruments_lib.Instruments,
  on_period: Callable[[int], None] = lambda period: None,
) -> Stream:
  """Measures the clients' drift, which does not depend on an algorithm.

  Args:
    drawn: The periods.
    num_periods: The number of periods after period 0, at least 1.
    instruments: Computes the distance.
    on_period: Called after each period with its number.

  Returns:
    The stream.

  Raises:
    ValueError: If `num_periods` is not allowed, no client has examples in a
      period from 1, or a client has examples of another type than the first
      one.
  """
  num_periods = arguments.integer("num_periods", num_periods)
  _check_periods("drawn", drawn)
  shape, distances = None, []
  # The features of each client's last period.
  before: list[np.ndarray | None] = [None] * drawn.num_clients
  for period in range(num_periods + 1):
    of_period = batches(drawn, period)
    found = np.full(drawn.num_clients, np.nan)
    for client, each in enumerate(of_period):
      x = client_data.inputs(each, f"client {client}, period {period}", shape)
      if len(x):
        shape = x.shape[1:]
      if len(x) < _LEAST_OF_DISTANCE:
        continue
      now = instruments.features(x)
      if before[client] is not None and period:
        found[client] = instruments.distance(now, before[client])
      before[client] = now
    if period and not _have_examples(of_period).any():
      raise ValueError(f"period {period}: no client has examples; leave it out")
    if period:
      distances.append(found)
      on_period(period)
  drifted = np.array(
    [
      [drawn.is_drift(client, period) for client in range(drawn.num_clients)]
      for period in range(1, num_periods + 1)
    ]
  )
  # Unknown drifts are None.
  return Stream(
    drawn, np.array(distances), drifted if drifted.dtype == bool else None
  )


def infer(
  running: rounds.Rounds,
  stream: Stream,
  represent: _Represent | None,
  *,
  threshold: float,
  apply_update: str = "next",
  on_period: Callable[[int, np.ndarray], None] = (
    lambda period, accuracy: None
  ),
) -> Inference:
  """Deploys a trained algorithm on a stream.

  Args:
    running: The rounds, after training. They are not changed: every stream
      starts from the states after training.
    stream: The stream.
    represent: Maps examples to r. None: the algorithm takes none.
    threshold: DT: a larger distance is a drift. Infinite: no drifts.
    apply_update: One of `APPLY_UPDATES`.
    on_period: Called after each period with its number, from 1, and the
      accuracy of each client.

  Returns:
    The measurements.
  """
  clients = deployment.Clients(running, represent)
  first = batches(stream.drawn, 0)
  have_joined = _have_examples(first)
  clients.request(first, have_joined)
  detected = stream.distances > threshold
  measured, requested = [], []
  for period, drifting in enumerate(detected, start=1):
    examples = batches(stream.drawn, period)
    join_now = _have_examples(examples) & ~have_joined
    if join_now.any():
      clients.request(examples, join_now)
      have_joined |= join_now
    found = clients.measure(examples)
    answered = clients.request(examples, drifting)
    if apply_update == "current" and answered.any():
      found = clients.measure(examples)
    measured.append(found)
    requested.append(answered)
    on_period(period, found["accuracy"])
  return Inference(
    {name: np.array([each[name] for each in measured]) for name in found},
    stream.distances,
    stream.drifted,
    detected,
    np.array(requested),
    clients.tables,
  )


def baseline(
  fit: Callable[[bounds.Training], bounds.Baseline],
  training: _Drawn,
  num_rounds: int,
  drawn: _Drawn,
  num_periods: int,
) -> bounds.Bound:
  """Returns the accuracy of a baseline that is fitted to the training periods.

  Clients predict with their own predictors in all periods of a stream.

  Args:
    fit: The baseline, one of `bounds.BASELINES`.
    training: The periods of training.
    num_rounds: The number of rounds, one period each.
    drawn: The periods of the stream.
    num_periods: The number of periods after period 0.
  """
  clients = range(training.num_clients)
  fitted = fit(
    (training.batch(client, period) for period in range(num_rounds))
    for client in clients
  )
  by_period = np.array(
    [
      bounds.accuracy(
        fitted.clients, [drawn.batch(client, period) for client in clients]
      )
      for period in range(1, num_periods + 1)
    ]
  )
  return bounds.Bound(
    {"accuracy": float(np.nanmean(by_period))},
    client_values.mean([by_period]),
  )


def _check_periods(name: str, drawn: Any) -> None:
  """Refuses values that are not periods."""
  arguments.has(
    name, drawn, ["batch", "num_clients"], "a dynamic_personalization.Periods"
  )


def _check_clients(name: str, drawn: _Drawn, num_clients: int) -> None:
  """Refuses periods whose clients are not those of training."""
  _check_periods(name, drawn)
  if drawn.num_clients != num_clients:
    raise ValueError(
      f"{name} must have periods of {num_clients} clients, as training has, got"
      f" {drawn.num_clients}"
    )


class _Periods(driver.Steps):
  """The rounds of a run, and after them its streams, one step each."""

  client_names: tuple[str, ...] | None = None

  def __init__(
    self,
    algorithm: algorithm_lib.FederatedAlgorithm,
    training: _Drawn,
    validation: _Drawn,
    met: Mapping[str, Stream],
    represent: _Represent | None,
    *,
    num_rounds: int,
    run_seed: int,
    threshold: float,
    apply_update: str,
    client_names: Sequence[str] | None,
    **cohorts: Any,
  ):
    """Validates the arguments of `run`."""
    checks.algorithm(algorithm)
    checks.trains(algorithm)
    checks.data_kind(
      algorithm, client_dataset.ClientDataset, period_data.PeriodData
    )
    self.num_rounds = arguments.integer("num_rounds", num_rounds)
    self._run_seed = arguments.seed("run_seed", run_seed)
    arguments.participation(cohorts["participation"])
    self._apply_update = arguments.choice(
      "apply_update", apply_update, choices.APPLY_UPDATES
    )
    self._threshold = instruments_lib.checked_threshold(threshold)
    _check_periods("training", training)
    if takes_representation(algorithm):
      arguments.functions(represent=represent)
    deployment.check_domains(algorithm, training.num_clients)
    _check_clients("validation", validation, training.num_clients)
    for distribution, stream in met.items():
      arguments.has(distribution, stream, Stream._fields, "a Stream")
      _check_clients(
        f"stream {distribution}", stream.drawn, training.num_clients
      )
    if client_names is not None:
      arguments.sequence("client_names", client_names, training.num_clients)
      self.client_names = tuple(client_names)
    self.num_steps = self.num_rounds + len(met)
    self._validation = validation
    self._met = met
    self._represent = represent
    self._algorithm = algorithm
    self._cohorts = cohorts
    # Drawing a period and its r can take longer than training on it.
    self._data_of = functools.lru_cache(maxsize=1)(
      lambda period: training_data(
        algorithm, training, period, represent, run_seed
      )
    )

  def start(self, storage, callback):
    self._callback = callback
    data = self._data_of(0)
    return rounds.Rounds(
      self._algorithm,
      data,
      present=_present(data),
      run_seed=self._run_seed,
      storage=storage,
      on_loss=callback.on_loss,
      **self._cohorts,
    )

  def step(self, running, step, measured):
    _give(running, self._data_of(min(step, self.num_rounds) - 1))
    if step <= self.num_rounds:
      running.step()
      return running.losses[-1]
    distribution = list(self._met)[len(measured)]
    accuracy = (
      measured[0].validation_accuracy if measured else self.validate(running)
    )
    inference = infer(
      running,
      self._met[distribution],
      self._represent,
      threshold=self._threshold,
      apply_update=self._apply_update,
      on_period=functools.partial(self._callback.on_period, step, distribution),
    )
    measured.append(
      Deployed(
        distribution,
        accuracy,
        inference,
        inference.clients(distribution, step),
      )
    )
    return None

  def validate(self, running: rounds.Rounds) -> float:
    """Returns VACC."""
    return validate(running, self._validation, self._represent)

  def make(self, *, inference, **fields):
    return Deployed(inference=Inference(**inference), **fields)

  def told(self, measured):
    position = list(self._met).index(measured.distribution)
    return self.num_rounds + position + 1, None, measured

  def revise(self, running, measured, done):
    if running.round_num > self.num_rounds:
      raise checkpoints.too_long(running.round_num, self.num_rounds, "rounds")
    if running.round_num < self.num_rounds:
      # Results of fewer rounds are obsolete; they did not change the states.
      measured.clear()
      return running.round_num
    return done

  def end(self, running, measured):
    # Also for a finished run that is resumed.
    _give(running, self._data_of(running.round_num - 1))
    if not measured:
      self.validation_accuracy = self.validate(running)
    else:
      self.validation_accuracy = measured[0].validation_accuracy


def run(
  algorithm: algorithm_lib.FederatedAlgorithm,
  training: _Drawn,
  validation: _Drawn,
  met: Mapping[str, Stream],
  represent: _Represent | None,
  *,
  num_rounds: int,
  run_seed: int,
  threshold: float,
  participation: float = 1.0,
  sampler: participation_lib.Sampler = participation_lib.uniform,
  reporting: participation_lib.Reporting | None = None,
  apply_update: str = "next",
  client_names: Sequence[str] | None = None,
  callbacks: Sequence[callbacks_lib.Callback] = (),
  checkpoint: checkpoints.Run | None = None,
) -> DynamicResult:
  """Trains an algorithm, validates it, and deploys it on streams.

  Args:
    algorithm: The algorithm.
    training: The periods of training.
    validation: IID periods of held-out examples.
    met: The streams by the names of their distributions; may be empty.
    represent: Maps examples to r. None: the algorithm takes none.
    num_rounds: The number of rounds, at least 1.
    run_seed: Determines initial weights, batches and cohorts.
    threshold: DT: a larger distance is a drift. Infinite: no drifts.
    participation: The client fraction per round.
    sampler: Samples the clients of a round, see `participation`.
    reporting: Which of the sampled clients report. None: all of them.
    apply_update: One of `APPLY_UPDATES`.
    client_names: The names of the clients. None: their numbers.
    callbacks: They follow the run. A step is a round without measurements or,
      after all rounds, a stream, whose measurements are `Deployed`.
    checkpoint: Saves the run, and resumes it if it was interrupted or had fewer
      rounds; streams are repeated if more rounds follow.

  Returns:
    The measurements.

  Raises:
    ValueError: If an argument is not allowed, or examples do not match the
      algorithm.

  Examples:
    >>> x, y = np.random.default_rng(0).normal(size=(8, 2)), np.arange(8) % 2
    >>> periods = ts.from_arrays("dynamic_personalization", [[(x, y)] * 11] * 2)
    >>> model = ts.build_model("mlp", input_shape=(2,), num_classes=2, width=4)
    >>> algorithm = ts.build_algorithm("local", model, num_evaluation_domains=2)
    >>> with ts.execution.use("in_process"):
    ...   result = ts.run_dynamic_personalization(
    ...     algorithm, periods, periods, {}, None,
    ...     num_rounds=1, run_seed=0, threshold=np.inf,
    ...   )
    >>> len(result.client_states), 0 <= result.validation_accuracy <= 100
    (2, True)
  """
  driver.check(checkpoint, callbacks)
  periods = _Periods(
    algorithm,
    training,
    validation,
    met,
    represent,
    num_rounds=num_rounds,
    run_seed=run_seed,
    threshold=threshold,
    participation=participation,
    sampler=sampler,
    reporting=reporting,
    apply_update=apply_update,
    client_names=client_names,
  )
  measured, *others = driver.run(periods, callbacks, checkpoint)
  return DynamicResult(
    periods.validation_accuracy,
    {each.distribution: each.inference for each in measured},
    *others,
  )._replace(client_names=periods.client_names)
