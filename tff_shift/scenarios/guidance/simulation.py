"""Training, then queries that no single client can answer well.

The driver of the scenario of Beyond Aggregation: Guiding Clients in
Heterogeneous Federated Learning, Section 4: after rounds of training, the
server receives queries from the pooled test sets of all clients. With a guide,
one client answers each query; without, a majority vote of all clients does.

Choices:
  * Average accuracy is weighted by training set sizes.
  * "Mean and standard deviation over the final 50 rounds": `--final_rounds`, 1
    by default, since at the end of a cosine rounds hardly differ, and each
    costs an evaluation. The standard deviation over seeds, which the paper does
    not have, is reported as well.
  * Momentum 0.9, weight decay 5e-4 on all weights, a new optimizer each round,
    no server momentum.
"""

from __future__ import annotations

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
from tff_shift.data import examples
from tff_shift.learning import algorithm as algorithm_lib
from tff_shift.learning import evaluation as evaluation_lib
from tff_shift.learning import guidance as learned
from tff_shift.learning import metric as metric_lib
from tff_shift.scenarios.guidance import queries
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


class Evaluation(NamedTuple):
  """The measurements after a round, accuracies in percent.

  Attributes:
    system_accuracy: Over the pooled test sets of all clients: the answers of
      the guide's routes, corrected for the clients' fractions; without a guide,
      the vote of all clients.
    average_accuracy: Mean accuracy of clients on their own test sets, weighted
      by their numbers of training examples; clients without a test set are
      excluded.
    not_finite: The fraction, from 0 to 1, of predictions on clients' own test
      sets that are not finite and count as wrong.
    uncorrected_system_accuracy: As `system_accuracy`, with the guide's
      uncorrected probabilities; None without a guide.
    client_accuracy: The fraction of queries that are routed to the client from
      which they come; None without a guide.
    uncorrected_client_accuracy: As `client_accuracy`, with the uncorrected
      probabilities.
    validation_accuracy: The system accuracy on the validation examples; None
      without such examples.
    others: The metrics that the algorithm was built with, by names such as
      `own_macro_f1` (each client's answers to its own queries) and
      `system_macro_f1` (the answers of `system_accuracy`); None without any.
    tables: Tables of counts by names such as `own_confusion_matrix`.
    clients: The values of each client with queries: `own_accuracy`, of its own
      answers to them, `system_accuracy`, of the system's answers to them, and
      the metrics that the algorithm was built with. Clients send no
      probabilities, so there is no loss. None: there are too many clients.
  """

  system_accuracy: float
  average_accuracy: float
  not_finite: float = 0.0
  uncorrected_system_accuracy: float | None = None
  client_accuracy: float | None = None
  uncorrected_client_accuracy: float | None = None
  validation_accuracy: float | None = None
  others: Mapping[str, float] | None = None
  tables: Mapping[str, np.ndarray] | None = None
  clients: client_values.ClientValues | None = None

  def measured(self) -> dict[str, float | None]:
    """Returns the accuracies and other metrics by name.

    `validation_accuracy` is missing without validation examples.
    """
    found = self._asdict()
    del found["others"], found["tables"], found["clients"]
    if self.validation_accuracy is None:
      del found["validation_accuracy"]
    return {**found, **(self.others or {})}

  def rows(self, step: int) -> Iterator[tuple[dict[str, int], dict[str, Any]]]:
    """See `callbacks.Measurements`."""
    yield {"round": step}, self.measured()


