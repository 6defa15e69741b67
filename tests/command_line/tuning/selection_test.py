"""Tests of the fair choice of settings, with runs that are recorded."""

import math

import hypothesis
import pytest
from hypothesis import strategies

from tests.fixtures import tables
from tff_shift._util import errors
from tff_shift.command_line.tuning import selection

_SCORES = {
  ("a", 0.1): 70.0,
  ("a", 0.01): 80.0,
  ("b", 0.1): 60.0,
  ("b", 0.01): 60.0,
}
_CONTESTANTS = [
  selection.Trial(name, None, {"learning_rate": rate}) for name, rate in _SCORES
]


def _key(trial):
  return trial.algorithm, trial.compared["learning_rate"]


class _Recorder:
  """Stands for the runs: gives scores away and remembers who asked."""

  def __init__(self):
    self.runs = []

  def run(self, trial):
    self.runs.append((*_key(trial), "target"))
    # On the target the order is the other way round: who looked at it would
    # choose another rate.
    return {0: 100 - _SCORES[_key(trial)]}

  def score(self, trial, num_rounds=None):
    assert num_rounds is None
    self.runs.append((*_key(trial), "last_source"))
    return _SCORES[_key(trial)]

  @property
  def rule(self):
    return selection.SelectionCriterion("last_source", "accuracy", self.score)


def _described(readings):
  return [(*_key(each.trial), each.selection) for each in readings]


def test_compare_without_rule_runs_every_setting_once():
  recorder = _Recorder()
  comparison = selection.compare(_CONTESTANTS, recorder.run)
  readings = [next(comparison)]
  # A setting has its reading before the next one runs.
  assert len(recorder.runs) == 1
  readings += comparison
  assert recorder.runs == [(*key, "target") for key in _SCORES]
  assert _described(readings) == [(*key, "none") for key in _SCORES]
  assert [each.by_seed[0] for each in readings] == [30, 20, 40, 40]
  assert all(each.scores == {} for each in readings)


def test_compare_with_all_settings_marks_the_chosen_one():
  recorder = _Recorder()
  readings = list(
    selection.compare(
      _CONTESTANTS, recorder.run, rule=recorder.rule, all_settings=True
    )
  )
  assert _described(readings) == [
    (*key, selection_)
    for key, selection_ in zip(
      _SCORES, ["none", "last_source"] * 2, strict=True
    )
  ]
  # All of them tell what there was to choose from.
  for each in readings:
    assert dict(each.scores) == {
      f"{name}, learning rate {rate}": score
      for (name, rate), score in _SCORES.items()
      if name == each.trial.algorithm
    }


def test_compare_with_rule_judges_only_what_it_chose():
  recorder, choices = _Recorder(), []
  readings = list(
    selection.compare(
      _CONTESTANTS,
      recorder.run,
      rule=recorder.rule,
      on_choice=lambda *choice: choices.append(choice),
    )
  )
  assert recorder.runs == [
    ("a", 0.1, "last_source"),
    ("a", 0.01, "last_source"),
    ("a", 0.01, "target"),
    ("b", 0.1, "last_source"),
    ("b", 0.01, "last_source"),
    # Both are equally good: the smaller one counts.
    ("b", 0.01, "target"),
  ]
  assert _described(readings) == [
    ("a", 0.01, "last_source"),
    ("b", 0.01, "last_source"),
  ]
  assert choices == [
    (_CONTESTANTS[:2], [70.0, 80.0], _CONTESTANTS[1]),
    (_CONTESTANTS[2:], [60.0, 60.0], _CONTESTANTS[3]),
  ]


def test_setting_that_diverges_is_not_chosen_and_ends_nothing():
  recorder = _Recorder()

  def score(trial, _):
    if _key(trial) == ("a", 0.01):
      raise errors.DivergedError("a", 3, 5)
    return recorder.score(trial)

  rule = selection.SelectionCriterion("last_source", "accuracy", score)
  first, second = selection.compare(_CONTESTANTS, recorder.run, rule=rule)
  assert _described([first, second]) == [
    ("a", 0.1, "last_source"),
    ("b", 0.01, "last_source"),
  ]
  assert first.scores == {
    "a, learning rate 0.1": 70.0,
    "a, learning rate 0.01": -math.inf,
  }


_VALUES = strategies.tuples(
  strategies.floats(1e-6, 1.0),
  strategies.sampled_from(["adam", "sgd"]),
  strategies.booleans(),
)


@hypothesis.given(
  strategies.dictionaries(_VALUES, strategies.integers(0, 3), min_size=1)
)
def test_choose_takes_the_first_of_the_best(scores):
  names = "learning_rate", "optimizer", "use_it"
  trials = [
    selection.Trial("a", None, dict(zip(names, values, strict=True)))
    for values in scores
  ]
  chosen = selection.choose(trials, list(scores.values()))
  best = [v for v, score in scores.items() if score == max(scores.values())]
  assert tuple(chosen.compared.values()) == min(best)


@pytest.mark.parametrize(
  "compared, label",
  # Values that differ have labels that do.
  tables.cases("""
{}
    fed_drm
{"lambda_": 0.5, "optimizer": "adam"}
    fed_drm, lambda 0.5, optimizer adam
{"learning_rate": 1e-5}
    fed_drm, learning rate 1e-05
{"learning_rate": 0.12345678}
    fed_drm, learning rate 0.12345678
"""),
)
def test_label_names_what_is_compared(compared, label):
  assert selection.Trial("fed_drm", None, compared).label == label


def test_halving_keeps_the_best_third_for_three_times_the_rounds():
  """Settings 7 and 8 look best after few rounds, and 6 after more."""
  asked = []
  trials = [selection.Trial("a", None, {"steps": step}) for step in range(9)]
  scores = {
    2: dict(enumerate([0, 0, 0, 0, 0, 0, 1, 3, 2])),
    6: {6: 9.0, 7: 5.0, 8: 6.0},
  }

  def score(trial, num_rounds):
    asked.append((num_rounds, trial.compared["steps"]))
    return scores[num_rounds][trial.compared["steps"]]

  rule = selection.SelectionCriterion("last_source", "accuracy", score, 18)
  (found,) = selection.compare(trials, lambda trial: {0: 1.0}, rule=rule)
  assert asked == [*((2, step) for step in range(9)), (6, 6), (6, 7), (6, 8)]
  assert found.trial.compared == {"steps": 6}
  assert found.scores["a, steps 6"] == 9.0
  assert found.scores["a, steps 0"] == 0.0
