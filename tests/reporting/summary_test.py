import math
import re

import numpy as np
import pytest

from tests.fixtures import tables
from tff_shift.learning import evaluation
from tff_shift.reporting import summary
from tff_shift.simulation.storage import run_records


class TestRunSummary:
  @pytest.mark.parametrize(
    "values, mean, deviation",
    [
      # Squares of -3, -1, 4: 26; 26 / (3 - 1) = 13.
      ([70.0, 72.0, 77.0], 73.0, math.sqrt(13.0)),
      ([0.1] * 3, 0.1, 0.0),
      # Unknown, of one seed or of values that are not finite.
      ([0.1], 0.1, math.nan),
      ([1.0, math.nan], math.nan, math.nan),
      ([1.0, math.inf], math.inf, math.nan),
      ([math.inf, -math.inf], math.nan, math.nan),
    ],
  )
  def test_mean_and_standard_deviation_by_hand(
    self, make_summary, values, mean, deviation
  ):
    rows = {seed: {"loss": value} for seed, value in enumerate(values)}
    run = make_summary(metrics_by_seed=rows)
    np.testing.assert_equal(run.values("loss"), values)
    np.testing.assert_equal(run.mean("loss"), mean)
    np.testing.assert_equal(run.standard_deviation("loss"), deviation)
    # What is not a number is null.
    is_null = run.to_record().metrics["loss"].std is None
    assert is_null == math.isnan(deviation)

  def test_record_has_the_direction_of_a_metric(
    self, make_summary, monkeypatch
  ):
    score = evaluation.ExampleMetric(None, higher_is_better=False)
    monkeypatch.setitem(evaluation.METRICS, "brier_score", score)
    row = {"client_accuracy": 1.0, "client_brier_score": 0.1, "regret": 0.2}
    record = make_summary(metrics_by_seed={0: row}).to_record()
    assert record.lower_is_better == ("client_brier_score",)


class TestLastAndMean:
  EVALUATIONS = (
    {"client_accuracy": 10.0, "server_accuracy": None},
    {"client_accuracy": 80.0, "server_accuracy": None},
    {"client_accuracy": 60.0, "server_accuracy": None},
  )

  @pytest.mark.parametrize(
    "num_last, mean", [(1, 60.0), (2, 70.0), (3, 50.0), (9, 50.0)]
  )
  def test_means_by_hand(self, num_last, mean):
    # What is not measured is no metric, and neither is its mean.
    assert summary.last_and_mean(self.EVALUATIONS, num_last) == {
      "client_accuracy": 60.0,
      "mean_of_last_client_accuracy": mean,
    }


