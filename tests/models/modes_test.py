"""Layers that behave otherwise in training, in the one local loop."""

import numpy as np
import pytest
import tensorflow as tf

from tests.fixtures.arrays import assert_close
from tests.fixtures.arrays import assert_equal
from tests.fixtures.arrays import normal
from tests.fixtures.keras_models import sequential
from tff_shift import models
from tff_shift.learning import local_training
from tff_shift.learning import randomness
from tff_shift.learning.hyperparameters import LocalHParams
from tff_shift.models import fingerprint
from tff_shift.models import modes
from tff_shift.models.split_model import SplitWeights

layers = tf.keras.layers
SEED = np.int32([3, 4])
RATE = 0.25
X = normal(0, 5, 4)
Y = np.int32([0, 1, 1, 0, 1])


def linear(*stack, **options):
  """A linear model behind layers that have no weights."""
  return models.from_keras(
    sequential(
      (4,), *stack, layers.Dense(2, use_bias=False, name="last", **options)
    )
  )


def train(model, num_steps, seed=SEED, calls=1, **hparams):
  """Trains on all examples at once; the kernel and the mean loss."""

  def loss_fn(current, step, carry):
    del step
    logits = sum(model.predict(current, X) for _ in range(calls)) / calls
    return local_training.cross_entropy(logits, Y), carry

  @tf.function
  def run(kernel, num_steps):
    weights = SplitWeights((), (kernel,))
    result = local_training.train(
      loss_fn,
      weights,
      num_steps,
      LocalHParams(learning_rate=RATE, **hparams),
      seed=seed,
    )
    return result.weights.head[0], result.loss

  kernel = np.linspace(-1, 1, 8, dtype=np.float32).reshape(4, 2)
  return [each.numpy() for each in run(kernel, tf.constant(num_steps))]


def descend(kernel, inputs):
  """A step of gradient descent down the cross-entropy, and the loss."""
  logits = inputs @ kernel
  p = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
  loss = -np.log(p[np.arange(len(Y)), Y]).mean()
  return inputs.T @ (p - np.eye(2)[Y]) / len(Y), loss


class TestRandomLayers:
  @pytest.mark.slow
  def test_dropout_draws_from_seed_step_and_call(self):
    found, loss = train(linear(layers.Dropout(0.5)), 3)
    kernel, losses = np.linspace(-1, 1, 8).reshape(4, 2), []
    for step in range(3):
      # The call of the backbone is the first of a step, its draw the first.
      seed = randomness.fold(SEED, randomness.Purpose.LAYERS, step, 0, 0)
      kept = tf.random.stateless_uniform(X.shape, seed).numpy() >= 0.5
      assert 0 < kept.sum() < kept.size
      gradient, of_step = descend(kernel, X * kept * 2)
      kernel = kernel - RATE * gradient
      losses.append(of_step)
    assert_close(found, kernel, 1e-5, 1e-6)
    assert_close(loss, np.mean(losses), 1e-5)

  def test_calls_and_layers_draw_numbers_of_their_own(self):
    model = linear(layers.Dropout(0.5), layers.Dropout(0.5))
    weights = ((), (tf.eye(4)[:, :2],))
    x = tf.ones([200, 4])
    with modes.training(lambda: tf.constant(SEED)):
      first, second = (
        model.predict(SplitWeights(*weights), x) for _ in range(2)
      )
    assert np.any(first != second)
    # Kept by both layers, each of which doubles what it keeps.
    kept = np.mean(first == 4)
    assert 0.15 < kept < 0.35 and set(np.unique(first)) == {0, 4}

  @pytest.mark.slow
  def test_evaluation_is_without_them(self):
    plain = train(linear(), 2)
    model = linear(layers.Dropout(0.5))
    assert_equal(train(model, 2, seed=None)[0], plain[0])
    weights = SplitWeights((), (tf.eye(4)[:, :2],))
    with modes.training(lambda: tf.constant(SEED)):
      assert np.any(model.predict(weights, X) != X[:, :2])
      with modes.evaluation():
        assert_equal(model.predict(weights, X), X[:, :2])
    assert_equal(model.predict(weights, X), X[:, :2])


class TestRegularizers:
  @pytest.mark.slow
  @pytest.mark.parametrize("calls", [1, 2])
  def test_join_the_loss_of_a_step_once(self, calls):
    strength = 0.3
    model = linear(kernel_regularizer=tf.keras.regularizers.L2(strength))
    kernel, losses = np.linspace(-1, 1, 8).reshape(4, 2), []
    for _ in range(2):
      gradient, loss = descend(kernel, X)
      losses.append(loss + strength * np.sum(kernel**2))
      kernel = kernel - RATE * (gradient + 2 * strength * kernel)
    found, loss = train(model, 2, calls=calls)
    assert_close(found, kernel, 1e-5, 1e-6)
    assert_close(loss, np.mean(losses), 1e-5)


@pytest.mark.slow
class TestGraphs:
  def test_without_such_layers_training_leaves_nothing(self):
    model = models.from_keras(
      sequential(
        (6, 4),
        layers.Conv1D(4, 3),
        layers.GroupNormalization(2),
        layers.LSTM(3, recurrent_activation="hard_sigmoid"),
        layers.Dense(2),
      )
    )
    assert fingerprint._graph_digest(model, True) == fingerprint._graph_digest(
      model, False
    )

  def test_what_layers_do_in_training_is_part_of_the_digest(self):
    digests = {
      fingerprint.function_digest(model)
      for model in (
        linear(),
        linear(layers.Dropout(0.5)),
        linear(layers.Dropout(0.25)),
        linear(kernel_regularizer="l2"),
        linear(kernel_regularizer="l1"),
      )
    }
    assert len(digests) == 5
