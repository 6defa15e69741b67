"""ATP against NumPy: learned rates, directions, and its limits."""

import dataclasses

import numpy as np
import pytest
import tensorflow as tf

from tff_shift.algorithms import atp
from tff_shift.algorithms import source
from tff_shift.learning import randomness
from tff_shift.models import split_model

pytestmark = pytest.mark.slow

layers = tf.keras.layers
RATE = 0.5
HPARAMS = atp.HParams(learning_rate=RATE, batch_size=4, labelled_classes="own")


def changed(**changes):
  return dataclasses.replace(HPARAMS, **changes)


def softmax(logits):
  exponentials = np.exp(logits - logits.max(axis=1, keepdims=True))
  return exponentials / exponentials.sum(axis=1, keepdims=True)


def mean_entropy(logits):
  p = softmax(logits)
  return -np.mean(np.sum(p * np.log(p), axis=1))


@pytest.fixture(scope="module")
def client(make_adapting_client):
  return make_adapting_client(0, 9, 6)


@pytest.fixture(scope="module")
def weights(model, client, run_in_graph):
  """The weights from which the client starts."""
  return run_in_graph(model.initial_weights, client.seed)


@pytest.fixture(scope="module")
def first_state(build, client):
  functions = build(HPARAMS)
  rates = functions.initial_weights(client.seed)
  return functions.initial_client_state(client.seed, rates)


@pytest.fixture(scope="module")
def normalized(run_in_graph):
  """A model with trained batch normalisation after its first layer.

  One of its running variances is below the smallest adapted one.
  """
  built = split_model.build_split_model(
    "normalized",
    backbone=lambda: tf.keras.Sequential(
      [
        layers.InputLayer((5,)),
        layers.Dense(8, name="layer1"),
        layers.BatchNormalization(name="norm"),
        layers.ReLU(),
      ]
    ),
    head=lambda: tf.keras.Sequential(
      [layers.InputLayer((8,)), layers.Dense(3, name="layer2")]
    ),
    input_dtype=tf.float32,
  )
  names = tf.nest.flatten(built.weight_names())
  drawn = run_in_graph(built.initial_weights, np.int32([1, 2]))
  mean, variance = built.statistics
  return split_model.with_weights(
    built,
    {
      **dict(zip(names, tf.nest.flatten(drawn), strict=True)),
      mean: np.linspace(-1, 1, 8, dtype=np.float32),
      variance: np.float32([1e-7, 0.2, 0.4, 0.6, 0.8, 1.0, 1.2, 1.4]),
    },
  )


