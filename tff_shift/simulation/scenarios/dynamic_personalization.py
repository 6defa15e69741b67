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

import contextlib
import functools
from collections.abc import Callable
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any
from typing import NamedTuple

import numpy as np

from tff_shift import arguments
from tff_shift.data import examples as examples_lib
from tff_shift.data.shifts import dynamic_personalization
from tff_shift.learning import algorithm as algorithm_lib
from tff_shift.learning import local_training
from tff_shift.learning import periods as period_data
from tff_shift.shift import choices
from tff_shift.simulation.engine import checkpoints
from tff_shift.simulation.engine import checks
from tff_shift.simulation.engine import client_data
from tff_shift.simulation.engine import rounds
from tff_shift.simulation.scenarios import deployment
from tff_shift.simulation.scenarios import drift_detector as instruments_lib
from tff_shift.simulation.storage import results

APPLY_UPDATES = choices.APPLY_UPDATES

# So many iid periods of each client give the validation accuracy.
NUM_VALIDATION_PERIODS = 10

_Represent = deployment.Represent


class Stream(NamedTuple):
  """What clients meet in use, and how far it is from what they met before.

  Attributes:
    drawn: The periods of all clients, from 0 on.
    distances: From the period before, without labels, of the periods 1 to
      num_periods, [num_periods, num_clients] float64.
    drifted: Whether the distribution is not that of the period before, likewise
      bool. Nothing that clients do depends on it.
  """

  drawn: dynamic_personalization.Periods
  distances: np.ndarray
  drifted: np.ndarray


class Inference(NamedTuple):
  """What use on a stream gives, each [num_periods, num_clients].

  Attributes:
    measured: The metrics of `evaluation.METRICS` of each client with the model
      in use, by name.
    distances: See `Stream`.
    drifted: See `Stream`.
    detected: Whether the distance is above the threshold.
    requested: Whether the client was sent another model.
  """

  measured: Mapping[str, np.ndarray]
  distances: np.ndarray
  drifted: np.ndarray
  detected: np.ndarray
  requested: np.ndarray

  @property
  def accuracy(self) -> np.ndarray:
    """In percent, [num_periods, num_clients]."""
    return self.measured["accuracy"]

  def of_period(self, period: int) -> dict[str, float | int]:
    """Returns the means over the clients in a period, from 1, by name."""
    index = period - 1
    return {
      **{
        name: float(np.mean(values[index]))
        for name, values in self.measured.items()
      },
      "distance": float(np.mean(self.distances[index])),
      "drifted_share": 100 * float(np.mean(self.drifted[index])),
      "detected_share": 100 * float(np.mean(self.detected[index])),
      "requests": int(np.sum(self.requested[index])),
    }


class DynamicResult(NamedTuple):
  """What a run gives.

  Attributes:
    validation_accuracy: VACC, in percent.
    inferences: By the name of the stream's distribution.
    seconds_per_round: The mean duration of a round of training, without the
      drawing of data and r.
    num_diverged: How often the work of a client was left out, see `phases`.
    server_state: The server's state at the end; None where it was not kept.
    client_states: The clients' states at the end, by client: a sequence that
      draws the first state of who never took part when it is asked for. None
      where a storage keeps them in a file.
  """

  validation_accuracy: float
  inferences: Mapping[str, Inference]
  seconds_per_round: float
  num_diverged: int = 0
  server_state: Any = None
  client_states: Sequence[Any] | None = None

  def __repr__(self):
    found = {
      f"accuracy_{name}": float(np.mean(inference.accuracy))
      for name, inference in self.inferences.items()
    }
    return results.short_repr(
      self, validation_accuracy=self.validation_accuracy, **found
    )


def batches(
  drawn: dynamic_personalization.Periods, period: int
) -> list[examples_lib.Examples]:
  """Returns the examples of all clients in a period."""
  return [drawn.batch(client, period) for client in range(drawn.num_clients)]


def takes_representation(algorithm: algorithm_lib.FederatedAlgorithm) -> bool:
  """Tells whether clients train on a `PeriodData`, which has an r."""
  data_at_clients = algorithm.phases[0].type_signature.parameter[2]
  return data_at_clients.member.python_container is period_data.PeriodData


