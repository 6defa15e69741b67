import math

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest
from numpy.testing import assert_allclose
from numpy.testing import assert_array_equal
from scipy import stats

from tff_shift.data import partition

SEEDS = st.integers(0, 2**31)
ALPHAS = st.floats(0.05, 100)


@st.composite
def labelled_clients(draw, alphas=ALPHAS):
  """Labels, the number of clients and of classes, and class proportions."""
  num_classes = draw(st.integers(1, 6))
  num_clients = draw(st.integers(1, 9))
  num_examples = draw(st.integers(num_clients, 200))
  rng = np.random.default_rng(draw(SEEDS))
  labels = rng.integers(0, num_classes, num_examples)
  proportions = partition.dirichlet_proportions(
    num_clients, num_classes, draw(alphas), draw(SEEDS)
  )
  return labels, proportions


def class_counts(labels, parts, num_classes):
  """`[num_clients, num_classes]`: how many of each class a client has."""
  return np.stack(
    [np.bincount(labels[part], minlength=num_classes) for part in parts]
  )


def assert_dealt_once(parts, num_examples):
  """Every example has one client, whose examples are in their order."""
  assert_array_equal(np.sort(np.concatenate(parts)), np.arange(num_examples))
  assert all(np.all(np.diff(part) > 0) for part in parts)


def assert_even(counts):
  """Clients have as many examples as any other, of each class and of all."""
  assert np.ptp(counts, axis=0).max() <= 1
  assert np.ptp(counts.sum(axis=1)) <= 1


LABELS = np.tile(np.arange(4), 25)


@pytest.mark.parametrize(
  "function, arguments, message",
  [
    (
      "generator",
      ("a", [0, -2]),
      "seed must be a non-negative integer, got -2",
    ),
    ("generator", ("a", 1.5), "seed must be a non-negative integer, got 1.5"),
    *(
      ("dirichlet_proportions", (5, 3, alpha, 0), "dirichlet must lie between ")
      for alpha in (0, math.nan, 1e-12, 1e308)
    ),
    ("dirichlet_proportions", (0, 3, 1.0, 0), "num_clients must be "),
    ("dirichlet_proportions", (3, 0, 1.0, 0), "num_classes must be "),
    (
      "partition_by_class",
      (np.array([0, 0]), np.ones((3, 1)), 0),
      "3 clients cannot share 2 examples; use at most 2 ",
    ),
    *(
      (
        "partition_by_class",
        (np.array([0, label]), np.ones((1, 2)), 0),
        "labels must lie in 0..1, got",
      )
      for label in (-1, 2)
    ),
    ("dirichlet_over_clients", (LABELS, 2, 0, 0), "alpha must lie between "),
    (
      "shards",
      (np.zeros(5, int), 3, 2, 0),
      "3 clients of 2 shards need at least 6 ",
    ),
    *(
      (
        "split_train_test",
        (np.arange(5), fraction, 0),
        "test_fraction must lie between 0",
      )
      for fraction in (0, 1, math.nan)
    ),
  ],
)
def test_bad_values_are_refused(function, arguments, message, refusal):
  assert refusal(getattr(partition, function), *arguments).startswith(message)


@pytest.mark.parametrize(
  "purpose, seed", [("b", 3), ("a", 4), ("a", [3, 1]), ("a", [1, 3])]
)
def test_draws_of_another_purpose_or_seed_differ(purpose, seed):
  first = partition.generator("a", 3).random(5)
  assert not np.any(first == partition.generator(purpose, seed).random(5))


def test_moments_match_the_dirichlet_distribution():
  # Dir(a 1_C): mean 1/C, variance (1/C)(1 - 1/C) / (C a + 1).
  proportions = partition.dirichlet_proportions(40_000, 4, 0.5, 7)
  assert proportions.dtype == np.float64
  assert_allclose(proportions.sum(axis=1), 1)
  # Standard errors: 0.25 / 200 of the mean, below 0.0004 of the variance.
  assert_allclose(proportions.mean(axis=0), 0.25, atol=0.007)
  assert_allclose(proportions.var(axis=0), 0.0625, atol=0.002)


