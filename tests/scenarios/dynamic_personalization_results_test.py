"""Tests of what use on drifting periods has shown: numbers and figures."""

import numpy as np
import pytest

from tff_shift.data.shifts import (
  dynamic_personalization as dynamic_personalization_data,
)
from tff_shift.scenarios.dynamic_personalization import (
  figures as dynamic_personalization_figures,
)
from tff_shift.scenarios.dynamic_personalization import (
  results as dynamic_personalization_results,
)
from tff_shift.scenarios.dynamic_personalization import (
  simulation as dynamic_personalization,
)
from tff_shift.simulation.storage import results

# Three periods of two clients.
INFERENCE = dynamic_personalization.Inference(
  measured={
    "accuracy": np.array([[80.0, 71.0], [90.0, 72.0], [50.0, 83.0]]),
    "loss": np.array([[1.0, 2.0], [3.0, 4.0], [5.0, 9.0]]),
  },
  distances=np.array([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]),
  drifted=np.array([[True, False], [True, True], [False, False]]),
  detected=np.array([[True, True], [False, True], [False, False]]),
  requested=np.array([[True, False], [False, False], [False, False]]),
)


class TestFinalMetrics:
  def test_metrics_by_hand(self):
    found = dynamic_personalization_results.final_metrics(INFERENCE, 80.0)
    assert found == pytest.approx(
      {
        "validation_accuracy": 80,
        "accuracy": 446 / 6,
        "loss": 4,
        # 0, 81, 100, 64, 900, 9.
        "multi_period_variance": 1154 / 6,
        # 81, 64, 900.
        "multi_period_variance_below": 1045 / 6,
        # Below 72: 71 and 50.
        "low_accuracy_share": 100 * 2 / 6,
        "request_share": 100 / 6,
        # Of three drifts two are seen, of three others one seems to be.
        "true_positive_rate": 100 * 2 / 3,
        "false_positive_rate": 100 / 3,
        # Both at once; the third drift is missed, the third detection false.
        "detection_delay": 0,
        "missed_drifts": 1,
        "false_alarms": 1,
      }
    )

  def test_rate_of_nothing_is_not_a_number(self):
    for drifts, unknown in (
      (False, ["true_positive_rate", "detection_delay"]),
      (True, ["false_positive_rate"]),
    ):
      found = dynamic_personalization_results.final_metrics(
        INFERENCE._replace(drifted=np.full((3, 2), drifts)), 80.0
      )
      assert [name for name in found if np.isnan(found[name])] == unknown


def test_means_of_a_period_by_hand():
  assert INFERENCE.of_period(1) == {
    "accuracy": 75.5,
    "loss": 1.5,
    "distance": 1.5,
    "drifted_share": 50,
    "detected_share": 100,
    "requests": 1,
  }


@pytest.fixture
def folder(tmp_path):
  return results.RunFolder.create(tmp_path / "run")


def make_result(
  validation_accuracy, inference
) -> dynamic_personalization.DynamicResult:
  return dynamic_personalization.DynamicResult(
    validation_accuracy, {"0.9": inference}, 1.0
  )


class TestFigures:
  @pytest.fixture
  def drawn(self, asked):
    return asked(
      dynamic_personalization_figures,
      "accuracy_over_periods",
      "distance_over_periods",
    )

  def test_accuracy_is_the_mean_over_clients_for_each_seed(self, drawn, folder):
    better = INFERENCE._replace(
      measured={"accuracy": INFERENCE.accuracy + 10}, drifted=~INFERENCE.drifted
    )
    by_label = {
      "one": {0: make_result(80.0, INFERENCE)},
      "two": {0: make_result(70.0, INFERENCE), 1: make_result(90.0, better)},
    }
    dynamic_personalization_results.draw_accuracy(by_label, "0.9", folder)
    (curves, validation, drifted, detected, path), _ = drawn[
      "accuracy_over_periods"
    ]
    np.testing.assert_array_equal(curves["one"].rounds, [1, 2, 3])
    np.testing.assert_allclose(curves["one"].by_seed, [[75.5, 81, 66.5]])
    np.testing.assert_allclose(
      curves["two"].by_seed, [[75.5, 81, 66.5], [85.5, 91, 76.5]]
    )
    assert validation == {"one": [80], "two": [70, 90]}
    # Each drift of one seed is none of the other.
    np.testing.assert_allclose(np.sum(drifted, axis=0), [100, 100, 100])
    np.testing.assert_allclose(detected, [[100, 50, 0]] * 2)
    assert path.name == "accuracy_0.9.png"

  def test_distances_are_those_of_the_first_client(self, drawn, folder):
    stream = dynamic_personalization.Stream(
      None, INFERENCE.distances, INFERENCE.drifted
    )
    dynamic_personalization_results.draw_distances(
      stream, 2.5, "0.4+0.4", 7, folder
    )
    (found, drifted, threshold, path), options = drawn["distance_over_periods"]
    np.testing.assert_array_equal(found, [1, 3, 5])
    np.testing.assert_array_equal(drifted, [True, True, False])
    assert threshold == 2.5
    assert path.name == "distance_0.4_0.4.png"
    assert options["title"] == "Client 0, distribution 0.4+0.4, seed 7"


def test_names_of_distributions_give_names_of_their_own(folder):
  names = [
    folder.figure_path("a", name).name
    for name in dynamic_personalization_data.DISTRIBUTIONS
  ]
  assert len(set(names)) == len(names)
  assert all("+" not in name for name in names)
