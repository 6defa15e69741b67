"""Worst clients, spread and harmed clients, against numbers by hand."""

import io

import numpy as np
import pandas as pd
import pytest

from tests.fixtures import tables
from tests.fixtures.refusals import refused
from tff_shift.learning import metrics
from tff_shift.reporting import clients
from tff_shift.reporting import relative_metrics
from tff_shift.reporting import summary

NAN = np.nan


def frame(**by_algorithm):
  """Rows of two rounds; the values are those of the last one."""
  return pd.concat(
    pd.DataFrame(
      {
        "algorithm": name,
        "held_out": held_out,
        "seed": seed,
        "round": number,
        "client": range(len(values)),
        "client_accuracy": np.float32(values if number == 2 else 0),
      }
    )
    for name, by_seed in by_algorithm.items()
    for seed, values in enumerate(by_seed)
    for held_out in ("target", "last_source")
    for number in (1, 2)
  )


class TestSpread:
  def test_by_hand(self):
    # The tenth percentile of four values is 0.3 of the way to the second.
    assert clients.spread_of([20, NAN, 40, 60, 80]) == {
      "worst": 20.0,
      "percentile_10": 26.0,
      # Deviations -30, -10, 10, 30: the mean square is 500.
      "std": pytest.approx(500**0.5),
    }
    assert np.isnan(list(clients.spread_of([NAN]).values())).all()

  def test_of_the_last_round_of_each_run(self):
    found = clients.spread(frame(mine=[[20, 40], [10, NAN]]))
    assert found.to_dict("list") == {
      "algorithm": ["mine"] * 2,
      "held_out": ["target"] * 2,
      "seed": [0, 1],
      "num_clients": [2, 1],
      "worst": [20, 10],
      "percentile_10": [22, 10],
      "std": [10, 0],
    }

  def test_time_steps_and_the_last_rounds_are_averaged(self):
    rows = {"client": [0, 0, 1, 1], "accuracy": [10.0, 20.0, 30.0, 50.0]}
    steps = pd.DataFrame({"timestep": [1, 2, 1, 2], **rows})
    assert clients.final(steps)["accuracy"].tolist() == [15, 40]
    rounds = pd.DataFrame({"round": [5, 7, 5, 7], **rows})
    assert clients.final(rounds)["accuracy"].tolist() == [20, 50]
    assert clients.final(rounds, num_last=2)["accuracy"].tolist() == [15, 40]
    # As two results in a table.
    both = pd.concat([rounds.assign(algorithm=name) for name in "ab"])
    assert clients.spread(both)["worst"].tolist() == [20, 20]

  @pytest.mark.parametrize(
    "columns, metric, message",
    tables.cases("""
["round", "client", "loss"], None
    no column client_accuracy or accur
["round", "client", "loss"], "f1"
    no column f1, only round, client
["round", "loss"], "loss"
    there is no column client
["client", "loss"], "loss"
    no column round, timestep or period
"""),
  )
  def test_missing_columns_are_named(self, columns, metric, message):
    with refused(message):
      clients.spread(pd.DataFrame(columns=columns), metric)


class TestHarmed:
  def test_by_hand(self):
    # Lower, equal, higher, lower; without a value; equal up to rounding.
    values = [10, 20, 40, 10, NAN, 1 / 3]
    reference = [11, 20, 30, 90, 10, 1 / 3 + 1e-6]
    assert clients.harmed_share(values, reference) == 40
    assert clients.harmed_share(reference, values) == 20
    assert np.isnan(clients.harmed_share([NAN], [1]))
    with refused("of the same clients"):
      clients.harmed_share([1], [1, 2])

  def test_runs_of_the_same_seed_are_compared(self):
    found = clients.harmed(
      frame(mine=[[10, 30], [10, 30]], local=[[20, 20], [0, NAN]]),
      of="mine",
      against="local",
    )
    assert found["seed"].tolist() == [0, 1]
    assert found["num_clients"].tolist() == [2, 1]
    assert found["harmed_share"].tolist() == [50, 0]

  def test_names_decide_which_clients_are_the_same(self):
    rows = frame(mine=[[10, 30]], local=[[25, 5]])
    # The files of the two runs have them in another order.
    is_north = (rows["algorithm"] == "mine") == (rows["client"] == 0)
    rows["client_name"] = np.where(is_north, "north", "south")
    # 10 beside 5 in the north, 30 beside 25 in the south.
    assert clients.harmed(rows, "mine", "local")["harmed_share"].tolist() == [0]
    unnamed = rows.drop(columns="client_name")
    assert clients.harmed(unnamed, "mine", "local")[
      "harmed_share"
    ].tolist() == [50]

  def test_runs_without_one_counterpart_are_refused(self):
    rows = frame(mine=[[10], [20]], local=[[10]])
    with refused(r"one run with seed 1, got 0; keep"):
      clients.harmed(rows, "mine", "local")
    with refused("against must be one of local, mi"):
      clients.harmed(rows, "mine", "lokal")
    with refused("there is no column seed"):
      clients.harmed(rows.drop(columns="seed"), "mine", "local")


def run(algorithm, accuracy, selection="none", **setting):
  return summary.RunSummary(
    algorithm,
    "data",
    {"selection": selection, **setting},
    {0: {"accuracy": accuracy}},
    rounds=1,
    seconds_per_round=1.0,
  )


