"""Tests of eq. 2 of Fed-3DA beside an assignment by SciPy, and of DT."""

import functools

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest
from scipy import optimize
from scipy.spatial import distance as scipy_distance
from sklearn import preprocessing

from tff_shift.shift import distances

SEEDS = st.integers(0, 2**31)


def assignment(cost) -> float:
  """The mean cost of the cheapest one-to-one pairing."""
  rows, columns = optimize.linear_sum_assignment(cost)
  return cost[rows, columns].mean()


def squares(one, other):
  return scipy_distance.cdist(one, other, "sqeuclidean")


def assert_distance(one, other, cost, **options):
  found = distances.distance(one, other, **options)
  assert found == pytest.approx(assignment(cost), rel=1e-9)


def pair(seed, n=20, m=20, size=3):
  rng = np.random.default_rng(seed)
  return rng.normal(size=(n, size)), rng.normal(0.5, 2, size=(m, size))


@hypothesis.settings(max_examples=25)
@hypothesis.given(SEEDS, st.integers(2, 30))
def test_feature_distance_is_the_cheapest_pairing(seed, n):
  one, other = pair(seed, n, n)
  cost = squares(one, other)
  for method in ("auto", "exact"):
    assert_distance(one, other, cost, method=method)
  assert_distance(other, one, cost)


@pytest.mark.parametrize("offset", [1e6, 1e9, 1.7e9])
@pytest.mark.parametrize("method", ["exact", "sinkhorn"])
def test_feature_distance_a_constant_added_to_all_values_changes_nothing(
  offset, method
):
  one, other = pair(0)
  labels = [np.arange(20) % 2] * 2
  for options in ({}, {"labels": labels}):
    expected = distances.distance(one, other, method=method, **options)
    found = distances.distance(
      one + offset, other + offset, method=method, **options
    )
    assert found == pytest.approx(expected, rel=1e-5)


def test_feature_distance_scaler_must_give_finite_numbers():
  one, other = pair(0)
  scaler = preprocessing.FunctionTransformer(lambda x: x / np.zeros(3))
  with (
    np.errstate(divide="ignore"),
    pytest.raises(ValueError, match=r"^scaled examples must be finite"),
  ):
    distances.distance(one, other, scaler=scaler)


def test_feature_distance_periods_of_different_sizes_have_equal_weight():
  one, other = pair(1, n=12, m=4)
  # Each example of the smaller one counts as three.
  assert_distance(one, other, squares(one, np.repeat(other, 3, axis=0)))


@pytest.mark.slow
def test_feature_distance_large_periods_are_paired_to_the_end():
  one, other = pair(7, 2000, 2000, size=64)
  assert_distance(one, other, squares(one, other))


def test_feature_distance_features_are_standardised_by_the_scaler():
  one, other = pair(3)
  public = np.random.default_rng(0).normal(3, [1, 10, 100], size=(50, 3))
  scaler = preprocessing.StandardScaler().fit(public)
  deviations = public.std(axis=0)
  cost = squares(one / deviations, other / deviations)
  assert_distance(one, other, cost, scaler=scaler)


def test_feature_distance_images_are_flat_and_between_0_and_1():
  one, other = np.random.default_rng(4).integers(
    0, 256, (2, 9, 5, 4, 1), np.uint8
  )
  cost = squares(one.reshape(9, 20) / 255, other.reshape(9, 20) / 255)
  assert_distance(one, other, cost)


@pytest.mark.parametrize("scale", [1e-3, 1, 1e4])
def test_sinkhorn_is_close_and_never_below(scale):
  for seed in range(3):
    one, other = (scale * each for each in pair(seed, 60, 60))
    exact = distances.distance(one, other, method="exact")
    smooth = distances.distance(one, other, method="sinkhorn")
    assert exact * (1 - 1e-6) <= smooth <= 1.5 * exact


def test_auto_is_sinkhorn_for_large_periods_alone(monkeypatch):
  monkeypatch.setattr(distances, "EXACT_SIZE", 20)
  for n, method in ((20, "exact"), (21, "sinkhorn")):
    one, other = pair(5, n, 7)
    assert distances.distance(one, other) == distances.distance(
      one, other, method=method
    )
    others = {"exact", "sinkhorn"} - {method}
    assert distances.distance(one, other) != distances.distance(
      one, other, method=others.pop()
    )


