"""Participation: which clients a round samples, and which of them report.

A sampler is a function from `Known`, what the server knows before a round, to
the ids of the sampled clients. `Reporting` simulates clients that fail or are
late. All are pure functions of the run's seed, the round and what is known, so
that a resumed run has the same cohorts as an uninterrupted one.

Examples:
  >>> known = ts.participation.Known(
  ...   run_seed=0, round_num=0, num_clients=6, num_sampled=2,
  ...   sizes=lambda: np.ones(6, np.int64), losses=None,
  ... )
  >>> rounds = [known._replace(round_num=number) for number in range(3)]
  >>> sorted(sum(map(ts.participation.in_turn, rounds), []))
  [0, 1, 2, 3, 4, 5]

Choices:
  * Durations are log-normal with sigma 1, independent of a client's examples:
    the sources give no distribution, and with fixed slow clients a deadline
    would be a bias that the data do not have.
  * `by_loss` compares the last reported losses (rpow-d), because asking
    candidates for the loss of the current model costs a download each.
  * With your own drift, an absent client is left out before the sampler is
    asked (`Rounds.present`): the cohort size is a fraction of the clients that
    are present, and a client's state is only drawn when it joins, from the
    server's state at that time.
"""

import dataclasses
import itertools
import math
from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Sequence
from typing import Any
from typing import NamedTuple

import numpy as np

from tff_shift._util import arguments
from tff_shift.learning import randomness

# Digits of a product of decimal fractions that are not rounding errors.
_DIGITS = 9


class Known(NamedTuple):
  """What the server knows before a round.

  Attributes:
    run_seed: The run's seed.
    round_num: The round, from 0.
    num_clients: The number of clients.
    num_sampled: The number of clients to sample.
    sizes: Returns the clients' numbers of examples, [num_clients] int64. The
      first call builds the data of all clients.
    losses: The last training loss that each client reported, [num_clients]
      float64; NaN if it has reported none. None: the algorithm was built
      without `reports_losses`.
    present: The ids of the clients that have data and may be sampled, ascending
      int64. None: all clients.
  """

  run_seed: int
  round_num: int
  num_clients: int
  num_sampled: int
  sizes: Callable[[], np.ndarray]
  losses: np.ndarray | None
  present: np.ndarray | None = None


# A sampler returns at least one id of a present client. It needs losses if it
# has an attribute `needs_losses` that is true, and may return no id if it has
# an attribute `may_be_empty` that is true.
Sampler = Callable[[Known], Sequence[int]]


def uniform(known: Known) -> list[int]:
  """Samples clients uniformly, without replacement.

  The time depends only on the number of sampled clients, unless more than 1 in
  50 of more than 10,000 clients are sampled.

  Args:
    known: What the server knows.

  Returns:
    The ids of `num_sampled` clients, ascending.
  """
  if known.present is None:
    return sample_uniformly(
      known.num_clients, known.num_sampled, known.run_seed, known.round_num
    )
  chosen = sample_uniformly(
    len(known.present), known.num_sampled, known.run_seed, known.round_num
  )
  return _ascending(known.present[chosen])


def sample_uniformly(
  num_clients: int, num_sampled: int, run_seed: int, round_num: int
) -> list[int]:
  """Samples clients as `uniform` does."""
  chosen = _generator(run_seed, round_num).choice(
    num_clients, size=num_sampled, replace=False
  )
  return _ascending(chosen)


def poisson(probability: float) -> Sampler:
  """Returns a sampler by which clients take part independently.

  The epsilon of `dp` for adding or removing a client is for this sampling. The
  cohort size varies around `probability` times the number of clients, and may
  be 0: such a round has noise alone. The time of a round is O(N).

  Args:
    probability: The probability that a client takes part in a round, above 0
      and at most 1. The draw of a client depends only on the run's seed, the
      round and the client's id.

  Returns:
    A sampler.

  Raises:
    ValueError: If an argument is not allowed.
  """
  probability = arguments.number(
    "probability",
    probability,
    "above 0 and at most 1",
    lambda value: 0 < value <= 1,
  )

  def sample(known: Known) -> list[int]:
    draws = _generator(known.run_seed, known.round_num).random(
      known.num_clients
    )
    clients = np.flatnonzero(draws < probability)
    if known.present is not None:
      clients = clients[np.isin(clients, known.present)]
    return _ascending(clients)

  # A function can have attributes, which its type does not show.
  sample.may_be_empty = True  # type: ignore[attr-defined]
  return sample


def in_turn(known: Known) -> list[int]:
  """Samples clients in a fixed random order, again and again.

  Cohorts of m of N clients contain a client at most once in floor(N / m)
  successive rounds, as long as no client is absent. The time and memory of a
  round are O(N).

  Args:
    known: What the server knows.

  Returns:
    The ids of `num_sampled` clients, ascending.
  """
  order = _generator(known.run_seed, 0).permutation(known.num_clients)
  if known.present is not None:
    order = order[np.isin(order, known.present)]
  start = known.round_num * known.num_sampled
  return _ascending(
    order[(start + each) % len(order)] for each in range(known.num_sampled)
  )


