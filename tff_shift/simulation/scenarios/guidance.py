"""Training clients, and asking them what none of them alone would know.

The driver of the scenario of Beyond Aggregation: Guiding Clients in
Heterogeneous Federated Learning, Section 4: after rounds of training, queries
from the pooled test sets of all clients reach the server. With a guide each is
answered by one client; without, by the majority of all.
"""

import contextlib
from collections.abc import Callable
from collections.abc import Sequence
from typing import Any
from typing import NamedTuple

import numpy as np

from tff_shift import arguments
from tff_shift.data import examples
from tff_shift.learning import algorithm as algorithm_lib
from tff_shift.learning import guidance as learned
from tff_shift.learning import local_training
from tff_shift.simulation.engine import checkpoints
from tff_shift.simulation.engine import checks
from tff_shift.simulation.engine import client_data
from tff_shift.simulation.engine import rounds
from tff_shift.simulation.scenarios import queries
from tff_shift.simulation.storage import results


class Evaluation(NamedTuple):
  """What is measured after a round, accuracies in percent.

  Attributes:
    system_accuracy: Over the pooled test sets of all clients: the answer of the
      client that the guide names, corrected for the clients' shares; the vote
      of all clients where there is no guide.
    average_accuracy: Of each client on its own test set, if it has one,
      weighted by its number of training examples.
    not_finite: The share, from 0 to 1, of their own test sets that clients do
      not predict with numbers, which counts as wrong.
    uncorrected_system_accuracy: As `system_accuracy`, by the guide's
      probabilities as they are; None without a guide.
    client_accuracy: The share of queries that are routed to the client from
      which they come; None without a guide.
    uncorrected_client_accuracy: Likewise, by the probabilities as they are.
  """

  system_accuracy: float
  average_accuracy: float
  not_finite: float = 0.0
  uncorrected_system_accuracy: float | None = None
  client_accuracy: float | None = None
  uncorrected_client_accuracy: float | None = None

  def measured(self) -> dict[str, float | None]:
    """Returns the accuracies by name."""
    return self._asdict()


class GuidanceResult(NamedTuple):
  """All evaluations of a run.

  Attributes:
    evaluations: By the number of rounds done.
    final_rounds: The evaluated rounds over which `final` takes its means.
    routing: How many queries of each client were routed to each client after
      the last round, [origin, route] int64; None without a guide.
    seconds_per_round: The mean duration of a round, without evaluation.
    num_diverged: How often the work of a client was left out, see `phases`.
    server_state: The server's state at the end; None where it was not kept.
    client_states: The clients' states at the end, by client: a sequence that
      draws the first state of who never took part when it is asked for. None
      where a storage keeps them in a file.
    left_out: Who has nothing to train on, and who has no test example.
  """

  evaluations: dict[int, Evaluation]
  final_rounds: tuple[int, ...]
  routing: np.ndarray | None
  seconds_per_round: float
  num_diverged: int = 0
  server_state: Any = None
  client_states: Sequence[Any] | None = None
  left_out: client_data.LeftOut = client_data.LeftOut()

  def __repr__(self):
    return results.short_repr(
      self, rounds=max(self.evaluations), **self.final()
    )

  def final(self) -> dict[str, float]:
    """Returns each metric's mean over the final rounds, and its spread there.

    The spread is the standard deviation over rounds of one run, which is what
    the tables of the paper print; its name ends in `_over_rounds`.
    """
    rows = [self.evaluations[each].measured() for each in self.final_rounds]
    found = {}
    for name in (name for name in rows[0] if rows[0][name] is not None):
      values = [row[name] for row in rows]
      found[name] = float(np.mean(values))
      if len(values) > 1:
        found[f"{name}_over_rounds"] = float(np.std(values, ddof=1))
    return found


