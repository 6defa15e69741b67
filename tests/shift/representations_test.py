"""Tests of representations: fixed size, no order, and what they tell."""

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest
from numpy.testing import assert_allclose
from numpy.testing import assert_array_equal
from sklearn import decomposition

from tff_shift.data.shifts import dynamic_personalization
from tff_shift.shift import choices
from tff_shift.shift import representations

OPTIONS = {
  "t_sne": {"size": 16},
  "t_sne_map": {"size": 24},
  "moments": {"extractor": lambda x: x.reshape(len(x), -1)[:, 300:340] / 7.0},
  "pca": {"size": 12},
}
SIZES = {"t_sne": 16, "t_sne_map": 24, "moments": 80, "pca": 12}
NAMES = st.sampled_from(choices.REPRESENTATIONS)


@pytest.fixture(scope="module")
def digits():
  return dynamic_personalization.load_dynamic_personalization("digits", seed=0)


@pytest.fixture(scope="module")
def fitted(digits):
  """All four representations, fitted to public digits."""
  return {
    name: representations.fit(name, digits.public.x, seed=3, **options)
    for name, options in OPTIONS.items()
  }


@pytest.mark.slow
@hypothesis.settings(max_examples=15)
@hypothesis.given(NAMES, st.integers(2, 50), st.integers(0, 2**31))
def test_vector_has_a_fixed_size_and_no_order(fitted, digits, name, n, seed):
  rng = np.random.default_rng(seed)
  x = digits.train.x[rng.choice(len(digits.train.x), n)]
  r = fitted[name](x)
  assert (r.shape, r.dtype) == ((SIZES[name],), np.float32)
  assert fitted[name].size == SIZES[name] and fitted[name].name == name
  assert np.isfinite(r).all()
  assert_array_equal(fitted[name](rng.permutation(x)), r)


@pytest.mark.slow
@pytest.mark.parametrize("name", choices.REPRESENTATIONS)
def test_vector_is_a_function_of_public_data_seed_and_period(
  fitted, digits, name
):
  again = representations.fit(
    name, digits.public.x[::-1], seed=3, **OPTIONS[name]
  )
  first, second = digits.train.x[:40], digits.train.x[40:80]
  assert_array_equal(again(first), fitted[name](first))
  assert np.any(again(first) != again(second))