class TestComparisonTable:
  def test_layout(self, make_summary):
    runs = [
      make_summary(setting={"dirichlet": "inf", "learning_rate": 5e-6}),
      make_summary(
        "local",
        setting={"dirichlet": "inf"},
        metrics_by_seed={
          0: {"client_accuracy": 100.0},
          1: {"client_accuracy": 60.0},
        },
        seconds_per_round=12.3456,
      ),
    ]
    # Samples 100 and 60: mean 80, standard deviation sqrt(2 * 400) = 28.28.
    assert summary.comparison_table(runs).splitlines() == [
      "algorithm  learning_rate  client accuracy (%)  server accuracy (%)"
      "  s/round",
      "---------  -------------  -------------------  -------------------"
      "  -------",
      "fed_avg    5e-06                73.00 ±  3.61        60.00 ±  0.00"
      "     0.25",
      "local      -                    80.00 ± 28.28                    -"
      "     12.3",
    ]

  @pytest.mark.parametrize("num_seeds", [1, 2])
  def test_a_star_marks_the_best_of_a_task(self, make_summary, num_seeds):
    def run(name, accuracy, loss, shift):
      metrics = {"accuracy": accuracy, "loss": loss}
      return make_summary(
        name,
        setting={"shift": shift},
        metrics_by_seed=dict.fromkeys(range(num_seeds), metrics),
        directions={"loss": False},
      )

    runs = [
      run("fed_avg", 60.0, 0.5, "sine"),
      run("local", 70.0, 0.25, "sine"),
      # It has data that the others do not have.
      run("pooled", 90.0, 0.125, "sine"),
      # Equal means are both the best.
      run("fed_avg", 40.0, 2.0, "linear"),
      run("local", 40.0, 3.0, "linear"),
      # Nothing to compare with.
      run("fed_avg", 99.0, 0.1, "square"),
      # Not finite.
      run("diverged", 10.0, float("nan"), "linear"),
    ]
    table = summary.comparison_table(
      runs, ["accuracy", "loss"], ["shift"], best_within=["shift"]
    )
    table = re.sub(" ± +(0.00|0|nan)", "", table)
    if num_seeds == 1:
      # A difference of single seeds may be chance.
      assert "*" not in table
      return
    assert [row for row, _ in tables.rows(table)][2:] == [
      "fed_avg sine 60.00 0.5 0.25",
      "local sine 70.00 * 0.25 * 0.25",
      "pooled sine 90.00 0.125 0.25",
      "fed_avg linear 40.00 * 2 * 0.25",
      "local linear 40.00 * 3 0.25",
      "fed_avg square 99.00 0.1 0.25",
      "diverged linear 10.00 nan 0.25",
    ]

  def test_one_seed_shows_no_spread(self, make_summary):
    rows = {7: {"loss": 0.123456, "accuracy": 8.0}}
    table = summary.comparison_table(
      [make_summary(metrics_by_seed=rows)], metrics=["loss", "accuracy"]
    )
    assert table.splitlines() == [
      "algorithm    loss  accuracy (%)  s/round",
      "---------  ------  ------------  -------",
      "fed_avg    0.1235          8.00     0.25",
    ]

  def test_settings_and_metrics_that_are_asked_for_are_shown(
    self, make_summary
  ):
    runs = [
      make_summary(setting={"rate": rate, "steps": steps, "model": "mlp"})
      for rate, steps in ((0.1, 1), (0.2, 2))
    ]
    table = summary.comparison_table(
      runs, metrics=["client_accuracy", "loss"], settings=["rate", "model"]
    )
    # What is the same for all is not told, nor what nobody has measured.
    assert table.splitlines()[0].split() == [
      *("algorithm", "rate", "client", "accuracy", "(%)", "s/round")
    ]

  def test_divergence_is_told_if_there_was_any(self, make_summary):
    runs = [
      make_summary(num_diverged=(0, 2, 1)),
      make_summary("local", num_diverged=(0, 0, 0)),
    ]
    table = summary.comparison_table(runs, metrics=[])
    assert [row for row, _ in tables.rows(table)] == [
      "algorithm s/round diverged",
      "--------- ------- --------",
      "fed_avg 0.25 3",
      "local 0.25 0",
    ]
    assert "diverged" not in summary.comparison_table(runs[1:])
    assert runs[0].to_record().num_diverged == (0, 2, 1)

  def test_who_is_left_out_is_told(self, make_summary):
    runs = [
      make_summary(left_out={"training": ["b", "c"], "evaluation": []}),
      make_summary(
        "local", left_out={"training": ["b", "c"], "evaluation": ["d"]}
      ),
      make_summary("ditto"),
    ]
    table = summary.comparison_table(runs, metrics=[])
    head, _, *lines = (row for row, _ in tables.rows(table))
    assert head == "algorithm s/round not in training not in evaluation"
    assert lines == ["fed_avg 0.25 2 0", "local 0.25 2 1", "ditto 0.25 0 0"]
    assert summary.left_out_lines(runs) == [
      "not in training of fed_avg, local: 2 clients (b, c)",
      "not in evaluation of local: 1 client (d)",
    ]
    assert runs[1].to_record().left_out == {
      "training": run_records.LeftOut(num_clients=2, clients=("b", "c")),
      "evaluation": run_records.LeftOut(num_clients=1, clients=("d",)),
    }
    assert "left_out" not in runs[2].to_record().to_fields()
    assert "not in" not in summary.comparison_table(runs[2:])

  def test_names_are_ten_at_most(self):
    assert summary.shortened("abc", ", ") == "a, b, c"
    assert summary.shortened(map(str, range(12))).endswith("; 9; and 2 more")

  def test_several_data_sets_are_told_apart(self, make_summary):
    runs = [make_summary(), make_summary(dataset="rotated_mnist")]
    table = summary.comparison_table(runs, metrics=["server_accuracy"])
    assert [line.split()[:2] for line in table.splitlines()] == [
      ["algorithm", "dataset"],
      ["---------", "-------------"],
      ["fed_avg", "circle"],
      ["fed_avg", "rotated_mnist"],
    ]