class TestDirichletOverClasses:
  OWN = (np.array([0, 3]), np.arange(5), np.array([4]))

  def test_rows_are_draws_over_a_clients_classes(self):
    drawn = partition.dirichlet_over_classes(self.OWN, 5, 0.1, 6)
    for row, own in zip(drawn, self.OWN, strict=True):
      assert row.sum() == pytest.approx(1)
      assert not np.delete(row, own).any()
    # Who has all classes has the draw of all classes.
    everything = partition.dirichlet_proportions(3, 5, 0.1, 6)
    assert_array_equal(drawn[1], everything[1])

  def test_infinite_alpha_is_uniform_over_them(self):
    assert_array_equal(
      partition.dirichlet_over_classes(self.OWN, 5, np.inf, 6),
      [[0.5, 0, 0, 0.5, 0], [0.2] * 5, [0, 0, 0, 0, 1]],
    )


class TestPartitionByClass:
  def test_sizes_follow_the_proportions(self):
    # Class 0: 10 examples by 0.7, 0.2, 0.1; class 1: 20 by (0.3, 0.8, 0.9) / 2.
    labels = np.repeat([0, 1], [10, 20])
    proportions = np.array([[0.7, 0.3], [0.2, 0.8], [0.1, 0.9]])
    parts = partition.partition_by_class(labels, proportions, 0)
    assert_array_equal(class_counts(labels, parts, 2), [[7, 3], [2, 8], [1, 9]])

  def test_equal_remainder_goes_to_who_has_least(self):
    # 4.5, 3.5 and 2: one example is left over, and two remainders are 0.5.
    parts = partition.partition_by_class(
      np.zeros(10, int), np.array([[0.45], [0.35], [0.2]]), 0
    )
    assert [len(part) for part in parts] == [4, 4, 2]

  def test_class_without_takers_is_dealt_evenly(self):
    labels = np.repeat([0, 1], [4, 6])
    parts = partition.partition_by_class(labels, np.array([[1.0, 0]] * 2), 0)
    assert_array_equal(class_counts(labels, parts, 2), [[2, 3], [2, 3]])

  @hypothesis.given(labelled_clients(), SEEDS)
  @hypothesis.settings(max_examples=60)
  def test_every_example_is_dealt_once_and_by_its_share(self, dealing, seed):
    labels, proportions = dealing
    parts = partition.partition_by_class(labels, proportions, seed)
    assert_dealt_once(parts, len(labels))
    num_classes = proportions.shape[1]
    shares = proportions / proportions.sum(axis=0)
    quotas = shares * np.bincount(labels, minlength=num_classes)
    counts = class_counts(labels, parts, num_classes)
    assert np.all(np.abs(counts - quotas) < 1 + 1e-6)

  @hypothesis.given(labelled_clients(st.just(math.inf)), SEEDS)
  @hypothesis.settings(max_examples=60)
  def test_sizes_iid_differ_by_at_most_one(self, dealing, seed):
    labels, proportions = dealing
    num_clients, num_classes = proportions.shape
    for parts in (
      partition.partition_by_class(labels, proportions, seed),
      partition.dirichlet_over_clients(
        labels, num_clients, math.inf, seed, min_examples=1
      ),
    ):
      assert_even(class_counts(labels, parts, num_classes))


