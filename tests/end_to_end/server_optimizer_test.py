"""The flag `--server_optimizer` in whole binaries."""

import pytest

_SMALL = """
  --dataset=circle --num_domains=4 --max_examples_per_domain=60 --num_clients=4
  --local_steps=1 --evaluate_every=1 --algorithm=fed_avg --learning_rate=0.1
  --noprogress --checkpoint_every=1
"""


@pytest.mark.long
def test_resumed_run_steps_like_one_that_was_not_stopped(run):
  optimizer = "--server_optimizer=fed_adam --server_learning_rate=0.05"
  adam = "evolving", _SMALL, optimizer
  whole = run(*adam, "--rounds=3")
  run(*adam, "--rounds=2", folder="resumed")
  resumed = run(*adam, "--rounds=3 --resume", folder="resumed")
  assert resumed.rows == whole.rows
  # It is the optimizer that steps.
  plain = run("evolving", _SMALL, "--rounds=3", folder="plain")
  assert whole.rows != plain.rows
  (found,) = whole.runs
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
  assert whole.config["flags"]["server_optimizer"] == "fed_adam"


@pytest.mark.long
def test_algorithm_whose_server_adds_more_is_refused(run):
  given = "evolving", _SMALL, "--algorithm=fed_avg,local --server_momentum=0.5"
  # Where nothing is shared, there is no server; the others have one.
  run(*given, "--rounds=1")
  assert (
    "--server_optimizer=fed_avg_m is not allowed for local: every client trains"
    " its own model\n"
  ) in run(*given, "--algorithm=local --overwrite", code=2).errors
