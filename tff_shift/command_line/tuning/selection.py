"""Hyper-parameter selection under one budget and criterion for all methods.

Every algorithm is scored at every setting, and the setting with the best score
is selected. Scores come from validation data, for example the last source
domain; test data are never used. Results are reported per setting and after
selection.

Choices:
  * Every method gets the same list of values of each hyper-parameter; ties go
    to the smaller value.
  * `last_source` scores a setting by the client accuracy on the last source
    domain, which is held out as well; the target is never used. `validation` is
    in guidance the system accuracy on a held-out fifth of each client's
    training examples, in dynamic personalization VACC after training, without
    any stream.
"""

import math
import types
from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any
from typing import NamedTuple

from tff_shift._util import errors
from tff_shift.command_line.tuning import search

# The name of the criterion if nothing was selected.
NONE = "none"


class Trial(NamedTuple):
  """An algorithm at one setting of its hyper-parameters.

  Attributes:
    algorithm: The algorithm's name.
    hparams: Its `HParams`.
    compared: The hyper-parameters that have several values among the trials of
      the algorithm, by name, with this trial's values.
  """

  algorithm: str
  hparams: Any
  compared: Mapping[str, Any]

  @property
  def label(self) -> str:
    """The name of the trial in tables and figures."""
    compared = [
      f"{name.replace('_', ' ').strip()} {shown(value)}"
      for name, value in self.compared.items()
    ]
    return ", ".join([self.algorithm, *compared])


def shown(value: Any) -> str:
  """Formats the value of a hyper-parameter, short and without loss."""
  if isinstance(value, float) and float(f"{value:g}") == value:
    return f"{value:g}"
  return str(value)


class SelectionCriterion(NamedTuple):
  """Selects one of an algorithm's trials by a validation score.

  Attributes:
    name: The name of the criterion in summaries.
    measure: Describes the score.
    score: Runs a trial without test data for a number of rounds, or for all if
      it is None, and returns its score. Higher is better; it is never NaN.
    num_rounds: The number of all rounds, for successive halving. None: all
      trials are scored after all rounds.
  """

  name: str
  measure: str
  score: Callable[[Trial, int | None], float]
  num_rounds: int | None = None

  def rungs(self, num_trials: int) -> list[tuple[int, int | None]]:
    """Returns the steps of a selection among trials, see `search.rungs`."""
    if self.num_rounds is None:
      return [(num_trials, None)]
    return search.rungs(num_trials, self.num_rounds)


class TrialResult(NamedTuple):
  """The results of a trial.

  Attributes:
    trial: The trial.
    selection: The name of the criterion that selected it, or `none`.
    by_seed: The result of each run, by seed.
    scores: The scores of the algorithm's trials by label. Empty without
      selection.
  """

  trial: Trial
  selection: str
  by_seed: Mapping[int, Any]
  scores: Mapping[str, float] = types.MappingProxyType({})


def choose(trials: Sequence[Trial], scores: Sequence[float]) -> Trial:
  """Returns the trial with the highest score.

  Args:
    trials: Trials of one algorithm.
    scores: Their scores.

  Returns:
    The best trial. Among equal scores, the trial whose tuple of compared values
    is smallest.

  Raises:
    ValueError: If a score is NaN.
  """
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


def _score(
  rule: SelectionCriterion, trial: Trial, num_rounds: int | None
) -> float:
  """Returns the score of a trial, or minus infinity if it diverges.

  A grid may contain settings that diverge; the comparison continues.
  """
  try:
    return rule.score(trial, num_rounds)
  except errors.DivergedError:
    return -math.inf


def _select(
  rule: SelectionCriterion, trials: Sequence[Trial]
) -> tuple[Trial, dict[str, float]]:
  """Returns the best trial of an algorithm, and the last score of each."""
  scores = {}
  for num_left, num_rounds in rule.rungs(len(trials)):
    worst = list(trials) if scores else []
    for _ in range(num_left * bool(worst)):
      worst.remove(choose(worst, [scores[each.label] for each in worst]))
    # The best of the step before go on, in their order.
    trials = [each for each in trials if each not in worst]
    scores |= {each.label: _score(rule, each, num_rounds) for each in trials}
  chosen = choose(trials, [scores[each.label] for each in trials])
  return chosen, scores


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
  """Runs trials, after selection if there is a criterion.

  Args:
    trials: The trials of all algorithms.
    run: Takes a trial and returns its results by seed.
    rule: Selects among the trials of each algorithm. Diverged trials have score
      minus infinity. None: runs all trials.
    all_settings: Whether to run also the trials that were not selected.
    on_choice: Called with the trials of an algorithm, their scores and the
      selected trial.

  Yields:
    The result of one trial at a time.
  """
  for algorithm in dict.fromkeys(each.algorithm for each in trials):
    mine = [each for each in trials if each.algorithm == algorithm]
    chosen, by_label = None, {}
    if rule is not None:
      chosen, by_label = _select(rule, mine)
      on_choice(mine, [by_label[each.label] for each in mine], chosen)
    for each in mine:
      is_chosen = each is chosen
      if rule is None or is_chosen or all_settings:
        name = rule.name if is_chosen else NONE
        yield TrialResult(each, name, run(each), by_label)