def by_size(known: Known) -> list[int]:
  """Samples clients with probabilities proportional to their examples.

  Clients are drawn one after the other, without replacement. Clients without
  examples are only sampled, uniformly, if there are too few others.

  Args:
    known: What the server knows.

  Returns:
    The ids of `num_sampled` clients, ascending.
  """
  return _ascending(_order_by_size(known)[: known.num_sampled])


def repeated(sampler: Sampler, period: int) -> Sampler:
  """Returns a sampler that repeats the cohorts of the first rounds.

  Args:
    sampler: Samples the first cohorts.
    period: The number of rounds after which cohorts repeat, at least 1.

  Returns:
    A sampler: it samples as in round `round_num` mod `period`. The cohorts
    repeat as long as the rest of what `sampler` uses stays.

  Raises:
    ValueError: If an argument is not allowed.
  """
  arguments.functions(sampler=sampler)
  period = arguments.integer("period", period)

  def sample(known: Known) -> Sequence[int]:
    return sampler(known._replace(round_num=known.round_num % period))

  # A function can have attributes, which its type does not show.
  for name in ("needs_losses", "may_be_empty"):
    setattr(sample, name, getattr(sampler, name, False))
  return sample


def by_availability(period: float, share: float) -> Sampler:
  """Returns a sampler of the clients that are available in a round.

  Availability is periodic, for example diurnal: Semi-Cyclic Stochastic Gradient
  Descent (Eichner, Koren, McMahan, Srebro, Talwar; ICML 2019); Towards
  Federated Learning at Scale: System Design (Bonawitz et al.; MLSys 2019). A
  client has a phase u, uniform in [0, 1) and constant in a run. It is available
  in round t if and only if frac(t / period + u) < share.

  Args:
    period: The number of rounds of a period, above 0.
    share: The fraction of a period in which a client is available, above 0 and
      at most 1.

  Returns:
    A sampler. It samples uniformly among the available clients, or takes all of
    them if they are at most `num_sampled`. If no client is available, it takes
    the one that becomes available next.

  Raises:
    ValueError: If an argument is not allowed.
  """
  period = arguments.number("period", period, "above 0", lambda each: each > 0)
  share = arguments.number(
    "share", share, "above 0 and at most 1", lambda each: 0 < each <= 1
  )

  def sample(known: Known) -> list[int]:
    # The remainder first: after whole periods it is the same to the last bit.
    time = math.fmod(known.round_num, period) / period
    position = (phases(known.run_seed, known.num_clients) + time) % 1.0
    if known.present is not None:
      is_absent = ~np.isin(np.arange(known.num_clients), known.present)
      # Absent clients are not available, and become so last.
      position[is_absent] = -1.0
    available = np.flatnonzero((position >= 0) & (position < share))
    if not len(available):
      # A client becomes available when its position reaches 1.
      return [int(np.argmax(position))]
    if len(available) <= known.num_sampled:
      return _ascending(available)
    chosen = _generator(known.run_seed, known.round_num).choice(
      len(available), size=known.num_sampled, replace=False
    )
    return _ascending(available[chosen])

  return sample


def phases(run_seed: int, num_clients: int) -> np.ndarray:
  """Returns the clients' phases of `by_availability`, [num_clients] float64.

  The phase of a client depends only on the run's seed and the client's id.
  """
  words = randomness.derive(run_seed, randomness.Purpose.AVAILABILITY)
  return np.random.default_rng(words.view(np.uint32)).random(num_clients)


def by_loss(num_candidates: int) -> Sampler:
  """Returns a sampler of clients with high losses, "power of choice".

  Towards Understanding Biased Client Selection in Federated Learning (Cho,
  Wang, Joshi; AISTATS 2022), the variant rpow-d: the server compares the last
  training losses that clients reported, instead of asking candidates for the
  loss of the current model.

  Candidates are drawn as in `by_size`. Those with the highest losses are
  sampled. Candidates whose loss is not known come first, in the order of the
  draw. Candidates without examples, which never report a loss, come last.

  Args:
    num_candidates: The number of candidates d, at least `num_sampled`. If it
      exceeds the number of clients, all clients are candidates.

  Returns:
    A sampler. It raises a ValueError if there are too few candidates.

  Raises:
    ValueError: If the number is not an integer of at least 1.
  """
  num_candidates = arguments.integer("num_candidates", num_candidates)

  def sample(known: Known) -> list[int]:
    if num_candidates < known.num_sampled:
      raise ValueError(
        f"num_candidates={num_candidates} is not allowed: it must be at least"
        f" {known.num_sampled}, the number of sampled clients"
      )
    candidates = _order_by_size(known)[:num_candidates]
    losses = known.losses[candidates]
    # The last key is the first one to sort by; the sort is stable.
    order = np.lexsort(
      (-losses, ~np.isnan(losses), known.sizes()[candidates] == 0)
    )
    return _ascending(candidates[order[: known.num_sampled]])

  # A function can have attributes, which its type does not show.
  sample.needs_losses = True  # type: ignore[attr-defined]
  return sample


