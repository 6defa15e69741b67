"""Tests of periods: exact counts, drift, draws by seed, and the four parts."""

import collections
import itertools
import math

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest
import scipy.stats
from numpy.testing import assert_array_equal

from tff_shift.data import examples
from tff_shift.data.shifts import dynamic_personalization

# An example is its position; classes have 4 to 300 examples.
Y = np.repeat(np.arange(5, dtype=np.int32), [4, 60, 60, 300, 76])
POOL = examples.Examples(np.arange(500, dtype=np.float32), Y)


def make(distribution, pool=POOL, num_classes=5, **options):
  options = {"num_clients": 3, "period_size": 40, "seed": 7, **options}
  return dynamic_personalization.Periods(
    pool, num_classes, distribution, **options
  )


IID = make("iid")


def equal(one, other) -> bool:
  return all(map(np.array_equal, one, other))


class TestBatch:
  @pytest.mark.parametrize(
    "name, size, heavy",
    [
      ("0.7", 45, [32]),  # 31.5, although 0.7 * 45 < 31.5 as floats.
      ("0.5", 5, [2]),  # 2.5: halves to even.
      ("0.5+0.5", 5, [2, 2]),
      ("0.5+0.5", 3, [2, 1]),  # Two each would be four.
      ("0.1+0.8", 1, [0, 1]),
    ],
  )
  def test_shares_that_are_no_whole_numbers(self, name, size, heavy):
    found = make(name, period_size=size)
    counts = np.bincount(found.batch(0, 0).y, minlength=5)
    assert [counts[label] for label in found.heavy_labels(0, 0)] == heavy

  @hypothesis.settings(max_examples=60)
  @hypothesis.given(
    st.sampled_from(dynamic_personalization.DISTRIBUTIONS),
    st.sampled_from(dynamic_personalization.RESTS),
    st.integers(1, 60),
    st.integers(0, 2**31),
    st.integers(0, 2),
    st.integers(0, 1000),
  )
  def test_batch_has_the_size_the_counts_and_different_examples(
    self, name, rest, size, seed, client, period
  ):
    found = make(name, rest=rest, period_size=size, seed=seed)
    batch = found.batch(client, period)
    assert len(batch.x) == len(batch.y) == size
    assert_array_equal(batch.y, Y[batch.x.astype(int)])
    counts = np.bincount(batch.y, minlength=5)
    labels = found.heavy_labels(client, period)
    assert found.distribution(client, period) == name
    shares = [] if name == "iid" else [float(s) for s in name.split("+")]
    assert len(set(labels)) == len(shares)
    for label, share in zip(labels, shares, strict=True):
      # At most a half more or less; with any rest, that may add to it.
      assert counts[label] >= math.ceil(share * size - 0.5 - 1e-9) - (
        name == "0.5+0.5"
      )
      if rest == "others":
        assert counts[label] <= math.floor(share * size + 0.5 + 1e-9)
    # Class 0 has four examples: if heavy, they come more than once.
    is_scarce = 0 in labels and counts[0] > 4
    assert len(set(batch.x)) == size or is_scarce
    assert equal(batch, found.batch(client, period))

  def test_rest_is_a_random_sample_of_the_other_labels(self):
    found = make("0.5", period_size=20)
    totals = np.zeros([5, 5])
    for period in range(600):
      (heavy,) = found.heavy_labels(0, period)
      counts = np.bincount(found.batch(0, period).y, minlength=5)
      counts[heavy] = 0
      totals[heavy] += counts
    sizes = np.bincount(Y)
    for heavy in range(5):
      others = np.arange(5) != heavy
      expected = sizes[others] / sizes[others].sum() * totals[heavy].sum()
      # Without replacement, counts vary a little less than chi-square has it.
      found_counts = totals[heavy][others]
      assert scipy.stats.chisquare(found_counts, expected).pvalue > 1e-3

  def test_any_rest_has_heavy_labels_as_often_as_the_pool(self):
    found = make("0.5", period_size=40, rest="any")
    extra = expected = 0
    for period in range(400):
      (heavy,) = found.heavy_labels(2, period)
      if heavy == 0:  # Nothing is left of it.
        continue
      extra += (found.batch(2, period).y == heavy).sum() - 20
      expected += 20 * (np.bincount(Y)[heavy] - 20) / 480
    # Five standard deviations of at most a quarter in each of 8000 draws.
    assert extra == pytest.approx(expected, abs=5 * np.sqrt(8000 / 4))
    assert extra > 500

  def test_iid_is_a_random_sample_of_the_pool(self):
    found = make("iid", period_size=100)
    counts = sum(
      np.bincount(found.batch(0, p).x.astype(int), minlength=500)
      for p in range(300)
    )
    assert counts.sum() == 30_000
    assert scipy.stats.chisquare(counts).pvalue > 1e-3

  def test_label_with_too_few_examples_comes_with_replacement(self):
    found = make("0.9")
    period = next(p for p in range(99) if found.heavy_labels(0, p) == (0,))
    drawn = found.batch(0, period).x
    assert (drawn < 4).sum() == 36
    assert len(set(drawn[drawn >= 4])) == 4

  @pytest.mark.parametrize("rest", dynamic_personalization.RESTS)
  @pytest.mark.parametrize("name, size", [("iid", 700), ("0.5", 2000)])
  def test_period_larger_than_the_pool(self, rest, name, size):
    batch = make(name, period_size=size, rest=rest).batch(0, 0)
    assert len(batch.y) == size

  def test_order_does_not_tell_the_label(self):
    found = make("0.5+0.5", period_size=60)
    first = [
      (found.batch(0, p).y[:30] == found.heavy_labels(0, p)[0]).sum()
      for p in range(100)
    ]
    # Hypergeometric: variance 3.8 for one period.
    assert np.mean(first) == pytest.approx(15, abs=5 * np.sqrt(3.8 / 100))


