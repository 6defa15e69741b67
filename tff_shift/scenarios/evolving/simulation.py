"""Training on evolving domains, evaluated on the next, unseen domain.

The driver of the scenario of Federated Learning under Evolving Distribution
Shifts: clients train on the source domains. The last domain, the target, is
only predicted: by every client with its own model on its own test data, and by
the server on the clients' pooled test data.

Choices:
  * Algorithms 3 and 4 of the paper have tau local iterations, each over all
    (pairs of) domains with one random batch each; its Appendix D has 5 or 10
    epochs. `--local_steps` is tau, and the presets set it to the number of
    epochs. `--local_epochs` gives the number of iterations that makes this many
    passes over the examples.
  * For methods without domains an iteration is one gradient step per source
    domain, on batches from the pooled domains: as many gradient steps as
    FedEvp, plus one. A step of FedEvolve passes two batches through two
    networks and costs twice as much.
  * The client accuracy is the unweighted mean over clients, each tested on its
    own part of the target.
  * The paper reports the accuracy after the last epoch, which varies by 5
    points and more between evaluations. Results have the last evaluation, and
    the mean of the last three (`--mean_of_last`).
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
from tff_shift.data import client_dataset
from tff_shift.data import examples
from tff_shift.data import partition
from tff_shift.data.shifts import evolving
from tff_shift.learning import algorithm as algorithm_lib
from tff_shift.learning import evaluation
from tff_shift.learning import randomness
from tff_shift.simulation import bounds
from tff_shift.simulation.engine import callbacks as callbacks_lib
from tff_shift.simulation.engine import checkpoints
from tff_shift.simulation.engine import checks
from tff_shift.simulation.engine import client_data
from tff_shift.simulation.engine import client_states as client_states_lib
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
    round_num: The number of completed rounds.
    train_loss: The mean training loss of the round.
    client: The metrics of `evaluation.METRICS`, and those that the algorithm
      was built with, on the target, of the evaluated clients, each with its own
      model on its own test data.
    server: The same metrics of the server model on their pooled test data. None
      if the server has no model.
    client_per_domain: As `client`, each [num_domains], only after the last
      round, or if the run validates or measures forgetting.
    validation_accuracy: The accuracy of these clients on their test examples of
      the last source domain; None if the run does not validate.
    new_client: As `client`, of the clients that never train, each with the
      state of a client that joins now; None if there are none.
    tables: Tables of counts on the target by names such as
      `client_confusion_matrix`; None without any, and without
      `client_per_domain`.
    clients: The values of each client on the target, such as `client_accuracy`
      and, of the clients that never train, `new_client_accuracy`, see
      `evaluation.client_metrics`. None: there are too many clients.
  """

  round_num: int
  train_loss: float
  client: Mapping[str, float]
  server: Mapping[str, float] | None = None
  client_per_domain: Mapping[str, np.ndarray] | None = None
  validation_accuracy: float | None = None
  new_client: Mapping[str, float] | None = None
  tables: Mapping[str, np.ndarray] | None = None
  clients: client_values.ClientValues | None = None

  def measured(self) -> dict[str, float | None]:
    """Returns the measurements on the target by names such as `client_loss`.

    The values of a server without a model are None. `validation_accuracy` is
    missing if the run does not validate, and those of new clients if there are
    none.
    """
    measured = [("client", self.client), ("server", self.server)]
    if self.new_client is not None:
      measured.append(("new_client", self.new_client))
    found: dict[str, float | None] = {
      f"{who}_{name}": None if means is None else means[name]
      for who, means in measured
      for name in self.client
    }
    if self.validation_accuracy is not None:
      found["validation_accuracy"] = self.validation_accuracy
    return found

  def rows(self, step: int) -> Iterator[tuple[dict[str, int], dict[str, Any]]]:
    """See `callbacks.Measurements`."""
    yield {"round": step}, self.measured()


