"""The flag `--aggregator` and runs that diverge, in whole binaries."""

import contextlib
import functools
import io
import json
import re
import shlex
import shutil

import pytest

from tff_shift.binaries import dynamic_personalization
from tff_shift.binaries import evolving
from tff_shift.binaries import guidance
from tff_shift.binaries import online_adaptation
from tff_shift.learning.aggregators import aggregator_hparams
from tff_shift.learning.aggregators import privacy_accounting

pytestmark = pytest.mark.slow

_SMALL = shlex.split("""
  --dataset=circle --num_domains=4 --max_examples_per_domain=90 --num_clients=4
  --rounds=2 --local_steps=1 --evaluate_every=1 --optimizer=adam
  --learning_rate=1e-3 --noprogress
""")
_ONLINE = shlex.split("""
  --dataset=digits --model=mlp --model_width=4 --max_pretraining_examples=200
  --pretraining_epochs=1 --timesteps=2 --num_clients=2 --samples_per_step=5
  --initial_examples=6 --head_epochs=1 --local_epochs=1 --noprogress
""")
_DYNAMIC = shlex.split("""
  --dataset=digits --max_examples=600 --num_clients=3 --rounds=1
  --period_size=20 --periods=1 --test_distributions=iid --model=mlp
  --model_width=4 --representation=pca --distance_threshold=1 --noprogress
""")


@pytest.fixture
def run_evolving(run_here, tmp_path):
  """Returns `run(*arguments, folder="run") -> exit code`."""

  def run(*arguments, folder="run"):
    return run_here(
      evolving,
      [*_SMALL, *arguments, f"--output_dir={tmp_path / folder}"],
    )

  return run


@pytest.fixture(scope="module")
def diverged(run_here, tmp_path_factory):
  """A run of two rates, the second too large: folder, exit code and errors."""
  folder = tmp_path_factory.mktemp("runs") / "diverged"
  errors = io.StringIO()
  with contextlib.redirect_stderr(errors):
    code = run_here(
      evolving,
      [
        *_SMALL,
        *("--algorithm=fed_avg,local", "--optimizer=sgd"),
        "--learning_rate=1e-3,1e30",
        f"--output_dir={folder}",
      ],
    )
  return folder, code, errors.getvalue()


def _epsilons(row):
  """The columns of a row that say how private a run is."""
  return {k: v for k, v in row.items() if k.startswith("epsilon")}