class TestDistribution:
  def test_every_distribution_and_label_is_equally_likely(self):
    found = make(dynamic_personalization.DISTRIBUTIONS, num_clients=4)
    names = collections.Counter()
    labels = collections.Counter()
    for client in range(4):
      for period in range(400):
        names[found.distribution(client, period)] += 1
        labels.update(found.heavy_labels(client, period))
    # Rare classes too: the pool's class sizes do not matter.
    assert set(names) == set(dynamic_personalization.DISTRIBUTIONS)
    assert set(labels) == set(range(5))
    for counts in (names, labels):
      assert scipy.stats.chisquare(list(counts.values())).pvalue > 1e-3

  def test_draws_are_functions_of_seed_client_and_period(self):
    drawn = {
      tuple(make("iid", seed=seed).batch(client, period).x)
      for seed in range(2)
      for client in range(3)
      for period in range(3)
    }
    assert len(drawn) == 18

  def test_two_pools_with_one_seed_have_the_same_distributions(self):
    pool = examples.Examples(POOL.x[::2], POOL.y[::2])
    found, other = (
      make(dynamic_personalization.DISTRIBUTIONS, **options)
      for options in ({}, {"pool": pool, "period_size": 11})
    )
    for period in range(20):
      assert found.distribution(1, period) == other.distribution(1, period)
      assert found.heavy_labels(1, period) == other.heavy_labels(1, period)

  def test_distribution_lasts_as_many_periods_as_asked(self):
    found = make(["0.5", "0.7", "0.8"], periods_per_distribution=4)
    for client, block in itertools.product(range(3), range(10)):
      first, *others = range(4 * block, 4 * block + 4)
      for period in others:
        for method in (found.distribution, found.heavy_labels):
          assert method(client, period) == method(client, first)
        assert not found.is_drift(client, period)
      # Examples are new in each period.
      assert not equal(*(found.batch(client, first + p) for p in range(2)))
    drifts = [found.is_drift(c, 4 * b) for c in range(3) for b in range(1, 10)]
    # Both are the same by chance once in 15.
    assert 18 <= sum(drifts) <= 27

  def test_drift_is_another_share_of_some_label(self):
    found = make(["iid", "0.4+0.4", "0.1+0.8"])
    seen = collections.Counter()
    for period in range(1, 600):
      before, now = (
        (found.distribution(0, p), found.heavy_labels(0, p))
        for p in (period - 1, period)
      )
      same_name = before[0] == now[0]
      if now[0] == "0.4+0.4":
        is_same = same_name and set(before[1]) == set(now[1])
      else:
        is_same = before == now
      seen[now[0], is_same] += 1
      assert found.is_drift(0, period) == (not is_same)
    assert len(seen) == 6

  @pytest.mark.parametrize("rest", dynamic_personalization.RESTS)
  def test_drift_is_that_of_what_is_drawn_where_there_are_two_labels(
    self, rest
  ):
    # 30 of each; and 20 and 40.
    for sizes in ((30, 30), (20, 40)):
      pool = examples.Examples(
        np.arange(60), np.repeat(np.arange(2, dtype=np.int32), sizes)
      )
      found = make(
        ("iid", "0.5", "0.9"), pool, 2, period_size=4000, seed=1, rest=rest
      )
      # Drawn with replacement, 4000 examples tell the shares.
      shares = [np.mean(found.batch(0, p).y) for p in range(40)]
      drifted = [found.is_drift(0, p) for p in range(1, 40)]
      assert drifted == list(np.abs(np.diff(shares)) > 0.06)
      assert 0 < sum(drifted) < 39


