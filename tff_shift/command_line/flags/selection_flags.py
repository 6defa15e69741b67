"""Hyper-parameter selection: flags that select a setting of each algorithm.

Each binary has one selection criterion besides `none`. It never uses the test
data.
"""

from collections.abc import Callable
from collections.abc import Sequence
from typing import Any

from absl import flags

from tff_shift.command_line import common_flags
from tff_shift.command_line.tuning import selection
from tff_shift.simulation.engine import early_stopping as early_stopping_lib

FLAGS = flags.FLAGS

_LAST = "last"
_BEST = "best"


def define(rule: str, chosen: str) -> None:
  """Defines the flags.

  Args:
    rule: The name of the binary's criterion.
    chosen: Describes the setting that the criterion selects.
  """
  flags.DEFINE_string(
    "select",
    selection.NONE,
    f"{selection.NONE}: runs every hyper-parameter setting. {rule}: runs only"
    f" each algorithm's setting with {chosen}.",
  )
  flags.DEFINE_list(
    "selection_seeds",
    None,
    f"Seeds over which --select={rule} averages. Default: all of --seeds.",
  )
  flags.DEFINE_bool(
    "all_settings",
    False,
    f"With --select={rule}: also runs the settings that were not selected.",
  )


def define_early_stopping(metric: str) -> None:
  """Defines the flags of early stopping.

  Args:
    metric: Describes the validation accuracy.
  """
  flags.DEFINE_integer(
    "stop_after",
    None,
    "Number of evaluations in a row without a better validation accuracy after"
    f" which a run ends: {metric}. Default: runs have --rounds rounds.",
  )
  flags.DEFINE_enum(
    "keep",
    _LAST,
    [_LAST, _BEST],
    f"{_LAST}: the results and the saved model are those of the last round."
    f" {_BEST}: those of the evaluated round with the best validation accuracy,"
    " as if the run had ended there.",
  )


def validates() -> bool:
  """Returns whether runs measure a validation accuracy."""
  common_flags.require_at_least_one("stop_after")
  return FLAGS.stop_after is not None or FLAGS.keep == _BEST


def early_stopping() -> early_stopping_lib.EarlyStopping | None:
  """Returns the early stopping of a run; None if it does not validate."""
  if not validates():
    return None
  return early_stopping_lib.EarlyStopping(
    "validation_accuracy", FLAGS.stop_after, keeps_best=FLAGS.keep == _BEST
  )


def settings() -> dict[str, Any]:
  """Returns early stopping as settings of runs; empty if it is not used."""
  if not validates():
    return {}
  return {"stop_after": FLAGS.stop_after, "keep": FLAGS.keep}


def what_follows(before: int) -> str | None:
  """Explains why a run cannot be extended, see `plan.Plan`."""
  if FLAGS.keep == _BEST and before % FLAGS.evaluate_every:
    return (
      f"--keep={_BEST} may have kept round {before}, which a longer run does"
      " not evaluate; only runs whose last round is a multiple of"
      " --evaluate_every can be extended"
    )
  return None


def chosen_seeds(rule: str, seeds: Sequence[int]) -> list[int]:
  """Checks the flags.

  Args:
    rule: The name of the binary's criterion.
    seeds: All seeds.

  Returns:
    The seeds used to select the setting of each algorithm.

  Raises:
    UsageError: If a flag is wrong.
  """
  common_flags.require_choice("select", (selection.NONE, rule))
  if FLAGS.selection_seeds is None:
    return list(seeds)
  found = common_flags.chosen_seeds("selection_seeds")
  common_flags.require(
    "selection_seeds", set(found) <= set(seeds), "a subset of --seeds"
  )
  return found


def rule(
  name: str, measure: str, score: Callable[[selection.Trial], float]
) -> selection.SelectionCriterion | None:
  """Returns the criterion of `--select`, or None for `none`."""
  if FLAGS.select == selection.NONE:
    return None
  return selection.SelectionCriterion(name, measure, score)