class TestDirichletOverClients:
  # From 0.5: with less, one class for nine clients may leave someone nothing.
  @hypothesis.given(labelled_clients(), st.floats(0.5, 100), SEEDS)
  @hypothesis.settings(max_examples=60)
  def test_every_example_is_dealt_once(self, dealing, alpha, seed):
    labels, proportions = dealing
    hypothesis.assume(len(labels) >= 10 * len(proportions))
    parts = partition.dirichlet_over_clients(
      labels, len(proportions), alpha, seed, min_examples=1
    )
    assert_dealt_once(parts, len(labels))
    assert min(len(part) for part in parts) >= 1

  @pytest.mark.slow
  @pytest.mark.parametrize("alpha", [0.3, 0.5])
  def test_sizes_are_distributed_as_by_rejection(self, alpha):
    # The rule in other words: zero shares for who has enough, then rescaling.
    rng = np.random.default_rng(5)

    def expected_sizes():
      sizes = np.zeros(8)
      for _ in range(10):
        shares = rng.dirichlet([alpha] * 8) * (sizes < 7500)
        sizes += np.diff(
          np.floor(6000 * np.cumsum(shares / shares.sum())), prepend=0
        )
      return sizes

    labels = np.repeat(np.arange(10), 6000)
    drawn = []
    for seed in range(150):
      parts = partition.dirichlet_over_clients(labels, 8, alpha, seed)
      drawn.append([len(part) for part in parts])
    expected = [expected_sizes() for _ in range(1000)]
    for statistic in (np.min, np.max, np.std):
      test = stats.ks_2samp(
        statistic(drawn, axis=1), statistic(expected, axis=1)
      )
      assert test.pvalue > 1e-3

  @pytest.mark.slow
  def test_sizes_are_as_uneven_as_those_of_the_paper(self):
    # CIFAR-10, 8 clients, alpha 0.3, the seed 2025 of the authors' program.
    paper = [7961, 7952, 11586, 2938, 7863, 10282, 5117, 6301]
    labels = np.repeat(np.arange(10), 6000)
    deviations = []
    for seed in range(100):
      parts = partition.dirichlet_over_clients(labels, 8, 0.3, seed)
      deviations.append(np.std([len(part) for part in parts]))
    low, high = np.percentile(deviations, [5, 95])
    assert low < np.std(paper) < high
    # With equal sizes nothing of this would be left.
    assert low > 800

  def test_no_client_with_enough_receives_a_further_class(self):
    # One client holds all of class 0, which is more than a half: the rest is
    # left to the other client, as soon as alpha gives a class to one alone.
    labels = np.repeat([0, 1, 2], [60, 20, 20])
    parts = partition.dirichlet_over_clients(labels, 2, 1e-6, 3)
    counts = class_counts(labels, parts, 3)
    assert sorted(counts.tolist()) == [[0, 20, 20], [60, 0, 0]]

  def test_smallest_client_has_min_examples(self):
    labels = np.repeat(np.arange(10), 60)

    def smallest(min_examples):
      return min(
        len(part)
        for seed in range(30)
        for part in partition.dirichlet_over_clients(
          labels, 8, 0.1, seed, min_examples
        )
      )

    assert smallest(1) < 40 <= smallest(40)
    # By default as many as there are classes.
    assert smallest(None) >= 10

  # What can be changed to mend it; `min_examples` only by who has set it.
  ADVICE = "fewer clients (num_clients) or more examples (max_examples)"

  @pytest.mark.parametrize(
    "min_examples, told", [(1, "a smaller min_examples, "), (None, "")]
  )
  def test_too_few_examples_are_refused(self, min_examples, told, refusal):
    needed = min_examples or 4
    labels = np.arange(3 * needed - 1) % 4
    assert refusal(
      partition.dirichlet_over_clients, labels, 3, 1.0, 0, min_examples
    ) == (
      f"3 clients of at least {needed} examples need {3 * needed}, got"
      f" {3 * needed - 1}; use {told}{self.ADVICE}"
    )
    # One client takes the only class as a whole.
    assert refusal(
      partition.dirichlet_over_clients,
      np.zeros(20, int),
      2,
      1e-6,
      0,
      min_examples,
    ) == (
      "none of 1000 draws with alpha 1e-06 gave each of 2 clients 1 of 20"
      f" examples; use a larger alpha (dirichlet_<alpha>), {told}{self.ADVICE}"
    )


class TestShards:
  @hypothesis.given(
    st.integers(1, 6), st.integers(1, 5), st.integers(0, 50), SEEDS
  )
  @hypothesis.settings(max_examples=60)
  def test_every_example_is_dealt_once_in_equal_shards(
    self, num_clients, shards_per_client, surplus, seed
  ):
    num_examples = num_clients * shards_per_client + surplus
    labels = np.random.default_rng(seed).integers(0, 3, num_examples)
    parts = partition.shards(labels, num_clients, shards_per_client, seed)
    assert_dealt_once(parts, num_examples)
    sizes = [len(part) for part in parts]
    assert max(sizes) - min(sizes) <= shards_per_client

  @pytest.mark.parametrize("seed", range(5))
  def test_clients_have_at_most_as_many_classes_as_shards(self, seed):
    labels = np.tile(np.arange(10), 6000)  # Forty shards of 1,500 examples.
    parts = partition.shards(labels, 8, 5, seed)
    assert [len(part) for part in parts] == [7500] * 8
    counts = class_counts(labels, parts, 10)
    assert np.all(np.isin(counts, 1500 * np.arange(5)))
    assert np.count_nonzero(counts, axis=1).max() <= 5


class TestSplitTrainTest:
  @hypothesis.given(
    st.integers(0, 60),
    st.floats(0, 1, exclude_min=True, exclude_max=True),
    SEEDS,
  )
  @hypothesis.settings(max_examples=100)
  def test_split_is_a_partition_of_the_asked_size(self, size, fraction, seed):
    indices = np.arange(size) * 3 + 1
    train, test = partition.split_train_test(indices, fraction, seed)
    assert_array_equal(np.union1d(train, test), indices)
    assert len(train) + len(test) == size
    assert len(train) >= min(size, 1)
    if len(train) > 1:
      assert abs(len(test) - fraction * size) <= 0.5