class EvolvingResult(NamedTuple):
  """The evaluations of a run; the last one is final.

  Attributes:
    evaluations: In the order of rounds.
    seconds_per_round: The mean duration of a round, without evaluation.
    num_diverged: The number of diverged client updates, see `phases`.
    server_state: The server's state at the end; None if it was not kept.
    client_states: The clients' states at the end, by client: a sequence that
      draws the first state of clients without a round on request. None if they
      are in a file of a storage.
    left_out: The clients that are not trained or not evaluated; empty if
      clients are built on request, since their data are not known in advance.
    client_names: The names of the clients. None: unknown.
  """

  evaluations: tuple[Evaluation, ...]
  seconds_per_round: float
  num_diverged: int = 0
  server_state: Any = None
  client_states: Sequence[Any] | None = None
  left_out: client_data.LeftOut = client_data.LeftOut()
  client_names: tuple[str, ...] | None = None

  def __repr__(self):
    found = {
      name: value
      for name, value in self.final.measured().items()
      if value is not None
    }
    return results.short_repr(self, rounds=self.final.round_num, **found)

  @property
  def final(self) -> Evaluation:
    """The evaluation after the last round."""
    return self.evaluations[-1]

  @property
  def forgetting(self) -> float | None:
    """The forgetting of the source domains, see `forgetting`, in points.

    None: not all evaluations have measured every domain, or there is only one.
    """
    found = [each.client_per_domain for each in self.evaluations]
    if len(found) < 2 or any(each is None for each in found):
      return None
    return forgetting([each["accuracy"][:-1] for each in found])

  @property
  def client_accuracy(self) -> np.ndarray | None:
    """The final accuracy of each client, [num_clients] float64.

    NaN for clients that were not evaluated or never train. None: there are too
    many clients.
    """
    clients = self.final.clients
    if clients is None:
      return None
    return client_values.mean([clients["client_accuracy"]])

  def without_earlier_clients(self) -> EvolvingResult:
    """Returns the result without the values of clients that are not final."""
    *earlier, last = self.evaluations
    return self._replace(
      evaluations=(*(each._replace(clients=None) for each in earlier), last)
    )

  def to_dataframe(self) -> pd.DataFrame:
    """Returns a row per evaluation, with the columns of `metrics.csv`."""
    return frames.of_rows(
      (place, {"train_loss": each.train_loss, **values})
      for each in self.evaluations
      for place, values in each.rows(each.round_num)
    )

  def clients_to_dataframe(self) -> pd.DataFrame:
    """Returns a row per evaluation and client, see `frames.of_clients`."""
    return frames.of_clients(
      (each.clients for each in self.evaluations), self.client_names
    )


def forgetting(accuracies: Sequence[np.ndarray]) -> float:
  """Returns how much accuracy has dropped since its best, over domains.

  Riemannian Walk for Incremental Learning: Understanding Forgetting and
  Intransigence (Chaudhry, Dokania, Ajanthan, Torr; ECCV 2018), Section 3.1:
  f_j = max over l < k of a_lj - a_kj, averaged over the domains j. Here, l and
  k are evaluations, and k is the last one. It is negative if the last
  evaluation is the best one.

  Args:
    accuracies: For each evaluation in order, at least two, the accuracy on each
      domain, [num_domains]. A domain that is NaN in an evaluation has no test
      examples and is left out.

  Returns:
    The mean over the domains, in the unit of the accuracies; NaN without any.
  """
  found = np.asarray(accuracies, np.float64)
  found = found[:, ~np.isnan(found).any(axis=0)]
  if not found.size:
    return float("nan")
  return float(np.mean(found[:-1].max(axis=0) - found[-1]))


def pooled(
  clients: Sequence[evolving.Client], num_new_clients: int = 0
) -> list[evolving.Client]:
  """Gives all training examples to the first client, which is a ceiling.

  Args:
    clients: The clients.
    num_new_clients: The number of clients, the last ones, whose training
      examples are not used.

  Returns:
    The clients, with their own test examples. The others train on nothing.
  """
  trained = clients[: len(clients) - num_new_clients]
  together = _pool([each.train for each in trained])
  first = trained[0].train
  nothing = _pool(
    [
      first._replace(
        x=first.x[:0], y=first.y[:0], domain_sizes=0 * first.domain_sizes
      )
    ]
  )
  return [
    each._replace(train=nothing if place else together)
    for place, each in enumerate(clients)
  ]


def baseline(
  fit: Callable[[bounds.Training], bounds.Baseline],
  clients: Sequence[evolving.Client],
  num_new_clients: int = 0,
) -> bounds.Bound:
  """Returns the accuracy of a baseline that is fitted to the source domains.

  Clients predict with their own predictors; the server, and clients that never
  train, with the shared one.

  Args:
    fit: The baseline, one of `bounds.BASELINES`.
    clients: The clients.
    num_new_clients: The number of clients, the last ones, that never train.
  """
  num_trained = len(clients) - num_new_clients
  fitted = fit(
    [examples.Examples(client.train.x, client.train.y)]
    for client in clients[:num_trained]
  )
  test = [_only_target(client.test) for client in clients]
  accuracy = bounds.accuracy(fitted.clients, test[:num_trained])
  metrics = {"client_accuracy": float(np.nanmean(accuracy))}
  if fitted.server is not None:
    metrics["server_accuracy"] = bounds.shared_accuracy(
      fitted.server, test[:num_trained]
    )
    if num_new_clients:
      new = bounds.accuracy(
        [fitted.server] * num_new_clients, test[num_trained:]
      )
      metrics["new_client_accuracy"] = float(np.nanmean(new))
  nothing = np.full(num_new_clients, np.nan)
  return bounds.Bound(metrics, np.concatenate([accuracy, nothing]))


