"""Detectors of river: what they detect where the drift is known."""

import importlib.util

import numpy as np
import pytest

from examples import drift_detection

pytestmark = pytest.mark.skipif(
  importlib.util.find_spec("river") is None,
  reason="river: only in the lock of TensorFlow 2.21",
)


def test_detectors_detect_a_rise_and_no_noise_or_fall():
  rng = np.random.default_rng(0)
  low, high = rng.uniform(size=(2, 500)) < [[0.1], [0.6]]
  for detect, rise, other in (
    (drift_detection.adwin, np.repeat([0, 1], 500), rng.uniform(size=1000)),
    (drift_detection.ddm, np.append(low, high), np.append(high, low)),
  ):
    detections = detect(rise)
    assert len(detections) >= 1 and 500 <= detections[0] < 600
    assert not np.any(np.asarray(detect(other)) >= 500)
