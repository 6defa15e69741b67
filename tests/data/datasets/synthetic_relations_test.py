"""Tests of the generated relations."""

import collections

import numpy as np

from tff_shift.data.datasets import synthetic_relations


def test_a_relation_is_a_pair_of_kinds_that_no_name_alone_tells():
  texts, labels, names = synthetic_relations.sentences()
  words = synthetic_relations.words()
  assert len(set(words)) == len(words) == 1 + 9 * 16 + 8
  kind_of = {word: place // 16 for place, word in enumerate(words[1:145])}
  relations_of_kind = collections.defaultdict(set)
  for text, label in zip(texts, labels, strict=True):
    subject, obj = (part.split() for part in text.split(", "))
    # A word that means nothing may stand before a name, and no other.
    assert all(word in words[145:] for word in (*subject[:-1], *obj[:-1]))
    assert max(len(subject), len(obj)) <= 2
    pair = kind_of[subject[-1]], kind_of[obj[-1]]
    assert names[label] == f"{pair[0]} to {pair[1]}"
    relations_of_kind["subject", pair[0]].add(label)
    relations_of_kind["object", pair[1]].add(label)
  assert np.bincount(labels).tolist() == [100] * 41
  assert len(set(names)) == 41
  assert len(relations_of_kind) == 18
  assert min(map(len, relations_of_kind.values())) >= 2
