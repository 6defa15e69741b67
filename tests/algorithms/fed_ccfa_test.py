"""FedCCFA: a client's round against NumPy, and rounds of several clients."""

import numpy as np
import pytest
import scipy.stats
from numpy.testing import assert_allclose
from numpy.testing import assert_array_equal

from tests.fixtures import arrays
from tests.fixtures import trees
from tff_shift.algorithms import fed_ccfa

pytestmark = pytest.mark.slow


STREAM = 9, 7
RATE = 0.05
# A batch is all examples, three of each class, which is the most that is drawn.
HPARAMS = fed_ccfa.HParams(
  batch_size=9,
  learning_rate=RATE,
  head_rate_factor=4.0,
  local_epochs=2,
  head_epochs=1,
  balanced_epochs=2,
  balanced_examples=3,
  entropy_divisor=0.5,
  alignment_start=2,
  temperature=0.5,
)


@pytest.fixture(scope="module")
def clients(make_adapting_client):
  return [make_adapting_client(i, *STREAM) for i in range(3)]


@pytest.fixture(scope="module")
def first(weights, functions):
  """The server's weights, and a client's state with two anchors.

  The client's classifier is not the one that all start with.
  """
  server = functions.initial_weights(np.zeros(2, np.int32))
  assert np.max(np.abs(server.head[0] - weights.head[0])) > 0.1
  server = server._replace(backbone=weights.backbone)
  anchors = arrays.normal(0, 3, 8)
  anchors[1] = 0
  return server, fed_ccfa.ClientState(weights.head, anchors, np.float32(0))


# Steps 1 to 3 of the first client.
@pytest.fixture(scope="module")
def expected(weights, first, client, oracle):
  """Returns `expected(k_factor, first)`: heads, backbone, losses in NumPy.

  `first` is the classifier that is trained for comparison.
  """
  classes = oracle.estimated_classes(weights, client)
  backbone, head = weights
  embeddings = oracle.embed(backbone, client.x)

  def risk(logits):
    return oracle.risk(logits, client.y, classes)

  def alignment(features):
    # Class 1 has no anchor; a third of the examples are of each class.
    cosines = 1 - oracle.distances(features, first[1].anchors[[0, 2]], "cosine")
    return sum(
      classes[c] * oracle.cross_entropy(cosines[client.y == c] / 0.5, [row] * 3)
      for row, c in enumerate((0, 2))
    )

  k = scipy.stats.entropy(classes) / 0.5

  def run(k_factor, compared_start=first[0].head):
    balanced, _ = oracle.descend(
      compared_start,
      [lambda h: oracle.cross_entropy(oracle.classify(h, embeddings), client.y)]
      * 2,
      4 * RATE,
    )
    own, _ = oracle.descend(
      head, [lambda h: risk(oracle.classify(h, embeddings))], 4 * RATE
    )

    def loss(weights):
      features = oracle.embed(weights, client.x)
      return risk(oracle.classify(own, features)) + k_factor * k * alignment(
        features
      )

    moved, value = oracle.descend(backbone, [loss] * 2, RATE)
    return balanced, own, moved, value

  return run


@pytest.mark.parametrize(
  "changes, round_num, k_factor",
  [
    ({}, 2, 1.0),
    # Features are not aligned yet.
    ({}, 1, 0.0),
    # The comparison may start from its own classifier.
    ({"compared_start": "own"}, 2, 1.0),
  ],
)
def test_client_round_agrees_with_the_oracle(
  build, first, client, expected, oracle, compare, changes, round_num, k_factor
):
  weights, state = first
  result = build(HPARAMS, **changes).train_client(*first, client, round_num)
  head = state.head if changes else weights.head
  balanced, own, backbone, loss = expected(k_factor, head)
  compare.assert_close(
    trees.add(weights.backbone, result.update), backbone, 1e-5
  )
  compare.assert_close(result.client_state.head, own, 1e-5)
  # Alignment makes a difference.
  other = expected(1 - k_factor, head)[2]
  assert np.max(np.abs(other[0] - backbone[0])) > 1e-3
  compare.assert_close(result.client_state.anchors, state.anchors, 0.0)
  assert_allclose(result.loss, loss, rtol=1e-5)
  sent = result.plaintext_sum.value
  for rows, head in ((sent.compared, balanced), (sent.rows, own)):
    kernel, bias = head
    assert_allclose(rows[:, :-1], kernel.T, atol=1e-5)
    assert_allclose(rows[:, -1], bias, atol=1e-5)
  features = oracle.embed(backbone, client.x)
  for c, mean in oracle.class_means(features, client.y).items():
    assert_allclose(sent.means[c], mean, atol=1e-5)


def test_client_pseudo_labels_are_those_of_its_model(
  build, first, client, weights, oracle
):
  result = build(HPARAMS, stream_labels="pseudo").train_client(
    *first, client, 0
  )
  y = oracle.predict(weights, client.stream_x).argmax(axis=1)
  means = result.plaintext_sum.value.means
  has_class = np.isin(np.arange(3), y)
  assert_array_equal(np.any(means != 0, axis=1), has_class)


@pytest.fixture(scope="module")
def run(build, first, clients, round_by_hand):
  """Returns `run(distance)`; the clients' heads are apart."""
  server, state = first
  states = [
    state._replace(head=trees.map(lambda w, i=i: w + np.float32(i), state.head))
    for i in range(3)
  ]
  return lambda distance: round_by_hand(
    build(HPARAMS, cluster_distance=distance), server, states, clients, 0
  )


def test_round_of_three_one_group_has_an_averaged_head(run, first, compare):
  results, new, personal = run(2.0)
  head = trees.mean(*(each.client_state.head for each in results))
  anchors = trees.mean(*(each.plaintext_sum.value.means for each in results))
  for each, result in zip(personal, results, strict=True):
    compare.assert_close(each.client_state.head, head, 1e-5)
    assert_allclose(each.client_state.anchors, anchors, atol=1e-5)
    assert each.loss == result.loss
  update = trees.mean(*(result.update for result in results))
  expected = trees.add(first[0].backbone, update)
  compare.assert_close(new.backbone, expected, 1e-6)


def test_round_of_three_clients_in_no_group_keep_their_heads(run, compare):
  results, _, personal = run(0.0)
  for each, result in zip(personal, results, strict=True):
    assert compare.equal_bits(each.client_state.head, result.client_state.head)
    assert_array_equal(
      each.client_state.anchors, result.plaintext_sum.value.means
    )