@pytest.mark.parametrize("name", choices.REPRESENTATIONS)
def test_pixels_and_equal_examples_and_bad_periods(
  fitted, digits, name, refusal
):
  represent, x = fitted[name], digits.train.x[:30]
  equal = represent(x[[0] * 5])
  assert np.isfinite(equal).all()
  if name in ("moments", "pca"):
    assert_allclose(equal[len(equal) // 2 :], 0, atol=1e-6)
  for few in (x[:0], x[:1]):
    assert refusal(represent, few).startswith(
      "examples of a period must have the shape [n, ...] with n of at least"
      " 2, got"
    )
  assert refusal(represent, x + np.nan) == (
    "examples of a period must be finite numbers, got NaN or infinity"
  )
  if name != "moments":  # There, what to make of them is the extractor's.
    # Pixels count from 0 to 1.
    assert_array_equal(represent(x), represent(x / 255))
    assert refusal(represent, x[:, 1:]) == (
      "examples of a period must have as many features as the public ones,"
      " 784, got 756"
    )


def test_moments_by_hand():
  # Means 1 and 10, deviations 1 and 10.
  public = np.array([[0.0, 0.0], [2.0, 20.0]])
  r = representations.fit("moments", public, extractor=lambda x: x)
  assert r.size == 4
  assert_allclose(
    r(np.array([[3.0, 10.0], [1.0, 10.0], [5.0, 40.0]])),
    # Standardised: 2, 0, 4 and 0, 0, 3.
    [2, 1, np.sqrt(8 / 3), np.sqrt(2)],
    rtol=1e-6,
  )
  # Of public data: nothing but the standard.
  assert_allclose(r(public), [0, 0, 1, 1], atol=1e-7)


def test_moments_stuck_sensor_is_shifted_and_not_divided_by_rounding():
  # An air pressure whose last bit flips: float32's step there is 6.1e-5.
  stuck = np.float32(1013.25)
  flipped = np.nextafter(stuck, np.float32(2000))
  pressure = np.where(np.arange(40) % 2, stuck, flipped)
  public = np.stack([np.arange(40) % 4, pressure], axis=1).astype(np.float32)
  r = representations.fit("moments", public, extractor=lambda x: x)
  moved = public + np.float32([0, 1])
  # Mean and deviation of both features; a rise of 1 is 1, not 32,768.
  assert_allclose(r(moved), [0, 1, 1, 0], atol=1e-4)


def test_moments_extractor_must_give_features_of_each_example(refusal):
  x = np.ones([4, 3])
  assert (
    refusal(representations.fit, "moments", x, extractor=lambda x: x[:3])
    == "extractor must give features for each example, got 3 for 4"
  )
  assert refusal(
    representations.fit, "moments", x, extractor=lambda x: x * np.nan
  ).startswith("features must be finite numbers")


def test_pca_moments_are_of_principal_components(fitted, digits):
  public = digits.public.x.reshape(len(digits.public.x), -1) / 255
  pca = decomposition.PCA(6, svd_solver="full").fit(public)
  x = digits.train.x[:70]
  coordinates = pca.transform(x.reshape(70, -1) / 255)
  coordinates /= np.sqrt(pca.explained_variance_)
  r = fitted["pca"](x)
  # The sign of a component is open.
  assert_allclose(np.abs(r[:6]), np.abs(coordinates.mean(axis=0)), atol=0.02)
  assert_allclose(r[6:], coordinates.std(axis=0), atol=0.02)


def test_pca_a_constant_added_to_all_values_changes_nothing():
  rng = np.random.default_rng(0)
  # So many examples that scikit-learn sums squares.
  public = rng.normal(size=(600, 3)) * [1, 2, 3]
  x = rng.normal(size=(50, 3))
  expected = representations.fit("pca", public, size=4)(x)
  found = representations.fit("pca", public + 1e9, size=4)(x + 1e9)
  assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


def test_pca_directions_without_variance_are_refused(refusal):
  public = np.zeros([20, 3])
  public[:, 0] = np.arange(20)
  assert refusal(representations.fit, "pca", public, size=4) == (
    "size must be at most 2 for pca with public examples that vary in 1"
    " directions only, got 4"
  )


@pytest.mark.slow
class TestTSne:
  def test_quantiles_of_each_axis_ascend(self, fitted, digits):
    for start in (0, 60):
      r = fitted["t_sne"](digits.train.x[start : start + 60])
      for quantiles in (r[:8], r[8:]):
        assert np.all(np.diff(quantiles) >= 0)
        # Standardised, and the longer tail is the positive one.
        assert abs(quantiles.mean()) < 0.3
        assert 0.5 < quantiles.std() < 1.3

  def test_two_clusters_are_two_steps(self):
    rng = np.random.default_rng(0)
    centres = np.repeat([[0.0] * 5, [20.0] * 5], [40, 80], axis=0)
    x = centres + rng.normal(size=(120, 5))
    r = representations.fit("t_sne", x, size=12)(x)
    steps = np.diff(np.stack([r[:6], r[6:]]))
    # One third and two thirds; the larger cluster is the shorter tail.
    assert steps.max() > 1
    assert steps.argmax() % 5 == 3


def test_t_sne_map_shares_are_in_units_of_the_average(fitted, digits):
  r = fitted["t_sne_map"](digits.train.x[:200])
  assert r.sum() == pytest.approx(24, rel=1e-6)
  assert r.min() >= 0
  assert_allclose(r * 200 / 24, np.rint(r * 200 / 24), atol=1e-4)


def test_t_sne_map_public_examples_are_where_the_map_has_them():
  # Four clusters of 25, and as many regions.
  rng = np.random.default_rng(0)
  centres = 30 * np.eye(4)
  public = np.repeat(centres, 25, axis=0) + rng.normal(size=(100, 4))
  r = representations.fit("t_sne_map", public, size=4)
  assert_allclose(r(public), 1, rtol=1e-6)
  # A new period of 3 of one cluster and 1 of another.
  x = centres[[2, 2, 2, 0]] + rng.normal(size=(4, 4))
  assert_allclose(np.sort(r(x)), [0, 0, 1, 3])


ONE, NINE = np.ones([1, 6]), np.random.default_rng(0).normal(size=(9, 6))


@pytest.mark.parametrize(
  "x, name, options, start",
  [
    *(
      (
        ONE,
        name,
        options,
        "public examples must have the shape [n, ...] with n of at least 2",
      )
      for name, options in OPTIONS.items()
    ),
    (NINE, "umap", {}, "representation must be one of t_sne, t_sne_map, "),
    (NINE, "moments", {}, "extractor must be given for moments, and for "),
    (NINE, "pca", {"extractor": abs}, "extractor must be given for moments, "),
    (NINE, "pca", {"size": 0}, "size must be "),
    (NINE, "pca", {"size": 5}, "size must be even for pca, got 5"),
    (NINE, "t_sne", {"size": 5}, "size must be even for t_sne, got 5"),
    (NINE, "pca", {"size": 14}, "size must be at most 12 for pca with public"),
    (NINE, "t_sne_map", {"size": 10}, "size must be at most 9, the number of "),
  ],
)
def test_bad_values_are_refused(x, name, options, start, refusal):
  assert refusal(representations.fit, name, x, **options).startswith(start)


def test_one_feature_is_too_few_for_t_sne(refusal):
  x = np.arange(10.0)[:, np.newaxis]
  r = representations.fit("t_sne", x, size=4)
  assert refusal(r, x) == ("examples must have at least two features for t-SNE")
