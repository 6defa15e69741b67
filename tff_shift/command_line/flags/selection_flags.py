"""The flags by which each algorithm's setting is chosen fairly.

A binary has one rule beside `none`, which never looks at what is judged in the
end.
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
    rule: The name of the binary's rule.
    chosen: What setting the rule chooses, in words.
  """
  flags.DEFINE_string(
    "select",
    selection.NONE,
    f"{selection.NONE}: every setting of an algorithm's hyper-parameters is a"
    f" run. {rule}: of the settings of each algorithm, that is run which has"
    f" {chosen}.",
  )
  flags.DEFINE_list(
    "selection_seeds",
    None,
    f"The seeds over which --select={rule} takes the mean. Default: all of"
    " --seeds.",
  )
  flags.DEFINE_bool(
    "all_settings",
    False,
    f"With --select={rule}: runs the settings that were not chosen as well.",
  )


def chosen_seeds(rule: str, seeds: Sequence[int]) -> list[int]:
  """Checks the flags.

  Args:
    rule: The name of the binary's rule.
    seeds: All seeds.

  Returns:
    The seeds with which the setting of an algorithm is chosen.

  Raises:
    UsageError: If a flag is wrong.
  """
  common_flags.require_choice("select", (selection.NONE, rule))
  if FLAGS.selection_seeds is None:
    return list(seeds)
  found = common_flags.chosen_seeds("selection_seeds")
  common_flags.require(
    "selection_seeds", set(found) <= set(seeds), "a part of --seeds"
  )
  return found


def rule(
  name: str, measure: str, score: Callable[[selection.Trial], float]
) -> selection.SelectionCriterion | None:
  """Returns the criterion of --select, None for `none`."""
  if FLAGS.select == selection.NONE:
    return None
  return selection.SelectionCriterion(name, measure, score)
