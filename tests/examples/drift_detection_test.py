"""Detectors of river: what they detect where the drift is known."""

import importlib.util

import numpy as np
import pytest

from examples import drift_detection

pytestmark = pytest.mark.skipif(
  importlib.util.find_spec("river") is None,
  reason="river: only in the lock of TensorFlow 2.21",
)


def test_adwin_detects_a_jump_and_no_noise():
  detections = drift_detection.adwin(np.repeat([0, 1], 500))
  assert len(detections) >= 1 and 500 <= detections[0] < 600
  noise = np.random.default_rng(0).uniform(size=1000)
  assert not len(drift_detection.adwin(noise))


def test_ddm_detects_a_rise_and_no_fall():
  rng = np.random.default_rng(0)
  low, high = rng.uniform(size=(2, 500)) < [[0.1], [0.6]]
  detections = drift_detection.ddm(np.concatenate([low, high]))
  assert len(detections) >= 1 and 500 <= detections[0] < 600
  falls = drift_detection.ddm(np.concatenate([high, low]))
  assert not np.any(falls >= 500)
