"""Measures of drift detection, counted by hand, and detectors."""

import numpy as np
import pytest

from tff_shift.shift import detection


@pytest.mark.parametrize(
  "detections, drifts, horizon, expected",
  [
    # 10 is found at 12, 20 at once, 30 too late, 40 not at all. 3 is before
    # all drifts, and 13 is the second one in a window.
    ([3, 12, 13, 20, 36], [10, 20, 30, 40], 5, (1.0, 2, 3, 4)),
    # Without a horizon the next drift ends the window.
    ([19, 20, 99], [10, 20, 30], None, ((9 + 0 + 69) / 3, 0, 0, 3)),
    # The window of 10 ends before 12, although the horizon is longer.
    ([12], [10, 12], 5, (0.0, 1, 0, 2)),
    # The first step alone.
    ([5, 8], [5, 7], 0, (0.0, 1, 1, 2)),
    ([1, 2], [], None, (np.nan, 0, 2, 0)),
    ([], [4], None, (np.nan, 1, 0, 1)),
  ],
)
def test_evaluate_by_hand(detections, drifts, horizon, expected):
  found = detection.evaluate(detections, drifts, horizon)
  np.testing.assert_array_equal(found, expected)


def test_evaluate_clients_are_pooled():
  drifted = np.zeros((6, 2), bool)
  drifted[[1, 4], 0] = drifted[2, 1] = True
  detected = np.zeros((6, 2), bool)
  # Client 0: delay 0, then missed. Client 1: delay 3, false alarm before.
  detected[1, 0] = detected[[0, 5], 1] = True
  found = detection.evaluate_clients(detected, drifted)
  assert found == detection.Detection(1.5, 1, 1, 3)


def test_threshold_is_exceeded_strictly_and_gaps_are_quiet():
  found = detection.thresholded([1.0, np.nan, 3.0, 2.0, 2.5], 2.0)
  assert found.tolist() == [2, 4]


def test_mmd_value_is_the_sum_over_pairs():
  rng = np.random.default_rng(0)
  one, other = rng.normal(size=(4, 2)), rng.normal(1, size=(3, 2))
  pooled = np.concatenate([one, other])
  width = np.median(
    [np.sum((pooled[i] - pooled[j]) ** 2) for i in range(7) for j in range(i)]
  )

  def mean(left, right, are_same):
    return np.mean(
      [
        np.exp(-np.sum((x - y) ** 2) / (2 * width))
        for i, x in enumerate(left)
        for j, y in enumerate(right)
        if not (are_same and i == j)
      ]
    )

  expected = (
    mean(one, one, True) + mean(other, other, True) - 2 * mean(one, other, 0)
  )
  value, _ = detection.mmd(one, other)
  assert value == pytest.approx(expected, rel=1e-10)


def test_mmd_p_value_is_uniform_without_and_small_with_a_shift():
  rng = np.random.default_rng(1)
  p_values = [
    detection.mmd(
      rng.normal(size=(20, 3)),
      rng.normal(size=(20, 3)),
      num_permutations=99,
      seed=each,
    )[1]
    for each in range(200)
  ]
  # Binomial(200, 0.05): 10 on average, above 20 with a probability of 0.001.
  assert np.sum(np.array(p_values) <= 0.05) <= 20
  assert 0.4 < np.mean(p_values) < 0.6
  _, p_value = detection.mmd(
    rng.normal(size=(20, 3)), rng.normal(2, size=(20, 3)), num_permutations=99
  )
  assert p_value == 0.01


@pytest.mark.parametrize("offset", [1e6, 1e8, 1e9, 1.7e9])
def test_mmd_a_constant_added_to_all_values_changes_nothing(offset):
  rng = np.random.default_rng(0)
  one, other = rng.normal(size=(60, 3)), rng.normal(1, size=(60, 3))
  expected = detection.mmd(one, other)
  assert expected[1] == pytest.approx(1 / 201)
  # Of numbers that are rounded like the shifted ones.
  shifted = one + offset, other + offset
  assert detection.mmd(*shifted) == pytest.approx(expected, rel=1e-5)


def test_mmd_two_far_clusters_keep_the_distances_within_one():
  rng = np.random.default_rng(0)
  near, other = rng.normal(size=(60, 1)), rng.normal(2, size=(60, 1))
  # 1 example of 61 is far away: no centre is near to all.
  samples = [np.append(each, [[1e9]], axis=0) for each in (near, other)]
  assert detection.mmd(*samples)[1] == pytest.approx(1 / 201)


def test_mmd_width_of_a_column_that_is_mostly_0_is_that_of_unequal_pairs():
  rng = np.random.default_rng(0)
  samples = [
    np.append(np.zeros(150), rng.normal(mean, 0.2, 50))[:, np.newaxis]
    for mean in (1, 10)
  ]
  value, p_value = detection.mmd(*samples)
  assert p_value == pytest.approx(1 / 201)
  pooled = np.concatenate(samples)
  squared = np.square(pooled - pooled.T)
  pairs = squared[np.triu_indices(400, 1)]
  width = np.median(pairs[pairs > 0])
  kernel = np.exp(-squared / (2 * width))
  same = [
    (block.sum() - 200) / (200 * 199)
    for block in (kernel[:200, :200], kernel[200:, 200:])
  ]
  expected = sum(same) - 2 * kernel[:200, 200:].mean()
  assert value == pytest.approx(expected, rel=1e-9)


def test_mmd_two_constants_are_a_shift_and_equal_examples_are_none():
  ones = np.ones((20, 2))
  assert detection.mmd(ones, ones + 3)[1] == pytest.approx(1 / 201)
  assert detection.mmd(ones, ones) == (pytest.approx(0), 1.0)


FINITE, NOT_FINITE = np.zeros((3, 1)), np.array([[0.0], [np.inf], [0.0]])


@pytest.mark.parametrize(
  "function, arguments, message",
  [
    ("evaluate", ([2, 1], []), "detections must be ascending integers "),
    ("evaluate", ([], [1, 1]), "drift_times must be ascending"),
    ("evaluate", ([0.5], []), "detections must be ascending integers"),
    ("evaluate", ([1], [1], -1), "horizon"),
    ("evaluate_clients", ([[0], [1]], [[0, 1]]), "detected and drifted must "),
    (
      "evaluate_clients",
      ([[0.0], [np.nan]], [[0], [1]]),
      "detected must be finite ",
    ),
    ("thresholded", ([1.0], np.nan), "threshold=nan is not allowed"),
    ("mmd", (FINITE, NOT_FINITE), "other must be finite numbers; got"),
    ("mmd", (NOT_FINITE, FINITE), "one must be finite numbers; got"),
    ("mmd", (np.zeros((2, 3)), np.zeros((1, 3))), "one and other must "),
  ],
)
def test_bad_values_are_refused(function, arguments, message, refusal):
  told = refusal(getattr(detection, function), *arguments)
  assert told.startswith(message)