def training_data(
  client: evolving.Client, run_seed: int
) -> client_dataset.ClientDataset:
  """Returns a client's training data: its examples of the source domains."""
  domain_sizes = client.train.domain_sizes[:-1]
  end = int(domain_sizes.sum())
  return client.train._replace(
    x=client.train.x[:end],
    y=client.train.y[:end],
    domain_sizes=domain_sizes,
    num_examples=np.int32(end),
    seed=randomness.client_seed(run_seed, client.client_id),
    client_id=np.int32(client.client_id),
  )


def _checked(
  algorithm: algorithm_lib.FederatedAlgorithm,
  clients: Sequence[evolving.Client],
) -> Sequence[evolving.Client]:
  """Validates clients, in advance or when they are built."""
  validator = client_data.ClientDataValidator(algorithm)

  def check(position):
    client = clients[position]
    if not isinstance(client, evolving.Client):
      raise ValueError(
        f"client {position} must be an evolving.Client, such as"
        f" ts.from_arrays('evolving', ...) makes, got {type(client).__name__}"
      )
    called = position if client.name is None else repr(client.name)
    for part in ("train", "test"):
      found = getattr(client, part)
      if not isinstance(found, client_dataset.ClientDataset):
        raise ValueError(
          f"{part} of client {called} must be a ClientDataset, got"
          f" {type(found).__name__}"
        )
    # `training_data` sets the seeds of a run.
    train, test = (
      part._replace(seed=client_data.NO_SEED)
      for part in (client.train, client.test)
    )
    return client._replace(
      train=validator.training(train, called, allow_empty=True),
      test=validator.prediction(test, called),
    )

  if isinstance(clients, list | tuple):
    return [check(position) for position in range(len(clients))]
  return rounds.DataOnDemand(len(clients), check)


def _names(clients: Sequence[evolving.Client]) -> tuple[str, ...] | None:
  """Returns the names of clients; None if unknown without building them."""
  if not isinstance(clients, list) or not any(each.name for each in clients):
    return None
  return tuple(
    str(position) if each.name is None else each.name
    for position, each in enumerate(clients)
  )


def left_out(
  clients: Sequence[evolving.Client],
  min_source_domains: int = 1,
  can_predict: Callable[[client_dataset.ClientDataset], Any] | None = None,
) -> client_data.LeftOut:
  """Returns the clients that cannot take part.

  Args:
    clients: The clients.
    min_source_domains: The minimum number of source domains of a client that
      trains.
    can_predict: `(data) -> bool`, whether a client can predict. None: all can.

  Returns:
    The clients without training examples of enough source domains, and those
    without test examples of the target or that cannot predict it.

  Raises:
    ValueError: If no client remains.
  """
  names = [
    str(each.client_id) if each.name is None else each.name for each in clients
  ]
  untrained = tuple(
    name
    for name, each in zip(names, clients, strict=True)
    if np.count_nonzero(each.train.domain_sizes[:-1]) < min_source_domains
  )
  if len(untrained) == len(clients):
    raise ValueError(
      "no client has training examples of"
      f" {min_source_domains} source domain{'s' * (min_source_domains > 1)}"
    )
  unpredicted = tuple(
    name
    for name, each in zip(names, clients, strict=True)
    if not _can_be_evaluated(each, can_predict)
  )
  if len(unpredicted) == len(clients):
    raise ValueError(
      "no client has test examples of the last domain, the target, and the data"
      " that its prediction needs"
    )
  return client_data.LeftOut(untrained, unpredicted)


def _can_be_evaluated(client, can_predict) -> bool:
  """Returns whether a client counts in the means over the target."""
  has_target = client.test.domain_sizes[-1] > 0
  return bool(
    has_target
    and (can_predict is None or can_predict(training_data(client, 0)))
  )


