"""Random search and successive halving in whole binaries."""

import collections

import pytest

_SMALL = """
  --dataset=circle --num_domains=4 --max_examples_per_domain=60 --num_clients=3
  --local_steps=1 --evaluate_every=2 --algorithm=fed_avg
  --learning_rate=1e-3..1e-1 --rounds=6 --noprogress --search=halving
  --num_trials=4 --search_seed=2 --select=last_source
"""


@pytest.mark.long
def test_halving_scores_all_draws_and_then_the_best(run):
  ended = run("evolving", _SMALL)
  rates = collections.defaultdict(set)
  for row in ended.rows:
    rates[row["held_out"]].add(row["learning_rate"])
  first, second, final = (
    rates[held_out]
    for held_out in (
      "last_source after 1 rounds",
      "last_source after 2 rounds",
      "target",
    )
  )
  assert (len(first), len(second), len(final)) == (4, 2, 1)
  assert final < second < first
  (found,) = ended.runs
  assert found["setting"]["selection"] == "last_source"