class TestRefusals:
  @pytest.mark.parametrize(
    "function, arguments, options, message",
    [
      *(
        (make, (), {"distribution": "iid"} | options, message)
        for options, message in (
          ({"distribution": "0.6"}, "distribution must be one of iid, 0.5,"),
          ({"distribution": ()}, "distribution must be one of "),
          ({"rest": "all"}, "rest must be one of others, any, got 'all'"),
          ({"num_clients": 0}, "num_clients must be "),
          ({"period_size": 0}, "period_size must be "),
          ({"periods_per_distribution": 0}, "periods_per_distribution must "),
          ({"num_classes": 4}, "labels of the pool must lie in 0..3"),
        )
      ),
      (IID.batch, (3, 0), {}, "client must be below num_clients=3, got 3"),
      (IID.batch, (-1, 0), {}, "client must be "),
      (IID.heavy_labels, (0, -1), {}, "period must be "),
      (IID.is_drift, (0, 0), {}, "period must be "),
      *(
        (
          dynamic_personalization.load_dynamic_personalization,
          (),
          {"dataset": "digits", "seed": 0} | options,
          message,
        )
        for options, message in (
          ({"dataset": "emnist"}, "dataset must be one of "),
          ({"public_fraction": 0}, "public_fraction must lie between 0 and 1"),
          (
            {"public_fraction": 0.6, "validation_fraction": 0.4},
            "public_fraction and validation_fraction must leave a part",
          ),
          ({"test_fraction": math.nan}, "test_fraction must lie "),
          ({"max_examples": 0}, "max_examples must be "),
          ({"max_examples": 3}, "the validation part of digits would be empty"),
        )
      ),
    ],
  )
  def test_invalid_arguments_are_refused(
    self, function, arguments, options, message, refusal
  ):
    assert refusal(function, *arguments, **options).startswith(message)

  @pytest.mark.parametrize(
    "name, rest, needed",
    [("0.4+0.4", "others", 3), ("0.4+0.4", "any", 2), ("0.5", "others", 2)],
  )
  def test_pool_with_too_few_classes_is_refused(
    self, name, rest, needed, refusal
  ):
    def make_with(num_present):
      pool = examples.Examples(
        np.zeros(9), np.arange(9, dtype=np.int32) % num_present
      )
      return make(name, pool, 8, period_size=4, rest=rest)

    assert f"at least {needed} classes" in refusal(make_with, needed - 1)
    heavy = make_with(needed).heavy_labels(0, 0)
    assert max(heavy) < needed


class TestLoadDynamic:
  def test_parts_have_their_fractions(self, set_labels):
    load = dynamic_personalization.load_dynamic_personalization
    dataset = load("digits", seed=0)
    # 20 % of 1797 for the test; a tenth of the other 1438 each.
    assert [len(part.y) for part in dataset[1:5]] == [1150, 144, 359, 144]
    assert dataset.name == "digits"
    assert dataset.schema.classes == tuple("0123456789")
    set_labels(np.arange(300) % 4, num_train=200)
    dataset = load(
      "mnist", seed=3, public_fraction=0.25, validation_fraction=0.05
    )
    # The archive's test part is the test.
    assert list(dataset.test.x[:, 0]) == list(range(200, 300))
    assert [len(part.y) for part in dataset[1:5]] == [140, 10, 100, 50]

  @hypothesis.settings(
    max_examples=25,
    suppress_health_check=[hypothesis.HealthCheck.function_scoped_fixture],
  )
  @hypothesis.given(
    st.sampled_from([None, 210]),
    st.none() | st.integers(100, 400),
    st.integers(0, 2**31),
  )
  def test_parts_share_nothing_and_keep_the_labels(
    self, set_labels, num_train, max_examples, seed
  ):
    set_labels(np.arange(300) % 4, num_train=num_train)
    dataset = dynamic_personalization.load_dynamic_personalization(
      "mnist", seed=seed, max_examples=max_examples
    )
    positions = np.concatenate([part.x[:, 0] for part in dataset[1:5]])
    assert len(positions) == min(300, max_examples or 300)
    assert len(set(positions)) == len(positions)
    for part in dataset[1:5]:
      assert_array_equal(part.y, part.x[:, 0] % 4)
    if num_train is not None:
      assert dataset.test.x.min() >= num_train
      for part in (dataset.train, dataset.validation, dataset.public):
        assert part.x.max() < num_train