class TestRates:
  def test_a_step_by_hand(self, run_in_graph):
    """theta = (1, 2), h = (0.5, -1), CE = theta' diag(1, 3) theta / 2."""

    def learn(rates):
      return atp.learn_rates(
        rates,
        [2],
        lambda step: (tf.constant([0.5, -1.0]),),
        lambda current, h, step: (
          tf.reduce_sum(
            tf.constant([1.0, 3.0])
            * tf.square(atp.move((tf.constant([1.0, 2.0]),), current, h)[0])
          )
          / 2
        ),
        1,
        atp.HParams(),
      )

    found = run_in_graph(learn, np.float32([0.1]))
    # The gradient (0.95, 6.3) and h have the product -5.825.
    np.testing.assert_allclose(found.weights, [-0.31188970], atol=1e-7)
    np.testing.assert_allclose(
      found.loss, (0.95**2 + 3 * 2.1**2) / 2, rtol=1e-6
    )

  @pytest.fixture(scope="class")
  def start(self):
    return np.float32([0.3, -0.2, 0.1, 0.4])

  @pytest.fixture(scope="class")
  def result(self, build, client, first_state, start):
    return build(HPARAMS).train_client(start, first_state, client, 2)

  def test_a_round_agrees_with_the_oracle(
    self, result, start, client, weights, oracle, run_in_graph
  ):
    labelled = run_in_graph(lambda data: data.labelled, client)
    # Nine examples are three batches of four.
    batches = oracle.batches(labelled, 3, randomness.Purpose.TRAIN, 2)
    rates, losses = np.float64(start), []
    for batch in batches:
      h = oracle.gradient(
        lambda w, x=batch.x: mean_entropy(oracle.predict(w, x)), weights
      )
      adapted = tf.nest.pack_sequence_as(
        weights,
        [
          np.float64(w) - rate * each
          for w, rate, each in zip(
            tf.nest.flatten(weights), rates, tf.nest.flatten(h), strict=True
          )
        ],
      )
      (loss,) = oracle.losses([batch])
      losses.append(loss(adapted))
      gradient = oracle.gradient(loss, adapted)
      rates = rates + RATE * np.array(
        [
          np.sum(g * each) / np.sqrt(np.size(g))
          for g, each in zip(
            tf.nest.flatten(gradient), tf.nest.flatten(h), strict=True
          )
        ]
      )
    np.testing.assert_allclose(start + result.update, rates, atol=1e-6)
    np.testing.assert_allclose(result.loss, np.mean(losses), rtol=1e-6)
    assert np.min(np.abs(result.update)) > 1e-5

  def test_state_is_the_direction_of_the_stream(
    self, result, client, weights, oracle, compare
  ):
    expected = oracle.gradient(
      lambda w: mean_entropy(oracle.predict(w, client.stream_x)), weights
    )
    direction = result.client_state.direction
    compare.assert_close(direction.weights, expected, 1e-6)
    assert direction.statistics == ()
    assert result.client_state.timestep == 1

  def test_prediction_is_of_the_adapted_model(
    self, build, result, start, client, weights, make_client, oracle
  ):
    examples = make_client(5, [7])
    logits = build(HPARAMS).predict_as_client(
      start, result.client_state, client, examples
    )
    adapted = tf.nest.pack_sequence_as(
      weights,
      [
        w - rate * h
        for w, rate, h in zip(
          tf.nest.flatten(weights),
          start,
          tf.nest.flatten(result.client_state.direction),
          strict=True,
        )
      ],
    )
    expected = oracle.predict(adapted, examples.x)
    np.testing.assert_allclose(logits, expected, atol=1e-5)
    plain = oracle.predict(weights, examples.x)
    assert np.max(np.abs(expected - plain)) > 1e-3


