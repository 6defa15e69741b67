"""Tests of the template: toy algorithms by hand."""

import collections
from typing import NamedTuple

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff
from numpy.testing import assert_allclose
from numpy.testing import assert_array_equal

from tests.fixtures import clients
from tff_shift.data import client_dataset
from tff_shift.learning import algorithm as algorithm_lib

pytestmark = pytest.mark.usefixtures("context")

SEED = np.int32([3, 4])


def client(
  x, y, domain_sizes=None, seed=(0, 0)
) -> client_dataset.ClientDataset:
  return client_dataset.ClientDataset.from_arrays(
    np.array(x, np.float32),
    np.array(y, np.int32),
    domain_sizes,
    np.array(seed, np.int32),
  )


class TestClients:
  """Each predicts class 1 above its count + its largest example."""

  @pytest.fixture(scope="class")
  def algorithm(self):
    def predict(weights, count, data, examples):
      threshold = count + tf.reduce_max(data.x[:, 0])
      return tf.stack(
        [tf.fill(tf.shape(examples.y), threshold), examples.x[:, 0]], axis=1
      )

    work = algorithm_lib.AlgorithmSpec(
      initial_weights=lambda seed: tf.zeros([1]),
      initial_client_state=lambda seed, weights: tf.constant(0.0),
      train_client=None,
      predict_as_client=predict,
    )
    return clients.build(work, num_features=2, num_evaluation_domains=2)

  def test_predict_with_their_own_state_and_data(self, algorithm):
    data = [client([[0, 2], [2, 4]], [0, 1]), client([[5, -1]], [0])]
    examples = [
      client([[4.5, 0], [5.5, 0], [6.5, 0]], [1, 1, 0], [2, 1]),
      client([[7.5, 0], [8.5, 0]], [1, 1], [0, 2]),
    ]
    counts = [np.float32(3), np.float32(2.5)]
    arguments = algorithm.initialize(SEED), counts, data, examples
    metrics = algorithm.evaluate_clients(*arguments)
    # Thresholds 5 and 7.5: 4.5 and 6.5 of the first client are taken for the
    # wrong class; 7.5 is a tie, which the first class wins.
    assert_array_equal(metrics["accuracy"], [0.5, 0.25])
    assert_allclose(metrics["pooled_accuracy"], [0.5, 1 / 3], rtol=1e-6)
    assert_array_equal(metrics["num_examples"], [2, 3])
    # -log of a logistic function at the distance to the threshold.
    losses = np.logaddexp(0, [0.5, -0.5, 1.5, 0, -1])
    assert_allclose(
      metrics["loss"], [losses[:2].mean(), losses[2:].mean()], rtol=1e-6
    )

    again, own = algorithm.evaluate_each_client(*arguments)
    for name, values in metrics.items():
      assert_array_equal(again[name], values)
    assert [list(each) for each in own] == [["accuracy", "loss"]] * 2
    assert_array_equal(
      [each["accuracy"] for each in own], [[0.5, 0], [np.nan, 0.5]]
    )
    assert_allclose(
      [each["loss"] for each in own],
      [[losses[:2].mean(), losses[2]], [np.nan, losses[3:].mean()]],
      rtol=1e-6,
    )
    # They stay at the clients.
    at_server, at_clients = algorithm.evaluate_each_client.type_signature.result
    assert at_server == algorithm.evaluate_clients.type_signature.result
    assert at_clients.placement is tff.CLIENTS


class Numbers(NamedTuple):
  """Data of a kind of its own: values [n] float32 and a weight, int32."""

  values: np.ndarray
  weight: np.int32


NUMBERS_TYPE = tff.types.to_type(
  Numbers(tff.TensorType(np.float32, (None,)), tff.TensorType(np.int32))
)


NUMBERS = [
  Numbers(np.float32([1, 5]), np.int32(1)),
  Numbers(np.float32([7]), np.int32(3)),
]


class TestTwoPhases:
  """Clients move the centre to their mean; then note what it has become."""

  @pytest.fixture(scope="class")
  def algorithm(self):
    def train_client(weights, number, data, round_num):
      return algorithm_lib.ClientResult(
        collections.OrderedDict(
          centre=tf.reduce_mean(data.values) - weights["centre"]
        ),
        number + 1.0,
        tf.cast(round_num, tf.float32),
      )

    def personalize_client(weights, number, data, round_num):
      return algorithm_lib.PersonalResult(
        100.0 * number + weights["centre"],
        data.values[0] + 10.0 * tf.cast(round_num, tf.float32),
      )

    work = algorithm_lib.AlgorithmSpec(
      initial_weights=lambda seed: collections.OrderedDict(
        centre=tf.cast(seed[0], tf.float32)
      ),
      initial_client_state=lambda seed, weights: tf.cast(seed[1], tf.float32),
      train_client=train_client,
      personalize_client=personalize_client,
      predict_as_client=lambda weights, number, data, examples: examples.x,
      examples_type=NUMBERS_TYPE,
      num_examples=lambda data: data.weight,
    )
    return clients.build(work, weighting="num_examples")

  @pytest.mark.slow
  def test_round_by_hand(self, algorithm):
    train, personalize = algorithm.phases
    state, numbers = algorithm.initialize(SEED), [np.float32(2), np.float32(4)]
    for round_num in (0, 1):
      state, trained, metrics = train(state, numbers, NUMBERS)
      # Means 3 and 7, of weights 1 and 3.
      assert_allclose(state.weights["centre"], 6, rtol=1e-6)
      assert state.round_num == round_num
      assert list(trained) == [numbers[0] + 1, numbers[1] + 1]
      assert metrics["loss"] == round_num

      before = state
      state, numbers, metrics = personalize(state, trained, NUMBERS)
      # With the average of this round, which stays as it is.
      assert_allclose(numbers, 100 * np.array(trained) + 6, rtol=1e-6)
      assert state.weights == before.weights
      assert state.round_num == round_num + 1
      # Of the second phase: 1 and 7, and the same round as in the first.
      assert metrics["loss"] == 4 + 10 * round_num
      assert metrics["num_clients"] == 2