class GuidanceResult(NamedTuple):
  """All evaluations of a run.

  Attributes:
    evaluations: By the number of completed rounds.
    final_rounds: The evaluated rounds over which `final` averages.
    routing: The number of queries of each client routed to each client after
      the last round, [origin, route] int64; None without a guide.
    seconds_per_round: The mean duration of a round, without evaluation.
    num_diverged: The number of diverged client updates, see `phases`.
    server_state: The server's state at the end; None if it was not kept.
    client_states: The clients' states at the end, by client: a sequence that
      draws the first state of clients without a round on request. None if they
      are in a file of a storage.
    left_out: The clients without training examples, and those without test
      examples.
    client_names: The names of the clients. None: unknown.
  """

  evaluations: dict[int, Evaluation]
  final_rounds: tuple[int, ...]
  routing: np.ndarray | None
  seconds_per_round: float
  num_diverged: int = 0
  server_state: Any = None
  client_states: Sequence[Any] | None = None
  left_out: client_data.LeftOut = client_data.LeftOut()
  client_names: tuple[str, ...] | None = None

  def __repr__(self):
    return results.short_repr(
      self, rounds=max(self.evaluations), **self.final()
    )

  def final(self) -> dict[str, float]:
    """Returns each metric's mean and standard deviation over the final rounds.

    The standard deviation is over rounds of one run, as in the tables of the
    paper; its name ends in `_over_rounds`.
    """
    rows = [self.evaluations[each].measured() for each in self.final_rounds]
    found = {}
    for name in (name for name in rows[0] if rows[0][name] is not None):
      values = [row[name] for row in rows]
      found[name] = float(np.mean(values))
      if len(values) > 1:
        found[f"{name}_over_rounds"] = float(np.std(values, ddof=1))
    return found

  @property
  def client_accuracy(self) -> np.ndarray | None:
    """Each client's own accuracy, the mean over the final rounds.

    [num_clients] float64, NaN for clients without queries. None: there are too
    many clients.
    """
    found = [self.evaluations[each].clients for each in self.final_rounds]
    if any(each is None for each in found):
      return None
    return client_values.mean([each["own_accuracy"] for each in found])

  def without_earlier_clients(self) -> GuidanceResult:
    """Returns the result without the values of clients that are not final."""
    return self._replace(
      evaluations={
        round_num: each
        if round_num in self.final_rounds
        else each._replace(clients=None)
        for round_num, each in self.evaluations.items()
      }
    )

  def to_dataframe(self) -> pd.DataFrame:
    """Returns a row per evaluation, as `metrics.csv` without `train_loss`."""
    return frames.of_rows(
      row
      for round_num, each in self.evaluations.items()
      for row in each.rows(round_num)
    )

  def clients_to_dataframe(self) -> pd.DataFrame:
    """Returns a row per evaluation and client, see `frames.of_clients`."""
    return frames.of_clients(
      (each.clients for each in self.evaluations.values()), self.client_names
    )


def evaluate(
  federation: queries.Federation,
  train_sizes: Sequence[int],
  test: Sequence[examples.Examples],
  metrics: metric_lib.Chosen = metric_lib.NONE,
  round_num: int = 0,
) -> tuple[Evaluation, np.ndarray | None]:
  """Evaluates a federation on all test examples of all clients.

  Args:
    federation: The federation.
    train_sizes: The number of training examples of each client.
    test: The test examples of each client; they may be empty.
    metrics: Further metrics, of the predicted labels.
    round_num: The number of completed rounds.

  Returns:
    The evaluation, and the number of queries of each client routed to each,
    [origin, route] int64, None without a guide.
  """
  x = np.concatenate([each.x for each in test])
  y = np.concatenate([each.y for each in test])
  origins = np.repeat(
    np.arange(len(test), dtype=np.int32), [len(each.y) for each in test]
  )
  own = federation.answer(x, origins).classes
  with_queries = [i for i, each in enumerate(test) if len(each.y)]
  found: dict[str, Any] = {
    "average_accuracy": _percent(
      np.average(
        [np.mean((own == y)[origins == i]) for i in with_queries],
        weights=[train_sizes[i] for i in with_queries],
      )
    ),
    # Each query was sent to a client, so a missing answer was not finite.
    "not_finite": float(np.mean(own == learned.NO_CLIENT)),
  }
  routing = None
  if not federation.can_guide:
    system = federation.vote(x)
    found["system_accuracy"] = _percent(np.mean(system == y))
  else:
    routing = np.zeros([len(test)] * 2, np.int64)
    for prefix in ("", "uncorrected_"):
      routes = federation.guide(x, corrected=not prefix).routes
      # Queries routed to their origin are answered already.
      away = np.flatnonzero(routes != origins)
      classes = own.copy()
      classes[away] = federation.answer(x[away], routes[away]).classes
      found[f"{prefix}system_accuracy"] = _percent(np.mean(classes == y))
      found[f"{prefix}client_accuracy"] = _percent(np.mean(routes == origins))
      if not prefix:
        system = classes
        np.add.at(routing, (origins, routes), 1)
  if metrics.metrics:
    found |= _chosen_metrics(metrics, own, system, y, origins)
  clients = _of_clients(metrics, own, system, y, origins, len(test), round_num)
  return Evaluation(**found, clients=clients), routing


