"""Hyper-parameter selection: flags that select a setting of each algorithm.

Each binary has one selection criterion besides `none`. It never uses the test
data.
"""

from collections.abc import Callable
from collections.abc import Sequence

from absl import flags

from tff_shift.command_line import common_flags
from tff_shift.command_line.tuning import selection

FLAGS = flags.FLAGS


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
