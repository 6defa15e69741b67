"""What is run less of, what it costs, and how it is dealt."""

import hypothesis
import pytest
from hypothesis import strategies as st

from experiments.papers import budget
from experiments.papers import costs
from experiments.papers import job as job_lib
from experiments.papers import reductions
from experiments.papers import specification
from tests.fixtures.refusals import refused


def circle_jobs(text="", more_flags=None):
  spec = specification.load("fed_evolve/3")
  planned = job_lib.plan(
    spec, reductions.parse(text, "evolving"), more_flags=more_flags
  )
  found = job_lib.chosen(planned, left_out=spec.extras)
  return {job.method: job for job in found if job.dataset == "circle"}


def test_reductions_change_flags():
  job = circle_jobs(
    "num_seeds=2,learning_rate=1e-5:0.0001,rounds=50%,participation=0.25,"
    "local_steps=2,evaluate_every=25,max_examples_per_domain=300"
  )["fed_rep"]
  assert job.flags["seeds"] == [0, 1]
  assert job.flags["selection_seeds"] == [0]
  assert job.flags["learning_rate"] == ["1e-5", "1e-4"]
  assert job.flags["rounds"] == 25
  assert job.flags["participation"] == 0.25
  # The head has no more steps than the rest.
  assert job.flags["local_steps"] == job.flags["head_steps"] == 2
  assert job.flags["evaluate_every"] == 25
  assert job.of_paper["rounds"] == "50"


def test_nothing_is_ever_more_than_the_paper_says():
  job = circle_jobs("rounds=500,local_steps=500,evaluate_every=1")["fed_avg"]
  assert (job.flags["rounds"], job.flags["local_steps"]) == (50, 5)
  assert job.flags["evaluate_every"] == 10


def test_a_fraction_of_steps_that_are_not_set_reduces_nothing(tmp_path):
  (tmp_path / "cifar10").mkdir()
  planned = job_lib.plan(
    specification.load("fed_drm/1"),
    reductions.parse("local_steps=50%", "guidance"),
    data_dir=tmp_path,
  )
  (job,) = {
    each.job.folder: each.job
    for each in planned
    if each.job and each.job.folder == "cifar10_partition_dirichlet_0.3/fed_rep"
  }.values()
  assert "local_steps" not in job.flags
  assert "head_steps" not in job.flags


def test_one_value_is_not_selected():
  job = circle_jobs("num_settings=1,seeds=2")["fed_avg"]
  assert job.flags["learning_rate"] == ["1e-5"]
  assert job.flags["seeds"] == [2]
  assert "select" not in job.flags


def test_further_flags_count_for_those_who_have_them():
  found = circle_jobs(more_flags={"distance": "cosine", "learning_rate": "1,2"})
  assert found["fed_evolve"].flags["distance"] == "cosine"
  assert "distance" not in found["fed_avg"].flags
  assert found["fed_avg"].flags["learning_rate"] == "1,2"


def test_middle():
  for values, number, kept in (
    *(("abcde", 2, "cd"), ("abc", 2, "bc"), ("abc", 1, "b"), ("ab", 5, "ab")),
  ):
    assert reductions.middle(list(values), number) == list(kept)


@pytest.mark.parametrize(
  "text",
  [
    *("rounds", "rounds=0", "rounds=-1", "rounds=x", "round=1"),
    *("rounds=1,rounds=2", "dataset=circle", "seeds=0:0", "seeds=a"),
    *("num_seeds=0", "local_steps=x", "participation=inf"),
  ],
)
def test_wrong_reductions_are_refused(text):
  with refused(f"--reduce: .*{text.partition('=')[0]}"):
    reductions.parse(text, "evolving")


def test_a_rate_that_is_not_the_papers_is_refused():
  with refused("of the paper's 1e-6:5e-6"):
    circle_jobs("learning_rate=0.5")


_SPEC = specification.load("fed_evolve/3")
_RUNGS = [reductions.parse(rung, "evolving") for rung in _SPEC.rungs]


def _estimate(reduced):
  planned = job_lib.plan(_SPEC, reduced)
  return budget.Speed(10.0, 3.0).estimate(job_lib.chosen(planned), 2)


# Each estimate plans the table anew.
_ESTIMATES = {}


def estimate(reduced):
  key = tuple(reduced.items.items())
  if key not in _ESTIMATES:
    _ESTIMATES[key] = _estimate(reduced)
  return _ESTIMATES[key]


@hypothesis.given(st.floats(120, 50_000), st.floats(1, 5))
@hypothesis.settings(max_examples=30)
def test_a_budget_is_kept_and_more_of_it_allows_more(seconds, factor):
  least = estimate(_everything())
  hypothesis.assume(seconds >= least)
  reduced, found = budget.fit(_RUNGS, estimate, seconds)
  _, more = budget.fit(_RUNGS, estimate, seconds * factor)
  assert found <= seconds
  assert found == estimate(reduced)
  assert more >= found
  # In the order of the rungs, and no further than needed.
  number = next(
    n for n in range(len(_RUNGS) + 1) if _first(n).items == reduced.items
  )
  if number:
    assert estimate(_first(number - 1)) > seconds


def _first(number):
  reduced = reductions.Reductions()
  for rung in _RUNGS[:number]:
    reduced = reduced.then(rung)
  return reduced


def _everything():
  return _first(len(_RUNGS))


def test_a_budget_below_the_least_is_refused():
  with refused("select methods"):
    budget.fit(_RUNGS, estimate, 1.0)


def test_budgets_are_times():
  for text, seconds in (
    *(("90s", 90), ("30m", 1800), ("1.5h", 5400), ("2d", 172800)),
  ):
    assert budget.parse(text) == seconds
  for text in ("2", "h", "0m", "-1h", "2 h", "1h30"):
    with refused("a time such as 30m"):
      budget.parse(text)


def test_costs_count_runs():
  job = circle_jobs()["fed_avg"]
  # Five rates with one seed, then three seeds.
  assert costs.num_runs(job) == 8
  assert costs.num_evaluations(job) == 5
  half = circle_jobs("rounds=50%")["fed_avg"]
  assert costs.training_seconds(half) == costs.training_seconds(job) / 2
  # All settings with all seeds.
  everything = circle_jobs(more_flags={"all_settings": True})["fed_avg"]
  assert costs.num_runs(everything) == 5 + 5 * 3
