"""Distances between periods, and the drift threshold.

Fed-3DA: A Dynamic and Personalized Federated Learning Framework (Wang, Sun, Wo,
Liu; ICASSP 2023), Section 2.2, after Geometric Dataset Distances via Optimal
Transport (Alvarez-Melis, Fusi; NeurIPS 2020). Eq. 2 compares two periods,

  distance = d_f + d_l,    d_f = sum_i (f_i - f'_i)^2,

where f are the features of the examples. The distance of two labels l, l' is
the distance of their mean features, (mean f of l - mean f' of l')^2. During
inference there are no labels, and d_l is left out.

Choices:
  * Pairing: eq. 2 uses the same index i in both periods without defining which
    examples share it. As in the paper's introduction and its source, optimal
    transport pairs them: of all pairings, the cheapest.
  * With labels, one pairing serves both terms: the cost of a pair is the sum of
    both, as in the source.
  * The cost is divided by the number of examples: it is the cost per pair, and
    the two periods may differ in size. Pairs of larger periods are still
    closer, so a threshold is specific to a period size.
  * "The threshold comes from the maximum between the heterogeneous data sets"
    (Figure 4; the rest is in an appendix that is not available). Here it is a
    quantile of the distances between periods without drift; 1 is the maximum.
  * Pairs are exact up to 2,000 samples, by Sinkhorn above. Features:
    `--distance_features`.
  * The threshold is the 95 % quantile (`--threshold_quantile`,
    `--distance_threshold`).
"""

from typing import Any

import numpy as np
import ot

from tff_shift._util import arguments
from tff_shift.data import examples
from tff_shift.data import partition
from tff_shift.data.shifts import dynamic_personalization

METHODS = ("auto", "exact", "sinkhorn")

# Up to this number of examples per period, `auto` is exact: about a second.
EXACT_SIZE = 2000

# POT's own limit ends before the optimum at about 2000 examples.
_EXACT_ITERATIONS = 10**8

# In units of the mean cost. The entropy is not part of the distance, but the
# smoother pairing costs more than the cheapest: the result is an upper bound.
SINKHORN_REGULARISATION = 0.05


def as_rows(name: str, x: np.ndarray, minimum: int = 1) -> np.ndarray:
  """Converts each example to a row of numbers; refuses other values.

  Args:
    name: The name of the examples in messages.
    x: [n, ...] numbers; uint8 images become floats between 0 and 1.
    minimum: The minimum number of examples.

  Returns:
    [n, features] float64.

  Raises:
    ValueError: If there are fewer examples, or a number is masked or not
      finite.
  """
  x = examples.as_array(x, name)
  if x.ndim < 2 or len(x) < minimum or not x.size:
    raise ValueError(
      f"{name} must have the shape [n, ...] with n of at least {minimum}, got"
      f" {list(x.shape)}"
    )
  rows = x.reshape(len(x), -1).astype(np.float64)
  if not np.isfinite(rows).all():
    raise ValueError(f"{name} must be finite numbers, got NaN or infinity")
  return rows / 255 if x.dtype == np.uint8 else rows


def distance(
  one: np.ndarray,
  other: np.ndarray,
  *,
  labels: tuple[np.ndarray, np.ndarray] | None = None,
  scaler: Any = None,
  method: str = "auto",
) -> float:
  """Computes the distance of two periods, eq. 2.

  Args:
    one: Features of a period's examples, [n, ...]; uint8 images are converted
      to floats between 0 and 1.
    other: Features of the other period, [m, ...], otherwise of the same shape.
    labels: The labels of both periods, [n] and [m]. None: d_l is left out.
    scaler: Standardises [n, features] by `scaler.transform`, such as
      scikit-learn's StandardScaler after `fit` on public data. None: features
      are not scaled, which suits pixels: if standardised, pixels of the margin
      that are hardly ever set would outweigh all others.
    method: `exact`; `sinkhorn`, an approximation from above, which saves time
      only for thousands of examples; `auto`, exact up to `EXACT_SIZE` examples.
      Distances of different methods, and of different numbers of examples, are
      not comparable.

  Returns:
    The mean cost of a pair, at least 0: squared Euclidean, summed over features
    and not divided by their number.

  Raises:
    ValueError: If a period has fewer than two examples or a number that is not
      finite, if the shapes do not match, or the method is unknown.
  """
  arguments.choice("method", method, METHODS)
  features = [as_rows("one", one, 2), as_rows("other", other, 2)]
  if np.shape(one)[1:] != np.shape(other)[1:]:
    raise ValueError(
      "one and other must have examples of one shape, got"
      f" {list(np.shape(one)[1:])} and {list(np.shape(other)[1:])}"
    )
  if scaler is not None:
    features = [
      as_rows("scaled examples", scaler.transform(rows)) for rows in features
    ]
  cost = _squared_distances(*features)
  if labels is not None:
    means = [
      _label_means(each, each_labels)
      for each, each_labels in zip(features, labels, strict=True)
    ]
    cost = cost + _squared_distances(*means)
  if method == "exact" or (method == "auto" and max(cost.shape) <= EXACT_SIZE):
    optimum = ot.emd2([], [], cost, numItermax=_EXACT_ITERATIONS)
    return max(0.0, float(optimum))
  return _sinkhorn(cost)