def training_data(
  algorithm: algorithm_lib.FederatedAlgorithm,
  drawn: dynamic_personalization.Periods,
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

  Raises:
    ValueError: The examples are not what the algorithm takes.
  """
  door = client_data.ClientDataValidator(algorithm)
  examples = [
    door.examples(each, client)
    for client, each in enumerate(batches(drawn, period))
  ]
  data = client_data.training_data(examples, run_seed)
  if not takes_representation(algorithm):
    return data
  return [period_data.PeriodData(*each, represent(each.x)) for each in data]


def train(
  algorithm: algorithm_lib.FederatedAlgorithm,
  drawn: dynamic_personalization.Periods,
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

  Raises:
    ValueError: If an argument is not allowed, or examples are not what the
      algorithm takes.
  """
  num_rounds = arguments.integer("num_rounds", num_rounds)
  running, data_of = _start(
    algorithm, drawn, represent, run_seed, participation, on_round
  )
  for done in range(1, num_rounds + 1):
    running.data = data_of(done)
    running.step()
  return running


def _start(
  algorithm: algorithm_lib.FederatedAlgorithm,
  drawn: dynamic_personalization.Periods,
  represent: _Represent | None,
  run_seed: int,
  participation: float,
  on_round: Callable[[int, float], None],
  checkpoint: checkpoints.Run | None = None,
) -> tuple[rounds.Rounds, Callable[[int], list[Any]]]:
  """Returns the rounds before the first, and the data of a round, from 1."""
  _check_algorithm(algorithm)
  run_seed = arguments.seed("run_seed", run_seed)
  participation = arguments.participation(participation)
  _check_periods("training", drawn)
  arguments.functions(on_round=on_round)
  if takes_representation(algorithm):
    arguments.functions(represent=represent)

  # To draw a period and its r may take longer than to train on it.
  @functools.lru_cache(maxsize=1)
  def data_of(round_num):
    return training_data(algorithm, drawn, round_num - 1, represent, run_seed)

  running = rounds.Rounds(
    algorithm,
    data_of(1),
    run_seed=run_seed,
    participation=participation,
    storage=checkpoint and checkpoint.storage,
    on_loss=on_round,
  )
  return running, data_of


def validate(
  running: rounds.Rounds,
  drawn: dynamic_personalization.Periods,
  represent: _Represent | None,
) -> float:
  """Measures VACC, the accuracy on iid periods.

  Args:
    running: See `deployment.Clients`.
    drawn: Periods of examples held out; iid.
    represent: See `training_data`.

  Returns:
    Percent, the mean over clients and periods.

  Raises:
    ValueError: See `deployment.Clients`; or there are other clients.
  """
  _check_clients("drawn", drawn, len(running.data))
  clients = deployment.Clients(running, represent)
  clients.request(batches(drawn, 0), np.ones(drawn.num_clients, bool))
  return float(
    np.mean(
      [
        clients.measure(batches(drawn, period))["accuracy"]
        for period in range(1, NUM_VALIDATION_PERIODS + 1)
      ]
    )
  )


def measure_stream(
  drawn: dynamic_personalization.Periods,
  num_periods: int,
  instruments: instruments_lib.Instruments,
  on_period: Callable[[int], None] = lambda period: None,
) -> Stream:
  """Measures how far clients move, which no algorithm has a part in.

  Args:
    drawn: The periods.
    num_periods: The number of periods after period 0, at least 1.
    instruments: Gives the distance.
    on_period: Called after each period with its number.

  Returns:
    The stream.

  Raises:
    ValueError: If `num_periods` is not allowed, or a client's examples are
      none, or not like those of client 0 in period 0.
  """
  num_periods = arguments.integer("num_periods", num_periods)
  _check_periods("drawn", drawn)
  shape, before, distances = None, None, []
  for period in range(num_periods + 1):
    now = []
    for client, each in enumerate(batches(drawn, period)):
      x = client_data.inputs(each, f"client {client}, period {period}", shape)
      shape = x.shape[1:]
      now.append(instruments.features(x))
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
    running: See `deployment.Clients`. They stay as they are: another stream
      finds the states after training.
    stream: The stream.
    represent: See `training_data`.
    threshold: DT: a greater distance is a drift. Infinite: there is none.
    apply_update: One of `APPLY_UPDATES`.
    on_period: Called after each period with its number, from 1, and the
      accuracy of each client.

  Returns:
    What was measured.

  Raises:
    ValueError: If an argument is not allowed; see `deployment.Clients`.
  """
  threshold = _checked_threshold(threshold, apply_update)
  arguments.has("stream", stream, Stream._fields, "a Stream")
  arguments.sequence("stream.distances", stream.distances, what="period")
  _check_clients("stream", stream.drawn, len(running.data))
  clients = deployment.Clients(running, represent)
  clients.request(
    batches(stream.drawn, 0), np.ones(stream.drawn.num_clients, bool)
  )
  detected = stream.distances > threshold
  measured, requested = [], []
  for period, drifting in enumerate(detected, start=1):
    examples = batches(stream.drawn, period)
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
  )


def _check_algorithm(algorithm: algorithm_lib.FederatedAlgorithm) -> None:
  """Refuses what cannot be trained in periods."""
  checks.algorithm(algorithm)
  checks.trains(algorithm)
  checks.data_kind(algorithm, local_training.ClientData, period_data.PeriodData)


def _check_periods(name: str, drawn: Any) -> None:
  """Refuses what draws no periods."""
  arguments.has(name, drawn, ["batch", "num_clients"], "a periods.Periods")


def _checked_threshold(threshold: float, apply_update: str) -> float:
  """Checks how drifts are found and what becomes of them."""
  arguments.choice("apply_update", apply_update, APPLY_UPDATES)
  return instruments_lib.checked_threshold(threshold)


def _check_clients(
  name: str, drawn: dynamic_personalization.Periods, num_clients: int
) -> None:
  """Refuses periods of other clients than those that are trained."""
  _check_periods(name, drawn)
  if drawn.num_clients != num_clients:
    raise ValueError(
      f"{name} must have periods of {num_clients} clients, as training has, got"
      f" {drawn.num_clients}"
    )


class _Used(NamedTuple):
  """Use on a stream, with all that is told and kept of it."""

  distribution: str
  validation_accuracy: float
  inference: Inference

  @classmethod
  def make(cls, *, inference: dict[str, np.ndarray], **fields):
    return cls(inference=Inference(**inference), **fields)


def run(
  algorithm: algorithm_lib.FederatedAlgorithm,
  training: dynamic_personalization.Periods,
  validation: dynamic_personalization.Periods,
  met: Mapping[str, Stream],
  represent: _Represent | None,
  *,
  num_rounds: int,
  run_seed: int,
  threshold: float,
  participation: float = 1.0,
  apply_update: str = "next",
  on_round: Callable[[int, float], None] = lambda round_num, loss: None,
  on_period: Callable[[str, int, np.ndarray], None] = (
    lambda distribution, period, accuracy: None
  ),
  on_stream: Callable[[str, Inference], None] = (
    lambda distribution, inference: None
  ),
  on_end: Callable[[rounds.Rounds], None] = lambda running: None,
  checkpoint: checkpoints.Run | None = None,
) -> DynamicResult:
  """Trains an algorithm, validates it, and uses it on streams.

  Args:
    algorithm: The algorithm.
    training: See `train`.
    validation: See `validate`.
    met: The streams by the names of their distributions. Without one, the
      algorithm is trained and validated.
    represent: See `training_data`.
    num_rounds: See `train`.
    run_seed: Fixes initial weights, batches and who takes part.
    threshold: See `infer`.
    participation: The share of clients in a round.
    apply_update: See `infer`.
    on_round: See `train`.
    on_period: Called as that of `infer`, after the name of the stream.
    on_stream: Called with the name of each stream and what use on it gave.
    on_end: Called once, at the end, with the rounds: the states of the server
      and of the clients can be had there, also of those in a file. A run that
      was finished and goes on calls it again.
    checkpoint: Where the run is saved, and goes on if it was stopped or had
      fewer rounds; a stream counts as a step, as a round does. Then `on_round`
      is first called for the rounds of before, and `on_stream` for the streams,
      unless more rounds follow.

  Returns:
    What was measured.

  Raises:
    ValueError: If an argument is not allowed, or examples are not what the
      algorithm takes.
  """
  _check_algorithm(algorithm)
  checks.checkpoint(checkpoint)
  arguments.functions(
    on_round=on_round, on_period=on_period, on_stream=on_stream, on_end=on_end
  )
  num_rounds = arguments.integer("num_rounds", num_rounds)
  threshold = _checked_threshold(threshold, apply_update)
  _check_periods("training", training)
  deployment.check_domains(algorithm, training.num_clients)
  _check_clients("validation", validation, training.num_clients)
  for distribution, stream in met.items():
    arguments.has(distribution, stream, Stream._fields, "a Stream")
    _check_clients(f"stream {distribution}", stream.drawn, training.num_clients)
  running, data_of = _start(
    algorithm,
    training,
    represent,
    run_seed,
    participation,
    on_round,
    checkpoint,
  )
  used = []

  def revise(step):
    if running.round_num > num_rounds:
      raise checkpoints.too_long(running.round_num, num_rounds, "rounds")
    if running.round_num < num_rounds:
      # What fewer rounds gave was used, which has left no trace in the states.
      used.clear()
      return running.round_num
    return step

  with contextlib.closing(running):
    for step in checkpoints.steps(
      checkpoint,
      num_rounds + len(met),
      running,
      used,
      make=_Used.make,
      replay=lambda each: on_stream(each.distribution, each.inference),
      revise=revise,
    ):
      running.data = data_of(min(step, num_rounds))
      if step <= num_rounds:
        running.step()
        continue
      distribution = list(met)[len(used)]
      validation_accuracy = (
        used[0].validation_accuracy
        if used
        else validate(running, validation, represent)
      )
      inference = infer(
        running,
        met[distribution],
        represent,
        threshold=threshold,
        apply_update=apply_update,
        on_period=functools.partial(on_period, distribution),
      )
      used.append(_Used(distribution, validation_accuracy, inference))
      on_stream(distribution, inference)
    # Also for a finished run that goes on.
    running.data = data_of(num_rounds)
    if not met:
      validation_accuracy = validate(running, validation, represent)
    on_end(running)
  return DynamicResult(
    used[0].validation_accuracy if used else validation_accuracy,
    {each.distribution: each.inference for each in used},
    running.seconds_per_round,
    running.num_diverged,
    *running.kept_states(),
  )
