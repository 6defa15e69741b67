"""Test-time adaptation: from example to example."""

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest
import tensorflow as tf
from numpy.testing import assert_array_equal

from tests.fixtures import refusals
from tff_shift.algorithms.parts import test_time_adaptation
from tff_shift.models import modes

SEED = np.array([3, 4], np.int32)


def test_entropy_is_finite_where_probabilities_are_not(run_in_graph):
  def compute(logits):
    value = test_time_adaptation.marginal_entropy(logits)
    return value, tf.gradients(value, logits)[0]

  # exp(-300) is 0 to a float32.
  value, gradient = run_in_graph(compute, np.float32([[300, 0, -300]] * 2))
  assert value == 0
  assert np.all(np.isfinite(gradient))


@pytest.mark.parametrize(
  "num_examples, num_batches", [(0, 0), (1, 1), (4, 1), (5, 2)]
)
def test_batches_are_full_and_results_in_order(
  run_in_graph, num_examples, num_batches
):
  def function(batch):
    assert batch["x"].shape == (4, 2)
    assert batch["y"].shape == (4,)
    own = batch["x"][:, :1] + tf.cast(batch["y"], tf.float32)[:, tf.newaxis]
    # Zeros fill up the last batch.
    total = tf.fill([4, 1], tf.reduce_sum(batch["x"][:, 1]))
    return tf.concat([own, total], axis=1)

  x = np.arange(2 * num_examples, dtype=np.float32).reshape(-1, 2)
  found = run_in_graph(
    lambda x, y: test_time_adaptation.in_full_batches(
      function, {"x": x, "y": y}, 4, width=2
    ),
    x,
    np.arange(num_examples, dtype=np.int32),
  )
  totals = [x[4 * i : 4 * i + 4, 1].sum() for i in range(num_batches)]
  assert_array_equal(
    found,
    np.stack(
      [3 * np.arange(num_examples), np.repeat(totals, 4)[:num_examples]], axis=1
    ),
  )


# A method whose history is the sum of what it has seen, and how often.
@pytest.fixture(scope="module")
def compile_adaptation(compile_in_graph):
  def compile_with(seed):
    def add(history, example, domain, place):
      total, count = history
      total += example["value"]
      count += 1
      return tf.stack(
        [
          total,
          tf.cast(count, tf.float32),
          tf.cast(domain, tf.float32),
          tf.cast(place, tf.float32),
          example["row"][0],
        ]
      ), (total, count)

    return compile_in_graph(
      lambda value, sizes: test_time_adaptation.adapt_each(
        {"value": value, "row": tf.stack([value, -value], axis=1)},
        (tf.constant(0.0), tf.constant(0)),
        add,
        domain_sizes=sizes,
        width=5,
        seed=seed,
      ),
      tf.TensorSpec([None], tf.float32),
      tf.TensorSpec([3], tf.int32),
    )

  return compile_with


@pytest.fixture(scope="module")
def in_order(compile_adaptation):
  return compile_adaptation(None)


@pytest.fixture(scope="module")
def at_random(compile_adaptation):
  return compile_adaptation(SEED)


def test_adapt_each_history_starts_anew_at_every_domain(in_order):
  assert_array_equal(
    in_order(np.float32([1, 2, 3, 4, 5]), np.int32([2, 0, 3])),
    [
      [1, 1, 0, 0, 1],
      [3, 2, 0, 1, 2],
      [3, 1, 2, 0, 3],
      [7, 2, 2, 1, 4],
      [12, 3, 2, 2, 5],
    ],
  )


def test_adapt_each_nothing_gives_nothing(in_order):
  assert in_order(np.float32([]), np.int32([0, 0, 0])).shape == (0, 5)


def test_adapt_each_random_order_visits_each_once(at_random):
  x = np.arange(1, 31, dtype=np.float32)
  found = at_random(x, np.int32([10, 0, 20]))
  assert_array_equal(found[:, 4], x)
  assert_array_equal(found[:, 3], [*range(10), *range(20)])
  visits = found[:10, 1], found[10:, 1]
  for order, values, totals in zip(
    visits, np.split(x, [10]), np.split(found[:, 0], [10]), strict=True
  ):
    assert_array_equal(np.sort(order), np.arange(len(order)) + 1)
    assert np.any(np.diff(order) != 1)
    # The history is of those that came before.
    by_visit = np.argsort(order)
    assert_array_equal(totals[by_visit], np.cumsum(values[by_visit]))
  # Another domain has another order.
  assert np.any(np.argsort(visits[1])[:10] != np.argsort(visits[0]))


@hypothesis.settings(max_examples=30, deadline=None)
@hypothesis.given(st.lists(st.integers(0, 4), min_size=3, max_size=3))
def test_adapt_each_domain_alone_is_as_beside_the_others(at_random, sizes):
  x = np.arange(1, sum(sizes) + 1, dtype=np.float32)
  target = x[len(x) - sizes[-1] :]
  together = at_random(x, np.int32(sizes))
  alone = at_random(target, np.int32([0, 0, sizes[-1]]))
  assert_array_equal(together[len(x) - sizes[-1] :], alone)


def test_batches_are_not_padded_where_models_normalise_by_them():
  with modes.by_batch(), refusals.refused("padding would change"):
    test_time_adaptation.in_full_batches(
      lambda x: x, tf.zeros([5, 3]), 4, width=3
    )