def evaluate(
  federation: queries.Federation,
  train_sizes: Sequence[int],
  test: Sequence[examples.Examples],
) -> tuple[Evaluation, np.ndarray | None]:
  """Asks a federation all test examples of all clients.

  Args:
    federation: The federation.
    train_sizes: The number of training examples of each client.
    test: The test examples of each client, of which some may have none.

  Returns:
    The evaluation; and how many queries of each client were routed to each,
    [origin, route] int64, None without a guide.

  Raises:
    ValueError: If a client lacks a number or a set, or numbers are not allowed.
  """
  num_clients = arguments.sequence("test", test)
  arguments.sequence("train_sizes", train_sizes, num_clients)
  train_sizes = [
    arguments.integer("train_sizes", each, 0) for each in train_sizes
  ]
  if not sum(train_sizes):
    raise ValueError(
      "train_sizes must not all be 0: the mean over clients is weighted by them"
    )
  x = np.concatenate([each.x for each in test])
  y = np.concatenate([each.y for each in test])
  origins = np.repeat(
    np.arange(len(test), dtype=np.int32), [len(each.y) for each in test]
  )
  own = federation.answer(x, origins).classes
  asked = [i for i, each in enumerate(test) if len(each.y)]
  average = _percent(
    np.average(
      [np.mean((own == y)[origins == i]) for i in asked],
      weights=[train_sizes[i] for i in asked],
    )
  )
  # Each was asked of a client: who gives no answer has no numbers.
  not_finite = float(np.mean(own == learned.NO_CLIENT))
  if not federation.can_guide:
    vote = federation.vote(x)
    system = _percent(np.mean(vote == y))
    return Evaluation(system, average, not_finite), None
  found = []
  for corrected in (True, False):
    routes = federation.guide(x, corrected=corrected).routes
    # Queries that go back to where they come from have their answer already.
    away = np.flatnonzero(routes != origins)
    classes = own.copy()
    classes[away] = federation.answer(x[away], routes[away]).classes
    found.append(
      (
        routes,
        _percent(np.mean(classes == y)),
        _percent(np.mean(routes == origins)),
      )
    )
  (routes, system, client), (_, plain_system, plain_client) = found
  routing = np.zeros([len(test)] * 2, np.int64)
  np.add.at(routing, (origins, routes), 1)
  evaluation = Evaluation(
    system, average, not_finite, plain_system, client, plain_client
  )
  return evaluation, routing


def _percent(share: float) -> float:
  return 100.0 * float(share)


def left_out(
  train: Sequence[examples.Examples],
  test: Sequence[examples.Examples],
  client_names: Sequence[str] | None = None,
) -> client_data.LeftOut:
  """Tells who has nothing to train on, and who has no test example.

  Args:
    train: The training examples of each client.
    test: The test examples of each client.
    client_names: What to call the clients. None: by their numbers.

  Returns:
    The clients.

  Raises:
    ValueError: No client has both.
  """
  if not any(
    len(own.y) and len(asked.y) for own, asked in zip(train, test, strict=True)
  ):
    raise ValueError("no client has both a training and a test example")
  names = client_names or [str(client) for client in range(len(train))]
  return client_data.LeftOut(
    *(
      tuple(
        name for name, each in zip(names, part, strict=True) if not len(each.y)
      )
      for part in (train, test)
    )
  )


class _Measured(NamedTuple):
  """An evaluation with all that is told and kept of it."""

  round_num: int
  train_loss: float
  evaluation: Evaluation
  routing: np.ndarray | None

  @classmethod
  def make(cls, *, evaluation: dict[str, float | None], **fields):
    return cls(evaluation=Evaluation(**evaluation), **fields)


