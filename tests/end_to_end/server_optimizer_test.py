"""The flag `--server_optimizer` in whole binaries."""

import json
import shlex

import pytest

from tff_shift.binaries import evolving

_SMALL = shlex.split("""
  --dataset=circle --num_domains=4 --max_examples_per_domain=60 --num_clients=4
  --local_steps=1 --evaluate_every=1 --algorithm=fed_avg --learning_rate=0.1
  --noprogress
""")


@pytest.mark.long
def test_resumed_run_steps_like_one_that_was_not_stopped(
  run_evolving, tmp_path, read_rows, read_runs
):
  adam = "--server_optimizer=fed_adam", "--server_learning_rate=0.05"

  def run(folder, *flags):
    output = f"--output_dir={tmp_path / folder}"
    assert run_evolving([*_SMALL, *flags, output]) == 0
    return read_rows(tmp_path / folder)

  whole = run("whole", *adam, "--rounds=3")
  run("resumed", *adam, "--rounds=2", "--checkpoint_every=1")
  resumed = run(
    "resumed", *adam, "--rounds=3", "--checkpoint_every=1", "--resume"
  )
  assert resumed == whole
  # It is the optimizer that steps.
  assert whole != run("plain", "--rounds=3")
  (found,) = read_runs(tmp_path / "whole")
  assert {
    name: value
    for name, value in found["setting"].items()
    if name.startswith("server_")
  } == {
    "server_optimizer": "fed_adam",
    "server_learning_rate": 0.05,
    "server_tau": 0.001,
    "server_beta_1": 0.9,
    "server_beta_2": 0.99,
  }
  flags = json.loads((tmp_path / "whole" / "config.json").read_text())["flags"]
  assert flags["server_optimizer"] == "fed_adam"


@pytest.mark.parametrize(
  ("flags", "message"),
  [
    (
      "--server_optimizer=adam",
      "--server_optimizer must be one of none, fed_avg_m, fed_adagrad,"
      " fed_yogi, fed_adam, got 'adam'",
    ),
    (
      "--server_optimizer=none --server_momentum=0.9",
      "--server_momentum belongs to --server_optimizer=fed_avg_m, not to"
      " --server_optimizer=none",
    ),
    (
      "--server_tau=0.1",
      "--server_tau belongs to --server_optimizer=fed_adagrad|fed_yogi|"
      "fed_adam, not to --server_optimizer=none",
    ),
    (
      "--server_optimizer=fed_avg_m --server_beta_1=0.9",
      "--server_beta_1 belongs to --server_optimizer=fed_yogi|fed_adam, not to"
      " --server_optimizer=fed_avg_m",
    ),
    (
      "--server_optimizer=fed_adam --server_tau=0",
      "--server_tau=0.0 is not allowed",
    ),
  ],
)
def test_wrong_flags_are_refused(flags, message, refused):
  assert message in refused(evolving, [*_SMALL, *flags.split()])


@pytest.mark.long
def test_algorithm_whose_server_adds_more_is_refused(
  run_evolving, tmp_path, capsys
):
  output = tmp_path / "run"
  arguments = [
    *_SMALL,
    "--algorithm=fed_avg,local",
    "--server_momentum=0.5",
    f"--output_dir={output}",
  ]
  # Where nothing is shared, there is no server; the others have one.
  assert run_evolving([*arguments, "--rounds=1"]) == 0
  assert run_evolving([*arguments, "--algorithm=local", "--overwrite"]) == 2
  assert (
    "--server_optimizer=fed_avg_m is not allowed for local: every client trains"
    " its own model\n"
  ) in capsys.readouterr().err