def _only_target(
  examples: client_dataset.ClientDataset,
) -> client_dataset.ClientDataset:
  """Empties the other domains."""
  size = int(examples.domain_sizes[-1])
  start = len(examples.y) - size
  sizes = np.zeros_like(examples.domain_sizes)
  sizes[-1] = size
  return examples._replace(
    x=examples.x[start:],
    y=examples.y[start:],
    domain_sizes=sizes,
    num_examples=np.int32(size),
  )


def _pool(
  parts: Sequence[client_dataset.ClientDataset],
) -> client_dataset.ClientDataset:
  """Pools the examples of several clients, sorted by domain."""
  ends = [np.cumsum(part.domain_sizes) for part in parts]
  slices = [
    (part, slice(end[m] - part.domain_sizes[m], end[m]))
    for m in range(len(ends[0]))
    for part, end in zip(parts, ends, strict=True)
  ]
  return client_dataset.ClientDataset.from_arrays(
    np.concatenate([part.x[where] for part, where in slices]),
    np.concatenate([part.y[where] for part, where in slices]),
    np.stack([part.domain_sizes for part in parts]).sum(axis=0, dtype=np.int32),
    client_data.NO_SEED,
  )


class _Training(driver.Steps):
  """The rounds of a run, with evaluations on the target."""

  client_names: tuple[str, ...] | None

  def __init__(
    self,
    algorithm: algorithm_lib.FederatedAlgorithm,
    clients: Sequence[evolving.Client],
    *,
    num_rounds: int,
    run_seed: int,
    evaluate_every: int,
    evaluation_clients: int,
    validates: bool,
    measures_forgetting: bool,
    num_new_clients: int,
    previous: EvolvingResult | None,
    **cohorts: Any,
  ):
    """Validates the arguments of `run`."""
    checks.algorithm(algorithm)
    checks.data_kind(algorithm, client_dataset.ClientDataset)
    self.num_steps = arguments.integer("num_rounds", num_rounds)
    self._evaluate_every = arguments.integer("evaluate_every", evaluate_every)
    self._run_seed = arguments.seed("run_seed", run_seed)
    arguments.participation(cohorts["participation"])
    num_clients = arguments.sequence("clients", clients)
    self._num_evaluated = arguments.integer(
      "evaluation_clients", evaluation_clients, 0, num_clients
    )
    num_new_clients = arguments.integer(
      "num_new_clients", num_new_clients, 0, num_clients - 1
    )
    # The states of server and clients from which training starts.
    self._earlier: tuple[Any, Mapping[int, Any]] | None = None
    self._num_earlier = 0
    if previous is not None:
      states = previous.client_states
      if not isinstance(states, client_states_lib.ClientStates) or (
        len(states) != num_clients
      ):
        raise ValueError(
          "previous is not allowed: it must have the states of its last round,"
          f" of {num_clients} clients, in memory"
        )
      self._earlier = previous.server_state, states.in_memory
      self._num_earlier = int(previous.server_state.round_num)
    self._algorithm = algorithm
    self._cohorts = cohorts
    self._validates = validates
    self._measures_forgetting = measures_forgetting
    self._clients = _checked(algorithm, clients)
    self._training_data = lambda client: training_data(
      self._clients[client], self._run_seed
    )
    self._target = lambda client, test: _only_target(test)
    if isinstance(self._clients, list):
      # The same arrays in all rounds are packed once.
      self._training_data = functools.cache(self._training_data)
      targets = [_only_target(each.test) for each in self._clients]
      self._target = lambda client, test: targets[client]
    self.client_names = _names(self._clients)
    checks.trains(algorithm)
    self.left_out = client_data.LeftOut()
    self._num_trained = num_clients - num_new_clients
    self._candidates: Sequence[int] = range(self._num_trained)
    self._new = list(range(self._num_trained, num_clients))
    if isinstance(self._clients, list):
      can_predict = algorithm.spec.can_predict
      self.left_out = left_out(
        self._clients[: self._num_trained],
        algorithm.min_source_domains,
        can_predict,
      )
      if self._new and not any(
        _can_be_evaluated(self._clients[client], can_predict)
        for client in self._new
      ):
        raise ValueError(
          f"num_new_clients={num_new_clients} is not allowed: none of these"
          " clients has test examples of the last domain, the target, and the"
          " data that its prediction needs"
        )
      if validates and not any(
        each.test.domain_sizes[-2] for each in self._clients
      ):
        raise ValueError(
          "validates=True is not allowed: no client has test examples of the"
          " last source domain"
        )
      if evaluation_clients and self.left_out.evaluation:
        self._candidates = [
          client
          for client in self._candidates
          if _can_be_evaluated(self._clients[client], can_predict)
        ]

  def make(self, **fields):
    return Evaluation(**fields)

  def start(self, storage, callback):
    running = rounds.Rounds(
      self._algorithm,
      rounds.DataOnDemand(
        len(self._clients), self._training_data, is_checked=True
      ),
      run_seed=self._run_seed,
      storage=storage,
      on_loss=lambda round_num, loss: callback.on_loss(
        round_num - self._num_earlier, loss
      ),
      present=range(self._num_trained) if self._new else None,
      **self._cohorts,
    )
    if self._earlier is not None:
      server_state, states = self._earlier
      earlier = range(self._num_earlier)
      running.resume(server_state, None, [0.0] * len(earlier), earlier)
      running.states.replace(states)
    return running

  def step(self, running, step, measured):
    running.step()
    is_last = step == self.num_steps
    if is_last or step % self._evaluate_every == 0:
      measured.append(self._evaluate(running, is_last))
    return running.losses[-1]

  def told(self, measured):
    return measured.round_num, measured.train_loss, measured

  def revise(self, running, measured, done):
    # The last evaluation of a shorter run is an intermediate one, or none.
    if measured and done < self.num_steps:
      last = measured[-1]
      if last.client_per_domain is not None:
        measured.pop()
        if done % self._evaluate_every == 0:
          measured.append(self._evaluate(running, False))
    return done

  def end(self, running, measured):
    if measured and measured[-1].client_per_domain is not None:
      return
    # A callback has ended the run, maybe after a round without evaluation.
    if measured and measured[-1].round_num == self._round_num(running):
      measured.pop()
    measured.append(self._evaluate(running, True))

  def _round_num(self, running):
    """Returns the number of completed rounds, without those of `previous`."""
    return running.round_num - self._num_earlier

  def _evaluate(self, running, is_last):
    """Evaluates some clients' models, and the server's on their pooled data."""
    places = evaluated_clients(
      len(self._candidates),
      min(self._num_evaluated, len(self._candidates)),
      self._run_seed,
      running.round_num,
    )
    clients = [self._candidates[place] for place in places]
    all_domains = is_last or self._validates or self._measures_forgetting
    data = [running.data[client] for client in clients]
    tests = [self._clients[client].test for client in clients]
    targets = list(map(self._target, clients, tests))
    means, own = _at_clients(
      running, clients, data, tests if all_domains else targets
    )
    evaluated = {"client": means}
    values = [("client_", clients, evaluation.report_clients(own, -1))]
    if self._new:
      evaluated["new_client"], own = _at_clients(
        running,
        self._new,
        [running.data[client] for client in self._new],
        [
          self._target(client, self._clients[client].test)
          for client in self._new
        ],
      )
      values.append(
        ("new_client_", self._new, evaluation.report_clients(own, -1))
      )
    if self._algorithm.evaluate_server is not None:
      evaluated["server"] = self._algorithm.evaluate_server(
        running.server_state, data, _pool(targets)
      )
    metrics = self._algorithm.metrics
    found: dict[str, Any] = {
      who: evaluation.report(each, lambda values: float(values[-1]), metrics)
      for who, each in evaluated.items()
    }
    if all_domains:
      found["client_per_domain"] = evaluation.report(means, np.asarray, metrics)
      found["tables"] = {
        f"{who}_{name}": table
        for who in ("client", "server")
        if who in evaluated
        for name, table in evaluation.tables(
          evaluated[who], metrics, domains=slice(-1, None)
        ).items()
      } or None
    if self._validates:
      found["validation_accuracy"] = evaluation.report(
        means, lambda values: float(values[-2])
      )["accuracy"]
    round_num = self._round_num(running)
    return Evaluation(
      round_num,
      running.losses[-1],
      clients=client_values.of_some(
        round_num,
        {"round": round_num},
        len(self._clients),
        values,
      ),
      **found,
    )


