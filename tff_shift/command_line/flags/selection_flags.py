"""Hyper-parameter selection: flags that select a setting of each algorithm.

Each binary has one selection criterion besides `none`. It never uses the test
data.
"""

import dataclasses
from collections.abc import Callable
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any
from typing import ClassVar

from absl import flags

from tff_shift.command_line import common_flags
from tff_shift.command_line import configuration
from tff_shift.command_line.tuning import search as search_lib
from tff_shift.command_line.tuning import selection
from tff_shift.simulation.engine import early_stopping as early_stopping_lib

GROUP = "selection"

FLAGS = flags.FLAGS

_LAST = "last"
_BEST = "best"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Configuration(common_flags.Configuration):
  """The flags of selection.

  Attributes:
    criterion: The name of the binary's criterion.
    criterion_help: Describes the setting that the criterion selects.
  """

  criterion: ClassVar[str]
  criterion_help: ClassVar[str]

  select: str = configuration.setting(
    selection.NONE,
    lambda kind: (
      f"{selection.NONE}: runs every hyper-parameter setting. {kind.criterion}:"
      f" runs only each algorithm's setting with {kind.criterion_help}."
    ),
    choices=lambda kind: (selection.NONE, kind.criterion),
    is_compared=False,
  )
  selection_seeds: tuple[int, ...] | None = configuration.seeds(
    None,
    lambda kind: (
      f"Seeds over which --select={kind.criterion} averages. Default: all of"
      " --seeds."
    ),
  )
  all_settings: bool = configuration.setting(
    False,
    lambda kind: (
      f"With --select={kind.criterion}: also runs the settings that were not"
      " selected."
    ),
    is_compared=False,
  )
  search: str = configuration.setting(
    search_lib.GRID,
    lambda kind: (
      "Which settings are compared if hyper-parameters have several values."
      f" {search_lib.GRID}: all combinations. {search_lib.RANDOM}:"
      " --num_trials drawn settings of each algorithm; a value may also be a"
      " range, such as"
      " 1e-4..1e-1, uniform on a logarithmic scale. Algorithms share the drawn"
      f" values of a hyper-parameter. {search_lib.HALVING}: as"
      f" {search_lib.RANDOM}, and"
      f" --select={kind.criterion} scores them after few rounds first and keeps"
      " the best third at a time."
    ),
    choices=search_lib.SEARCHES,
    is_compared=False,
  )
  num_trials: int = configuration.setting(
    9,
    f"Number of drawn settings of an algorithm (--search={search_lib.RANDOM} or"
    f" {search_lib.HALVING}).",
    minimum=1,
    is_compared=False,
  )
  search_seed: int = configuration.seed(
    "Seed of drawn settings.", is_compared=False
  )

  def check_together(self) -> None:
    """Refuses a search that selects nothing, and seeds without runs."""
    super().check_together()
    if self.search == search_lib.HALVING and self.select != self.criterion:
      raise ValueError(
        configuration.refusal(
          "search",
          f"{search_lib.GRID} or {search_lib.RANDOM} without"
          f" --select={self.criterion}, which scores settings",
        )
      )
    for name in ("num_trials", "search_seed"):
      if self.search == search_lib.GRID and (
        getattr(self, name) != FLAGS[name].default
      ):
        raise ValueError(
          configuration.refusal(
            name,
            f"left out with --search={search_lib.GRID}, which draws nothing",
          )
        )
    if not {*(self.selection_seeds or ())} <= {*self.seeds}:
      raise ValueError(
        configuration.refusal("selection_seeds", "a subset of --seeds")
      )

  @property
  def seeds_of_selection(self) -> tuple[int, ...]:
    """The seeds used to select the setting of each algorithm."""
    return self.selection_seeds or self.seeds


@dataclasses.dataclass(frozen=True, kw_only=True)
class EarlyStopping(configuration.Configuration):
  """The flags of early stopping.

  Attributes:
    validation_help: Describes the validation accuracy.
  """

  validation_help: ClassVar[str]

  stop_after: int | None = configuration.setting(
    None,
    lambda kind: (
      "Number of evaluations in a row without a better validation accuracy"
      f" after which a run ends: {kind.validation_help}. Default: runs have"
      " --rounds rounds."
    ),
    minimum=1,
  )
  keep: str = configuration.setting(
    _LAST,
    f"{_LAST}: the results and the saved model are those of the last round."
    f" {_BEST}: those of the evaluated round with the best validation accuracy,"
    " as if the run had ended there.",
    choices=(_LAST, _BEST),
  )


def validates() -> bool:
  """Returns whether runs measure a validation accuracy."""
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


def rule(
  name: str,
  measure: str,
  score: Callable[[selection.Trial, int | None], float],
) -> selection.SelectionCriterion | None:
  """Returns the criterion of `--select`, or None for `none`."""
  if FLAGS.select == selection.NONE:
    return None
  num_rounds = FLAGS.rounds if FLAGS.search == search_lib.HALVING else None
  return selection.SelectionCriterion(name, measure, score, num_rounds)


def settings_of(
  given: Mapping[str, Sequence[Any]], flag_of: Mapping[str, str]
) -> list[dict[str, Any]]:
  """Returns the settings of an algorithm that are compared.

  Args:
    given: The values of its hyper-parameters whose flags are set.
    flag_of: The flags that set them.

  Raises:
    UsageError: If a value is a range, and the search is a grid.
  """
  # A binary without selection has no search.
  how = FLAGS.search if "search" in FLAGS else search_lib.GRID
  if how == search_lib.GRID:
    for name, values in given.items():
      common_flags.require(
        flag_of[name],
        not any(map(search_lib.is_range, values)),
        "numbers; a range needs --search=random"
        if "search" in FLAGS
        else "numbers, not a range",
      )
    return list(search_lib.settings(given, how, 0, 0))
  return list(
    search_lib.settings(given, how, FLAGS.num_trials, FLAGS.search_seed)
  )
