"""FedRoD: a generic predictor that is averaged, a personal head on top."""

import numpy as np
import pytest
import tensorflow as tf

from tff_shift.algorithms import fed_avg
from tff_shift.algorithms import fed_rod
from tff_shift.learning import randomness
from tff_shift.models.networks import cnn

pytestmark = pytest.mark.slow

COMMON = {"batch_size": 4, "local_steps": 1, "learning_rate": 0.3}
HPARAMS = fed_rod.HParams(**COMMON)
ROUND = 5


@pytest.fixture(scope="module")
def functions(model):
  return fed_rod.build(model, HPARAMS)


@pytest.fixture(scope="module")
def own_head(weights):
  """A personal head that has been trained before."""
  generator = np.random.default_rng(1)
  return tuple(
    generator.normal(size=each.shape).astype(np.float32)
    for each in weights.head
  )


@pytest.fixture(scope="module")
def train(functions, run_for_each):
  """Trains a client for each triple of weights, state and data."""
  return lambda *calls: run_for_each(
    lambda *call: functions.train_client(*call, tf.constant(ROUND)), calls
  )


class TestTraining:
  def test_agrees_with_the_oracle(
    self, weights, own_head, make_client, train, oracle, compare
  ):
    client = make_client(0, [6, 5], y=[0] * 6 + [1] * 4 + [2])
    (result,) = train((weights, own_head, client))
    log_counts = np.log([6, 4, 1])
    generic, own, losses = weights, own_head, []
    # A step for each domain.
    for batch in oracle.batches(client, 2, randomness.Purpose.TRAIN, ROUND):

      def generic_loss(w, batch=batch):
        return oracle.cross_entropy(
          oracle.predict(w, batch.x) + log_counts, batch.y
        )

      def own_loss(head, batch=batch, generic=generic):
        return oracle.cross_entropy(
          oracle.predict(generic, batch.x)
          + oracle.classify(head, oracle.embed(generic.backbone, batch.x)),
          batch.y,
        )

      own, of_own = oracle.descend(own, [own_loss], 0.3)
      generic, of_generic = oracle.descend(generic, [generic_loss], 0.3)
      losses.append(of_own + of_generic)
    compare.assert_close(
      result.update, tf.nest.map_structure(np.subtract, generic, weights), 1e-5
    )
    compare.assert_close(result.client_state, own, 1e-5)
    np.testing.assert_allclose(result.loss, np.mean(losses), rtol=1e-5)
    assert np.abs(result.client_state[0] - own_head[0]).max() > 1e-2

  def test_class_that_the_client_lacks_is_left_out(
    self, model, weights, own_head, make_client, train, run_in_graph
  ):
    # Class 2, which the server's head prefers by far.
    client = make_client(0, [6, 5], y=[0] * 7 + [1] * 4)
    *others, bias = weights.head
    head = (*others, bias + np.float32([0, 0, 60]))
    (result,) = train((weights._replace(head=head), own_head, client))
    assert np.isfinite(result.loss) and result.loss < 1000
    for change in result.update.head:
      assert np.any(change[..., :2]) and not np.any(change[..., 2])
    counted = run_in_graph(
      lambda w, state, data: (
        fed_rod.build(
          model, fed_rod.HParams(class_counts="at_least_one", **COMMON)
        )
        .train_client(w, state, data, tf.constant(ROUND))
        .update
      ),
      weights,
      own_head,
      client,
    )
    assert np.any(counted.head[0][..., 2])

  def test_is_fed_avg_where_classes_are_equally_frequent(
    self, model, weights, own_head, make_client, train, run_in_graph, compare
  ):
    client = make_client(0, [6, 6], y=[0, 1, 2] * 4)
    (result,) = train((weights, own_head, client))
    expected = run_in_graph(
      lambda w, data: fed_avg.train_client(
        model, fed_avg.HParams(**COMMON), w, data, tf.constant(ROUND)
      ),
      weights,
      client,
    )
    assert compare.equal_bits(result.update, expected.update)

  def test_personal_head_does_not_move_what_is_shared(
    self, weights, own_head, make_client, train, compare
  ):
    client = make_client(0, [6, 5])
    other_head = tuple(-2 * each for each in own_head)
    one, other = train(
      (weights, own_head, client), (weights, other_head, client)
    )
    assert compare.equal_bits(one.update, other.update)
    assert not compare.equal_bits(one.client_state, other.client_state)


class TestPredictions:
  def test_client_without_training_predicts_as_the_server(
    self, functions, weights, make_client, run_in_graph, compare
  ):
    client, examples = make_client(0, [6, 5]), make_client(1, [0, 7])
    state = run_in_graph(functions.initial_client_state, client.seed, weights)
    by_client, by_server = run_in_graph(
      lambda w, state, data, examples: (
        functions.predict_as_client(w, state, data, examples),
        functions.predict_as_server(w, (), examples),
      ),
      weights,
      state,
      client,
      examples,
    )
    assert compare.equal_bits(by_client, by_server)

  def test_heads_add_up(
    self, functions, weights, own_head, make_client, run_in_graph, oracle
  ):
    client, examples = make_client(0, [6, 5]), make_client(1, [0, 7])
    found = run_in_graph(
      functions.predict_as_client, weights, own_head, client, examples
    )
    both = tuple(
      np.add(*pair) for pair in zip(weights.head, own_head, strict=True)
    )
    np.testing.assert_allclose(
      found, oracle.predict(weights._replace(head=both), examples.x), atol=1e-5
    )


def test_head_is_the_last_layer(run_in_graph):
  # Of the network for rotated MNIST, 64 x 10 weights.
  functions = fed_rod.build(cnn.build(), HPARAMS)
  shapes = [
    tuple(each.shape)
    for each in tf.nest.flatten(
      run_in_graph(
        lambda seed: functions.initial_client_state(
          seed, functions.initial_weights(seed)
        ),
        randomness.server_seed(0),
      )
    )
  ]
  assert shapes == [(64, 10)]
