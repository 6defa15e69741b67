"""Training in periods, and use on data that drift from period to period.

The driver of the scenario of Fed-3DA: A Dynamic and Personalized Federated
Learning Framework (Wang, Sun, Wo, Liu; ICASSP 2023), Algorithms 1 and 2. In
training, a round is a period: every client draws its data anew. In use, nobody
trains. Clients measure how far their data have moved since the last period,
and, where the algorithm answers, those that see a drift send r and are sent
another model.

What the paper leaves open, and what is done here:

  - A client's first model in use: it asks for one with the r of period 0, which
    only starts the stream and is not measured.
  - VACC of eq. 4 and 5: one number for an algorithm, the mean over clients and
    iid periods of examples held out. A client asks for its model with the r of
    one more such period.
  - The model for a drift comes into use a period after the one that showed it
    (theta^{p+1}, as Algorithm 2 has it), or at once (`apply_update`).
"""

from collections.abc import Callable
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any
from typing import NamedTuple

import numpy as np

from tff_shift.data import periods
from tff_shift.data import streams
from tff_shift.learning import local_training
from tff_shift.learning import periods as period_data
from tff_shift.learning import process
from tff_shift.learning import randomness
from tff_shift.simulation import guidance
from tff_shift.simulation import instruments as instruments_lib
from tff_shift.simulation import rounds

# next: a model for a drift is used from the period after it on. current: the
# period that showed the drift is predicted again.
APPLY_UPDATES = ("next", "current")

# So many iid periods of each client give the validation accuracy.
NUM_VALIDATION_PERIODS = 10

_Represent = Callable[[np.ndarray], np.ndarray]


class Stream(NamedTuple):
  """What clients meet in use, and how far it is from what they met before.

  Attributes:
    drawn: The periods of all clients, from 0 on.
    distances: From the period before, without labels, of the periods 1 to
      num_periods, [num_periods, num_clients] float64.
    drifted: Whether the distribution is not that of the period before, likewise
      bool. Nothing that clients do depends on it.
  """

  drawn: periods.Periods
  distances: np.ndarray
  drifted: np.ndarray


class Inference(NamedTuple):
  """What use on a stream gives, each [num_periods, num_clients].

  Attributes:
    accuracy: Of each client with the model in use, in percent.
    distances: See `Stream`.
    drifted: See `Stream`.
    detected: Whether the distance is above the threshold.
    requested: Whether the client was sent another model.
  """

  accuracy: np.ndarray
  distances: np.ndarray
  drifted: np.ndarray
  detected: np.ndarray
  requested: np.ndarray


class DynamicResult(NamedTuple):
  """What a run gives.

  Attributes:
    validation_accuracy: VACC, in percent.
    inferences: By the name of the stream's distribution.
    seconds_per_round: The mean duration of a round of training, without the
      drawing of data and r.
  """

  validation_accuracy: float
  inferences: Mapping[str, Inference]
  seconds_per_round: float


def batches(drawn: periods.Periods, period: int) -> list[streams.Examples]:
  """Returns the examples of all clients in a period."""
  return [drawn.batch(client, period) for client in range(drawn.num_clients)]


def takes_representation(algorithm: process.FederatedAlgorithm) -> bool:
  """Tells whether clients train on a `PeriodData`, which has an r."""
  data_at_clients = algorithm.phases[0].type_signature.parameter[2]
  return data_at_clients.member.python_container is period_data.PeriodData


def training_data(
    algorithm: process.FederatedAlgorithm,
    drawn: periods.Periods,
    period: int,
    represent: _Represent | None,
    run_seed: int,
) -> list[Any]:
  """Returns what each client trains on in a period.

  Args:
    algorithm: The algorithm; it fixes the kind of data, not the examples.
    drawn: The periods.
    period: The period, from 0.
    represent: Examples to r. None where the algorithm takes none.
    run_seed: Fixes the clients' batches.

  Returns:
    A `PeriodData` for each client where `takes_representation`, else a
    `ClientData`.
  """
  data = guidance.training_data(batches(drawn, period), run_seed)
  if not takes_representation(algorithm):
    return data
  return [period_data.PeriodData(*each, represent(each.x)) for each in data]


def train(
    algorithm: process.FederatedAlgorithm,
    drawn: periods.Periods,
    represent: _Represent | None,
    *,
    num_rounds: int,
    run_seed: int,
    participation: float = 1.0,
    on_round: Callable[[int, float], None] = lambda round_num, loss: None,
) -> rounds.Rounds:
  """Trains an algorithm, a period in each round.

  Args:
    algorithm: The algorithm.
    drawn: The periods of training.
    represent: See `training_data`.
    num_rounds: The number of rounds, at least 1.
    run_seed: Fixes initial weights, batches and who takes part.
    participation: The share of clients in a round, above 0 and at most 1. A
      client that does not take part in a period never sees its examples.
    on_round: Called after each round with the number of rounds done and the
      mean training loss.

  Returns:
    The rounds, with the states of server and clients after the last.
  """

  def data_of(period):
    return training_data(algorithm, drawn, period, represent, run_seed)

  running = rounds.Rounds(
      algorithm, data_of(0), run_seed=run_seed, participation=participation
  )
  for done in range(1, num_rounds + 1):
    loss = running.step()["loss"]
    on_round(done, float(loss))
    if done < num_rounds:
      running.data = data_of(done)
  return running


