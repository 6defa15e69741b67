"""Synthetic titles: they have the stated form, and drift."""

import re

import numpy as np
import pytest

from tff_shift.data.datasets import synthetic_titles
from tff_shift.data.shifts import evolving


@pytest.fixture(scope="module")
def dataset():
  return evolving.load_evolving("synthetic_titles", seed=3)


def test_titles_have_the_stated_form():
  loaded = synthetic_titles.generate(0, num_domains=3, examples_per_class=7)
  assert loaded.x.shape == (3 * 5 * 7, 10)
  lengths = (loaded.x != 0).sum(axis=1)
  assert set(lengths) == set(range(4, 11))
  # Filled up on the right.
  assert all(row[:n].all() for row, n in zip(loaded.x, lengths, strict=True))
  assert loaded.time.tolist() == np.repeat([1, 2, 3], 35).tolist()
  assert np.bincount(loaded.y).tolist() == [21] * 5
  assert all("synthetic" in name for name in loaded.schema.classes)
  assert len(loaded.vocabulary) <= synthetic_titles.DATASET.vocabulary_size


@pytest.mark.slow
def test_shares_of_words_are_those_stated(dataset):
  of_kind = dict.fromkeys(("topic", "changing", "common"), 0)
  words = np.concatenate([each.x.ravel() for each in dataset.domains[:-1]])
  for word, count in enumerate(np.bincount(words)[2:], start=2):
    kind = re.match("[a-z]+", dataset.vocabulary[word])[0]
    of_kind[kind] += count
  total = sum(of_kind.values())
  assert total > 20_000
  # Five standard errors of a share of so many words: 5 / sqrt(4 * 20000).
  assert of_kind["topic"] / total == pytest.approx(0.2, abs=0.018)
  assert of_kind["changing"] / total == pytest.approx(0.15, abs=0.018)


def test_words_change_sides(dataset):
  """Those of the first class are said by it first, and then by the next."""
  words = [
    word
    for word, name in enumerate(dataset.vocabulary)
    if name.startswith("changing0")
  ]
  said = [
    [bool(np.isin(domain.x[domain.y == c], words).any()) for c in range(5)]
    for domain in (dataset.domains[0], dataset.domains[-1])
  ]
  assert said[0] == [True, False, False, False, False]
  assert said[1] == [False, True, False, False, False]
  # And the last domain has words that are new.
  unknown = [(domain.x == 1).sum() for domain in dataset.domains]
  assert not any(unknown[:-1]) and unknown[-1] > 0