def _chosen_metrics(
  metrics: metric_lib.Chosen, own, system, y, origins
) -> dict[str, Any]:
  """Returns the metrics of the own answers and of the system's, and tables."""
  others, tables = {}, {}
  for who, predicted in (("own", own), ("system", system)):
    means = metric_lib.of_labels(
      metrics, predicted, y, origins, int(origins.max()) + 1
    )
    reported = evaluation_lib.report_chosen(
      means, lambda values: float(values[0]), metrics
    )
    others |= {f"{who}_{name}": value for name, value in reported.items()}
    counts = evaluation_lib.tables(means, metrics, domains=slice(None))
    tables |= {f"{who}_{name}": table for name, table in counts.items()}
  return {"others": others, "tables": tables}


def _of_clients(
  metrics: metric_lib.Chosen,
  own: np.ndarray,
  system: np.ndarray,
  y: np.ndarray,
  origins: np.ndarray,
  num_clients: int,
  round_num: int,
) -> client_values.ClientValues | None:
  """Returns the values of each client, of its own answers and the system's."""
  if num_clients > client_values.MAX_CLIENTS:
    return None
  sizes = np.bincount(origins, minlength=num_clients)
  clients = np.flatnonzero(sizes)
  parts = []
  for who, predicted in (("own_", own), ("system_", system)):
    right = np.bincount(origins, predicted == y, minlength=num_clients)
    values = {"accuracy": 100.0 * right[clients] / sizes[clients]}
    if metrics.metrics:
      of_each = metric_lib.of_labels_by_client(
        metrics, predicted, y, origins, num_clients
      )
      for name in evaluation_lib.client_metrics(metrics):
        if name in of_each:
          values[name] = np.asarray(of_each[name])[clients]
    parts.append((who, clients, values))
  return client_values.of_some(
    round_num, {"round": round_num}, num_clients, parts
  )


def baseline(
  fit: Callable[[bounds.Training], bounds.Baseline],
  train: Sequence[examples.Examples],
  test: Sequence[examples.Examples],
) -> bounds.Bound:
  """Returns the accuracy of a baseline that is fitted to the training examples.

  Clients answer their queries with their own predictors, and the system with
  the shared one.

  Args:
    fit: The baseline, one of `bounds.BASELINES`.
    train: The training examples of each client.
    test: The test examples of each client.
  """
  fitted = fit([part] for part in train)
  accuracy = bounds.accuracy(fitted.clients, test)
  have_queries = ~np.isnan(accuracy)
  sizes = np.array([len(part.y) for part in train])
  metrics = {
    "average_accuracy": float(
      np.average(accuracy[have_queries], weights=sizes[have_queries])
    )
  }
  if fitted.server is not None:
    metrics["system_accuracy"] = bounds.shared_accuracy(fitted.server, test)
  return bounds.Bound(metrics, accuracy)


def check_metrics(metrics: metric_lib.Chosen) -> None:
  """Raises a ValueError for metrics that queries cannot measure."""
  for name, metric in metrics.metrics.items():
    if metric.needs_probabilities:
      raise ValueError(
        f"metrics: {name} needs probabilities, and clients only send the"
        " predicted label of a query"
      )


def _percent(share: float) -> float:
  return 100.0 * float(share)


def left_out(
  train: Sequence[examples.Examples],
  test: Sequence[examples.Examples],
  client_names: Sequence[str] | None = None,
) -> client_data.LeftOut:
  """Returns the clients without training examples or without test examples.

  Args:
    train: The training examples of each client.
    test: The test examples of each client.
    client_names: The names of the clients. None: their numbers.

  Returns:
    The clients.

  Raises:
    ValueError: If no client has both.
  """
  if not any(
    len(own.y) and len(queries.y)
    for own, queries in zip(train, test, strict=True)
  ):
    raise ValueError("no client has both a training and a test example")
  names = client_names
  if names is None:
    names = [str(client) for client in range(len(train))]
  return client_data.LeftOut(
    *(
      tuple(
        name for name, each in zip(names, part, strict=True) if not len(each.y)
      )
      for part in (train, test)
    )
  )