def test_sinkhorn_equal_examples_are_at_no_distance():
  same = np.full([4, 2], 0.5)
  assert distances.distance(same, same, method="sinkhorn") == 0


@hypothesis.settings(max_examples=25)
@hypothesis.given(SEEDS)
def test_label_distance_both_terms_share_the_cheapest_pairing(seed):
  one, other = pair(seed)
  rng = np.random.default_rng(seed)
  labels = rng.integers(0, 3, size=(2, 20))
  means, other_means = (
    np.stack([x[y == label].mean(axis=0) for label in y])
    for x, y in zip((one, other), labels, strict=True)
  )
  cost = squares(one, other) + squares(means, other_means)
  assert_distance(one, other, cost, labels=tuple(labels))


def test_labels_are_of_standardised_features():
  one, other = pair(6)
  scaler = preprocessing.StandardScaler().fit(one)
  labels = np.arange(20) % 2, np.arange(20) % 3
  found = distances.distance(one, other, labels=labels, scaler=scaler)
  expected = distances.distance(
    scaler.transform(one), scaler.transform(other), labels=labels
  )
  assert found == pytest.approx(expected, rel=1e-9)


def test_threshold_iid_distances_are_of_independent_samples():
  x = np.random.default_rng(0).normal(size=(5000, 2))
  found, again, other = (
    distances.iid_distances(x, period_size=30, num_pairs=20, seed=seed)
    for seed in (1, 1, 2)
  )
  assert found.shape == (20,) and len(set(found)) == 20
  assert found.min() > 0
  np.testing.assert_array_equal(found, again)
  assert set(found).isdisjoint(other)
  # New samples of the same distribution are as far apart.
  rng = np.random.default_rng(2)
  fresh = [distances.distance(*rng.normal(size=(2, 30, 2))) for _ in range(20)]
  assert found.mean() == pytest.approx(np.mean(fresh), rel=0.3)


def test_threshold_options_reach_the_distance():
  # Two periods: the fewest.
  x = np.random.default_rng(0).normal(size=(40, 2))
  plain, smooth = (
    distances.iid_distances(
      x, period_size=20, num_pairs=2, seed=1, method=method
    )
    for method in ("exact", "sinkhorn")
  )
  assert np.all(smooth > plain)


@pytest.mark.parametrize(
  "quantile, expected", [(0.1, 1), (0.5, 5), (0.95, 10), (0.9, 9), (1, 10)]
)
def test_threshold_by_hand(quantile, expected):
  values = np.random.default_rng(0).permutation(np.arange(1, 11))
  assert distances.calibrate(values, quantile) == expected


def iid_distances(number, num_pairs):
  return distances.iid_distances(
    np.ones((number, 2)), period_size=30, num_pairs=num_pairs, seed=1
  )


@pytest.mark.parametrize(
  "change, start",
  [
    (lambda x: x[:1], "one must have the shape [n, ...] with n of at"),
    (lambda x: x[:, 0], "one must have the shape [n, ...]"),
    (lambda x: x + np.nan, "one must be finite numbers"),
    (lambda x: x[:, :2], "one and other must have examples of one shape"),
  ],
)
def test_bad_periods_are_refused(change, start, refusal):
  one, other = pair(0)
  assert refusal(distances.distance, change(one), other).startswith(start)
  assert "got" in refusal(distances.distance, other, change(one))


@pytest.mark.parametrize(
  "function, arguments, message",
  [
    (
      functools.partial(distances.distance, method="fast"),
      pair(0),
      "method must be one of auto, exact, sinkhorn, got 'fast'",
    ),
    (
      functools.partial(
        distances.distance, labels=(np.zeros(20), np.zeros(19))
      ),
      pair(0),
      "labels must have the shape [20], one for each example, got [19]",
    ),
    (
      iid_distances,
      (59, 3),
      "x must have examples for two periods, at least 60, or their pairs"
      " share too many, got 59",
    ),
    (iid_distances, (60, 0), "num_pairs must be "),
    *(
      (distances.calibrate, ([1.0], quantile), "quantile must be above 0")
      for quantile in (0, 1.1, np.nan)
    ),
    *(
      (distances.calibrate, (values, 0.5), "distances must be finite numbers")
      for values in ([], [1.0, np.nan])
    ),
  ],
)
def test_bad_values_are_refused(function, arguments, message, refusal):
  assert refusal(function, *arguments).startswith(message)
