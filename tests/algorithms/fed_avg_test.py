"""FedAvg against TFF's own, and against steps taken in NumPy."""

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tff_shift import algorithms
from tff_shift.algorithms import fed_avg
from tff_shift.learning import local_training
from tff_shift.learning import randomness
from tff_shift.simulation import rounds

pytestmark = pytest.mark.slow

layers = tf.keras.layers
RATE = 0.5


class TestTraining:
  @pytest.mark.parametrize("sizes", [[7], [6, 5, 7]])
  def test_steps_agree_with_the_oracle(
    self, model, make_client, oracle, run_in_graph, compare, sizes
  ):
    round_num, local_steps, batch_size = 3, 2, 4
    hparams = fed_avg.HParams(
      local_steps=local_steps, batch_size=batch_size, learning_rate=RATE
    )
    client = make_client(0, sizes)
    weights = run_in_graph(model.initial_weights, client.seed)
    result = run_in_graph(
      lambda w, data: fed_avg.train_client(
        model, hparams, w, data, tf.constant(round_num)
      ),
      weights,
      client,
    )

    # As many steps as there are domains in an iteration, from all of them.
    def draw_batches(data):
      seed = randomness.fold(data.seed, randomness.Purpose.TRAIN, round_num)
      return [
        local_training.pooled_batches(data, visit + 1, batch_size, seed)(visit)
        for visit in range(local_steps * len(sizes))
      ]

    def loss_of(batch):
      return lambda w: oracle.cross_entropy(oracle.predict(w, batch.x), batch.y)

    batches = run_in_graph(draw_batches, client)
    expected, mean_loss = oracle.descend(
      weights, [loss_of(batch) for batch in batches], RATE
    )
    update = tf.nest.map_structure(np.subtract, expected, weights)
    assert max(np.abs(w).max() for w in tf.nest.flatten(update)) > 1e-2
    compare.assert_close(result.update, update, 1e-5)
    np.testing.assert_allclose(result.loss, mean_loss, rtol=1e-5)
    assert result.client_state == ()


def build_stock(model):
  """FedAvg as TFF has it, with the same layers in one Keras model."""

  def cross_entropy(y_true, y_pred, sample_weight=None):
    del sample_weight
    return tf.reduce_mean(
      tf.nn.sparse_softmax_cross_entropy_with_logits(y_true, y_pred)
    )

  def keras_model():
    return tf.keras.Sequential(
      [
        layers.InputLayer(model.input_shape),
        layers.Dense(8, activation="relu"),
        layers.Dense(model.num_classes),
      ]
    )

  return tff.learning.algorithms.build_weighted_fed_avg(
    tff.learning.models.functional_model_from_keras(
      keras_model,
      cross_entropy,
      (
        tf.TensorSpec((None, *model.input_shape), tf.float32),
        tf.TensorSpec((None,), tf.int32),
      ),
    ),
    tff.learning.optimizers.build_sgdm(RATE),
  )


class TestStockFedAvg:
  def test_rounds_of_full_batches_agree(
    self, model, make_client, context, compare
  ):
    clients = [make_client(0, [6]), make_client(1, [12]), make_client(2, [4])]
    algorithm = algorithms.build(
      fed_avg,
      model,
      # Of 12 examples of 4 or 6, each occurs equally often: the gradient is
      # that of all examples of the client.
      fed_avg.HParams(
        local_steps=1,
        batch_size=12,
        learning_rate=RATE,
        client_weighting="num_examples",
      ),
    )
    run = rounds.Rounds(algorithm, clients, run_seed=0)
    stock = build_stock(model)
    initial = run.server_state.weights
    stock_state = stock.set_model_weights(
      stock.initialize(),
      tff.learning.models.ModelWeights(tuple(tf.nest.flatten(initial)), ()),
    )
    batches = [
      tf.data.Dataset.from_tensors((client.x, client.y)) for client in clients
    ]
    for _ in range(3):
      run.step()
      stock_state = stock.next(stock_state, batches).state
    expected = stock.get_model_weights(stock_state).trainable
    moves = [
      np.abs(new - old).max()
      for new, old in zip(expected, tf.nest.flatten(initial), strict=True)
    ]
    assert min(moves) > 1e-3
    compare.assert_close(run.server_state.weights, tuple(expected), 1e-6)


class TestAggregation:
  @pytest.mark.parametrize(
    ("client_weighting", "shares"),
    [("uniform", (1 / 2, 1 / 2)), ("num_examples", (1 / 4, 3 / 4))],
  )
  def test_weighting_of_clients(
    self,
    model,
    make_client,
    context,
    run_for_each,
    compare,
    client_weighting,
    shares,
  ):
    hparams = fed_avg.HParams(
      batch_size=4, learning_rate=RATE, client_weighting=client_weighting
    )
    clients = [make_client(0, [4]), make_client(1, [12])]
    run = rounds.Rounds(
      algorithms.build(fed_avg, model, hparams), clients, run_seed=0
    )
    initial = run.server_state.weights
    metrics = run.step()
    results = run_for_each(
      lambda w, data: fed_avg.train_client(
        model, hparams, w, data, tf.constant(0)
      ),
      [(initial, client) for client in clients],
    )
    compare.assert_close(
      run.server_state.weights,
      tf.nest.map_structure(
        lambda w, *updates: w + np.average(updates, axis=0, weights=shares),
        initial,
        *(result.update for result in results),
      ),
      1e-6,
    )
    # The loss is the plain mean, whatever the weights.
    np.testing.assert_allclose(
      metrics["loss"], np.mean([result.loss for result in results]), rtol=1e-6
    )

  def test_aggregator_may_be_replaced(self, model, make_client, context):
    norm = 0.01
    algorithm = algorithms.build(
      fed_avg,
      model,
      fed_avg.HParams(learning_rate=RATE),
      aggregator=tff.aggregators.MeanFactory(
        tff.aggregators.clipping_factory(norm, tff.aggregators.SumFactory())
      ),
    )
    run = rounds.Rounds(algorithm, [make_client(0, [9])], run_seed=0)
    before = tf.nest.flatten(run.server_state.weights)
    run.step()
    after = tf.nest.flatten(run.server_state.weights)
    squares = [np.sum((b - a) ** 2) for a, b in zip(before, after, strict=True)]
    np.testing.assert_allclose(np.sqrt(np.sum(squares)), norm, rtol=1e-3)
