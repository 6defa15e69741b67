"""Random search and successive halving in whole binaries."""

import collections
import shlex

import pytest

from tff_shift.binaries import evolving

_SMALL = shlex.split("""
  --dataset=circle --num_domains=4 --max_examples_per_domain=60 --num_clients=3
  --local_steps=1 --evaluate_every=2 --algorithm=fed_avg
  --learning_rate=1e-3..1e-1 --rounds=6 --noprogress
""")


@pytest.mark.long
def test_halving_scores_all_draws_and_then_the_best(
  run_evolving, tmp_path, read_rows, read_runs
):
  flags = [*_SMALL, "--search=halving", "--num_trials=4", "--search_seed=2"]
  flags += ["--select=last_source", f"--output_dir={tmp_path / 'run'}"]
  assert run_evolving(flags) == 0
  rates = collections.defaultdict(set)
  for row in read_rows(tmp_path / "run"):
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
  (found,) = read_runs(tmp_path / "run")
  assert found["setting"]["selection"] == "last_source"


@pytest.mark.parametrize(
  ("flags", "message"),
  [
    ("", "--learning_rate=1e-3..1e-1: it must be numbers; a range needs"),
    ("--search=halving", "--search=halving: it must be grid or random without"),
    (
      "--num_trials=2 --learning_rate=0.1",
      "--num_trials=2: it must be left out with --search=grid",
    ),
    ("--search=random --num_trials=0", "--num_trials=0: it must be at least 1"),
    (
      "--search=random --learning_rate=0.1..0.01",
      "it must be a number above 0, or several",
    ),
  ],
)
def test_wrong_flags_are_refused(flags, message, refused):
  arguments = [*_SMALL, *flags.split()]
  assert message in refused(evolving, arguments)
