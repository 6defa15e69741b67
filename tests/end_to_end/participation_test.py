"""The flags of participation in whole binaries."""

import json

import pytest

from tff_shift.command_line.binaries import online_adaptation
from tff_shift.command_line.plans import online_adaptation_plan

_SMALL = (
  *("--dataset=circle", "--num_domains=4", "--max_examples_per_domain=60"),
  *("--num_clients=6", "--local_steps=1", "--evaluate_every=1"),
  *("--algorithm=fed_avg", "--learning_rate=0.1", "--noprogress"),
)


@pytest.mark.slow
def test_resumed_run_has_the_cohorts_of_one_that_was_not_stopped(
  run_evolving, tmp_path, read_rows, read_runs
):
  half = (
    *("--participation=0.5", "--client_sampling=by_loss"),
    *("--dropout_rate=0.4", "--over_selection=1.5"),
  )

  def run(folder, *flags):
    output = f"--output_dir={tmp_path / folder}"
    arguments = [*_SMALL, "--checkpoint_every=1", *flags, output]
    assert run_evolving(arguments) == 0
    return read_rows(tmp_path / folder)

  whole = run("whole", *half, "--rounds=4")
  run("resumed", *half, "--rounds=2")
  assert run("resumed", *half, "--rounds=4", "--resume") == whole
  (found,) = read_runs(tmp_path / "whole")
  given = {
    "client_sampling": "by_loss",
    # Of 3 clients of a cohort, times 1.5, two candidates each; at most all.
    "loss_candidates": 6,
    "dropout_rate": 0.4,
    "over_selection": 1.5,
  }
  assert given.items() <= found["setting"].items()
  # A run without these flags is one of a version that did not have them.
  plain = run("plain", "--participation=0.5", "--rounds=2")
  assert plain != whole[: len(plain)]
  flags = json.loads((tmp_path / "plain" / "config.json").read_text())["flags"]
  (found,) = read_runs(tmp_path / "plain")
  for name in (*given, "report_deadline", "availability_share"):
    assert name not in flags and name not in found["setting"]


@pytest.mark.slow
def test_rounds_without_reports_are_rows_without_a_loss(
  run_evolving, tmp_path, read_rows
):
  arguments = [*_SMALL, "--rounds=2", f"--output_dir={tmp_path / 'run'}"]
  arguments += ["--client_sampling=by_availability", "--report_deadline=1e-9"]
  assert run_evolving(arguments) == 0
  rows = read_rows(tmp_path / "run")
  assert [row["train_loss"] for row in rows] == ["nan", "nan"]
  # The weights are those of before.
  assert rows[0]["client_accuracy"] == rows[1]["client_accuracy"]


@pytest.mark.parametrize(
  ("flags", "message"),
  [
    ("client_sampling=by_los", "got 'by_los'; did you mean by_loss?"),
    (
      "loss_candidates=4",
      "--loss_candidates belongs to --client_sampling=by_loss, not to"
      " --client_sampling=uniform",
    ),
    ("dropout_rate=1", "--dropout_rate=1.0 is not allowed"),
    ("report_deadline=inf", "--report_deadline=inf is not allowed"),
    ("over_selection=1.5", "--over_selection=1.5 has no effect"),
    ("client_sampling=by_size", "--client_sampling=by_size has no effect"),
    (
      "participation=0.5 client_sampling=by_loss loss_candidates=2",
      "--loss_candidates=2 is not allowed: it must be an integer at least 3 and"
      " at most 6",
    ),
    ("client_sampling=by_availability aggregator=dp", "for uniform sampling"),
    ("client_sampling=by_loss aggregator=secure", "would see the loss"),
  ],
)
def test_wrong_flags_are_refused(
  flags, message, run_evolving, tmp_path, capsys
):
  output = tmp_path / "run"
  given = [f"--{flag}" for flag in flags.split()]
  assert run_evolving([*_SMALL, *given, f"--output_dir={output}"]) == 2
  errors = capsys.readouterr().err
  assert message in errors and errors.count("\n") == 1
  assert not output.exists()


def test_controls_need_all_reports(run_here, tmp_path, capsys):
  arguments = ["--algorithm=fed_ade", "--controls", "--dropout_rate=0.1"]
  assert run_here(online_adaptation, online_adaptation_plan, arguments) == 2
  assert "--controls does not apply to --dropout_rate" in (
    capsys.readouterr().err
  )
