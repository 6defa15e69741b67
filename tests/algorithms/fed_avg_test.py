"""FedAvg against TFF's own, and against steps taken in NumPy."""

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tests.fixtures import trees
from tff_shift import algorithms
from tff_shift.algorithms import fed_avg

pytestmark = pytest.mark.slow

layers = tf.keras.layers
RATE = 0.5


@pytest.mark.parametrize("sizes", [[7], [6, 5, 7]])
def test_steps_agree_with_the_oracle(
  build, weights, make_client, oracle, sizes
):
  client = make_client(0, sizes)
  result = build(
    fed_avg.HParams(local_steps=2, batch_size=4, learning_rate=RATE)
  ).train_client(weights, (), client, 3)
  # As many steps as there are domains in an iteration, from all of them.
  batches = oracle.of_training(client, 2 * len(sizes), 3)
  expected, loss = oracle.descend(weights, oracle.losses(batches), RATE)
  assert trees.largest(trees.subtract(expected, weights)) > 1e-2
  oracle.check(result, weights, expected, loss)
  assert result.client_state == ()


def test_prediction_needs_no_executor(model, make_client, oracle):
  functions = algorithms.build(fed_avg, model, fed_avg.HParams()).spec
  client = make_client(0, [7])
  assert tf.executing_eagerly()
  weights = functions.initial_weights(client.seed)
  logits = functions.predict_as_client(weights, (), client, client)
  expected = oracle.predict(trees.map(lambda w: w.numpy(), weights), client.x)
  assert np.ptp(expected) > 0.1
  np.testing.assert_allclose(logits, expected, rtol=1e-5, atol=1e-6)


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


def test_stock_fed_avg_rounds_of_full_batches_agree(
  model, make_client, start, compare
):
  clients = [make_client(0, [6]), make_client(1, [12]), make_client(2, [4])]
  # Of 12 examples of 4 or 6, each occurs equally often: the gradient is that of
  # all examples of the client.
  hparams = fed_avg.HParams(
    local_steps=1,
    batch_size=12,
    learning_rate=RATE,
    client_weighting="num_examples",
  )
  run = start(hparams, clients)
  stock = build_stock(model)
  initial = run.server_state.weights
  stock_state = stock.set_model_weights(
    stock.initialize(),
    tff.learning.models.ModelWeights(tuple(trees.leaves(initial)), ()),
  )
  batches = [
    tf.data.Dataset.from_tensors((client.x, client.y)) for client in clients
  ]
  for _ in range(3):
    run.step()
    stock_state = stock.next(stock_state, batches).state
  expected = stock.get_model_weights(stock_state).trainable
  for new, old in trees.pairs(tuple(expected), initial):
    assert np.abs(new - old).max() > 1e-3
  compare.assert_close(run.server_state.weights, tuple(expected), 1e-6)
