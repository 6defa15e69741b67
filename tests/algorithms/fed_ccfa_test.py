"""FedCCFA: a client's round against NumPy, and rounds of several clients."""

import functools

import numpy as np
import pytest
from numpy.testing import assert_allclose
from numpy.testing import assert_array_equal

from tests.fixtures import trees
from tff_shift.algorithms import fed_ccfa
from tff_shift.learning.aggregators import client_slots

pytestmark = pytest.mark.slow


NUM_EXAMPLES = 9
RATE = 0.05
# A batch is all examples, three of each class, which is the most that is drawn.
HPARAMS = fed_ccfa.HParams(
  batch_size=NUM_EXAMPLES,
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
  return [make_adapting_client(i, NUM_EXAMPLES, 7) for i in range(3)]


@pytest.fixture(scope="module")
def pretrained(model, clients, run_in_graph):
  return run_in_graph(model.initial_weights, clients[0].seed)


@pytest.fixture(scope="module")
def first(pretrained, functions):
  """The server's weights, and a client's state with two anchors.

  The client's classifier is not the one that all start with.
  """
  weights = functions.initial_weights(np.zeros(2, np.int32))
  assert np.max(np.abs(weights.head[0] - pretrained.head[0])) > 0.1
  weights = weights._replace(backbone=pretrained.backbone)
  anchors = np.random.default_rng(0).normal(size=(3, 8)).astype(np.float32)
  anchors[1] = 0
  return weights, fed_ccfa.ClientState(pretrained.head, anchors, np.float32(0))


class TestClient:
  """Steps 1 to 3 of the first client."""

  @pytest.fixture(scope="class")
  def client(self, clients):
    return clients[0]

  @pytest.fixture(scope="class")
  def expected(self, pretrained, first, client, oracle):
    """Returns `expected(k_factor, first)`: heads, backbone, losses in NumPy.

    `first` is the classifier that is trained for comparison.
    """
    classes = oracle.estimated_classes(pretrained, client)
    backbone, head = pretrained.backbone, pretrained.head
    embeddings = oracle.embed(backbone, client.x)

    def risk(logits):
      return oracle.risk(logits, client.y, classes)

    def alignment(features):
      anchors = first[1].anchors
      total = 0.0
      for row, label in zip(features, client.y, strict=True):
        if label == 1:
          continue  # It has no anchor.
        odds = {
          c: np.exp(
            row
            @ anchors[c]
            / np.linalg.norm(row)
            / np.linalg.norm(anchors[c])
            / 0.5
          )
          for c in (0, 2)
        }
        # A third of the examples are of its class.
        weight = 3 * classes[label]
        total -= weight * np.log(odds[label] / sum(odds.values()))
      return total / NUM_EXAMPLES

    there = classes[classes > 0]
    k = -np.sum(there * np.log(there)) / 0.5

    def run(k_factor, compared_start=first[0].head):
      balanced, _ = oracle.descend(
        compared_start,
        [
          lambda h: oracle.cross_entropy(
            oracle.classify(h, embeddings), client.y
          )
        ]
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
  def test_round(
    self,
    build,
    first,
    client,
    expected,
    oracle,
    compare,
    changes,
    round_num,
    k_factor,
  ):
    weights, state = first
    result = build(HPARAMS, **changes).train_client(*first, client, round_num)
    head = state.head if changes else weights.head
    balanced, own, backbone, loss = expected(k_factor, head)
    compare.assert_close(
      trees.add(weights.backbone, result.update),
      backbone,
      1e-5,
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

  def test_pseudo_labels_are_those_of_its_model(
    self, build, first, client, pretrained, oracle
  ):
    result = build(HPARAMS, stream_labels="pseudo").train_client(
      *first, client, 0
    )
    y = oracle.predict(pretrained, client.stream_x).argmax(axis=1)
    means = result.plaintext_sum.value.means
    has_class = np.isin(np.arange(3), y)
    assert_array_equal(np.any(means != 0, axis=1), has_class)


class TestRoundOfThree:
  @pytest.fixture(scope="class")
  def run(self, build, first, clients):
    """Returns `run(**changes)`: clients' heads and states after a round."""

    @functools.cache
    def run_with(chosen=(0, 1, 2), **changes):
      functions = build(HPARAMS, **changes)
      weights, state = first
      own = [
        state._replace(
          head=trees.map(lambda w, i=i: w + np.float32(i), state.head)
        )
        for i in range(3)
      ]
      results = [
        functions.train_client(weights, own[i], clients[i], 0) for i in chosen
      ]
      slots = client_slots.total([r.plaintext_sum for r in results], 4)
      update = trees.mean(*[r.update for r in results])
      new = functions.update_server(weights, update, slots, 0)
      personal = [
        functions.personalize_client(new, result.client_state, clients[i], 0)
        for i, result in zip(chosen, results, strict=True)
      ]
      return results, new, personal

    return run_with

  def test_one_group_has_an_averaged_head(self, run, first, compare):
    results, new, personal = run(cluster_distance=2.0)
    mean = trees.mean(
      *[result.client_state.head for result in results],
    )
    for each, result in zip(personal, results, strict=True):
      compare.assert_close(each.client_state.head, mean, 1e-5)
      assert_allclose(
        each.client_state.anchors,
        sum(r.plaintext_sum.value.means for r in results) / 3,
        atol=1e-5,
      )
      assert each.loss == result.loss
    update = trees.mean(*[result.update for result in results])
    compare.assert_close(
      new.backbone, trees.add(first[0].backbone, update), 1e-6
    )

  def test_clients_in_no_group_keep_their_heads(self, run, compare):
    results, _, personal = run(cluster_distance=0.0)
    for each, result in zip(personal, results, strict=True):
      assert compare.equal_bits(
        each.client_state.head, result.client_state.head
      )
      assert_array_equal(
        each.client_state.anchors, result.plaintext_sum.value.means
      )