class _Measured(NamedTuple):
  """An evaluation, in the form of a checkpoint's measurement."""

  round_num: int
  train_loss: float
  evaluation: Evaluation
  routing: np.ndarray | None

  @classmethod
  def make(cls, *, evaluation: dict[str, Any], **fields):
    return cls(evaluation=Evaluation(**evaluation), **fields)


class _Training(driver.Steps):
  """The rounds of a run, with evaluations on the queries."""

  client_names: tuple[str, ...] | None = None
  make = _Measured.make

  def __init__(
    self,
    algorithm: algorithm_lib.FederatedAlgorithm,
    train: Sequence[examples.Examples],
    test: Sequence[examples.Examples],
    *,
    num_rounds: int,
    run_seed: int,
    evaluate_every: int,
    num_final_rounds: int,
    client_names: Sequence[str] | None,
    validation: Sequence[examples.Examples] | None,
    **cohorts: Any,
  ):
    """Validates the arguments of `run`."""
    checks.algorithm(algorithm)
    checks.data_kind(algorithm, client_dataset.ClientDataset)
    self.num_steps = arguments.integer("num_rounds", num_rounds)
    self._evaluate_every = arguments.integer("evaluate_every", evaluate_every)
    self._num_final = arguments.integer("num_final_rounds", num_final_rounds)
    self._run_seed = arguments.seed("run_seed", run_seed)
    arguments.participation(cohorts["participation"])
    num_clients = [
      arguments.sequence(name, part)
      for name, part in (("train", train), ("test", test))
    ]
    if num_clients[0] != num_clients[1]:
      raise ValueError(
        "train and test must have an entry for each client, got"
        f" {num_clients[0]} and {num_clients[1]}"
      )
    if validation is not None:
      arguments.sequence("validation", validation, num_clients[0])
      if not any(len(each.y) for each in validation):
        raise ValueError(
          "validation must have an example of a client, got none"
        )
    validator = client_data.ClientDataValidator(algorithm)
    train, self._test, self._validation = (
      part
      and [
        validator.examples(
          each, client if client_names is None else repr(client_names[client])
        )
        for client, each in enumerate(part)
      ]
      for part in (train, test, validation)
    )
    self.left_out = left_out(train, self._test, client_names)
    queries.check_algorithm(algorithm)
    check_metrics(algorithm.metrics)
    checks.trains(algorithm)
    self._algorithm = algorithm
    self._cohorts = cohorts
    self._train_sizes = [len(each.y) for each in train]
    self._data = client_data.training_data(train, self._run_seed)
    if client_names is not None:
      self.client_names = tuple(client_names)

  def start(self, storage, callback):
    return rounds.Rounds(
      self._algorithm,
      rounds.DataOnDemand(
        len(self._data), self._data.__getitem__, is_checked=True
      ),
      run_seed=self._run_seed,
      storage=storage,
      on_loss=callback.on_loss,
      **self._cohorts,
    )

  def step(self, running, step, measured):
    running.step()
    if self._is_evaluated(step):
      measured.append(self._evaluate(running))
    return running.losses[-1]

  def told(self, measured):
    return measured[:3]

  def revise(self, running, measured, done):
    # The final rounds of a shorter run are different ones.
    measured[:] = [each for each in measured if self._is_evaluated(each[0])]
    return done

  def end(self, running, measured):
    # A callback may have ended the run after a round without evaluation.
    if not measured or measured[-1].round_num < running.round_num:
      measured.append(self._evaluate(running))

  def _evaluate(self, running: rounds.Rounds) -> _Measured:
    federation = queries.Federation(
      self._algorithm, running.server_state, running.client_states, self._data
    )
    found, routing = evaluate(
      federation,
      self._train_sizes,
      self._test,
      self._algorithm.metrics,
      running.round_num,
    )
    if self._validation is not None:
      validation, _ = evaluate(federation, self._train_sizes, self._validation)
      found = found._replace(validation_accuracy=validation.system_accuracy)
    return _Measured(running.round_num, running.losses[-1], found, routing)

  def final_rounds(self, measured: Sequence[_Measured]) -> tuple[int, ...]:
    """Returns the evaluated rounds over which final metrics are averaged."""
    last = measured[-1].round_num
    return tuple(
      each.round_num
      for each in measured
      if each.round_num > last - self._num_final
    )

  def _is_evaluated(self, round_num: int) -> bool:
    return (
      round_num % self._evaluate_every == 0
      or round_num > self.num_steps - self._num_final
    )


