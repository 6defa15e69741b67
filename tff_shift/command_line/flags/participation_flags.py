"""Participation: which clients a round samples, and which of them report."""

from __future__ import annotations

import dataclasses
from typing import Any
from typing import TYPE_CHECKING

from absl import flags

from tff_shift._util import arguments
from tff_shift.command_line import configuration

if TYPE_CHECKING:
  from tff_shift.simulation.engine import participation

GROUP = "training"

FLAGS = flags.FLAGS

_UNIFORM = "uniform"
_BY_SIZE = "by_size"
_BY_AVAILABILITY = "by_availability"
_BY_LOSS = "by_loss"
_IN_TURN = "in_turn"
_POISSON = "poisson"
_SAMPLERS = _UNIFORM, _POISSON, _IN_TURN, _BY_SIZE, _BY_AVAILABILITY, _BY_LOSS
# The sampler that each flag belongs to.
_OWNERS = {
  "availability_period": _BY_AVAILABILITY,
  "availability_share": _BY_AVAILABILITY,
  "loss_candidates": _BY_LOSS,
}
_REPORTING = "dropout_rate", "over_selection", "report_deadline"
_PERIOD = 24.0
_SHARE = 0.5
# The number of candidates per sampled client.
_CANDIDATES = 2
# What a sampler reveals to the server although the aggregator hides it.
_REVEALED = {
  _BY_SIZE: "the number of examples of each client",
  _BY_LOSS: "the loss and the number of examples of each client",
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Configuration(configuration.Configuration):
  """The flags of participation."""

  client_sampling: str = configuration.setting(
    _UNIFORM,
    "How the clients of a round are sampled: uniform; poisson, independently,"
    " so that the cohort size varies (only with dp); in_turn, in a fixed"
    " random order, again and again; by_size, with"
    " probabilities proportional to numbers of examples; by_availability,"
    " uniformly among the clients that are available in the round; by_loss, the"
    " clients with the highest last training losses (power of choice).",
    choices=_SAMPLERS,
  )
  availability_period: float | None = configuration.setting(
    None,
    "Number of rounds after which the availability of a client repeats."
    f" Default: {_PERIOD:g}. ({_BY_AVAILABILITY})",
    above=0,
  )
  availability_share: float | None = configuration.setting(
    None,
    "Fraction of a period in which a client is available, above 0 and at most"
    f" 1. Default: {_SHARE:g}. ({_BY_AVAILABILITY})",
    above=0,
    maximum=1,
  )
  loss_candidates: int | None = configuration.setting(
    None,
    "Number of clients, drawn as by_size, whose losses are compared. Default:"
    f" {_CANDIDATES} per sampled client, at most all clients. ({_BY_LOSS})",
  )
  dropout_rate: float = configuration.setting(
    0.0,
    "Probability that a sampled client fails in a round, at least 0 and below"
    " 1. A round in which no client reports is abandoned.",
    minimum=0,
    below=1,
  )
  over_selection: float = configuration.setting(
    1.0,
    "Number of sampled clients over the cohort size, at least 1. The first"
    " clients of a cohort size that finish report; the others are left out.",
    minimum=1,
  )
  report_deadline: float | None = configuration.setting(
    None,
    "Duration, in medians of a client's duration, after which clients can no"
    " longer report. Durations are log-normal with sigma 1. Default: none.",
    above=0,
  )

  def check_together(self) -> None:
    """Refuses flags of another sampler."""
    super().check_together()
    for flag, owner in _OWNERS.items():
      if getattr(self, flag) is not None and self.client_sampling != owner:
        raise ValueError(
          f"--{flag} belongs to --client_sampling={owner}, not to"
          f" --client_sampling={self.client_sampling}"
        )


def _names() -> tuple[str, ...]:
  return ("client_sampling", *_OWNERS, *_REPORTING)


def given() -> list[str]:
  """Returns the flags with another value than the default."""
  return [name for name in _names() if FLAGS[name].value != FLAGS[name].default]


def check() -> None:
  """Checks the sampler against the aggregator.

  Raises:
    ValueError: If a flag is wrong.
  """
  name = FLAGS.client_sampling
  if FLAGS.aggregator == "dp" and name not in (_UNIFORM, _POISSON):
    raise ValueError(
      f"--client_sampling={name} is not allowed with --aggregator=dp: epsilon"
      " is computed for uniform and poisson"
    )
  if name == _POISSON:
    if FLAGS.aggregator != "dp":
      raise ValueError(
        f"--client_sampling={name} is not allowed with"
        f" --aggregator={FLAGS.aggregator}: it must be dp, whose epsilon needs"
        " independent clients"
      )
    for flag in {*given()} & {*_REPORTING}:
      raise ValueError(
        f"--{flag} is not allowed with --client_sampling={name}: epsilon is"
        " computed for clients that take part independently"
      )
  if FLAGS.aggregator == "dp_ftrl" and name not in (_UNIFORM, _IN_TURN):
    raise ValueError(
      f"--client_sampling={name} is not allowed with --aggregator=dp_ftrl,"
      " whose epsilon does not cover what it reveals: it must be in_turn or"
      " uniform"
    )
  if FLAGS.aggregator == "dp_ftrl" and name == _IN_TURN:
    for flag in {*given()} & {*_REPORTING}:
      raise ValueError(
        f"--{flag} is not allowed with --aggregator=dp_ftrl and"
        f" --client_sampling={name}: a round without reports is no leaf of the"
        " tree, and epsilon is computed for a fixed number of leaves between"
        " the rounds of a client"
      )
  if FLAGS.aggregator == "secure" and name in _REVEALED:
    raise ValueError(
      f"--client_sampling={name} is not allowed with --aggregator=secure: the"
      f" server would see {_REVEALED[name]}"
    )


def check_cohort() -> None:
  """Checks the flags against the number of clients, which data may define.

  Raises:
    ValueError: If a flag is wrong or has no effect.
  """
  num_clients, num_selected = FLAGS.num_clients, _num_selected()
  if FLAGS.over_selection > 1 and _num_sampled() == num_clients:
    raise ValueError(
      f"--over_selection={FLAGS.over_selection:g} has no effect: a cohort"
      f" already has all {num_clients} clients; lower --participation"
    )
  name = FLAGS.client_sampling
  if name in (_IN_TURN, _BY_SIZE, _BY_LOSS) and num_selected == num_clients:
    raise ValueError(
      f"--client_sampling={name} has no effect: all {num_clients} clients are"
      " sampled in each round; lower --participation"
    )
  if FLAGS.loss_candidates is not None:
    arguments.integer(
      "--loss_candidates", FLAGS.loss_candidates, num_selected, num_clients
    )


def is_poisson() -> bool:
  """Returns whether each client takes part independently."""
  return FLAGS.client_sampling == _POISSON


def separation(num_clients: int, clients_per_round: int) -> int:
  """Returns the least difference of two rounds of a client."""
  if FLAGS.client_sampling != _IN_TURN:
    return 1
  return num_clients // clients_per_round


def settings() -> dict[str, Any]:
  """Returns the sampler and who reports, by flag; empty for the defaults."""
  name = FLAGS.client_sampling
  found = {} if name == _UNIFORM else {"client_sampling": name}
  if name == _BY_AVAILABILITY:
    found |= {"availability_period": _period(), "availability_share": _share()}
  if name == _BY_LOSS:
    found["loss_candidates"] = _num_candidates()
  return found | {
    flag: FLAGS[flag].value for flag in _REPORTING if flag in given()
  }


def needs_losses() -> bool:
  """Returns the argument `reports_losses` of `algorithms.build`."""
  return FLAGS.client_sampling == _BY_LOSS


def chosen() -> dict[str, Any]:
  """Returns the arguments of a driver: participation, sampler and reporting."""
  from tff_shift.simulation.engine import participation

  samplers = {
    _UNIFORM: lambda: participation.uniform,
    _POISSON: lambda: participation.poisson(_num_sampled() / FLAGS.num_clients),
    _IN_TURN: lambda: participation.in_turn,
    _BY_SIZE: lambda: participation.by_size,
    _BY_AVAILABILITY: lambda: participation.by_availability(
      _period(), _share()
    ),
    _BY_LOSS: lambda: participation.by_loss(_num_candidates()),
  }
  return {
    "participation": FLAGS.participation,
    "sampler": samplers[FLAGS.client_sampling](),
    "reporting": _reporting(),
  }


def _reporting() -> participation.Reporting | None:
  """Returns which clients report; None: all of them."""
  from tff_shift.simulation.engine import participation

  if not {*given()} & {*_REPORTING}:
    return None
  return participation.Reporting(
    FLAGS.dropout_rate, FLAGS.over_selection, FLAGS.report_deadline
  )


def _num_sampled() -> int:
  """Returns the cohort size."""
  from tff_shift.simulation.engine import rounds

  return rounds.num_sampled(FLAGS.num_clients, FLAGS.participation)


def _num_selected() -> int:
  """Returns the number of clients to sample, with over-selection."""
  reporting = _reporting()
  if reporting is None:
    return _num_sampled()
  return reporting.num_selected(_num_sampled(), FLAGS.num_clients)


def _period() -> float:
  given_period = FLAGS.availability_period
  return _PERIOD if given_period is None else given_period


def _share() -> float:
  given_share = FLAGS.availability_share
  return _SHARE if given_share is None else given_share


def _num_candidates() -> int:
  if FLAGS.loss_candidates is not None:
    return FLAGS.loss_candidates
  return min(_CANDIDATES * _num_selected(), FLAGS.num_clients)