class TestAggregators:
  @pytest.mark.long
  def test_private_run_says_how_private_it_is(
    self, run_evolving, capsys, tmp_path, read_rows, read_runs
  ):
    code = run_evolving(
      *("--algorithm=local,fed_evolve", "--aggregator=dp", "--clipping=fixed"),
      *("--clipping_norm=0.5", "--noise_multiplier=2", "--participation=0.5"),
    )
    output, errors = capsys.readouterr()
    assert code == 0
    # 2 * sqrt(264704) / 2; of `local` there is nothing to say.
    assert "fed_evolve: the noise in the mean of a round is about 514" in errors
    # Of few clients, the probability of no guarantee is large.
    assert "dp: delta=0.218 with 4 clients, the probability" in errors
    assert errors.count("\n") == 2
    expected = privacy_accounting.account(
      noise_multiplier=2.0, num_clients=4, clients_per_round=2, num_rounds=2
    )
    first = output.splitlines()[0]
    assert first.startswith(
      f"dp: epsilon={expected.fixed_size_epsilon:.4g} at delta={4**-1.1:.4g}"
      " for replacing a client, for the weights of a run of 2 rounds"
    )
    assert (
      f"not for these cohorts: {expected.poisson_epsilon:.4g} for adding or"
      in first
    )
    flags = json.loads((tmp_path / "run" / "config.json").read_text())["flags"]
    assert (flags["aggregator"], flags["clipping_norm"]) == ("dp", 0.5)
    local, fed_evolve = (
      {
        name: run["setting"][name]
        for name in ("aggregator", *aggregator_hparams.USED_BY)
        if name in run["setting"]
      }
      for run in read_runs(tmp_path / "run")
    )
    setting = read_runs(tmp_path / "run")[1]["setting"]
    epsilons = _epsilons(setting)
    assert epsilons == {
      "epsilon": expected.fixed_size_epsilon,
      "epsilon_delta": expected.delta,
      "epsilon_relation": "replacing a client",
      "epsilon_sampling": (
        "cohorts of a fixed size, a fraction of 0.5 of the clients"
      ),
      "epsilon_fixed_cohort_size": expected.fixed_size_epsilon,
      "epsilon_poisson": expected.poisson_epsilon,
    }
    for row in read_rows(tmp_path / "run"):
      if row["algorithm"] == "local":
        assert set(_epsilons(row).values()) == {""}
      else:
        assert _epsilons(row) == {k: str(v) for k, v in epsilons.items()}
    # Nothing is shared there.
    assert local == {}
    # `zeroing` is none of dp's; a delta of 0 stands for what is printed.
    assert fed_evolve == {
      "aggregator": "dp",
      "clipping": "fixed",
      "clipping_norm": 0.5,
      "noise_multiplier": 2.0,
      "dp_delta": 0.0,
    }
    # The server is not told what it would predict with.
    rows = read_rows(tmp_path / "run")
    assert all(row["server_accuracy"] == "" for row in rows)

  @pytest.mark.long
  def test_private_run_of_independent_clients(
    self, run_evolving, capsys, tmp_path, read_rows, read_runs
  ):
    flags = shlex.split("""
      --algorithm=fed_avg --aggregator=dp --clipping=fixed
      --client_sampling=poisson --participation=0.25 --rounds=4
      --clipping_norm=0.5 --noise_multiplier=2 --seeds=0
    """)
    assert run_evolving(*flags) == 0
    expected = privacy_accounting.account(
      noise_multiplier=2.0,
      num_clients=4,
      clients_per_round=1,
      num_rounds=4,
      is_poisson=True,
    )
    first = capsys.readouterr().out.splitlines()[0]
    assert first.startswith(
      f"dp: epsilon={expected.poisson_epsilon:.4g} at delta={4**-1.1:.4g} for"
      " adding or removing a client"
    )
    (found,) = read_runs(tmp_path / "run")
    assert found["setting"]["epsilon"] == expected.poisson_epsilon
    assert found["setting"]["client_sampling"] == "poisson"
    assert len(read_rows(tmp_path / "run")) == 4

  @pytest.mark.long
  def test_private_run_by_a_tree_resumes_with_the_same_noise(
    self, run_evolving, capsys, tmp_path, read_rows, read_runs
  ):
    flags = shlex.split("""
      --algorithm=fed_avg --aggregator=dp_ftrl --participation=0.5
      --clipping_norm=0.5 --noise_multiplier=0.1 --tree_restart=2
      --client_sampling=in_turn
    """)
    assert run_evolving(*flags, "--rounds=3") == 0
    expected = privacy_accounting.account_tree(
      noise_multiplier=0.1,
      num_clients=4,
      num_rounds=3,
      separation=2,
      restart=2,
    )
    first, second, *_ = capsys.readouterr().out.splitlines()
    assert first.startswith(f"dp_ftrl: epsilon={expected.epsilon:.4g} at delta")
    assert "takes part in at most 2 rounds, at least 2 apart; " in first
    assert f"epsilon={expected.replacement_epsilon:.4g} for rep" in first
    assert second.startswith("dp_ftrl: epsilon does not cover sums over")
    (found,) = read_runs(tmp_path / "run")
    assert (
      found["setting"].items()
      >= {
        "aggregator": "dp_ftrl",
        "clipping_norm": 0.5,
        "tree_restart": 2,
      }.items()
    )

    # Twice from the same checkpoint, within a tree.
    shutil.copytree(tmp_path / "run", tmp_path / "copy")
    last = [
      run_evolving(*flags, "--rounds=6", "--resume", folder=folder)
      or read_rows(tmp_path / folder)
      for folder in ("run", "copy")
    ]
    assert last[0] == last[1] and len(last[0]) == 6

  @pytest.mark.long
  def test_secure_run_is_that_of_the_mean_and_prints_a_table(
    self, run_evolving, capsys, tmp_path, read_rows, diverged
  ):
    code = run_evolving(
      *("--algorithm=fed_avg", "--optimizer=sgd", "--learning_rate=1e-3"),
      *("--aggregator=secure", "--nozeroing", "--clipping=none"),
    )
    output, errors = capsys.readouterr()
    assert (code, errors) == (0, "")
    first, changed, table = output.split("\n", 2)
    assert first.startswith("secure aggregation is simulated:")
    assert changed.startswith("the data are changed by")
    assert table.startswith("algorithm")
    # Of the first rate, with the mean.
    losses, expected = (
      [float(row["train_loss"]) for row in read_rows(folder)]
      for folder in (tmp_path / "run", diverged[0])
    )
    assert losses == pytest.approx(expected, rel=1e-4)

  @pytest.mark.parametrize(
    "flags, message",
    [
      (
        "--aggregator=median",
        "--aggregator=median: it must be one of mean, robust,",
      ),
      (
        "--zeroing",
        "--zeroing belongs to --aggregator=robust|secure|compressed, not to"
        " --aggregator=mean",
      ),
      (
        "--aggregator=dp --tree_restart=2",
        "--tree_restart belongs to --aggregator=dp_ftrl, not to",
      ),
      (
        "--aggregator=dp_ftrl --clipping=fixed",
        "--clipping belongs to --aggregator=robust|secure|compressed|dp, not",
      ),
      (
        "--aggregator=robust --clipping_norm=2",
        "--clipping_norm belongs to --clipping=fixed",
      ),
      (
        "--aggregator=robust --clipping=often",
        "--clipping='often' is not allowed: it must be one of adaptive, fixed,"
        " none",
      ),
      (
        "--aggregator=dp",
        "--noise_multiplier=1 is not allowed with clipping=adaptive and 4"
        " clients per round: it must be below 0.4, or use clipping=fixed",
      ),
      (
        "--aggregator=dp --clipping=fixed --client_weighting=num_examples",
        "--client_weighting=num_examples of fed_avg is not allowed with"
        " aggregator=dp, which ignores weights: it must be uniform",
      ),
      (
        "--aggregator=robust --algorithm=local",
        "--aggregator=robust is not allowed for local: every client trains its"
        " own model",
      ),
    ],
  )
  def test_wrong_flags_are_refused_in_one_line(self, refused, flags, message):
    arguments = [*_SMALL, "--algorithm=fed_avg", *flags.split()]
    line = refused(evolving, arguments)
    assert line.startswith(f"evolving: {message}")

  @pytest.mark.long
  def test_streams_are_adapted_to_with_a_private_mean(
    self, run_here, tmp_path, capsys
  ):
    run = functools.partial(run_here, online_adaptation)
    arguments = [
      *_ONLINE,
      *("--algorithm=source,fed_ade", "--aggregator=dp", "--clipping=fixed"),
      f"--output_dir={tmp_path / 'run'}",
      f"--cache_dir={tmp_path / 'cache'}",
    ]
    # Eq. 7 weights clients, which this mean does not.
    assert run(arguments) == 2
    assert "client_weighting=num_examples of fed_ade" in capsys.readouterr().err
    arguments += ["--algorithm=fix_lr", "--client_weighting=uniform"]
    assert run(arguments) == 0
    assert re.match(r"dp: epsilon=\d", capsys.readouterr().out)


