"""ATP against NumPy: learned rates, directions, and its limits."""

import dataclasses

import numpy as np
import pytest
import tensorflow as tf
from numpy.testing import assert_allclose
from numpy.testing import assert_array_equal

from tests.fixtures import keras_models
from tests.fixtures import trees
from tff_shift.algorithms import atp

pytestmark = pytest.mark.slow

RATE = 0.5
STREAM = 9, 6
HPARAMS = atp.HParams(learning_rate=RATE, batch_size=4, labelled_classes="own")


def moved(weights, rates, direction):
  """Weights less the direction, each tensor times its rate."""
  pairs = zip(rates, trees.pairs(weights, direction), strict=True)
  return tf.nest.pack_sequence_as(
    weights, [np.float64(w) - rate * h for rate, (w, h) in pairs]
  )


@pytest.fixture(scope="module")
def first_state(client, functions):
  rates = functions.initial_weights(client.seed)
  return functions.initial_client_state(client.seed, rates)


@pytest.fixture(scope="module")
def normalized(normalized_model):
  """One of its running variances is below the smallest adapted one."""
  moments = [
    np.linspace(-1, 1, 6, dtype=np.float32),
    np.float32([1e-7, 0.2, 0.4, 0.6, 0.8, 1.0]),
  ]
  return keras_models.fixed(
    normalized_model,
    normalized_model.initial_weights(np.int32([1, 2])),
    dict(zip(normalized_model.statistics, moments, strict=True)),
  )


START = np.float32([0.3, -0.2, 0.1, 0.4])


@pytest.fixture(scope="module")
def result(client, first_state, functions):
  return functions.train_client(START, first_state, client, 2)


def test_round_agrees_with_the_oracle(
  result, client, weights, oracle, run_in_graph, compare
):
  def direction_of(x):
    return oracle.gradient(
      lambda w: oracle.entropy(oracle.predict(w, x)), weights
    )

  labelled = run_in_graph(lambda data: data.labelled, client)
  rates, losses = np.float64(START), []
  # Nine examples are three batches of four.
  for batch in oracle.of_training(labelled, 3, 2):
    h = direction_of(batch.x)
    adapted = moved(weights, rates, h)
    (loss,) = oracle.losses([batch])
    losses.append(loss(adapted))
    rates = rates + RATE * np.array(
      [
        np.sum(g * each) / np.sqrt(np.size(g))
        for g, each in trees.pairs(oracle.gradient(loss, adapted), h)
      ]
    )
  assert_allclose(START + result.update, rates, atol=1e-6)
  assert_allclose(result.loss, np.mean(losses), rtol=1e-6)
  assert np.min(np.abs(result.update)) > 1e-5
  # The state is the direction of the stream.
  state = result.client_state
  expected = direction_of(client.stream_x)
  compare.assert_close(state.direction.weights, expected, 1e-6)
  assert state.direction.statistics == ()
  assert state.timestep == 1


def test_prediction_is_of_the_adapted_model(
  result, first_state, client, weights, make_client, oracle, functions
):
  examples = make_client(5, [7])
  adapted = moved(weights, START, result.client_state.direction.weights)
  expected = [oracle.predict(w, examples.x) for w in (adapted, weights)]
  # Before the first time step it is the source.
  found = [
    functions.predict_as_client(START, state, client, examples)
    for state in (result.client_state, first_state)
  ]
  assert_allclose(found, expected, atol=1e-5)
  assert np.max(np.abs(np.subtract(*expected))) > 1e-3


@pytest.fixture(scope="module")
def draw_batch(run_in_graph, client):
  """Returns `draw(classes, batch_size, **fields)` for other data of it."""

  def draw_batch(classes, batch_size, **fields):
    hparams = dataclasses.replace(
      HPARAMS, labelled_classes="estimated", batch_size=batch_size
    )
    return run_in_graph(
      lambda data, classes, seed: atp.labelled_batches(
        hparams, data, classes, 2, seed
      )(0),
      client._replace(**fields),
      np.float32(classes),
      np.int32([4, 5]),
    )

  return draw_batch


def test_labelled_batches_classes_have_the_estimated_distribution(draw_batch):
  # Two of ten examples are of class 2.
  x = np.arange(50, dtype=np.float32).reshape(10, 5)
  y = np.int32([0] * 5 + [1] * 3 + [2] * 2)
  classes = [0.2, 0.3, 0.5]
  batch = draw_batch(classes, 10_000, x=x, y=y)
  fractions = np.bincount(batch.y) / 10_000
  # Five standard deviations.
  assert_allclose(fractions, classes, atol=0.025)
  rows = np.int32(batch.x[:, 0] / 5)
  assert_array_equal(y[rows], batch.y)
  of_class_2 = np.bincount(rows)[8:] / np.sum(batch.y == 2)
  assert_allclose(of_class_2, [0.5, 0.5], atol=0.04)


def test_labelled_batches_have_no_class_without_estimate(draw_batch):
  assert_array_equal(draw_batch([0, 1, 0], 100).y, 1)
  # All are drawn without examples of the classes.
  batch = draw_batch([0, 0, 1], 1000, y=np.int32([0, 1] * 4 + [0]))
  assert_allclose(np.mean(batch.y), 4 / 9, atol=0.08)