def run(
  algorithm: algorithm_lib.FederatedAlgorithm,
  clients: Sequence[evolving.Client],
  *,
  num_rounds: int,
  run_seed: int,
  participation: float = 1.0,
  sampler: participation_lib.Sampler = participation_lib.uniform,
  reporting: participation_lib.Reporting | None = None,
  evaluate_every: int = 1,
  evaluation_clients: int = 0,
  validates: bool = False,
  measures_forgetting: bool = False,
  num_new_clients: int = 0,
  previous: EvolvingResult | None = None,
  callbacks: Sequence[callbacks_lib.Callback] = (),
  checkpoint: checkpoints.Run | None = None,
) -> EvolvingResult:
  """Trains and evaluates an algorithm.

  Args:
    algorithm: The algorithm, built with the clients' number of domains as
      `num_evaluation_domains`.
    clients: The clients; none has training examples of the last domain.
    num_rounds: The number of rounds, at least 1.
    run_seed: Determines initial weights, batches and cohorts.
    participation: The client fraction per round, above 0 and at most 1.
    sampler: Samples the clients of a round, see `participation`.
    reporting: Which of the sampled clients report. None: all of them.
    evaluate_every: The number of rounds between evaluations, at least 1; the
      last round is always evaluated.
    evaluation_clients: The number of clients sampled for each evaluation, among
      those that can be evaluated; all metrics are over these. 0: all clients.
    validates: Whether each evaluation also measures `validation_accuracy`, for
      `early_stopping.EarlyStopping`.
    measures_forgetting: Whether each evaluation measures every domain, for
      `EvolvingResult.forgetting`; otherwise only the last one does.
    num_new_clients: The number of clients, the last ones, that never train.
      They are evaluated apart, each with the state of a client that joins then.
    previous: The result of a run of the same clients and the same algorithm on
      fewer domains, which this run continues: training starts from its states,
      and cohorts, batches and learning rates are those of the next rounds. Not
      for methods with `task_rounds`, which learn the domains of a run in turn.
      `round_num` of the evaluations counts the rounds of this run. None: starts
      anew.
    callbacks: They follow the run; a step is a round, and its measurements are
      an `Evaluation`, if there was one.
    checkpoint: Saves the run, and resumes it if it was interrupted or had fewer
      rounds.

  Returns:
    The evaluations and the mean duration of a round.

  Raises:
    ValueError: If an argument is not allowed, a client's data do not match the
      algorithm, or no client can be trained or evaluated. A list or tuple of
      clients is validated before the first round, any other sequence client by
      client on request.

  Examples:
    >>> dataset = ts.load_evolving("circle", num_domains=3)
    >>> clients = ts.assemble_clients(dataset, num_clients=2)
    >>> model = ts.build_model("mlp", input_shape=(2,), num_classes=2, width=4)
    >>> algorithm = ts.build_algorithm("local", model, num_evaluation_domains=3)
    >>> with ts.execution.use("in_process"):
    ...   result = ts.run_evolving(algorithm, clients, num_rounds=1, run_seed=0)
    >>> result.to_dataframe()["round"].tolist()
    [1]
  """
  driver.check(checkpoint, callbacks)
  training = _Training(
    algorithm,
    clients,
    num_rounds=num_rounds,
    run_seed=run_seed,
    participation=participation,
    sampler=sampler,
    reporting=reporting,
    evaluate_every=evaluate_every,
    evaluation_clients=evaluation_clients,
    validates=validates,
    measures_forgetting=measures_forgetting,
    num_new_clients=num_new_clients,
    previous=previous,
  )
  return EvolvingResult(
    *driver.run(training, callbacks, checkpoint),
    training.left_out,
    training.client_names,
  )