def run(
  algorithm: algorithm_lib.FederatedAlgorithm,
  train: Sequence[examples.Examples],
  test: Sequence[examples.Examples],
  *,
  num_rounds: int,
  run_seed: int,
  participation: float = 1.0,
  evaluate_every: int = 10,
  num_final_rounds: int = 1,
  client_names: Sequence[str] | None = None,
  on_round: Callable[[int, float, Evaluation | None], None] = (
    lambda round_num, train_loss, evaluation: None
  ),
  on_loss: Callable[[int, float], None] = lambda round_num, loss: None,
  on_end: Callable[[rounds.Rounds], None] = lambda running: None,
  checkpoint: checkpoints.Run | None = None,
) -> GuidanceResult:
  """Trains and evaluates an algorithm.

  Args:
    algorithm: The algorithm, built with `num_queries`.
    train: The training examples of each client, of which some may have none.
    test: The test examples of each client, likewise, in the same order; some
      client has both.
    num_rounds: The number of rounds, at least 1.
    run_seed: Fixes initial weights, batches and who takes part.
    participation: The share of clients in a round, above 0 and at most 1.
    evaluate_every: Evaluates after every so many rounds, at least 1.
    num_final_rounds: Evaluates after each of the last so many rounds as well,
      at least 1, over which final metrics are means; of fewer rounds all.
    client_names: What to call the clients. None: by their numbers.
    on_round: Called after each round with the number of rounds done, the
      training loss and, if there was one, the evaluation.
    on_loss: Called after each round with the number of rounds done and its
      training loss; if the run goes on, first for the rounds of before.
    on_end: Called once, at the end, with the rounds: the states of the server
      and of the clients can be had there, also of those in a file. A run that
      was finished and goes on calls it again.
    checkpoint: Where the run is saved, and goes on if it was stopped or had
      fewer rounds; then `on_round` is first called for the rounds that were
      evaluated before.

  Returns:
    What was measured.

  Raises:
    ValueError: If an argument is not allowed, or what a client holds is not
      what the algorithm takes.
  """
  checks.algorithm(algorithm)
  checks.data_kind(algorithm, local_training.ClientData)
  checks.checkpoint(checkpoint)
  arguments.functions(on_round=on_round, on_loss=on_loss, on_end=on_end)
  num_rounds = arguments.integer("num_rounds", num_rounds)
  evaluate_every = arguments.integer("evaluate_every", evaluate_every)
  num_final_rounds = arguments.integer("num_final_rounds", num_final_rounds)
  run_seed = arguments.seed("run_seed", run_seed)
  participation = arguments.participation(participation)
  num_clients = [
    arguments.sequence(name, part)
    for name, part in (("train", train), ("test", test))
  ]
  if num_clients[0] != num_clients[1]:
    raise ValueError(
      "train and test must have an entry for each client, got"
      f" {num_clients[0]} and {num_clients[1]}"
    )
  door = client_data.ClientDataValidator(algorithm)
  train, test = (
    [
      door.examples(
        each, client if client_names is None else repr(client_names[client])
      )
      for client, each in enumerate(part)
    ]
    for part in (train, test)
  )
  absent = left_out(train, test, client_names)
  queries.check_algorithm(algorithm)
  checks.trains(algorithm)
  data = client_data.training_data(train, run_seed)
  first_final = max(1, num_rounds - num_final_rounds + 1)
  measured = []

  def is_evaluated(done):
    return done % evaluate_every == 0 or done >= first_final

  def revise(done):
    # The final rounds of a run of fewer rounds are others.
    measured[:] = [each for each in measured if is_evaluated(each.round_num)]
    return done

  with contextlib.closing(
    rounds.Rounds(
      algorithm,
      rounds.DataOnDemand(len(data), data.__getitem__, is_checked=True),
      run_seed=run_seed,
      participation=participation,
      storage=checkpoint and checkpoint.storage,
      on_loss=on_loss,
    )
  ) as running:
    for done in checkpoints.steps(
      checkpoint,
      num_rounds,
      running,
      measured,
      make=_Measured.make,
      replay=lambda each: on_round(*each[:3]),
      revise=revise,
    ):
      train_loss = float(running.step()["loss"])
      evaluation = None
      if is_evaluated(done):
        evaluation, routing = evaluate(
          queries.Federation(
            algorithm, running.server_state, running.client_states, data
          ),
          [len(each.y) for each in train],
          test,
        )
        measured.append(_Measured(done, train_loss, evaluation, routing))
      on_round(done, train_loss, evaluation)
    on_end(running)
  return GuidanceResult(
    {each.round_num: each.evaluation for each in measured},
    tuple(range(first_final, num_rounds + 1)),
    measured[-1].routing,
    running.seconds_per_round,
    running.num_diverged,
    *running.kept_states(),
    absent,
  )
