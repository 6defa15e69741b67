"""Tests of what runs on drifting streams have shown: numbers and figures."""

import numpy as np
import pytest

from tff_shift.data import examples
from tff_shift.data.shifts import online_adaptation as online_adaptation_data
from tff_shift.learning import evaluation
from tff_shift.scenarios.online_adaptation import (
  figures as online_adaptation_figures,
)
from tff_shift.scenarios.online_adaptation import (
  results as online_adaptation_results,
)
from tff_shift.scenarios.online_adaptation import (
  simulation as online_adaptation,
)
from tff_shift.shift import dynamics
from tff_shift.simulation.storage import results

OMEGA = np.array([0, 0.5, 1.0, 0.8])
NUM_CLIENTS = 5
CLASS_NAMES = ("a", "b", "c")


def make_client_streams():
  y = np.arange(30, dtype=np.int32) % 3
  return online_adaptation_data.Streams(
    examples.Examples(np.arange(30, dtype=np.float32), y),
    3,
    OMEGA,
    num_clients=NUM_CLIENTS,
    samples_per_step=4,
    dirichlet=1.0,
  )


STREAMS = make_client_streams()


def make_result(accuracies, rates=None) -> online_adaptation.OnlineResult:
  """A run with these accuracies [T] and rates [T, clients].

  The estimates of client 0 name the step; those of the others are uniform.
  """
  if rates is None:
    rates = np.full((len(accuracies), NUM_CLIENTS), np.nan)
  timesteps = []
  for i, accuracy in enumerate(accuracies):
    estimates = np.full((NUM_CLIENTS, 3), 1 / 3)
    estimates[0] = [0.1 * i, 0.2, 0.8 - 0.1 * i]
    timesteps.append(
      online_adaptation.Timestep(
        i + 1,
        OMEGA[i + 1],
        dict.fromkeys(evaluation.METRICS, 1.0),
        dict.fromkeys(evaluation.METRICS, accuracy),
        np.asarray(rates[i], np.float32),
        estimates,
      )
    )
  return online_adaptation.OnlineResult(tuple(timesteps), 0.5)


RATES = np.arange(1, 3 * NUM_CLIENTS + 1).reshape(3, NUM_CLIENTS) / 100


class TestShift:
  def test_true_shift_is_that_of_each_client_and_step(self):
    # Of the way from uniform to the target: a half, a half, and a fifth back.
    way = np.abs(STREAMS.targets - 1 / 3).sum(axis=1)
    np.testing.assert_allclose(
      online_adaptation_results.true_shift(STREAMS),
      np.outer([0.5, 0.5, 0.2], way),
      rtol=1e-9,
    )

  def test_measured_shift_is_what_the_rates_came_from(self, run_in_graph):
    eta_min, eta_max = 5e-6, 1e-4
    signal = np.linspace(0, 1, 3 * NUM_CLIENTS, dtype=np.float32).reshape(3, -1)
    rates = run_in_graph(
      lambda s: dynamics.learning_rate(s, eta_min, eta_max), signal
    )
    result = make_result([1, 2, 3], rates)
    # By step and client.
    np.testing.assert_array_equal(
      online_adaptation_results.learning_rates(result), rates
    )
    measured = online_adaptation_results.measured_shift(
      result, eta_min, eta_max
    )
    np.testing.assert_allclose(measured, signal, rtol=0, atol=1e-6)


class TestRankCorrelation:
  def test_ranks_count(self):
    true = np.array([1.0, 2, 3, 4])
    # Ranks 2, 1, 4, 3: 1 - 6 (1 + 1 + 1 + 1) / (4 (16 - 1)).
    for measured, expected in (
      ([1, 8, 9, 1000], 1),
      ([3, 2, 1, 0], -1),
      ([0.2, 0.1, 7, 5], 0.6),
    ):
      # All clients and steps are ranked together.
      for shape in ([4], [2, 2]):
        assert online_adaptation_results.rank_correlation(
          np.reshape(measured, shape), true.reshape(shape)
        ) == pytest.approx(expected)

  def test_what_is_the_same_throughout_has_no_ranks(self):
    equal, other = np.ones(3), np.array([1.0, 2, 3])
    assert np.isnan(online_adaptation_results.rank_correlation(equal, other))
    assert np.isnan(online_adaptation_results.rank_correlation(other, equal))


@pytest.fixture
def folder(tmp_path):
  return results.RunFolder.create(tmp_path / "run")


class TestFigures:
  @pytest.fixture
  def drawn(self, asked):
    return asked(
      online_adaptation_figures,
      "accuracy_over_time",
      "rates_over_time",
      "class_distributions",
    )

  def test_accuracy_is_that_of_each_seed(self, drawn, folder):
    by_label = {
      "two seeds": [[10, 20, 30], [14, 20, 36]],
      "one seed": [[5, 6, 7]],
    }
    online_adaptation_results.draw_accuracy(
      {
        label: dict(zip((0, 7), map(make_result, by_seed), strict=False))
        for label, by_seed in by_label.items()
      },
      OMEGA[None],
      folder,
      "sine",
    )
    (curves, omega, path), options = drawn["accuracy_over_time"]
    assert list(curves) == list(by_label)
    for label, curve in curves.items():
      np.testing.assert_array_equal(curve.rounds, [1, 2, 3])
      np.testing.assert_array_equal(curve.by_seed, by_label[label])
    np.testing.assert_array_equal(omega, [OMEGA])
    assert path.name == "accuracy_sine.png"
    assert "%" in options["ylabel"]

  @pytest.mark.parametrize("name", ["client", "ward"])
  def test_rates_and_estimates_stand_beside_the_truth(
    self, drawn, folder, name
  ):
    """The rates of four clients, the classes of one; clients may have names."""
    names = [f"{name} {client}" for client in range(NUM_CLIENTS)]
    result = make_result([1, 2, 3], RATES)
    if name == "ward":
      result = result._replace(client_names=tuple(names))
    online_adaptation_results.draw_adaptation(
      result, STREAMS, CLASS_NAMES, folder, "square", 7
    )
    (rates, shifts, path), options = drawn["rates_over_time"]
    assert options["title"] == "Learning rates, square shift, seed 7"
    true = online_adaptation_results.true_shift(STREAMS)
    assert list(rates) == list(shifts) == names[:4]
    for client, of_client in enumerate(names[:4]):
      np.testing.assert_allclose(rates[of_client], RATES[:, client], rtol=1e-6)
      np.testing.assert_array_equal(shifts[of_client], true[:, client])
    assert path.name == "learning_rates_square.png"

    (estimated, true, classes, path), options = drawn["class_distributions"]
    np.testing.assert_allclose(
      estimated, [[0, 0.2, 0.8], [0.1, 0.2, 0.7], [0.2, 0.2, 0.6]]
    )
    target = STREAMS.targets[0]
    np.testing.assert_allclose(
      true, [(1 - w) / 3 + w * target for w in OMEGA[1:]]
    )
    assert classes == CLASS_NAMES
    assert path.name == "class_estimates_square.png"
    assert options["title"].startswith(f"Classes of {names[0]}, ")
    assert "square" in options["title"]
