"""Tests of the fair choice of a learning rate, with runs that are recorded."""

import pytest
from hypothesis import given
from hypothesis import strategies

from tff_shift.simulation import selection

_SCORES = {
  ("a", 0.1): 70.0,
  ("a", 0.01): 80.0,
  ("b", 0.1): 60.0,
  ("b", 0.01): 60.0,
}
_RATES = {"a": [0.1, 0.01], "b": [0.1, 0.01]}


class _Recorder:
  """Stands for the runs: gives scores away and remembers who asked."""

  def __init__(self):
    self.runs = []

  def run(self, algorithm, rate, held_out):
    self.runs.append((algorithm, rate, held_out))
    # On the target the order is the other way round: who looked at it would
    # choose another rate.
    score = _SCORES[algorithm, rate]
    return {0: 100 - score if held_out == "target" else score}


def _compare(recorder, **options):
  return list(
    selection.compare(
      _RATES, recorder.run, score=lambda by_seed: by_seed[0], **options
    )
  )


def test_compare_without_rule_runs_every_rate_once():
  recorder = _Recorder()
  readings = _compare(recorder)
  assert recorder.runs == [
    (name, rate, "target") for name in "ab" for rate in (0.1, 0.01)
  ]
  assert [(r.algorithm, r.learning_rate, r.selection) for r in readings] == [
    ("a", 0.1, "none"),
    ("a", 0.01, "none"),
    ("b", 0.1, "none"),
    ("b", 0.01, "none"),
  ]


def test_compare_with_rule_judges_only_what_it_chose():
  recorder, choices = _Recorder(), []
  readings = _compare(
    recorder,
    select="last_source",
    on_choice=lambda *choice: choices.append(choice),
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
  assert [(r.learning_rate, r.selection) for r in readings] == [
    (0.01, "last_source"),
    (0.01, "last_source"),
  ]
  assert choices == [
    ("a", {0.1: 70.0, 0.01: 80.0}, 0.01),
    ("b", {0.1: 60.0, 0.01: 60.0}, 0.01),
  ]


def test_compare_with_all_rates_marks_the_chosen_one():
  readings = _compare(_Recorder(), select="last_source", all_rates=True)
  assert [(r.algorithm, r.learning_rate, r.selection) for r in readings] == [
    ("a", 0.1, "none"),
    ("a", 0.01, "last_source"),
    ("b", 0.1, "none"),
    ("b", 0.01, "last_source"),
  ]


def test_compare_gives_a_reading_before_it_runs_the_next():
  recorder = _Recorder()
  readings = selection.compare(_RATES, recorder.run)
  next(readings)
  assert len(recorder.runs) == 1


@given(
  strategies.dictionaries(
    strategies.floats(1e-6, 1.0), strategies.integers(0, 3), min_size=1
  )
)
def test_choose_takes_the_smallest_of_the_best(scores):
  chosen = selection.choose(scores)
  assert scores[chosen] == max(scores.values())
  assert all(
    chosen <= value
    for value, score in scores.items()
    if score == scores[chosen]
  )


def test_choose_refuses_nothing():
  with pytest.raises(ValueError):
    selection.choose({})
