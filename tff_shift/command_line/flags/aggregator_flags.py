"""Aggregation: `--aggregator` and the flags of its hyper-parameters."""

from __future__ import annotations

import dataclasses
import math
import warnings
from collections.abc import Iterable
from typing import Any
from typing import TYPE_CHECKING

from absl import flags

from tff_shift import algorithms
from tff_shift._util import arguments
from tff_shift._util import errors
from tff_shift.command_line import configuration
from tff_shift.command_line.flags import metric_flags
from tff_shift.command_line.flags import participation_flags
from tff_shift.learning import hyperparameters
from tff_shift.learning.aggregators import aggregator_hparams
from tff_shift.reporting import summary

if TYPE_CHECKING:
  from tff_shift.learning.aggregators import factories
  from tff_shift.learning.aggregators import privacy_accounting

GROUP = "privacy"

FLAGS = flags.FLAGS

_DEFINE = {
  bool: flags.DEFINE_bool,
  float: flags.DEFINE_float,
  int: flags.DEFINE_integer,
  str: flags.DEFINE_string,
}


def define_flags() -> None:
  """Defines the flags."""
  configuration.declare_of_methods(__name__)
  flags.DEFINE_string(
    "aggregator",
    "mean",
    "How the server aggregates client updates: mean; robust (clipping and"
    " zeroing); dp (clipping and noise, for differential privacy); dp_ftrl (as"
    " dp, with correlated noise, which needs no random cohorts); secure (only"
    " sums reach the server); compressed (8 bits per number).",
  )
  for field in dataclasses.fields(aggregator_hparams.AggregatorHParams):
    owners = ", ".join(aggregator_hparams.USED_BY[field.name])
    text = f"{field.metadata['help']} Default: {field.default}. ({owners})"
    _DEFINE[type(field.default)](field.name, None, text)


def _hparams() -> aggregator_hparams.AggregatorHParams:
  """Returns the aggregator's hyper-parameters; refuses flags of others."""
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
  if "clipping_norm" in values and not _has_fixed_norm(values):
    raise ValueError("--clipping_norm belongs to --clipping=fixed")
  return aggregator_hparams.AggregatorHParams(**values)


def _has_fixed_norm(values: dict[str, Any]) -> bool:
  return FLAGS.aggregator == "dp_ftrl" or values.get("clipping") == "fixed"