def iid_distances(
  x: np.ndarray, *, period_size: int, num_pairs: int, seed: int, **options
) -> np.ndarray:
  """Computes distances between periods without drift.

  Each period is an IID one of `dynamic_personalization.Periods`: its examples
  are different, but the two periods of a pair may share some. The smaller the
  pool, the more they share and the smaller the distance: a threshold suits
  periods from a pool of about this size, or a smaller one.

  Args:
    x: The pool of the periods, [N, ...], without labels, at least two periods.
    period_size: The number of examples in a period.
    num_pairs: The number of pairs.
    seed: Seed of the draw.
    **options: `scaler` and `method` of `distance`.

  Returns:
    [num_pairs] float64.

  Raises:
    ValueError: If an argument is invalid for `distance`, a number is below 1,
      or there are too few examples.
  """
  partition.check_positive_integer("num_pairs", num_pairs)
  partition.check_positive_integer("period_size", period_size)
  if len(x) < 2 * period_size:
    raise ValueError(
      "x must have examples for two periods, at least"
      f" {2 * period_size}, or their pairs share too many, got {len(x)}"
    )
  # IID periods do not use labels.
  pool = examples.Examples(x, np.zeros(len(x), np.int32))
  drawn = dynamic_personalization.Periods(
    pool, 1, "iid", num_clients=1, period_size=period_size, seed=seed
  )
  return np.array(
    [
      distance(
        drawn.batch(0, 2 * pair).x, drawn.batch(0, 2 * pair + 1).x, **options
      )
      for pair in range(num_pairs)
    ]
  )


def calibrate(distances: np.ndarray, quantile: float) -> float:
  """Chooses the threshold DT: a larger distance is a drift (Section 2.3).

  Args:
    distances: Distances between periods without drift, [n].
    quantile: The fraction of them that must not count as drift; 1: all.

  Returns:
    The smallest distance that at least this fraction does not exceed.

  Raises:
    ValueError: If there are no distances, one is not finite, or the quantile is
      not above 0 and at most 1.
  """
  distances = np.asarray(distances, np.float64)
  if not distances.size or not np.isfinite(distances).all():
    raise ValueError(
      "distances must be finite numbers, at least one, got"
      f" {distances.size} with {np.count_nonzero(np.isnan(distances))} NaN"
    )
  if not 0 < quantile <= 1:  # Also refuses NaN.
    raise ValueError(f"quantile must be above 0 and at most 1, got {quantile}")
  return float(np.quantile(distances, quantile, method="inverted_cdf"))


def _squared_distances(one, other) -> np.ndarray:
  # Centred first: `ot.dist` computes |x|^2 + |y|^2 - 2xy, which has no digits
  # left far from zero. Differences of all pairs would take ten times as long.
  centre = np.concatenate([one, other]).mean(axis=0)
  return ot.dist(one - centre, other - centre, metric="sqeuclidean")


def _label_means(features, labels) -> np.ndarray:
  """Returns for each example its label's mean features, [n, features]."""
  labels = examples.as_array(labels, "labels")
  if labels.shape != features.shape[:1]:
    raise ValueError(
      f"labels must have the shape [{len(features)}], one for each example,"
      f" got {list(labels.shape)}"
    )
  _, position, counts = np.unique(
    labels, return_inverse=True, return_counts=True
  )
  sums = np.zeros([len(counts), features.shape[1]])
  np.add.at(sums, position, features)
  return (sums / counts[:, np.newaxis])[position]


def _sinkhorn(cost) -> float:
  scale = cost.mean()
  if not scale > 0:  # All examples of both periods are equal.
    return 0.0
  # In units of the mean cost and with logarithms: exp(-cost) would vanish.
  share = ot.sinkhorn2(
    [],
    [],
    cost / scale,
    SINKHORN_REGULARISATION,
    method="sinkhorn_log",
    numItermax=2000,
    stopThr=1e-6,
  )
  return float(share) * float(scale)
