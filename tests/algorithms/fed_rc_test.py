"""FedRC: a mixture of server models that separates concepts, not labels."""

import numpy as np
import pytest
import tensorflow as tf
from numpy.testing import assert_allclose
from numpy.testing import assert_array_equal

from tests.fixtures import trees
from tff_shift.algorithms import fed_em
from tff_shift.algorithms import fed_rc

pytestmark = pytest.mark.slow

RATE = 0.3
ROUND = 2
COMMON = {"batch_size": 4, "local_steps": 2, "learning_rate": RATE}
HPARAMS = fed_rc.HParams(num_models=2, **COMMON)
PI = np.array([0.3, 0.7], np.float32)
# Of classes in clusters; columns have the sum 1.
CLASSES = np.array([[0.6, 0.1], [0.3, 0.1], [0.1, 0.8]], np.float32)


@pytest.fixture(scope="module")
def models(shared):
  assert_array_equal(shared.classes, np.ones([3, 2]))
  return shared.models


def expectation(oracle, models, pi, classes, client):
  """q in NumPy, [num_examples, num_models]."""
  likelihoods = np.exp(-oracle.example_losses(models, client))
  weighted = pi * likelihoods / classes[client.y]
  return weighted / weighted.sum(axis=1, keepdims=True)


def test_class_that_nobody_has_counts_as_in_fed_em():
  losses, pi = tf.constant([[1.0, 1.0], [2.0, 3.0]]), tf.constant(PI)
  classes = tf.constant([[1.0, 1.0], [0.0, 0.0]])
  assert_allclose(
    fed_rc.expect(pi, losses, tf.constant([1, 1]), classes).q,
    fed_em.expect(pi, losses).q,
    rtol=1e-5,
  )


def test_round_client_agrees_with_the_oracle(
  model, models, client, oracle, run_in_graph, compare, functions
):
  shared = fed_rc.Shared(models, CLASSES)
  result = functions.train_client(shared, PI, client, ROUND)
  q = expectation(oracle, models, PI, CLASSES, client)
  assert_allclose(result.client_state, q.mean(axis=0), rtol=1e-5)
  assert_allclose(
    result.plaintext_sum,
    [q[client.y == c].sum(axis=0) for c in range(3)],
    rtol=1e-5,
  )
  # The M-step is that of FedEM with this q.
  expected = run_in_graph(
    lambda models, q, data: fed_em.train_client(
      model, HPARAMS, models, fed_em.Expectation(q, PI), data, ROUND
    ),
    models,
    q.astype(np.float32),
    client,
  )
  compare.assert_close(result.update, expected.update, 1e-5)
  assert_allclose(result.loss, expected.loss, rtol=1e-5)


def test_round_server_sums_over_clients_and_leaves_an_empty_cluster(
  models, compare, functions
):
  update = trees.map(np.ones_like, models)
  sums = np.float32([[3, 0], [1, 0], [0, 0]])
  updated = functions.update_server(
    fed_rc.Shared(models, CLASSES), update, sums, ROUND
  )
  compare.assert_close(updated.models, trees.add(models, update), 1e-6)
  assert_allclose(updated.classes[:, 0], [0.75, 0.25, 0])
  assert_array_equal(updated.classes[:, 1], CLASSES[:, 1])


def test_first_round_is_that_of_fed_em_bit_for_bit(
  build, functions, shared, client, compare
):
  found = functions.train_client(shared, PI, client, ROUND)
  expected = build(fed_em.HParams(num_models=2, **COMMON)).train_client(
    shared.models, PI, client, ROUND
  )
  assert compare.equal_bits(found._replace(plaintext_sum=()), expected)
  # Not once there are fractions.
  later = shared._replace(classes=CLASSES)
  found = functions.train_client(later, PI, client, ROUND)
  assert not compare.equal_bits(found.update, expected.update)


def test_prediction_is_the_mixture_of_probabilities(
  models, make_client, oracle, functions
):
  shared = fed_rc.Shared(models, CLASSES)
  client, other = make_client(0, [7]), make_client(1, [9])
  pi = functions.prepare_client(shared, PI, client, ROUND)
  expected = expectation(oracle, models, PI, CLASSES, client).mean(axis=0)
  assert_allclose(pi, expected, rtol=1e-5)
  logits = [oracle.predict(trees.row(models, k), other.x) for k in range(2)]
  assert_allclose(
    functions.predict_as_client(shared, pi, client, other),
    fed_em.mix(expected.astype(np.float32), np.float32(logits)),
    rtol=1e-4,
  )
