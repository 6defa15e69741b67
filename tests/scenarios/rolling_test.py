"""Results over the targets of a rolling evaluation, by hand."""

import numpy as np
import pytest

from tff_shift.command_line import comparison
from tff_shift.scenarios.evolving import rolling
from tff_shift.scenarios.evolving import simulation as evolving
from tff_shift.simulation import bounds
from tff_shift.simulation.engine import client_data


def test_metrics_over_targets():
  metrics = [
    {"client_accuracy": 70.0, "server_accuracy": 50.0, "recall": np.nan},
    {"client_accuracy": 40.0, "server_accuracy": 60.0, "recall": 0.5},
    {"client_accuracy": 55.0, "server_accuracy": 40.0, "recall": 1.0},
  ]
  assert rolling.over_targets(metrics) == {
    **{"client_accuracy": 55.0, "server_accuracy": 50.0, "recall": 0.75},
    "worst_target_client_accuracy": 40.0,
    "worst_target_server_accuracy": 40.0,
  }


def test_mean_ranks():
  """Of three methods on four targets, with ties."""
  accuracies = np.array([[90, 50, 70, 10], [80, 50, 70, 20], [85, 40, 70, 30]])
  ranks = rolling.mean_ranks(accuracies[:, np.newaxis])
  assert ranks.tolist() == [
    [(1 + 1.5 + 2 + 3) / 4],
    [(3 + 1.5 + 2 + 2) / 4],
    [(2 + 3 + 2 + 1) / 4],
  ]


def target(counts, left_out, **fields):
  evaluation = evolving.Evaluation(
    1, 0.5, {}, tables={"client_confusion_matrix": np.array(counts)}
  )
  return evolving.EvolvingResult(
    (evaluation,), left_out=client_data.LeftOut(*left_out), **fields
  )


def test_results_over_targets():
  result = rolling.RollingResult(
    (
      target([[1, 2]], [(), ("a",)], seconds_per_round=1, num_diverged=2),
      target([[3, 4]], [("b",), ("c", "a")], seconds_per_round=2),
    )
  )
  assert result.seconds_per_round == pytest.approx(1.5)
  assert result.num_diverged == 2
  left_out = comparison._left_out([result], {}, {})
  assert left_out == {"training": ["b"], "evaluation": ["a", "c"]}
  assert result.tables["client_confusion_matrix"].tolist() == [[4, 6]]
  # Values of clients are unknown.
  assert result.client_accuracy is None


def test_clients_count_where_they_have_a_target():
  accuracies = [[50, np.nan, np.nan], [70, 20, np.nan]]
  result = rolling.RollingResult(
    tuple(bounds.Bound({}, np.array(values)) for values in accuracies)
  )
  np.testing.assert_array_equal(result.client_accuracy, [60, 20, np.nan])
