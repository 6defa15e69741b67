"""The flag `--aggregator` and runs that diverge, in whole binaries."""

import re
import shutil

import pytest

from tff_shift.learning.aggregators import aggregator_hparams
from tff_shift.learning.aggregators import privacy_accounting

pytestmark = pytest.mark.slow

_SMALL = """
  --dataset=circle --num_domains=4 --max_examples_per_domain=90 --num_clients=4
  --rounds=2 --local_steps=1 --evaluate_every=1 --optimizer=adam
  --learning_rate=1e-3 --noprogress
"""
_ONLINE = """
  --dataset=digits --model=mlp --model_width=4 --max_pretraining_examples=200
  --pretraining_epochs=1 --timesteps=2 --num_clients=2 --samples_per_step=5
  --initial_examples=6 --head_epochs=1 --local_epochs=1 --noprogress
"""


@pytest.fixture(scope="module")
def diverged(run_once):
  """A run of two rates, the second too large."""
  return run_once(
    *("evolving", _SMALL, "--algorithm=fed_avg,local --optimizer=sgd"),
    "--learning_rate=1e-3,1e30",
    code=3,
  )


class TestAggregators:
  @pytest.mark.long
  def test_private_run_says_how_private_it_is(self, run):
    ended = run(
      *("evolving", _SMALL, "--algorithm=local,fed_evolve --aggregator=dp"),
      "--clipping=fixed --clipping_norm=0.5 --noise_multiplier=2",
      "--participation=0.5",
    )
    # 2 * sqrt(264704) / 2; of `local` there is nothing to say.
    delta, noise = ended.errors.splitlines()
    assert "fed_evolve: the noise in the mean of a round is about 514" in noise
    # Of few clients, the probability of no guarantee is large.
    assert "dp: delta=0.218 with 4 clients, the probability" in delta
    expected = privacy_accounting.account(
      noise_multiplier=2.0, num_clients=4, clients_per_round=2, num_rounds=2
    )
    first = ended.output.splitlines()[0]
    assert first.startswith(
      f"dp: epsilon={expected.fixed_size_epsilon:.4g} at delta={4**-1.1:.4g}"
      " for replacing a client, for the weights of a run of 2 rounds"
    )
    assert (
      f"not for these cohorts: {expected.poisson_epsilon:.4g} for adding or"
      in first
    )
    epsilons = {
      "epsilon": expected.fixed_size_epsilon,
      "epsilon_delta": expected.delta,
      "epsilon_relation": "replacing a client",
      "epsilon_sampling": (
        "cohorts of a fixed size, a fraction of 0.5 of the clients"
      ),
      "epsilon_fixed_cohort_size": expected.fixed_size_epsilon,
      "epsilon_poisson": expected.poisson_epsilon,
    }
    # `zeroing` is none of dp's; a delta of 0 stands for what is printed.
    settings = {
      "aggregator": "dp",
      "clipping": "fixed",
      "clipping_norm": 0.5,
      "noise_multiplier": 2.0,
      "dp_delta": 0.0,
    }
    names = {"aggregator", *aggregator_hparams.USED_BY, *epsilons}
    assert [
      {name: each["setting"][name] for name in names & each["setting"].keys()}
      for each in ended.runs
      # Nothing is shared in the first.
    ] == [{}, settings | epsilons]
    for row in ended.rows:
      # The server is not told what it would predict with.
      assert row["server_accuracy"] == ""
      is_local = row["algorithm"] == "local"
      for name, value in epsilons.items():
        assert row[name] == ("" if is_local else str(value))

  @pytest.mark.long
  def test_private_run_of_independent_clients(self, run):
    flags = """
      --algorithm=fed_avg --aggregator=dp --clipping=fixed
      --client_sampling=poisson --participation=0.25 --rounds=4
      --clipping_norm=0.5 --noise_multiplier=2 --seeds=0
    """
    ended = run("evolving", _SMALL, flags)
    expected = privacy_accounting.account(
      noise_multiplier=2.0,
      num_clients=4,
      clients_per_round=1,
      num_rounds=4,
      is_poisson=True,
    )
    assert ended.output.startswith(
      f"dp: epsilon={expected.poisson_epsilon:.4g} at delta={4**-1.1:.4g} for"
      " adding or removing a client"
    )
    (found,) = ended.runs
    assert found["setting"]["epsilon"] == expected.poisson_epsilon
    assert found["setting"]["client_sampling"] == "poisson"
    assert len(ended.rows) == 4

  @pytest.mark.long
  def test_private_run_by_a_tree_resumes_with_the_same_noise(
    self, run, tmp_path
  ):
    flags = f"""{_SMALL}
      --algorithm=fed_avg --aggregator=dp_ftrl --participation=0.5
      --clipping_norm=0.5 --noise_multiplier=0.1 --tree_restart=2
      --client_sampling=in_turn
    """
    ended = run("evolving", flags, "--rounds=3")
    expected = privacy_accounting.account_tree(
      noise_multiplier=0.1,
      num_clients=4,
      num_rounds=3,
      separation=2,
      restart=2,
    )
    first, second, *_ = ended.output.splitlines()
    assert first.startswith(f"dp_ftrl: epsilon={expected.epsilon:.4g} at delta")
    assert "takes part in at most 2 rounds, at least 2 apart; " in first
    assert f"epsilon={expected.replacement_epsilon:.4g} for rep" in first
    assert second.startswith("dp_ftrl: epsilon does not cover sums over")
    (found,) = ended.runs
    expected = {"aggregator": "dp_ftrl", "clipping_norm": 0.5}
    assert found["setting"].items() >= (expected | {"tree_restart": 2}).items()
    # Twice from the same checkpoint, within a tree.
    shutil.copytree(tmp_path / "run", tmp_path / "copy")
    last = [
      run("evolving", flags, "--rounds=6 --resume", folder=folder).rows
      for folder in ("run", "copy")
    ]
    assert last[0] == last[1] and len(last[0]) == 6

  @pytest.mark.long
  def test_secure_run_is_that_of_the_mean_and_prints_a_table(
    self, run, diverged
  ):
    ended = run(
      *("evolving", _SMALL, "--algorithm=fed_avg --optimizer=sgd"),
      "--learning_rate=1e-3 --aggregator=secure --nozeroing --clipping=none",
      errors="",
    )
    first, changed, table = ended.output.split("\n", 2)
    assert first.startswith("secure aggregation is simulated:")
    assert changed.startswith("the data are changed by")
    assert table.startswith("algorithm")
    # Of the first rate, with the mean.
    losses, expected = (
      [float(row["train_loss"]) for row in each.rows]
      for each in (ended, diverged)
    )
    assert losses == pytest.approx(expected, rel=1e-4)

  @pytest.mark.long
  def test_streams_are_adapted_to_with_a_private_mean(self, run, tmp_path):
    ended = run(
      *("online_adaptation", _ONLINE, f"--cache_dir={tmp_path / 'cache'}"),
      "--algorithm=fix_lr --aggregator=dp --clipping=fixed",
      "--client_weighting=uniform",
    )
    assert re.match(r"dp: epsilon=\d", ended.output)


def test_run_that_diverges_ends_with_its_code_and_keeps_what_was_written(
  diverged,
):
  assert diverged.errors == (
    "evolving: fed_avg diverged in round 1: the updates of all 4 clients are"
    " not finite; a smaller learning rate or, with features as large as 11.3,"
    " --input_scaling=standardized may help; partial results were saved\n"
  )
  assert (diverged.folder / "config.json").exists()
  # Runs before it keep their rows, and there are none after it.
  assert [
    (row["algorithm"], row["learning_rate"], row["round"])
    for row in diverged.rows
  ] == [("fed_avg", "0.001", "1"), ("fed_avg", "0.001", "2")]