def evaluated_clients(
  num_clients: int, num_evaluated: int, run_seed: int, round_num: int
) -> list[int]:
  """Samples the evaluated clients, a pure function of its arguments.

  Args:
    num_clients: The number of clients.
    num_evaluated: The number of sampled clients, from 0 to `num_clients`; 0:
      all.
    run_seed: The run's seed.
    round_num: The number of completed rounds.

  Returns:
    Different clients, in ascending order.
  """
  if not num_evaluated:
    return list(range(num_clients))
  generator = partition.generator("clients to evaluate", [run_seed, round_num])
  chosen = generator.choice(num_clients, num_evaluated, replace=False)
  return sorted(chosen.tolist())


def _at_clients(
  run_rounds: rounds.Rounds,
  chosen: Sequence[int],
  data: Sequence[client_dataset.ClientDataset],
  tests: Sequence[client_dataset.ClientDataset],
) -> tuple[Mapping[str, np.ndarray], Sequence[Mapping[str, np.ndarray]]]:
  """Evaluates clients, each with its own model on its own test data.

  Returns:
    Their metrics, and the values of each.
  """
  return run_rounds.algorithm.evaluate_each_client(
    run_rounds.server_state,
    run_rounds.states.take(chosen, [client.seed for client in data]),
    data,
    tests,
  )
