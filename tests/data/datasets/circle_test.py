"""Tests of Circle: sizes, labels, centres and spread are the paper's."""

import numpy as np
import pytest
from numpy.testing import assert_allclose
from numpy.testing import assert_array_equal

from tff_shift.data.datasets import circle


def test_circle_has_the_sizes_of_the_paper():
  source = circle.generate(0)
  assert source.x.shape == (30_000, 2)
  assert source.schema.classes == ("outside", "inside")
  assert_array_equal(np.bincount(source.time), [0] + [1000] * 30)
  assert np.all(np.diff(source.time) >= 0)


def test_labels_agree_with_the_boundary():
  source = circle.generate(3)
  radii = np.hypot(*source.x.T.astype(np.float64))
  assert_array_equal(source.y, radii <= 10)
  # The boundary runs through every cloud.
  rates = [source.y[source.time == m].mean() for m in range(1, 31)]
  assert min(rates) > 0.4 and max(rates) < 0.6


def test_centres_lie_evenly_on_the_upper_half_circle():
  source = circle.generate(1)
  clouds = source.x.reshape(30, 1000, 2)
  means = clouds.mean(axis=1)
  angles = np.deg2rad(180 / 29 * np.arange(30))
  centres = 10 * np.stack([np.cos(angles), np.sin(angles)], axis=1)
  # Five standard errors of a mean of 1,000 points: 5 * 0.6 / sqrt(1000).
  assert_allclose(means, centres, atol=0.095)


def test_spread_is_that_of_the_paper_in_both_coordinates():
  source = circle.generate(2)
  angles = np.pi * (source.time - 1) / 29
  offsets = source.x - 10 * np.stack([np.cos(angles), np.sin(angles)], axis=1)
  # Five standard errors: 5 * 0.6 / sqrt(2 * 30000), and 5 / sqrt(30000).
  assert_allclose(offsets.std(axis=0), 0.6, atol=0.0123)
  assert abs(np.corrcoef(offsets.T)[0, 1]) < 0.029


def test_clouds_have_their_own_draws():
  x = circle.generate(0, 3, 50).x
  # (10, 0) and (-10, 0) are 20 apart.
  distances = x[:50] - x[100:]
  assert np.ptp(distances[:, 0]) > 0.1


@pytest.mark.parametrize(
  "arguments, name",
  [((0, 0, 5), "num_domains"), ((0, 5, 0), "examples_per_domain")],
)
def test_count_below_one_is_refused(arguments, name):
  with pytest.raises(ValueError, match=f"^{name} must be .* got 0$"):
    circle.generate(*arguments)
