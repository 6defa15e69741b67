"""The flags of participation in whole binaries."""

import json
import shlex

import pytest

from tff_shift.binaries import evolving
from tff_shift.binaries import online_adaptation

_SMALL = shlex.split("""
  --dataset=circle --num_domains=4 --max_examples_per_domain=60 --num_clients=6
  --local_steps=1 --evaluate_every=1 --algorithm=fed_avg --learning_rate=0.1
  --noprogress
""")


@pytest.mark.long
def test_resumed_run_has_the_cohorts_of_one_that_was_not_stopped(
  run_evolving, tmp_path, read_rows, read_runs
):
  given = {"client_sampling": "by_loss", "dropout_rate": 0.4}
  given |= {"over_selection": 1.5, "loss_candidates": 6}
  flags = [f"--{name}={value}" for name, value in given.items()]

  def run(folder, *flags):
    output = f"--output_dir={tmp_path / folder}"
    arguments = [*_SMALL, "--participation=0.5", *flags, output]
    assert run_evolving(arguments) == 0
    return read_rows(tmp_path / folder)

  # The default number of candidates: two for each of 5 clients, at most all.
  whole = run("whole", *flags[:3], "--rounds=4")
  (found,) = read_runs(tmp_path / "whole")
  assert given.items() <= found["setting"].items()
  run("resumed", *flags, "--rounds=2")
  assert run("resumed", *flags, "--rounds=4", "--resume") == whole
  assert run("plain", "--rounds=2") != whole[:2]
  config = json.loads((tmp_path / "plain" / "config.json").read_text())
  (found,) = read_runs(tmp_path / "plain")
  # Settings of results are only those that differ from the defaults.
  for name in (*given, "report_deadline", "availability_share"):
    assert name in config["flags"] and name not in found["setting"]


@pytest.mark.slow
def test_rounds_without_reports_are_rows_without_a_loss(
  run_evolving, tmp_path, read_rows
):
  flags = ["--rounds=2", "--report_deadline=1e-9"]
  flags += ["--client_sampling=by_availability", f"--output_dir={tmp_path}/run"]
  assert run_evolving([*_SMALL, *flags]) == 0
  rows = read_rows(tmp_path / "run")
  assert [row["train_loss"] for row in rows] == ["nan", "nan"]
  # The weights are those of before.
  assert rows[0]["client_accuracy"] == rows[1]["client_accuracy"]


@pytest.mark.parametrize(
  ("flags", "message"),
  [
    (
      "client_sampling=by_los",
      "of uniform, poisson, in_turn, by_size, by_availability, by_loss; did",
    ),
    (
      "loss_candidates=4",
      "--loss_candidates belongs to --client_sampling=by_loss, not to",
    ),
    ("dropout_rate=1", "--dropout_rate=1.0: it must be at least 0 and below 1"),
    ("report_deadline=inf", "=inf: it must be a finite number above 0"),
    ("over_selection=1.5", "--over_selection=1.5 has no effect"),
    (
      "participation=0.5 client_sampling=by_loss loss_candidates=2",
      "loss_candidates=2 is not allowed: it must be an integer at least 3 and",
    ),
    ("client_sampling=in_turn", "--client_sampling=in_turn has no effect"),
    (
      "client_sampling=by_availability aggregator=dp",
      "for uniform and poisson",
    ),
    *(
      (f"client_sampling=poisson aggregator={name}", f"{name}: it must be dp")
      for name in ("mean", "dp_ftrl", "secure")
    ),
    (
      "client_sampling=poisson aggregator=dp dropout_rate=0.1",
      "--dropout_rate is not allowed with --client_sampling=poisson: epsilon",
    ),
    ("client_sampling=by_size aggregator=dp_ftrl", "be in_turn or uniform"),
    (
      "client_sampling=in_turn aggregator=dp_ftrl dropout_rate=0.1",
      "--dropout_rate is not allowed with --aggregator=dp_ftrl and",
    ),
    ("client_sampling=by_loss aggregator=secure", "would see the loss"),
  ],
)
def test_wrong_flags_are_refused(flags, message, refused):
  given = [f"--{flag}" for flag in flags.split()]
  assert message in refused(evolving, [*_SMALL, *given])


def test_controls_need_all_reports(refused):
  flags = "--algorithm=fed_ade --controls --dropout_rate=0.1"
  line = refused(online_adaptation, flags)
  assert "--controls does not apply to --drop" in line
