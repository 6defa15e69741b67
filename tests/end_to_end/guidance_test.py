"""The binary `experiments.guidance`, run whole."""

import functools
import shlex

import numpy as np
import pytest

from tff_shift.binaries import guidance

# The contract runs over all of them; here are those that differ in what they
# leave.
_ALGORITHMS = ("fed_avg_ft", "fed_drm")
_SMALL = shlex.split("""
  --dataset=digits --model=mlp --max_examples=400 --num_clients=4 --rounds=3
  --evaluate_every=2 --local_steps=2 --batch_size=8 --learning_rate=0.05
  --noprogress
""")


@pytest.fixture
def run_guidance(run_here):
  """Returns `run(arguments) -> exit code`."""
  return functools.partial(run_here, guidance)


@pytest.mark.slow
class TestWholeRun:
  @pytest.fixture(scope="class")
  def finished(self, run_whole, tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "all"
    output = run_whole(
      guidance,
      [
        *_SMALL,
        f"--algorithm={','.join(_ALGORITHMS)}",
        *("--seeds=0,1", "--lambda_=0.6,0.9", "--final_rounds=2"),
        "--fine_tuning_steps=3",
        f"--output_dir={folder}",
      ],
    )
    return folder, output

  def test_rows_are_those_of_every_evaluation(self, finished, read_rows):
    lambdas = {name: [""] for name in _ALGORITHMS}
    lambdas["fed_drm"] = ["0.6", "0.9"]
    assert [
      (r["algorithm"], r["lambda_"], r["seed"], r["round"])
      for r in read_rows(finished[0])
    ] == [
      (name, lambda_, seed, round_num)
      for name in _ALGORITHMS
      for lambda_ in lambdas[name]
      for seed in "01"
      # Every second, and each of the last two.
      for round_num in "23"
    ]

  def test_every_round_has_a_training_loss(
    self, finished, read_scalars, read_rows
  ):
    found = read_scalars(finished[0])
    losses = {k: v for k, v in found.items() if k.endswith("train_loss")}
    assert len(losses) == 2 * (len(_ALGORITHMS) + 1)
    for run in losses.values():
      # The first round is not evaluated.
      assert [step for step, _ in run] == [1, 2, 3]
    rows = [r for r in read_rows(finished[0]) if r["lambda_"] == "0.6"]
    (run,) = (v for k, v in losses.items() if "_0.6/" in k and "seed_1" in k)
    np.testing.assert_allclose(
      [value for _, value in run[1:]],
      [float(r["train_loss"]) for r in rows if r["seed"] == "1"],
      rtol=1e-6,
    )

  def test_summary_is_the_mean_over_the_last_rounds(
    self, finished, read_rows, read_runs
  ):
    rows = read_rows(finished[0])
    runs = read_runs(finished[0])
    assert len(runs) == len(_ALGORITHMS) + 1
    for run in runs:
      lambda_ = str(run["setting"].get("lambda_", ""))
      for seed, value in enumerate(run["metrics"]["system_accuracy"]["seeds"]):
        values = [
          float(r["system_accuracy"])
          for r in rows
          if (r["algorithm"], r["lambda_"], r["seed"])
          == (run["algorithm"], lambda_, str(seed))
        ]
        assert len(values) == 2
        assert value == pytest.approx(np.mean(values))
        spread = run["metrics"]["system_accuracy_over_rounds"]["seeds"][seed]
        assert spread == pytest.approx(np.std(values, ddof=1))

  def test_figures_are_there(self, finished):
    figures = {p.stem for p in (finished[0] / "figures").glob("*.png")}
    assert figures == {
      "transforms",
      "class_counts",
      "system_accuracy",
      "average_accuracy",
      "client_accuracy",
      "routing_fed_drm_lambda_0.6",
      "routing_fed_drm_lambda_0.9",
      "trade_off",
      "clients",
    }


@pytest.mark.long
def test_selection_looks_at_validation_alone(
  run_guidance, read_rows, read_runs, tmp_path, capsys
):
  code = run_guidance(
    [
      *_SMALL,
      *("--algorithm=fed_avg", "--learning_rate=1e-9,0.05"),
      *("--select=validation", "--seeds=3,4", "--selection_seeds=3"),
      f"--output_dir={tmp_path}",
    ]
  )
  assert code == 0
  rows = read_rows(tmp_path)
  last = {
    (row["held_out"], row["learning_rate"], row["seed"]): row for row in rows
  }
  # Both settings with one seed, then the better one with all.
  best = max(
    ("1e-09", "0.05"),
    key=lambda rate: float(last["validation", rate, "3"]["system_accuracy"]),
  )
  assert best == "0.05"
  assert last.keys() == {
    ("validation", "1e-09", "3"),
    ("validation", best, "3"),
    ("test", best, "3"),
    ("test", best, "4"),
  }
  (run,) = read_runs(tmp_path)
  assert run["setting"]["selection"] == "validation"
  assert run["metrics"]["system_accuracy"]["seeds"] == [
    pytest.approx(float(last["test", best, seed]["system_accuracy"]))
    for seed in ("3", "4")
  ]
  assert "chosen: fed_avg, learning rate 0.05" in capsys.readouterr().out


class TestDefaults:
  @pytest.fixture(scope="class")
  def plan(self, planned):
    """Returns `plan(names, *flags)`, the trials of the binary's plan."""
    small = [each for each in _SMALL if not each.startswith("--local_steps")]
    return lambda names, *given: planned(
      guidance, [*small, f"--algorithm={names}", *given]
    ).trials

  def test_rate_of_fine_tuning_falls_on_for_all_who_do_it(self, plan):
    names = "fed_avg,fed_avg_ft,fed_prox_ft,fed_babu,fed_ala"
    found = plan(names, "--fine_tuning_steps=15")
    # Fifteen steps, ten to a round, are two rounds more than three.
    assert {each.algorithm: each.hparams.cosine_rounds for each in found} == {
      "fed_avg": 3,
      "fed_avg_ft": 5,
      "fed_prox_ft": 5,
      "fed_babu": 5,
      "fed_ala": 3,
    }
    assert {each.hparams.local_steps for each in found} == {10}

  def test_rate_falls_on_as_each_setting_asks(self, plan):
    found = plan(
      "fed_avg_ft", "--fine_tuning_steps=20,30", "--local_steps=5,10"
    )
    assert {
      (
        each.hparams.fine_tuning_steps,
        each.hparams.local_steps,
        each.hparams.cosine_rounds,
      )
      for each in found
    } == {(20, 5, 7), (20, 10, 5), (30, 5, 9), (30, 10, 6)}

  def test_another_schedule_replaces_the_cosine(self, plan):
    (found,) = plan("fed_avg", "--decay_rounds=1", "--decay_factor=0.9")
    assert found.hparams.cosine_rounds == 0
    assert (found.hparams.decay_rounds, found.hparams.decay_factor) == (1, 0.9)

  def test_published_methods_have_the_budget_of_all_others(self, plan):
    found = plan("fed_ala,fed_as", "--variant=published,program")
    assert {
      (each.algorithm, each.hparams.variant): each.hparams.local_steps
      for each in found
    } == {
      ("fed_ala", "published"): 10,
      ("fed_as", "published"): 10,
      # Half of the program's ten steps learn the mixture, a fifth aligns.
      ("fed_ala", "program"): 5,
      ("fed_as", "program"): 8,
    }
    given = plan("fed_ala", "--variant=program", "--local_steps=7")
    assert [each.hparams.local_steps for each in given] == [7]

  def test_two_parts_share_the_steps(self, plan):
    for each in plan("fed_rep,flute,fed_pac,con_free"):
      assert each.hparams.local_steps + each.hparams.head_steps == 10


class TestBadFlags:
  @pytest.mark.parametrize(
    "flags, named",
    [
      ("--partition=dirichlet", "partition must be dirichlet_<alpha>"),
      ("--intensity=huge", "--intensity=huge"),
      ("--num_clients=0", "--num_clients=0"),
      ("--num_clients=60", "54"),
      ("--num_clients=9 --intensity=low", "intensity"),
      ("--final_rounds=4", "--final_rounds=4"),
      ("--select=test", "--select=test"),
      ("--lambda_=1.5", "lambda_=1.5"),
      ("--lambda_=half", "--lambda_=half: it must be a number at least 0"),
      ("--lambda_=0.9 --algorithm=fed_rep", "--lambda_ belongs to"),
      ("--sharing=deep", "no option 'sharing'"),
      ("--model=lenet --sharing=some", "--sharing=some"),
      ("--algorithm=fed_ade", "--algorithm=fed_ade"),
      ("--max_examples=20", "examples"),
    ],
  )
  def test_one_line_and_nothing_written(self, flags, named, refused):
    arguments = [*_SMALL, "--algorithm=fed_drm", *flags.split()]
    assert named in refused(guidance, arguments)


@pytest.mark.slow
def test_sharing_is_that_of_the_model(planned):
  arguments = [*_SMALL, "--algorithm=fed_drm", "--model=lenet"]
  plans = [
    planned(guidance, [*arguments, *flags])
    for flags in ([], ["--sharing=shallow"])
  ]
  assert [plan.settings["sharing"] for plan in plans] == [None, "shallow"]
  # Weights that both tasks share: a convolution with its normalisation, or all
  # but those of the tasks' own layers.
  assert [plan.model.trunk_size for plan in plans] == [16, 4]