@pytest.mark.parametrize("labelled_classes", ["own", "estimated"])
def test_labelled_batches_without_labelled_examples_rates_stay(
  labelled_classes, build, client, first_state, run_for_each
):
  rates = np.full(4, 0.1, np.float32)
  # As in a computation, where the number of examples is not known.
  _, result = run_for_each(
    build(HPARAMS, labelled_classes=labelled_classes).train_client,
    [
      (rates, first_state, each, np.int32(0))
      for each in (client, client._replace(x=client.x[:0], y=client.y[:0]))
    ],
  )
  assert_array_equal(result.update, 0)


def test_history_online_is_the_mean_over_time_steps(
  build, client, first_state, make_adapting_client, compare
):
  other = make_adapting_client(1, *STREAM)
  later = client._replace(stream_x=other.stream_x, timestep=np.int32(2))

  def states_of(history):
    functions = build(HPARAMS, history=history)
    state = first_state
    for data in (client, client, later):
      state = functions.train_client(
        np.zeros(4, np.float32), state, data, 0
      ).client_state
      yield state

  batch, online = ([*states_of(history)] for history in ("batch", "online"))
  for first, again, _ in (batch, online):
    assert compare.equal_bits(again, first)
  # By default it is the last time step.
  assert not compare.equal_bits(batch[2].direction, batch[0].direction)
  assert compare.equal_bits(online[0], batch[0])
  assert [each.num_timesteps for each in online] == [1, 1, 2]
  expected = trees.mean(batch[0].direction, batch[2].direction)
  compare.assert_close(online[2].direction, expected, 1e-6)


# A model with batch normalisation: its statistics have rates too.
@pytest.fixture(scope="module")
def tensors(normalized, run_in_graph):
  weights = run_in_graph(normalized.initial_weights, np.int32([1, 2]))
  return atp.Tensors(weights, tuple(normalized.statistics.values()))


@pytest.fixture(scope="module")
def direction(normalized, tensors, client, run_in_graph):
  return run_in_graph(
    lambda tensors, x: atp.find_direction(normalized, tensors, x),
    tensors,
    client.stream_x,
  )


def test_statistics_direction_is_running_less_batch(
  tensors, direction, client, oracle, compare
):
  mean, variance = oracle.moments(tensors.weights, client.stream_x)
  # Of six examples, without bias.
  expected = trees.subtract(tensors.statistics, (mean, variance * 6 / 5))
  compare.assert_close(direction.statistics, expected, 1e-5)
  compare.assert_close(
    direction.weights,
    oracle.gradient(
      lambda w: oracle.entropy(
        oracle.normalize(w, client.stream_x, tensors.statistics)
      ),
      tensors.weights,
    ),
    1e-5,
  )


def test_statistics_gradients_of_their_rates(
  normalized, tensors, client, run_in_graph, oracle
):
  """A step of every rate against differences in NumPy."""
  mean, variance = tensors.statistics
  tensors = tensors._replace(statistics=(mean, np.maximum(variance, 0.3)))
  direction = run_in_graph(
    lambda tensors, x: atp.find_direction(normalized, tensors, x),
    tensors,
    client.stream_x,
  )
  start = np.float32([0.1, 0.2, -0.1, 0.1, 0.3, -0.2, 0.25, 0.15])
  labels = client.y[:6]

  def loss(rates):
    weights, moments = moved(tensors, rates, direction)
    return oracle.cross_entropy(
      oracle.normalize(weights, client.stream_x, moments), labels
    )

  slopes = oracle.gradient(loss, start)
  sizes = [30, 6, 6, 6, 18, 3, 6, 6]

  def learn(rates, tensors, direction, x, y):
    def loss_of(current, h, step):
      logits = atp.predict(
        normalized, atp.adapt(normalized, tensors, current, h), x
      )
      return tf.reduce_mean(
        tf.nn.sparse_softmax_cross_entropy_with_logits(y, logits)
      )

    return atp.learn_rates(
      rates, sizes, lambda step: direction, loss_of, 1, HPARAMS
    )

  found = run_in_graph(
    learn, start, tensors, direction, client.stream_x, labels
  )
  assert_allclose(found.loss, loss(np.float64(start)), rtol=1e-5)
  assert_allclose(
    found.weights - start, -RATE * slopes / np.sqrt(sizes), atol=1e-6
  )
  assert np.min(np.abs(slopes)) > 1e-4


def test_statistics_adapted_variances_are_bounded_and_their_gradient_is_not(
  normalized, tensors, direction, run_in_graph
):
  def adapt(tensors, direction):
    rates = tf.constant([0.0] * 7 + [1.0])
    down = direction._replace(
      statistics=(direction.statistics[0], tf.fill([6], 0.7))
    )
    with tf.GradientTape() as tape:
      tape.watch(rates)
      adapted = atp.adapt(normalized, tensors, rates, down)
      total = tf.reduce_sum(adapted.statistics[1])
    return adapted.statistics[1], tape.gradient(total, rates)

  variance, slopes = run_in_graph(adapt, tensors, direction)
  # The first is below the bound in the model itself.
  assert_allclose(variance, [1e-7, 1e-5, 1e-5, 1e-5, 0.1, 0.3], rtol=1e-5)
  assert_allclose(slopes[7], -6 * 0.7, rtol=1e-6)


def test_rates_of_a_round_move_with_those_of_statistics(
  build, normalized, client
):
  functions = build(HPARAMS, model=normalized)
  rates = functions.initial_weights(client.seed)
  assert rates.shape == (8,)
  state = functions.initial_client_state(client.seed, rates)
  result = functions.train_client(rates, state, client, 0)
  assert np.all(result.update != 0)