def checked_cohort(
  chosen: Any,
  num_clients: int,
  present: np.ndarray | None = None,
  may_be_empty: bool = False,
) -> list[int]:
  """Validates the result of a sampler.

  Args:
    chosen: The result.
    num_clients: The number of clients.
    present: The clients that may be sampled. None: all.
    may_be_empty: Whether there may be no id.

  Returns:
    The ids, ascending, since the order of clients changes the bits of a mean.

  Raises:
    ValueError: If there is no id, or one is not a client's, an absent client's
      or a duplicate.
  """
  if may_be_empty and not chosen:
    return []
  arguments.sequence("the sampler's result", chosen, what="sampled client")
  found = sorted(
    arguments.integer("a client of the sampler", each, 0, num_clients - 1)
    for each in chosen
  )
  for one, other in itertools.pairwise(found):
    if one == other:
      raise ValueError(
        f"the sampler's result has client {one} twice; clients must be distinct"
      )
  for client in found if present is not None else ():
    if client not in present:
      raise ValueError(
        f"the sampler's result has client {client}, which has no data in this"
        " round; it must be one of `present`"
      )
  return found


@dataclasses.dataclass(frozen=True)
class Reporting:
  """Which of the sampled clients report their results.

  Over-selection: Towards Federated Learning at Scale: System Design (Bonawitz
  et al.; MLSys 2019). The server samples more clients than the cohort size,
  since some fail, and takes the results of the first ones that finish.

  The duration of a client's work is log-normal with median 1 and sigma 1. It is
  drawn anew for each round and does not depend on the client or its number of
  examples: the model has late clients, but no clients that are always late.

  Attributes:
    dropout_rate: The probability that a client fails after it received the
      weights, at least 0 and below 1.
    over_selection: The number of sampled clients over the cohort size, at least
      1.
    deadline: The duration after which the server no longer waits, in medians,
      above 0. None: it waits.
  """

  dropout_rate: float = 0.0
  over_selection: float = 1.0
  deadline: float | None = None

  def __post_init__(self):
    arguments.number(
      "dropout_rate",
      self.dropout_rate,
      "at least 0 and below 1",
      lambda rate: 0 <= rate < 1,
    )
    arguments.number(
      "over_selection",
      self.over_selection,
      "at least 1",
      lambda factor: factor >= 1,
    )
    if self.deadline is not None:
      arguments.number(
        "deadline", self.deadline, "above 0", lambda duration: duration > 0
      )

  def num_selected(self, num_sampled: int, num_clients: int) -> int:
    """Returns the number of clients to sample, with over-selection.

    Args:
      num_sampled: The cohort size.
      num_clients: The number of clients.

    Returns:
      `over_selection` times the cohort size, rounded up; at most all clients.
    """
    # 1.1 * 10 is above 11 only by a rounding error.
    wanted = round(self.over_selection * num_sampled, _DIGITS)
    return math.ceil(min(wanted, num_clients))

  def reporters(self, known: Known, chosen: Sequence[int]) -> list[int]:
    """Returns the sampled clients that report.

    Args:
      known: What the server knew; `num_sampled` is the cohort size, without
        over-selection.
      chosen: The ids of the sampled clients.

    Returns:
      The ids of the first `num_sampled` clients that finish before the
      deadline, ascending. None may do so.
    """
    finished = []
    for client in chosen:
      has_failed, duration = self._outcome(known, client)
      if not has_failed and (self.deadline is None or duration < self.deadline):
        finished.append((duration, client))
    return _ascending(
      [client for _, client in sorted(finished)][: known.num_sampled]
    )

  def _outcome(self, known: Known, client: int) -> tuple[bool, float]:
    """Draws whether a client fails, and the duration of its work."""
    words = randomness.derive(
      known.run_seed, randomness.Purpose.REPORT, known.round_num, client
    )
    generator = np.random.default_rng(words.view(np.uint32))
    return generator.random() < self.dropout_rate, generator.lognormal()


def _generator(run_seed: int, round_num: int) -> np.random.Generator:
  """Returns the random generator that samples the clients of a round."""
  words = randomness.derive(
    run_seed, randomness.Purpose.SAMPLE_CLIENTS, round_num
  )
  return np.random.default_rng(words.view(np.uint32))


def _order_by_size(known: Known) -> np.ndarray:
  """Returns the present clients in the order of a draw weighted by size.

  Weighted random sampling with a reservoir (Efraimidis, Spirakis; 2006): in the
  order of exponential variables whose rates are the weights.
  """
  sizes = known.sizes()
  generator = _generator(known.run_seed, known.round_num)
  keys = generator.standard_exponential(known.num_clients)
  # Those without examples follow, in uniform order.
  order = np.lexsort((keys / np.maximum(sizes, 1), sizes == 0))
  if known.present is None:
    return order
  return order[np.isin(order, known.present)]


def _ascending(clients: Iterable[Any]) -> list[int]:
  return sorted(int(client) for client in clients)
