"""Tests of the data source: who takes part, copies, and what is saved."""

import copy

import numpy as np
import pytest
import tensorflow as tf

from tff_shift.learning.stock_tff import client_source
from tff_shift.simulation.engine import rounds


@pytest.fixture(scope="module")
def pipelines():
  # With a function in it, which TensorFlow cannot copy.
  return [
    tf.data.Dataset.from_tensors(client).map(lambda x: 10 * x)
    for client in range(6)
  ]


def read(selection):
  return [int(next(iter(each))) // 10 for each in selection]


def test_clients_of_a_round_are_those_of_the_drivers(pipelines):
  iterator = client_source.ClientSource(pipelines, seed=7).iterator()
  chosen = [read(iterator.select(3)) for _ in range(4)]
  assert chosen == [
    rounds.sample_clients(6, 0.5, 7, round_num) for round_num in range(4)
  ]
  assert len(set(map(tuple, chosen))) > 1


def test_copy_goes_on_by_itself(pipelines):
  iterator = client_source.ClientSource(pipelines).iterator()
  iterator.select(2)
  other = copy.deepcopy(iterator)
  expected = [read(iterator.select(2)) for _ in range(3)]
  assert [read(other.select(2)) for _ in range(3)] == expected


def test_what_is_saved_goes_on_where_it_stopped(pipelines):
  iterator = client_source.ClientSource(pipelines, seed=2**32 - 1).iterator()
  for _ in range(5):
    iterator.select(2)
  restored = client_source.ClientSourceIterator.from_bytes(iterator.to_bytes())
  assert restored.federated_type == iterator.federated_type
  expected = [read(iterator.select(2)) for _ in range(3)]
  assert [read(restored.select(2)) for _ in range(3)] == expected


def test_all_clients_come_in_their_order(pipelines):
  iterator = client_source.ClientSource(pipelines).iterator()
  np.testing.assert_array_equal(read(iterator.select(6)), range(6))


@pytest.mark.parametrize("k", [0, 7, None])
def test_other_numbers_of_clients_are_refused(pipelines, k):
  iterator = client_source.ClientSource(pipelines).iterator()
  with pytest.raises(ValueError, match=rf"must lie in 1..6, got {k}"):
    iterator.select(k)