def run(
  algorithm: algorithm_lib.FederatedAlgorithm,
  train: Sequence[examples.Examples],
  test: Sequence[examples.Examples],
  *,
  num_rounds: int,
  run_seed: int,
  participation: float = 1.0,
  sampler: participation_lib.Sampler = participation_lib.uniform,
  reporting: participation_lib.Reporting | None = None,
  evaluate_every: int = 10,
  num_final_rounds: int = 1,
  client_names: Sequence[str] | None = None,
  validation: Sequence[examples.Examples] | None = None,
  callbacks: Sequence[callbacks_lib.Callback] = (),
  checkpoint: checkpoints.Run | None = None,
) -> GuidanceResult:
  """Trains and evaluates an algorithm.

  Args:
    algorithm: The algorithm, built with `num_queries`.
    train: The training examples of each client; some may be empty.
    test: The test examples of each client, in the same order; some may be
      empty, but at least one client has both.
    num_rounds: The number of rounds, at least 1.
    run_seed: Determines initial weights, batches and cohorts.
    participation: The client fraction per round, above 0 and at most 1.
    sampler: Samples the clients of a round, see `participation`.
    reporting: Which of the sampled clients report. None: all of them.
    evaluate_every: The number of rounds between evaluations, at least 1.
    num_final_rounds: The number of last rounds that are all evaluated, at least
      1; final metrics are means over them. Shorter runs use all rounds.
    client_names: The names of the clients. None: their numbers.
    validation: Examples of each client on which each evaluation also measures
      `validation_accuracy`, for `early_stopping.EarlyStopping`. None: no such
      measurement.
    callbacks: They follow the run; a step is a round, and its measurements are
      an `Evaluation`, if there was one.
    checkpoint: Saves the run, and resumes it if it was interrupted or had fewer
      rounds.

  Returns:
    The measurements.

  Raises:
    ValueError: If an argument is not allowed, or a client's data do not match
      the algorithm.

  Examples:
    >>> x, y = np.random.default_rng(0).normal(size=(10, 2)), np.arange(10) % 2
    >>> train, test = ts.from_arrays("guidance", [(x, y), (x + 1, y)])
    >>> model = ts.build_model("mlp", input_shape=(2,), num_classes=2, width=4)
    >>> algorithm = ts.build_algorithm("local", model, num_queries=4)
    >>> with ts.execution.use("in_process"):
    ...   result = ts.run_guidance(
    ...     algorithm, train, test, num_rounds=1, run_seed=0
    ...   )
    >>> result.to_dataframe()["round"].tolist()
    [1]
  """
  driver.check(checkpoint, callbacks)
  training = _Training(
    algorithm,
    train,
    test,
    num_rounds=num_rounds,
    run_seed=run_seed,
    participation=participation,
    sampler=sampler,
    reporting=reporting,
    evaluate_every=evaluate_every,
    num_final_rounds=num_final_rounds,
    client_names=client_names,
    validation=validation,
  )
  run_through = driver.run(training, callbacks, checkpoint)
  measured = run_through.measured
  return GuidanceResult(
    evaluations={each.round_num: each.evaluation for each in measured},
    final_rounds=training.final_rounds(measured),
    routing=measured[-1].routing,
    seconds_per_round=run_through.seconds_per_round,
    num_diverged=run_through.num_diverged,
    server_state=run_through.server_state,
    client_states=run_through.client_states,
    left_out=training.left_out,
    client_names=training.client_names,
  )