class TestRelativeMetrics:
  def metrics(self, runs, accuracies, varied=()):
    found = relative_metrics.relative_to_baselines(
      runs, [{0: np.array(each, float)} for each in accuracies], varied
    )
    return [each.metrics_by_seed[0] for each in found]

  def test_baselines_of_the_same_data(self):
    mine, local, _, other = self.metrics(
      [
        run("mine", 50.0, shift="a"),
        run("local", 40.0, shift="a"),
        run("local", 40.0, shift="b"),
        run("mine", 50.0, shift="c"),
      ],
      [[40, 60], [50, 30], [90, 90], [0, 0]],
      ["shift"],
    )
    assert mine == {"accuracy": 50.0, "harmed_share_against_local": 50.0}
    assert local == {"accuracy": 40.0}
    assert other == {"accuracy": 50.0}

  def test_baseline_with_settings_counts_if_one_was_selected(self):
    runs = [run("mine", 1.0), run("local", 1.0), run("local", 1.0)]
    accuracies = [[40, 60], [50, 30], [90, 90]]
    assert self.metrics(runs, accuracies)[0] == {"accuracy": 1.0}
    runs[2] = run("local", 1.0, selection="last_source")
    name = "harmed_share_against_local"
    assert self.metrics(runs, accuracies)[0][name] == 100

  def test_gain_of_adaptation(self):
    mine, source = self.metrics(
      [run("mine", 52.5), run("source", 50.0)], [[40, 65], [50, 50]]
    )
    assert mine["adaptation_gain"] == 2.5
    assert mine["harmed_share_against_source"] == 50
    assert source == {"accuracy": 50.0}

  def test_unknown_clients_and_other_seeds_add_nothing(self):
    runs = [run("mine", 1.0), run("local", 1.0)]
    known, unknown = {0: np.array([1.0])}, {0: None}
    for accuracies in ([known, unknown], [unknown, known], [{}, known]):
      found = relative_metrics.relative_to_baselines(runs, accuracies, [])
      assert found == runs


class TestLowerIsBetter:
  def frame(self, metric="client_loss"):
    good = pd.DataFrame(
      {
        "algorithm": "good",
        "seed": 0,
        "round": 1,
        "client": range(4),
        metric: [0.1, 0.2, 0.3, 0.4],
      }
    )
    bad = good.assign(algorithm="bad", **{metric: 2 * good[metric]})
    return pd.concat([good, bad])

  @pytest.mark.parametrize(
    "metric", ["client_loss", "client_brier", "client_mean_ece"]
  )
  def test_client_whose_loss_doubles_is_harmed(self, metric):
    both = self.frame(metric)
    for of, against, share in (("bad", "good", 100), ("good", "bad", 0)):
      (found,) = clients.harmed(both, of, against, metric).harmed_share
      assert found == share

  def test_worst_loss_is_the_highest(self):
    spread = clients.spread(self.frame(), "client_loss")
    assert spread["worst"].tolist() == [0.8, 0.4]
    # By linear interpolation, 0.37 is at nine tenths of the way from 0.1.
    assert spread["percentile_90"].tolist() == pytest.approx([0.74, 0.37])
    assert "percentile_10" not in spread

  def test_unknown_direction_is_asked_for(self):
    frame = self.frame("client_dread")
    for call in (
      lambda **options: clients.spread(frame, "client_dread", **options),
      lambda **options: clients.harmed(
        frame, "bad", "good", "client_dread", **options
      ),
    ):
      with refused("client_dread': it is unknown"):
        call()
      assert len(call(higher_is_better=False)) in (1, 2)


def of_csv(text):
  return pd.read_csv(io.StringIO(text))


class TestUndefined:
  def test_clients_with_examples_and_without_a_value(self):
    # The last client is measured apart.
    frame = of_csv("""
round,client,client_name,client_accuracy,client_auroc,client_mean_auroc,new_client_accuracy,new_client_mean_auroc
1,0,a,9,,,,
1,1,b,9,,1,,
2,0,a,9,1,1,,
2,1,b,9,,,,
2,2,new,,,,5,
""")
    chosen = metrics.choose(["auroc", "mean_auroc"], 2).metrics
    assert clients.undefined(frame, chosen) == {
      "client_mean_auroc": ["b"],
      "new_client_mean_auroc": ["new"],
    }

  @pytest.mark.parametrize("step", ["timestep", "period"])
  def test_all_steps_count(self, step):
    frame = of_csv(f"""
{step},client,accuracy,macro_f1,mean_macro_f1
1,0,9,1,
1,1,9,,1
2,0,9,1,1
2,1,9,1,1
3,0,9,1,
""")
    chosen = metrics.choose(["macro_f1", "mean_macro_f1"], 2).metrics
    assert clients.undefined(frame, chosen) == {
      "mean_macro_f1": ["0"],
      **({"macro_f1": ["1"]} if step == "period" else {}),
    }

  def test_nothing_without_values_of_clients(self):
    chosen = metrics.choose(["mean_auroc"], 2).metrics
    assert not clients.undefined(pd.DataFrame(columns=["client"]), chosen)
