"""The binary `experiments.guidance`, run whole."""

import numpy as np
import pytest

_PLANNED = """
  --dataset=digits --model=mlp --max_examples=400 --num_clients=4 --rounds=3
  --evaluate_every=2 --batch_size=8 --learning_rate=0.05 --noprogress
"""
_SMALL = f"{_PLANNED} --local_steps=2"


@pytest.mark.slow
class TestWholeRun:
  @pytest.fixture(scope="class")
  def finished(self, run_once):
    return run_once(
      *("guidance", _SMALL, "--algorithm=fed_avg_ft,fed_drm --seeds=0,1"),
      "--lambda_=0.6,0.9 --final_rounds=2 --fine_tuning_steps=3",
      errors="",
    )

  def test_rows_are_those_of_every_evaluation(self, finished):
    columns = "algorithm", "lambda_", "seed", "round"
    assert [",".join(map(row.get, columns)) for row in finished.rows] == [
      f"{setting},{seed},{round_num}"
      for setting in ("fed_avg_ft,", "fed_drm,0.6", "fed_drm,0.9")
      for seed in "01"
      # Every second, and each of the last two.
      for round_num in "23"
    ]

  def test_every_round_has_a_training_loss(self, finished, read_scalars):
    found = read_scalars(finished.folder)
    losses = {k: v for k, v in found.items() if k.endswith("train_loss")}
    assert len(losses) == 2 * 3
    for run in losses.values():
      # The first round is not evaluated.
      assert [step for step, _ in run] == [1, 2, 3]
    rows = finished.frame.query("lambda_ == 0.6 and seed == 1")
    (run,) = (v for k, v in losses.items() if "_0.6/" in k and "seed_1" in k)
    np.testing.assert_allclose(
      [value for _, value in run[1:]], rows["train_loss"], rtol=1e-6
    )

  def test_summary_is_the_mean_over_the_last_rounds(self, finished):
    settings = finished.frame.fillna({"lambda_": 0}).groupby(
      ["algorithm", "lambda_", "seed"]
    )
    assert (settings.size() == 2).all()
    accuracy = settings["system_accuracy"]
    assert len(finished.runs) == 3
    for run in finished.runs:
      key = run["algorithm"], run["setting"].get("lambda_", 0)
      for name, expected in (
        ("system_accuracy", accuracy.mean()),
        ("system_accuracy_over_rounds", accuracy.std()),
      ):
        seeds = run["metrics"][name]["seeds"]
        assert seeds == pytest.approx(expected.xs(key).tolist())

  def test_figures_are_there(self, finished):
    assert finished.figures == {
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
def test_selection_looks_at_validation_alone(run):
  ended = run(
    *("guidance", _SMALL, "--algorithm=fed_avg --learning_rate=1e-9,0.05"),
    "--select=validation --seeds=3,4 --selection_seeds=3",
  )
  last = {
    (row["held_out"], row["learning_rate"], row["seed"]): row
    for row in ended.rows
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
  (summary,) = ended.runs
  assert summary["setting"]["selection"] == "validation"
  assert summary["metrics"]["system_accuracy"]["seeds"] == [
    pytest.approx(float(last["test", best, seed]["system_accuracy"]))
    for seed in ("3", "4")
  ]
  assert "chosen: fed_avg, learning rate 0.05" in ended.output


class TestDefaults:
  @pytest.fixture(scope="class")
  def plan(self, planned):
    """Returns `plan(names, *flags)`: the name and the fields of each trial."""

    def plan(names, *given):
      flags = _PLANNED, f"--algorithm={names}", *given
      return [
        (each.algorithm, each.hparams)
        for each in planned("guidance", flags).trials
      ]

    return plan

  def test_rate_of_fine_tuning_falls_on_for_all_who_do_it(self, plan):
    names = "fed_avg,fed_avg_ft,fed_prox_ft,fed_babu,fed_ala"
    found = plan(names, "--fine_tuning_steps=15")
    # Fifteen steps, ten to a round, are two rounds more than three.
    assert {name: hparams.cosine_rounds for name, hparams in found} == {
      "fed_avg": 3,
      "fed_avg_ft": 5,
      "fed_prox_ft": 5,
      "fed_babu": 5,
      "fed_ala": 3,
    }
    assert {hparams.local_steps for _, hparams in found} == {10}
    # As each setting asks.
    steps = "--fine_tuning_steps=20,30", "--local_steps=5,10"
    assert {
      (h.fine_tuning_steps, h.local_steps, h.cosine_rounds)
      for _, h in plan("fed_avg_ft", *steps)
    } == {(20, 5, 7), (20, 10, 5), (30, 5, 9), (30, 10, 6)}

  def test_another_schedule_replaces_the_cosine(self, plan):
    ((_, hparams),) = plan("fed_avg", "--decay_rounds=1 --decay_factor=0.9")
    assert hparams.cosine_rounds == 0
    assert (hparams.decay_rounds, hparams.decay_factor) == (1, 0.9)

  def test_published_methods_have_the_budget_of_all_others(self, plan):
    found = plan("fed_ala,fed_as", "--variant=published,program")
    assert {(name, h.variant): h.local_steps for name, h in found} == {
      ("fed_ala", "published"): 10,
      ("fed_as", "published"): 10,
      # Half of the program's ten steps learn the mixture, a fifth aligns.
      ("fed_ala", "program"): 5,
      ("fed_as", "program"): 8,
    }
    ((_, hparams),) = plan("fed_ala", "--variant=program --local_steps=7")
    assert hparams.local_steps == 7
    # Two parts share the steps.
    for _, hparams in plan("fed_rep,flute,fed_pac,con_free"):
      assert hparams.local_steps + hparams.head_steps == 10


@pytest.mark.slow
def test_sharing_is_that_of_the_model(planned):
  flags = f"{_SMALL} --algorithm=fed_drm --model=lenet"
  plans = [
    planned("guidance", f"{flags} {sharing}")
    for sharing in ("", "--sharing=shallow")
  ]
  assert [plan.settings["sharing"] for plan in plans] == [None, "shallow"]
  # Weights that both tasks share: a convolution with its normalisation, or all
  # but those of the tasks' own layers.
  assert [plan.model.trunk_size for plan in plans] == [16, 4]