_REFUSED = [
  (
    guidance,
    "--algorithm=fed_drm --dataset=digits --num_clients=3 --max_examples=200",
    "--aggregator=robust",
    "fed_drm: its guide learns the clients' fractions n_i / N from the mean"
    " (Theorem 2.2), which clipping and zeroing change",
  ),
  *(
    (
      dynamic_personalization,
      f"{' '.join(_DYNAMIC)} --algorithm=fed_3da",
      f"--aggregator={name} --clipping=fixed",
      "fed_3da: in deployment a client sends the vector r of its data"
      " (Section 2.3)",
    )
    for name in ("dp", "secure")
  ),
  *(
    (
      dynamic_personalization,
      f"{' '.join(_DYNAMIC)} --algorithm=local",
      flags,
      "local: every client trains its own model",
    )
    for flags in ("--aggregator=robust", "--server_optimizer=fed_adam")
  ),
]


@pytest.mark.parametrize("binary, arguments, flags, message", _REFUSED)
def test_what_an_algorithm_cannot_do_with_is_refused(
  binary, arguments, flags, message, refused
):
  line = refused(binary, f"{arguments} {flags}")
  name = flags.split()[0]
  assert f": {name} is not allowed for {message}\n" in line


class TestDivergence:
  def test_run_that_diverges_ends_with_its_code_and_keeps_what_was_written(
    self, diverged, read_rows
  ):
    folder, code, errors = diverged
    assert code == 3
    assert errors == (
      "evolving: fed_avg diverged in round 1: the updates of all 4 clients are"
      " not finite; a smaller learning rate or, with features as large as 11.3,"
      " --input_scaling=standardized may help; partial results were saved\n"
    )
    assert (folder / "config.json").exists()
    # Runs before it keep their rows, and there are none after it.
    assert [
      (row["algorithm"], row["learning_rate"], row["round"])
      for row in read_rows(folder)
    ] == [("fed_avg", "0.001", "1"), ("fed_avg", "0.001", "2")]