class Clients:
  """The clients of a federation in use, each with a model of its own."""

  def __init__(self, running: rounds.Rounds, represent: _Represent | None):
    """Takes over the states after training.

    Args:
      running: The rounds, of an algorithm that was built with
        `num_evaluation_domains` as many as there are clients; they stay as they
        are.
      represent: See `training_data`.

    Raises:
      ValueError: If the algorithm was built otherwise.
    """
    algorithm = running.algorithm
    self._states = list(running.client_states)
    to_predict = algorithm.evaluate_clients.type_signature.parameter[3].member
    if list(to_predict.domain_sizes.shape) != [len(self._states)]:
      raise ValueError(
          f"num_evaluation_domains of {algorithm.name} must be"
          f" {len(self._states)}, the number of clients, got"
          f" {to_predict.domain_sizes.shape[0]}"
      )
    self._running = running
    self._represent = represent

  def accuracies(self, examples: Sequence[streams.Examples]) -> np.ndarray:
    """Lets each client predict its own examples with its own model.

    Args:
      examples: The examples of each client, at least one of each.

    Returns:
      Percent, [num_clients] float64.
    """
    # Accuracies come as means over clients, for each domain: a domain of which
    # one client alone has examples gives the accuracy of that client.
    sizes = np.diag([len(each.y) for each in examples]).astype(np.int32)
    metrics = self._running.algorithm.evaluate_clients(
        self._running.server_state,
        self._states,
        self._running.data,
        [
            local_training.ClientData(
                x=each.x,
                y=each.y,
                domain_sizes=sizes[client],
                # Predictions draw nothing.
                seed=np.zeros(randomness.SEED_SHAPE, np.int32),
                client_id=np.int32(client),
            )
            for client, each in enumerate(examples)
        ],
    )
      # Multiplied in float32, so that a share such as 0.15 gives 15.
    percent = np.float32(100) * np.asarray(metrics["accuracy"], np.float32)
    return percent.astype(np.float64)

  def request(
      self, examples: Sequence[streams.Examples], wanted: np.ndarray
  ) -> np.ndarray:
    """Lets clients ask for another model, with the r of what they have met.

    Args:
      examples: The examples of each client.
      wanted: Who would ask, [num_clients] bool.

    Returns:
      Who was answered, [num_clients] bool: nobody where the algorithm has no
      answer, and else who asked.
    """
    algorithm = self._running.algorithm
    if algorithm.request is None:
      return np.zeros(len(examples), bool)
    for client in np.flatnonzero(wanted):
      self._states[client] = algorithm.request(
          self._running.server_state, self._represent(examples[client].x)
      )
    return np.array(wanted)


def validate(
    running: rounds.Rounds,
    drawn: periods.Periods,
    represent: _Represent | None,
) -> float:
  """Measures VACC, the accuracy on iid periods.

  Args:
    running: See `Clients`.
    drawn: Periods of examples held out; iid.
    represent: See `training_data`.

  Returns:
    Percent, the mean over clients and periods.
  """
  clients = Clients(running, represent)
  clients.request(batches(drawn, 0), np.ones(drawn.num_clients, bool))
  return float(
      np.mean([
          clients.accuracies(batches(drawn, period))
          for period in range(1, NUM_VALIDATION_PERIODS + 1)
      ])
  )


def measure_stream(
    drawn: periods.Periods,
    num_periods: int,
    instruments: instruments_lib.Instruments,
    on_period: Callable[[int], None] = lambda period: None,
) -> Stream:
  """Measures how far clients move, which no algorithm has a part in.

  Args:
    drawn: The periods.
    num_periods: The number of periods after period 0.
    instruments: Gives the distance.
    on_period: Called after each period with its number.

  Returns:
    The stream.
  """
  before, distances = None, []
  for period in range(num_periods + 1):
    now = [instruments.features(each.x) for each in batches(drawn, period)]
    if before is not None:
      distances.append(list(map(instruments.distance, now, before)))
      on_period(period)
    before = now
  drifted = [
      [drawn.is_drift(client, period) for client in range(drawn.num_clients)]
      for period in range(1, num_periods + 1)
  ]
  return Stream(drawn, np.array(distances), np.array(drifted))


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
  """Uses a trained algorithm on a stream.

  Args:
    running: See `Clients`. They stay as they are: another stream finds the
      states after training.
    stream: The stream.
    represent: See `training_data`.
    threshold: DT: a greater distance is a drift.
    apply_update: One of `APPLY_UPDATES`.
    on_period: Called after each period with its number, from 1, and the
      accuracy of each client.

  Returns:
    What was measured.

  Raises:
    ValueError: If `apply_update` is unknown.
  """
  if apply_update not in APPLY_UPDATES:
    raise ValueError(
        f"apply_update must be one of {', '.join(APPLY_UPDATES)}, got"
        f" {apply_update!r}"
    )
  clients = Clients(running, represent)
  clients.request(
      batches(stream.drawn, 0), np.ones(stream.drawn.num_clients, bool)
  )
  detected = stream.distances > threshold
  accuracy, requested = [], []
  for period, drifting in enumerate(detected, start=1):
    examples = batches(stream.drawn, period)
    found = clients.accuracies(examples)
    answered = clients.request(examples, drifting)
    if apply_update == "current" and answered.any():
      found = clients.accuracies(examples)
    accuracy.append(found)
    requested.append(answered)
    on_period(period, found)
  return Inference(
      np.array(accuracy),
      stream.distances,
      stream.drifted,
      detected,
      np.array(requested),
  )