class TestLabelledBatches:
  def draw(self, run_in_graph, client, classes, step=0, **changes):
    hparams = changed(labelled_classes="estimated", **changes)

    def draw(data, classes, seed):
      return atp.labelled_batches(hparams, data, classes, 2, seed)(step)

    return run_in_graph(draw, client, np.float32(classes), np.int32([4, 5]))

  def test_classes_have_the_estimated_distribution(self, run_in_graph, client):
    # Two of its ten examples are of class 2.
    client = client._replace(
      x=np.arange(50, dtype=np.float32).reshape(10, 5),
      y=np.int32([0] * 5 + [1] * 3 + [2] * 2),
    )
    classes = [0.2, 0.3, 0.5]
    batch = self.draw(run_in_graph, client, classes, batch_size=10_000)
    fractions = np.bincount(batch.y) / 10_000
    # Five standard deviations.
    np.testing.assert_allclose(fractions, classes, atol=0.025)
    rows = np.int32(batch.x[:, 0] / 5)
    np.testing.assert_array_equal(client.y[rows], batch.y)
    of_class_2 = np.bincount(rows)[8:] / np.sum(batch.y == 2)
    np.testing.assert_allclose(of_class_2, [0.5, 0.5], atol=0.04)

  def test_a_class_without_estimate_is_not_drawn(self, run_in_graph, client):
    batch = self.draw(run_in_graph, client, [0, 1, 0], batch_size=100)
    np.testing.assert_array_equal(batch.y, 1)

  def test_all_are_drawn_without_examples_of_the_classes(
    self, run_in_graph, client
  ):
    client = client._replace(y=np.int32([0, 1] * 4 + [0]))
    batch = self.draw(run_in_graph, client, [0, 0, 1], batch_size=1000)
    np.testing.assert_allclose(np.mean(batch.y), 4 / 9, atol=0.08)

  @pytest.mark.parametrize("labelled_classes", ["own", "estimated"])
  def test_without_labelled_examples_rates_stay(
    self, labelled_classes, build, client, first_state, run_for_each
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
    np.testing.assert_array_equal(result.update, 0)


class TestHistory:
  @pytest.fixture(scope="class")
  def states(self, build, client, first_state, make_adapting_client):
    """Returns `run(history)`: states after time steps 1, 1 and 2."""
    other = make_adapting_client(1, 9, 6)

    def run(history):
      functions = build(HPARAMS, history=history)
      states = [first_state]
      for timestep, stream in ((1, client), (1, client), (2, other)):
        data = client._replace(
          stream_x=stream.stream_x, timestep=np.int32(timestep)
        )
        result = functions.train_client(
          np.zeros(4, np.float32), states[-1], data, 0
        )
        states.append(result.client_state)
      return states[1:]

    return run

  @pytest.fixture(scope="class")
  def batch(self, states):
    return states("batch")

  def test_online_is_the_mean_over_time_steps(self, states, batch, compare):
    first, again, second = states("online")
    assert compare.equal_bits(first, batch[0])
    assert compare.equal_bits(again, first)
    assert [each.num_timesteps for each in (first, again, second)] == [1, 1, 2]
    compare.assert_close(
      second.direction,
      tf.nest.map_structure(
        lambda one, other: (one + other) / 2,
        batch[0].direction,
        batch[2].direction,
      ),
      1e-6,
    )

  def test_batch_is_the_last_time_step(self, batch, compare):
    first, again, second = batch
    assert compare.equal_bits(again, first)
    assert not compare.equal_bits(second.direction, first.direction)


class TestLimits:
  @pytest.fixture
  def expected(self, build, client, make_client):
    """Returns `expected(model)`: the predictions of the source."""

    def predict(model):
      functions = build(source.HParams(), model=model)
      weights = functions.initial_weights(client.seed)
      return functions.predict_as_client(
        weights, (), client, make_client(5, [7])
      )

    return predict

  @pytest.mark.parametrize("which", ["model", "normalized"])
  def test_without_rates_it_is_the_source(
    self, build, which, request, client, make_client, expected
  ):
    """Bit for bit, with the direction of a batch and eta = 0."""
    model = request.getfixturevalue(which)
    functions = build(HPARAMS, model=model, learning_rate=0.0)
    rates = functions.initial_weights(client.seed)
    np.testing.assert_array_equal(rates, 0)
    state = functions.initial_client_state(client.seed, rates)
    result = functions.train_client(rates, state, client, 0)
    np.testing.assert_array_equal(result.update, 0)
    for each in tf.nest.flatten(result.client_state.direction):
      assert np.all(np.isfinite(each)) and np.any(each != 0)
    logits = functions.predict_as_client(
      rates, result.client_state, client, make_client(5, [7])
    )
    np.testing.assert_array_equal(logits, expected(model))

  def test_before_the_first_time_step_it_is_the_source(
    self, build, model, client, first_state, make_client, expected
  ):
    logits = build(HPARAMS).predict_as_client(
      np.ones(4, np.float32), first_state, client, make_client(5, [7])
    )
    np.testing.assert_array_equal(logits, expected(model))


class TestStatistics:
  """A model with batch normalisation: its statistics have rates too."""

  def layers_of(self, weights):
    (kernel, bias, gamma, beta), head = weights
    return kernel, bias, gamma, beta, *head

  def predict(self, weights, statistics, x):
    kernel, bias, gamma, beta, head_kernel, head_bias = self.layers_of(weights)
    mean, variance = statistics
    before = x @ kernel + bias
    normed = (before - mean) / np.sqrt(variance + 1e-3) * gamma + beta
    return np.maximum(normed, 0) @ head_kernel + head_bias

  @pytest.fixture(scope="class")
  def tensors(self, normalized, run_in_graph):
    weights = run_in_graph(normalized.initial_weights, np.int32([1, 2]))
    return atp.Tensors(weights, tuple(normalized.statistics.values()))

  @pytest.fixture(scope="class")
  def direction(self, normalized, tensors, client, run_in_graph):
    return run_in_graph(
      lambda tensors, x: atp.find_direction(normalized, tensors, x),
      tensors,
      client.stream_x,
    )

  def test_direction_is_running_less_batch(
    self, tensors, direction, client, oracle, compare
  ):
    kernel, bias, *_ = self.layers_of(tensors.weights)
    before = client.stream_x @ kernel + bias
    mean, variance = tensors.statistics
    compare.assert_close(
      direction.statistics,
      (mean - before.mean(axis=0), variance - before.var(axis=0, ddof=1)),
      1e-5,
    )
    compare.assert_close(
      direction.weights,
      oracle.gradient(
        lambda w: mean_entropy(
          self.predict(w, tensors.statistics, client.stream_x)
        ),
        tensors.weights,
      ),
      1e-5,
    )

  def test_gradients_of_their_rates(
    self, normalized, tensors, client, run_in_graph
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
      adapted = tf.nest.map_structure(np.float64, atp.Tensors(*tensors))
      flat = [
        w - rate * h
        for w, rate, h in zip(
          tf.nest.flatten(adapted),
          rates,
          map(np.float64, tf.nest.flatten(direction)),
          strict=True,
        )
      ]
      adapted = tf.nest.pack_sequence_as(adapted, flat)
      p = softmax(self.predict(*adapted, client.stream_x))
      return -np.mean(np.log(p[np.arange(6), labels]))

    slopes = [
      (loss(start + 1e-5 * unit) - loss(start - 1e-5 * unit)) / 2e-5
      for unit in np.eye(8)
    ]
    sizes = [40, 8, 8, 8, 24, 3, 8, 8]

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
    np.testing.assert_allclose(found.loss, loss(np.float64(start)), rtol=1e-5)
    np.testing.assert_allclose(
      found.weights - start,
      -RATE * np.array(slopes) / np.sqrt(sizes),
      atol=1e-6,
    )
    assert np.min(np.abs(slopes)) > 1e-4

  def test_adapted_variances_are_bounded_and_their_gradient_is_not(
    self, normalized, tensors, direction, run_in_graph
  ):
    def adapt(tensors, direction):
      rates = tf.constant([0.0] * 7 + [1.0])
      down = direction._replace(
        statistics=(direction.statistics[0], tf.fill([8], 0.7))
      )
      with tf.GradientTape() as tape:
        tape.watch(rates)
        adapted = atp.adapt(normalized, tensors, rates, down)
        total = tf.reduce_sum(adapted.statistics[1])
      return adapted.statistics[1], tape.gradient(total, rates)

    variance, slopes = run_in_graph(adapt, tensors, direction)
    # The first is below the bound in the model itself.
    np.testing.assert_allclose(
      variance, [1e-7, 1e-5, 1e-5, 1e-5, 0.1, 0.3, 0.5, 0.7], rtol=1e-5
    )
    np.testing.assert_allclose(slopes[7], -8 * 0.7, rtol=1e-6)

  def test_rates_of_a_round_move_with_those_of_statistics(
    self, build, normalized, client
  ):
    functions = build(HPARAMS, model=normalized)
    rates = functions.initial_weights(client.seed)
    assert rates.shape == (8,)
    state = functions.initial_client_state(client.seed, rates)
    result = functions.train_client(rates, state, client, 0)
    assert np.all(result.update != 0)