def check() -> None:
  """Checks the flags, apart from the algorithms.

  Raises:
    ValueError: If a flag is wrong.
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


def not_protected() -> str | None:
  """Names what an aggregator that hides clients does not protect.

  None: the aggregator hides no clients.
  """
  from tff_shift.learning import evaluation

  if FLAGS.aggregator not in aggregator_hparams.HIDING:
    return None
  measured = ", ".join([*evaluation.METRICS, *metric_flags.names()])
  parts = [
    "sums over clients of training losses, of diverged clients and of the"
    f" metrics of evaluations ({measured})",
    "the values of each client in the files of the runs and in summary.json,"
    " which only a simulator sees",
  ]
  scaling = FLAGS.input_scaling == "standardized"
  if scaling and not FLAGS["input_mean"].present:
    parts.append(
      "mean and standard deviation of the inputs (--input_scaling=standardized)"
    )
  if FLAGS.aggregator in aggregator_hparams.PRIVATE:
    if "select" in FLAGS and FLAGS.select != "none":
      parts.append(f"the selection by --select={FLAGS.select}")
    if "stop_after" in FLAGS and FLAGS.stop_after is not None:
      parts.append("the number of rounds that --stop_after determines")
  return "; ".join(parts)


def settings() -> dict[str, Any]:
  """Returns the aggregator and the hyper-parameters that it uses, by flag.

  Also what it does not protect, see `not_protected`.

  Raises:
    ValueError: If a flag is wrong.
  """
  hparams = dataclasses.asdict(_hparams())
  used = {
    name: value
    for name, value in hparams.items()
    if FLAGS.aggregator in aggregator_hparams.USED_BY[name]
  }
  if not _has_fixed_norm(used):
    used.pop("clipping_norm", None)
  unprotected = not_protected()
  if unprotected is not None:
    used[summary.NOT_PROTECTED] = unprotected
  return {"aggregator": FLAGS.aggregator, **used}


def chosen(
  trials: Iterable[tuple[str, Any]],
  *,
  num_clients: int,
  participation: float,
  num_rounds: int,
  server_optimizer: str | None = None,
) -> dict[str, factories.Aggregator | None]:
  """Returns the aggregator of the flags for each algorithm, checked.

  Prints the privacy guarantee of `dp` and `dp_ftrl`, that `secure` is
  simulated, and what all three do not protect. Warns of a large delta.

  Args:
    trials: Algorithm names and hyper-parameters. A name may repeat.
    num_clients: The number of clients.
    participation: The client fraction of a round.
    num_rounds: The number of rounds of a run.
    server_optimizer: The name of the server optimizer, if any.

  Returns:
    The argument `aggregator` of `build`, by algorithm. None for algorithms that
    aggregate nothing.

  Raises:
    ValueError: If a flag is wrong, an algorithm does not support the
      aggregator, or no algorithm aggregates anything.
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
    found = _check(trials, aggregator, server_optimizer)
    if FLAGS.aggregator == "dp":
      guarantee = privacy_accounting.account(
        noise_multiplier=hparams.noise_multiplier,
        num_clients=num_clients,
        clients_per_round=clients_per_round,
        num_rounds=num_rounds,
        delta=hparams.dp_delta,
        is_poisson=participation_flags.is_poisson(),
      )
      print(_describe(guarantee), flush=True)
      aggregator.guarantee = _settings_of(guarantee)
    if FLAGS.aggregator == "dp_ftrl":
      separation = participation_flags.separation(
        num_clients, clients_per_round
      )
      tree = privacy_accounting.account_tree(
        noise_multiplier=hparams.noise_multiplier,
        num_clients=num_clients,
        num_rounds=num_rounds,
        separation=separation,
        restart=hparams.tree_restart,
        delta=hparams.dp_delta,
      )
      print(_describe_tree(tree, hparams, num_rounds), flush=True)
      aggregator.guarantee = _settings_of_tree(tree)
    if aggregator.guarantee:
      _warn_of_delta(aggregator.guarantee["epsilon_delta"], num_clients)
    if FLAGS.aggregator in aggregator_hparams.PRIVATE:
      print(
        f"{FLAGS.aggregator}: epsilon does not cover {not_protected()}",
        flush=True,
      )
    if FLAGS.aggregator == "secure":
      print(
        "secure aggregation is simulated: the clients' integers are added in"
        f" plaintext; it does not hide {not_protected()}",
        flush=True,
      )
  except ValueError as error:
    raise ValueError(f"--{error}") from error
  return found


def _check(
  trials: Iterable[tuple[str, Any]],
  aggregator: factories.Aggregator,
  server_optimizer: str | None,
) -> dict[str, factories.Aggregator | None]:
  """Refuses the aggregator if an algorithm does not support it.

  Algorithms that aggregate nothing are only refused if all do so.
  """
  from tff_shift.learning.aggregators import factories

  found, refusals = {}, []
  for name, hparams in trials:
    requirements = algorithms.requirements(name)
    found[name] = None if requirements.no_aggregation else aggregator
    try:
      factories.check(name, requirements, aggregator.traits, hparams)
      factories.check_server_optimizer(name, requirements, server_optimizer)
    except ValueError as error:
      if not requirements.no_aggregation:
        raise
      refusals.append(error)
  if refusals and not any(found.values()):
    raise refusals[0]
  return found


def _warn_of_delta(delta: float, num_clients: int) -> None:
  from tff_shift.learning.aggregators import privacy_accounting

  if delta > privacy_accounting.LARGE_DELTA:
    warnings.warn(
      f"{FLAGS.aggregator}: delta={delta:.3g} with {num_clients} clients, the"
      " probability with which the guarantee may fail altogether; it should be"
      f" at most {privacy_accounting.LARGE_DELTA:g}: use more clients, or set"
      " --dp_delta, for a larger epsilon",
      errors.PrivacyWarning,
      stacklevel=2,
    )


