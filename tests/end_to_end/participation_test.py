"""The flags of participation in whole binaries."""

import pytest

_SMALL = """
  --dataset=circle --num_domains=4 --max_examples_per_domain=60 --num_clients=6
  --local_steps=1 --evaluate_every=1 --algorithm=fed_avg --learning_rate=0.1
  --noprogress
"""


@pytest.mark.long
def test_resumed_run_has_the_cohorts_of_one_that_was_not_stopped(run):
  given = {"client_sampling": "by_loss", "dropout_rate": 0.4}
  given |= {"over_selection": 1.5, "loss_candidates": 6}
  flags = [f"--{name}={value}" for name, value in given.items()]
  half = "evolving", _SMALL, "--participation=0.5"
  # The default number of candidates: two for each of 5 clients, at most all.
  whole = run(*half, *flags[:3], "--rounds=4", folder="whole")
  (found,) = whole.runs
  assert given.items() <= found["setting"].items()
  run(*half, *flags, "--rounds=2", folder="resumed")
  resumed = run(*half, *flags, "--rounds=4 --resume", folder="resumed")
  assert resumed.rows == whole.rows
  plain = run(*half, "--rounds=2", folder="plain")
  assert plain.rows != whole.rows[:2]
  (found,) = plain.runs
  # Settings of results are only those that differ from the defaults.
  for name in (*given, "report_deadline", "availability_share"):
    assert name in plain.config["flags"] and name not in found["setting"]


@pytest.mark.slow
def test_rounds_without_reports_are_rows_without_a_loss(run):
  flags = "--rounds=2 --report_deadline=1e-9 --client_sampling=by_availability"
  rows = run("evolving", _SMALL, flags).rows
  assert [row["train_loss"] for row in rows] == ["nan", "nan"]
  # The weights are those of before.
  assert rows[0]["client_accuracy"] == rows[1]["client_accuracy"]
