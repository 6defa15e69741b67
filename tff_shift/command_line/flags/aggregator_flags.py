"""The flag `--aggregator` and those of its hyper-parameters."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Any
from typing import TYPE_CHECKING

from absl import flags

from tff_shift import algorithms
from tff_shift import arguments
from tff_shift.learning import hyperparameters
from tff_shift.learning.aggregators import aggregator_hparams

if TYPE_CHECKING:
  from tff_shift.learning.aggregators import factories
  from tff_shift.learning.aggregators import privacy_accounting

FLAGS = flags.FLAGS

_DEFINE = {
  bool: flags.DEFINE_bool,
  float: flags.DEFINE_float,
  str: flags.DEFINE_string,
}


def define_flags() -> None:
  """Defines the flags."""
  flags.DEFINE_string(
    "aggregator",
    "mean",
    "How the server combines updates: mean; robust (clipped and zeroed); dp"
    " (clipped, with noise for differential privacy); secure (only sums reach"
    " the server); compressed (8 bits a number).",
  )
  for field in dataclasses.fields(aggregator_hparams.AggregatorHParams):
    owners = ", ".join(aggregator_hparams.USED_BY[field.name])
    text = f"{field.metadata['help']} Default: {field.default}. ({owners})"
    _DEFINE[type(field.default)](field.name, None, text)


def _hparams() -> aggregator_hparams.AggregatorHParams:
  """Makes the hyper-parameters of the aggregator, and refuses another's."""
  values = {}
  for flag, owners in aggregator_hparams.USED_BY.items():
    value = FLAGS[flag].value
    if value is None:
      continue
    if FLAGS.aggregator not in owners:
      raise ValueError(
        f"--{flag} belongs to --aggregator={'|'.join(owners)}, not to"
        f" --aggregator={FLAGS.aggregator}"
      )
    values[flag] = value
  if "clipping_norm" in values and values.get("clipping") != "fixed":
    raise ValueError("--clipping_norm belongs to --clipping=fixed")
  return aggregator_hparams.AggregatorHParams(**values)


def check() -> None:
  """Refuses values that are wrong whatever is compared.

  Raises:
    ValueError: If there is one.
  """
  if FLAGS.aggregator not in aggregator_hparams.NAMES:
    raise ValueError(
      f"--aggregator={FLAGS.aggregator}: it must be one of"
      f" {', '.join(aggregator_hparams.NAMES)}"
      f"{arguments.did_you_mean(FLAGS.aggregator, aggregator_hparams.NAMES)}"
    )
  try:
    hyperparameters.validate(_hparams())
  except ValueError as error:
    raise ValueError(f"--{str(error).removeprefix('--')}") from error


def settings() -> dict[str, Any]:
  """Returns the aggregator and what of its hyper-parameters it uses, by flag.

  Raises:
    ValueError: If a flag is wrong.
  """
  hparams = dataclasses.asdict(_hparams())
  used = {
    name: value
    for name, value in hparams.items()
    if FLAGS.aggregator in aggregator_hparams.USED_BY[name]
  }
  if used.get("clipping") != "fixed":
    used.pop("clipping_norm", None)
  return {"aggregator": FLAGS.aggregator, **used}


def chosen(
  trials: Iterable[tuple[str, Any]],
  *,
  num_clients: int,
  participation: float,
  num_rounds: int,
) -> dict[str, factories.Aggregator | None]:
  """Returns the aggregator of the flags for each algorithm, checked.

  With `dp` it prints what the noise guarantees.

  Args:
    trials: The algorithms' names with their hyper-parameters; a name may
      come more than once.
    num_clients: The number of clients.
    participation: The share of them in a round.
    num_rounds: The number of rounds of a run.

  Returns:
    What `build` takes as `aggregator`, by the algorithm's name; None for those
    that share nothing.

  Raises:
    ValueError: If a flag is wrong, an algorithm cannot do with the aggregator,
      or none of the algorithms shares anything.
  """
  from tff_shift.learning.aggregators import factories
  from tff_shift.learning.aggregators import privacy_accounting
  from tff_shift.simulation.engine import rounds

  clients_per_round = rounds.num_sampled(num_clients, participation)
  hparams = _hparams()
  try:
    aggregator = factories.build(
      FLAGS.aggregator, hparams, clients_per_round=clients_per_round
    )
    found = _check(trials, aggregator)
    if FLAGS.aggregator == "dp":
      guarantee = privacy_accounting.account(
        noise_multiplier=hparams.noise_multiplier,
        num_clients=num_clients,
        clients_per_round=clients_per_round,
        num_rounds=num_rounds,
        delta=hparams.dp_delta,
      )
      print(_describe(guarantee), flush=True)
  except ValueError as error:
    raise ValueError(f"--{error}") from error
  return found


def _check(
  trials: Iterable[tuple[str, Any]], aggregator: factories.Aggregator
) -> dict[str, factories.Aggregator | None]:
  """Refuses the aggregator where an algorithm cannot do with it.

  An algorithm that shares nothing goes on as it is, beside one that does.
  """
  from tff_shift.learning.aggregators import factories

  found, refusals = {}, []
  for name, hparams in trials:
    requirements = algorithms.requirements(name)
    found[name] = None if requirements.no_aggregation else aggregator
    try:
      factories.check(name, requirements, aggregator.traits, hparams)
    except ValueError as error:
      if not requirements.no_aggregation:
        raise
      refusals.append(error)
  if refusals and not any(found.values()):
    raise refusals[0]
  return found


def _describe(guarantee: privacy_accounting.Guarantee) -> str:
  return (
    f"dp: epsilon={guarantee.epsilon:.4g} at delta={guarantee.delta:.4g} for"
    f" the weights of a run of {guarantee.num_rounds} rounds with noise"
    f" multiplier {guarantee.noise_multiplier:g}, if each client takes part"
    f" in a round with probability {guarantee.sampling_probability:g},"
    " independently of the others; if exactly that share takes part, as here,"
    f" epsilon={guarantee.replacement_epsilon:.4g} for replacing a client;"
    " losses and accuracies are not covered"
    + (
      "; who takes part follows from --seeds, and a share of the clients hides"
      " one only from those who do not know them"
      if guarantee.sampling_probability < 1
      else ""
    )
  )