def _settings_of(guarantee: privacy_accounting.Guarantee) -> dict[str, Any]:
  """Returns the guarantee of a run of `dp` by setting, for summary.json."""
  return {
    "epsilon": _storable(guarantee.epsilon),
    "epsilon_delta": guarantee.delta,
    "epsilon_relation": guarantee.relation,
    "epsilon_sampling": _sampling(guarantee, participation_flags.is_poisson()),
    "epsilon_fixed_cohort_size": _storable(guarantee.fixed_size_epsilon),
    "epsilon_poisson": _storable(guarantee.poisson_epsilon),
  }


def _settings_of_tree(
  guarantee: privacy_accounting.TreeGuarantee,
) -> dict[str, Any]:
  """Returns the guarantee of a run of `dp_ftrl`, see `_settings_of`."""
  from tff_shift.learning.aggregators import privacy_accounting

  return {
    "epsilon": _storable(guarantee.epsilon),
    "epsilon_delta": guarantee.delta,
    "epsilon_relation": privacy_accounting.ZERO_OUT,
    "epsilon_sampling": _taking_part(guarantee),
    "epsilon_replacement": _storable(guarantee.replacement_epsilon),
  }


def _storable(epsilon: float) -> float | str:
  """Returns a number that JSON holds, or infinity as a word."""
  return epsilon if math.isfinite(epsilon) else "infinite"


def _sampling(guarantee: privacy_accounting.Guarantee, is_poisson: bool) -> str:
  if is_poisson:
    return (
      "each client takes part in a round with probability"
      f" {guarantee.sampling_probability:g}, independently of the others"
    )
  return (
    "cohorts of a fixed size, a fraction of"
    f" {guarantee.sampling_probability:g} of the clients"
  )


def _describe(guarantee: privacy_accounting.Guarantee) -> str:
  from tff_shift.learning.aggregators import privacy_accounting

  is_poisson = participation_flags.is_poisson()
  other_epsilon, other_relation = (
    (guarantee.fixed_size_epsilon, privacy_accounting.REPLACE)
    if is_poisson
    else (guarantee.poisson_epsilon, privacy_accounting.ADD_OR_REMOVE)
  )
  return (
    f"dp: epsilon={guarantee.epsilon:.4g} at delta={guarantee.delta:.4g} for"
    f" {guarantee.relation}, for the weights of a run of"
    f" {guarantee.num_rounds} rounds with noise multiplier"
    f" {guarantee.noise_multiplier:g}, and"
    f" {_sampling(guarantee, is_poisson)}; not for these cohorts:"
    f" {other_epsilon:.4g} for {other_relation}, if"
    f" {_sampling(guarantee, not is_poisson)}"
    + (
      "; --seeds determine the cohorts, and sampling adds privacy only against"
      " those who do not know the seeds"
      if guarantee.sampling_probability < 1
      else ""
    )
  )


def _taking_part(guarantee: privacy_accounting.TreeGuarantee) -> str:
  if guarantee.separation == 1:
    return "each client may take part in every round"
  return (
    f"each client takes part in at most {guarantee.max_rounds} rounds, at"
    f" least {guarantee.separation} apart"
  )


def _describe_tree(
  guarantee: privacy_accounting.TreeGuarantee,
  hparams: aggregator_hparams.AggregatorHParams,
  num_rounds: int,
) -> str:
  return (
    f"dp_ftrl: epsilon={guarantee.epsilon:.4g} at delta={guarantee.delta:.4g}"
    f" for the weights of a run of {num_rounds} rounds with noise multiplier"
    f" {hparams.noise_multiplier:g}, for replacing a client's updates by zeros,"
    f" if {_taking_part(guarantee)};"
    f" epsilon={guarantee.replacement_epsilon:.4g} for replacing a client"
  )
