"""Measures of drift detection where the times of drifts are known.

A Survey on Concept Drift Adaptation (Gama, Žliobaitė, Bifet, Pechenizkiy,
Bouchachia; ACM Computing Surveys 2014), Section 5, and CD-MOA: Change Detection
Framework for Massive Online Analysis (Bifet, Read, Pfahringer, Holmes,
Žliobaitė; IDA 2013) measure the delay of detections, missed changes and false
alarms. They leave open which detections belong to a change. Here:

  - A drift at time t means that step t is the first of a new distribution.
  - Its window has the steps t to t + horizon, and ends before the next drift.
  - The first detection in the window, at time s, detects the drift. Its delay
    is s - t: 0 if the first step with new data is detected.
  - A drift without a detection in its window is missed.
  - All other detections are false alarms, also further ones in a window: the
    distribution has changed once, and each detection would cost a request for
    new weights.

`thresholded` and `mmd` are detectors.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy import typing as npt
from scipy.spatial import distance as spatial

from tff_shift._util import arguments


class Detection(NamedTuple):
  """How well drifts are detected.

  Attributes:
    delay: The mean delay of detected drifts in steps; NaN if there are none.
    missed: The number of missed drifts.
    false_alarms: The number of false alarms.
    drifts: The number of drifts.
  """

  delay: float
  missed: int
  false_alarms: int
  drifts: int


def evaluate(
  detections: npt.ArrayLike,
  drift_times: npt.ArrayLike,
  horizon: int | None = None,
) -> Detection:
  """Compares the detections on one stream with its drifts.

  Args:
    detections: The times of the detections, [n] integers, ascending.
    drift_times: The times of the drifts, [n] integers, ascending.
    horizon: The largest delay at which a drift still counts as detected. None:
      up to the next drift.

  Returns:
    The measures.

  Raises:
    ValueError: If times are not ascending integers, or the horizon is negative.
  """
  return _merged([_delays(detections, drift_times, horizon)])


def evaluate_clients(
  detected: npt.ArrayLike,
  drifted: npt.ArrayLike,
  horizon: int | None = None,
) -> Detection:
  """Compares the detections of all clients with their drifts.

  Args:
    detected: Whether a client detects a drift in a step, [steps, clients] bool.
      NaN is refused.
    drifted: Whether a step is the first one of a new distribution, [steps,
      clients] bool.
    horizon: See `evaluate`.

  Returns:
    The mean delay over the drifts of all clients, and sums over clients.

  Raises:
    ValueError: If the shapes differ, a number is not finite, or the horizon is
      negative.
  """
  detected = _finite("detected", detected)
  drifted = _finite("drifted", drifted)
  if detected.ndim != 2 or detected.shape != drifted.shape:
    raise ValueError(
      "detected and drifted must have one shape [steps, clients]; got"
      f" {list(detected.shape)} and {list(drifted.shape)}"
    )
  return _merged(
    [
      _delays(np.flatnonzero(own), np.flatnonzero(true), horizon)
      for own, true in zip(
        detected.T.astype(bool), drifted.T.astype(bool), strict=True
      )
    ]
  )


def _delays(detections, drift_times, horizon) -> tuple[list[int], int, int]:
  """Returns the delays of detected drifts, their misses and false alarms."""
  detections = _checked_times("detections", detections)
  drift_times = _checked_times("drift_times", drift_times)
  if horizon is not None:
    horizon = arguments.integer("horizon", horizon, minimum=0)
  delays = []
  ends = [*drift_times, math.inf][1:]
  for time, following in zip(drift_times, ends, strict=True):
    in_window = (detections >= time) & (detections < following)
    if horizon is not None:
      in_window &= detections <= time + horizon
    if in_window.any():
      delays.append(int(detections[in_window][0] - time))
  return (
    delays,
    len(drift_times) - len(delays),
    len(detections) - len(delays),
  )


def _checked_times(name: str, times: npt.ArrayLike) -> np.ndarray:
  times = np.asarray(times)
  if not times.size:
    return np.zeros(0, np.int64)
  if (
    times.ndim != 1
    or not np.issubdtype(times.dtype, np.integer)
    or np.any(np.diff(times) <= 0)
  ):
    raise ValueError(
      f"{name} must be ascending integers without duplicates; got"
      f" {arguments.shown(times.tolist())}"
    )
  return times


def _merged(parts: Sequence[tuple[list[int], int, int]]) -> Detection:
  delays = [delay for own, _, _ in parts for delay in own]
  missed = sum(missed for _, missed, _ in parts)
  return Detection(
    float(np.mean(delays)) if delays else math.nan,
    missed,
    sum(alarms for _, _, alarms in parts),
    len(delays) + missed,
  )


def thresholded(signal: npt.ArrayLike, threshold: float) -> np.ndarray:
  """Detects a drift where a signal is above a threshold.

  Args:
    signal: [steps] numbers, such as distances or Fed-ADE's S; NaN: there is no
      signal, and no detection.
    threshold: The threshold, see `distances.calibrate`.

  Returns:
    The indices of the detections, from 0, [n] int64.

  Raises:
    ValueError: If the threshold is not finite.
  """
  threshold = arguments.number("threshold", threshold)
  return np.flatnonzero(np.asarray(signal, np.float64) > threshold)


def _finite(name: str, values: npt.ArrayLike) -> np.ndarray:
  """Returns an array; refuses NaN and infinity, which detect nothing."""
  values = np.asarray(values)
  if values.dtype.kind not in "biuf" or not np.isfinite(values).all():
    raise ValueError(
      f"{name} must be finite numbers; got"
      f" {arguments.shown(_first_others(values))}"
    )
  return values


def _first_others(values: np.ndarray):
  if values.dtype.kind == "f":
    return values[~np.isfinite(values)].tolist()
  return values.tolist()


def mmd(
  one: npt.ArrayLike,
  other: npt.ArrayLike,
  *,
  num_permutations: int = 200,
  seed: int = 0,
) -> tuple[float, float]:
  """Tests whether two samples have one distribution.

  A Kernel Two-Sample Test (Gretton, Borgwardt, Rasch, Schölkopf, Smola; JMLR
  2012): the unbiased squared maximum mean discrepancy, eq. 3, with a Gaussian
  kernel, whose width is the median distance of two examples (Section 8). The
  p-value is that of permutations of the pooled examples.

  If more than half of the pairs are equal, as in a column that is mostly 0, the
  width is the median distance of the other pairs: a kernel of width 0 would
  only ask whether two examples are equal.

  Args:
    one: [n, features] numbers, at least two examples.
    other: [m, features] numbers, at least two examples.
    num_permutations: The number of permutations.
    seed: Seed of the permutations.

  Returns:
    The squared discrepancy, which may be negative, and the p-value, at least
    1 / (num_permutations + 1).

  Raises:
    ValueError: If shapes do not match, a number is not finite, or an argument
      is not allowed.
  """
  one = _finite("one", one).astype(np.float64)
  other = _finite("other", other).astype(np.float64)
  num_permutations = arguments.integer("num_permutations", num_permutations)
  if (
    one.ndim != 2
    or other.ndim != 2
    or one.shape[1] != other.shape[1]
    or min(len(one), len(other)) < 2
  ):
    raise ValueError(
      "one and other must be [n, features] with at least 2 examples each; got"
      f" {list(one.shape)} and {list(other.shape)}"
    )
  pooled = np.concatenate([one, other])
  # Differences first: |x|^2 + |y|^2 - 2xy loses all digits far from zero.
  pairs = spatial.pdist(pooled, "sqeuclidean")
  width = np.median(pairs)
  if not width and pairs.any():
    width = np.median(pairs[pairs > 0])
  # Equal examples: any width gives the same.
  kernel = np.exp(-spatial.squareform(pairs) / (2 * (width or 1.0)))
  np.fill_diagonal(kernel, 0)
  rng = np.random.default_rng([arguments.seed("seed", seed)])
  orders = np.stack(
    [np.arange(len(pooled))]
    + [rng.permutation(len(pooled)) for _ in range(num_permutations)]
  )
  # 1 for examples of the first sample, [permutations + 1, n + m].
  first = np.zeros(orders.shape)
  np.put_along_axis(first, orders[:, : len(one)], 1.0, axis=1)
  second = 1 - first
  n, m = len(one), len(other)

  def sums(left, right):
    return np.einsum("pi,pi->p", left @ kernel, right)

  found = (
    sums(first, first) / (n * (n - 1))
    + sums(second, second) / (m * (m - 1))
    - 2 * sums(first, second) / (n * m)
  )
  # Rounding must not separate equal values.
  num_larger = np.sum(found[1:] >= found[0] - 1e-12)
  return float(found[0]), float((1 + num_larger) / (1 + num_permutations))
