"""Hyper-parameter selection: flags that select a setting of each algorithm.

Each binary has one selection criterion besides `none`. It never uses the test
data.
"""

from collections.abc import Callable
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

from absl import flags

from tff_shift.command_line import common_flags
from tff_shift.command_line.tuning import search
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
  flags.DEFINE_enum(
    "search",
    search.GRID,
    search.SEARCHES,
    "Which settings are compared if hyper-parameters have several values."
    f" {search.GRID}: all combinations. {search.RANDOM}: --num_trials drawn"
    " settings of each algorithm; a value may also be a range, such as"
    " 1e-4..1e-1, uniform on a logarithmic scale. Algorithms share the drawn"
    f" values of a hyper-parameter. {search.HALVING}: as {search.RANDOM}, and"
    f" --select={rule} scores them after few rounds first and keeps the best"
    " third at a time.",
  )
  flags.DEFINE_integer(
    "num_trials",
    9,
    f"Number of drawn settings of an algorithm (--search={search.RANDOM} or"
    f" {search.HALVING}).",
  )
  flags.DEFINE_integer("search_seed", 0, "Seed of drawn settings.")


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
  common_flags.require_at_least_one("num_trials")
  common_flags.require_seed("search_seed")
  common_flags.require(
    "search",
    FLAGS.search != search.HALVING or FLAGS.select == rule,
    f"{search.GRID} or {search.RANDOM} without --select={rule}, which scores"
    " settings",
  )
  for name in ("num_trials", "search_seed"):
    common_flags.require(
      name,
      FLAGS[name].value == FLAGS[name].default or FLAGS.search != search.GRID,
      f"left out with --search={search.GRID}, which draws nothing",
    )
  if FLAGS.selection_seeds is None:
    return list(seeds)
  found = common_flags.chosen_seeds("selection_seeds")
  common_flags.require(
    "selection_seeds", set(found) <= set(seeds), "a subset of --seeds"
  )
  return found


def rule(
  name: str,
  measure: str,
  score: Callable[[selection.Trial, int | None], float],
) -> selection.SelectionCriterion | None:
  """Returns the criterion of `--select`, or None for `none`."""
  if FLAGS.select == selection.NONE:
    return None
  num_rounds = FLAGS.rounds if FLAGS.search == search.HALVING else None
  return selection.SelectionCriterion(name, measure, score, num_rounds)


def settings_of(given: Mapping[str, Sequence[Any]]) -> list[dict[str, Any]]:
  """Returns the settings of an algorithm that are compared.

  Args:
    given: The values of its hyper-parameters whose flags are set.

  Raises:
    UsageError: If a value is a range, and the search is a grid.
  """
  # A binary without selection has no search.
  how = FLAGS.search if "search" in FLAGS else search.GRID
  if how == search.GRID:
    for name, values in given.items():
      common_flags.require(
        name,
        not any(map(search.is_range, values)),
        "numbers; a range needs --search=random"
        if "search" in FLAGS
        else "numbers, not a range",
      )
    return list(search.settings(given, how, 0, 0))
  return list(search.settings(given, how, FLAGS.num_trials, FLAGS.search_seed))
