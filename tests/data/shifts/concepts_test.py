"""Labels that mean something else to some clients, or from some time."""

from typing import ClassVar

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest
from numpy.testing import assert_array_equal

from tff_shift.data.shifts import concepts
from tff_shift.data.shifts import evolving


def drawn(drift, **options):
  sizes = {"num_clients": 10, "num_domains": 11, "num_classes": 10, "seed": 0}
  return concepts.draw(drift, **(sizes | options))


class TestRelabelings:
  @pytest.mark.parametrize(
    "name, num_concepts, num_classes, expected",
    [
      ("reversed", 2, 4, [[3, 2, 1, 0]]),
      ("shifted", 3, 4, [[1, 2, 3, 0], [2, 3, 0, 1]]),
      ("swapped", 3, 6, [[0, 2, 1, 3, 4, 5], [0, 1, 2, 4, 3, 5]]),
    ],
  )
  def test_are_those_of_the_papers(
    self, name, num_concepts, num_classes, expected
  ):
    found = concepts.relabelings(name, num_concepts, num_classes)
    assert found.dtype == np.int32
    assert found.tolist() == [list(range(num_classes)), *expected]

  @pytest.mark.parametrize(
    "name, most", [("reversed", 2), ("shifted", 10), ("swapped", 5)]
  )
  def test_more_concepts_than_there_are_is_refused(self, name, most, refusal):
    assert len(np.unique(concepts.relabelings(name, most, 10), axis=0)) == most
    message = refusal(concepts.relabelings, name, most + 1, 10)
    assert f"num_concepts must be at most {most} with relabeling={name}" in (
      message
    )


class TestDraw:
  @hypothesis.given(st.integers(2, 4), st.integers(4, 20), st.integers(0, 99))
  @hypothesis.settings(max_examples=40)
  def test_groups_are_equal_and_stay(self, num_concepts, num_clients, seed):
    found = drawn(
      "groups",
      relabeling="shifted",
      num_concepts=num_concepts,
      num_clients=num_clients,
      seed=seed,
    ).of_domain
    assert np.all(found == found[:, :1])
    sizes = np.bincount(found[:, 0], minlength=num_concepts)
    assert sizes.max() - sizes.min() <= 1

  @hypothesis.given(
    st.integers(2, 4), st.integers(3, 20), st.integers(4, 12), st.integers(0, 9)
  )
  @hypothesis.settings(max_examples=60)
  def test_staggered_clients_drift_once_at_spread_times(
    self, num_concepts, num_clients, num_domains, seed
  ):
    found = drawn(
      "staggered",
      relabeling="shifted",
      num_concepts=num_concepts,
      num_clients=num_clients,
      num_domains=num_domains,
      seed=seed,
    ).of_domain
    times = np.argmax(found > 0, axis=1)
    num_sources = num_domains - 1
    assert times.min() == 2 and times.max() < num_sources
    for own, time in zip(found, times, strict=True):
      assert not own[:time].any() and np.all(own[time:] == own[-1])
    # As many clients drift into each domain, up to one.
    counts = np.bincount(times, minlength=num_sources)[2:]
    assert counts.max() - counts.min() <= 1
    new = np.bincount(found[:, -1], minlength=num_concepts)[1:]
    assert new.min() > 0 and new.max() - new.min() <= 1

  def test_ten_clients_and_ten_steps_drift_as_in_the_paper(self):
    # One or two clients at a time, from the third step on.
    times = np.argmax(drawn("staggered").of_domain, axis=1)
    assert np.bincount(times).tolist() == [0, 0, 2, 1, 1, 1, 2, 1, 1, 1]

  @pytest.mark.parametrize(
    "drift, options, part",
    [
      ("sudden", {}, "concept_drift must be one of groups, staggered"),
      ("groups", {"num_clients": 1}, "num_clients must be at least 2"),
      ("staggered", {"num_domains": 3}, "num_domains must be at least 4"),
      ("groups", {"num_concepts": 1}, "num_concepts"),
    ],
  )
  def test_invalid_options_are_refused(self, drift, options, part, refusal):
    assert part in refusal(drawn, drift, **options)


class TestClients:
  OPTIONS: ClassVar = {"num_clients": 6, "dirichlet": 0.5, "seed": 3}

  @pytest.fixture(scope="class")
  def dataset(self):
    return evolving.load_evolving(
      "rotated_digits", angle_step=0, num_domains=5, seed=3
    )

  @pytest.fixture(scope="class")
  def found(self, dataset):
    return concepts.draw(
      "staggered", num_clients=6, num_domains=5, num_classes=10, seed=3
    )

  def test_only_labels_differ_and_by_the_concept(self, dataset, found):
    plain = evolving.assemble_clients(dataset, **self.OPTIONS)
    changed = evolving.assemble_clients(dataset, **self.OPTIONS, concepts=found)
    for number, (one, other) in enumerate(zip(plain, changed, strict=True)):
      for before, after in ((one.train, other.train), (one.test, other.test)):
        assert_array_equal(before.x, after.x)
        assert_array_equal(before.domain_sizes, after.domain_sizes)
        assert after.y.dtype == np.int32
        domains = np.repeat(np.arange(5), before.domain_sizes)
        is_reversed = found.of_domain[number, domains] == 1
        assert_array_equal(
          after.y, np.where(is_reversed, 9 - before.y, before.y)
        )
        assert is_reversed.any() or not len(after.y)

  def test_data_set_without_target_keeps_the_concepts(self, dataset, found):
    whole, shorter = (
      evolving.assemble_clients(each, **self.OPTIONS, concepts=found)
      for each in (dataset, evolving.without_target(dataset))
    )
    for one, other in zip(whole, shorter, strict=True):
      size = one.train.domain_sizes[:3].sum()
      assert_array_equal(one.train.y[:size], other.train.y)

  @pytest.mark.parametrize(
    "changes, part",
    [
      ({"of_domain": np.zeros((5, 5), int)}, "6 clients"),
      ({"of_domain": np.zeros((6, 4), int)}, "5 domains"),
      ({"of_domain": np.full((6, 5), 2)}, "0..1"),
      ({"labels": np.zeros((2, 10), int)}, "permutations of 0..9"),
      ({"labels": np.arange(9)[np.newaxis]}, "permutations of 0..9"),
    ],
  )
  def test_concepts_of_other_data_are_refused(
    self, dataset, found, changes, part, refusal
  ):
    message = refusal(
      evolving.assemble_clients,
      dataset,
      **self.OPTIONS,
      concepts=found._replace(**changes),
    )
    assert part in message
