"""Fair choice of hyper-parameters: the same rule and budget for every method.

Every algorithm is tried at every setting; the setting with the best score
counts. A rule's score comes from a run that holds something else out than what
is finally judged, for example the last source domain: the target is never
looked at. The reading at each common setting stands beside the reading after
the choice.
"""

import math
import types
from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any
from typing import NamedTuple

from tff_shift import arguments
from tff_shift import errors

# What stands for a rule where none has chosen.
NONE = "none"


class Trial(NamedTuple):
  """An algorithm at one setting of its hyper-parameters.

  Attributes:
    algorithm: The algorithm's name.
    hparams: Its `HParams`.
    compared: The hyper-parameters in which it differs from other trials of
      the same algorithm, by name; these have the same names.
  """

  algorithm: str
  hparams: Any
  compared: Mapping[str, Any]

  @property
  def label(self) -> str:
    """What tables and figures call it."""
    compared = [
      f"{name.replace('_', ' ').strip()} {shown(value)}"
      for name, value in self.compared.items()
    ]
    return ", ".join([self.algorithm, *compared])


def shown(value: Any) -> str:
  """Returns a value of a hyper-parameter as text, short and without loss."""
  if isinstance(value, float) and float(f"{value:g}") == value:
    return f"{value:g}"
  return str(value)


class SelectionCriterion(NamedTuple):
  """How one of an algorithm's trials is chosen.

  Attributes:
    name: What summaries call the rule.
    measure: What the score is, in words.
    score: Runs a trial, without what it is finally judged on, and turns
      that into a number, not NaN; more is better.
  """

  name: str
  measure: str
  score: Callable[[Trial], float]


class TrialResult(NamedTuple):
  """The runs of a trial.

  Attributes:
    trial: The trial.
    selection: The name of the rule that chose it; `none` if no rule did.
    by_seed: What each run gave, by seed.
    scores: The scores of the algorithm's trials by their labels; empty if
      no rule chose.
  """

  trial: Trial
  selection: str
  by_seed: Mapping[int, Any]
  scores: Mapping[str, float] = types.MappingProxyType({})


def choose(trials: Sequence[Trial], scores: Sequence[float]) -> Trial:
  """Returns the trial with the highest score.

  Args:
    trials: Trials of one algorithm.
    scores: The score of each.

  Returns:
    One of them; of equals the one whose compared values come first when sorted,
    by the first of them, then the second, and so on.

  Raises:
    ValueError: If there is none, or a score is missing or NaN, by which no
      choice can be made.
  """
  arguments.sequence("trials", trials, what="setting")
  arguments.sequence("scores", scores, len(trials), what="trial")
  for trial, score in zip(trials, scores, strict=True):
    if math.isnan(score):
      raise ValueError(
        f"the score of {trial.label} must be a number, got {score}"
      )
  pairs = sorted(
    zip(trials, scores, strict=True),
    key=lambda pair: tuple(pair[0].compared.values()),
  )
  return max(pairs, key=lambda pair: pair[1])[0]


def _score(rule: SelectionCriterion, trial: Trial) -> float:
  """Returns the score of a trial, minus infinity if it diverges.

  That a grid goes too far must not end the comparison.
  """
  try:
    return rule.score(trial)
  except errors.DivergedError:
    return -math.inf


def compare(
  trials: Sequence[Trial],
  run: Callable[[Trial], Mapping[int, Any]],
  *,
  rule: SelectionCriterion | None = None,
  all_settings: bool = False,
  on_choice: Callable[[Sequence[Trial], Sequence[float], Trial], None] = (
    lambda trials, scores, chosen: None
  ),
) -> Iterator[TrialResult]:
  """Runs algorithms at their settings, chosen fairly if asked to.

  Args:
    trials: What is compared.
    run: A trial to the results by seed.
    rule: Chooses among the trials of each algorithm; one that diverges has
      a score of minus infinity. None: all are run.
    all_settings: Whether those that the rule did not choose are run as well.
    on_choice: Called with the trials of an algorithm, their scores and the
      chosen one.

  Returns:
    An iterator of a reading for each trial that is run, as soon as it is
    there.

  Raises:
    ValueError: If there is no trial, or an argument is of another kind.
  """
  arguments.sequence("trials", trials, what="setting")
  arguments.functions(run=run, on_choice=on_choice)
  if rule is not None:
    arguments.functions(**{"rule.score": rule.score})
  return _compare(trials, run, rule, all_settings, on_choice)


def _compare(
  trials, run, rule, all_settings, on_choice
) -> Iterator[TrialResult]:
  for algorithm in dict.fromkeys(each.algorithm for each in trials):
    mine = [each for each in trials if each.algorithm == algorithm]
    chosen, by_label = None, {}
    if rule is not None:
      scores = [_score(rule, each) for each in mine]
      chosen = choose(mine, scores)
      by_label = {
        one.label: score for one, score in zip(mine, scores, strict=True)
      }
      on_choice(mine, scores, chosen)
    for each in mine:
      is_chosen = each is chosen
      if rule is None or is_chosen or all_settings:
        name = rule.name if is_chosen else NONE
        yield TrialResult(each, name, run(each), by_label)
