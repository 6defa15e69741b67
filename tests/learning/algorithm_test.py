"""Tests of the template: a toy algorithm by hand, FedAvg in stock TFF."""

import collections
import dataclasses
from typing import NamedTuple

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff
from numpy.testing import assert_allclose
from numpy.testing import assert_array_equal

from tests.fixtures import trees
from tff_shift import algorithms
from tff_shift.algorithms import fed_avg
from tff_shift.data import client_dataset
from tff_shift.learning import algorithm as algorithm_lib
from tff_shift.learning import hyperparameters
from tff_shift.learning import randomness
from tff_shift.learning.stock_tff import learning_process
from tff_shift.models.networks import mlp

pytestmark = pytest.mark.usefixtures("context")

SEED = np.int32([3, 4])
NUM_EVALUATION_DOMAINS = 2


@pytest.fixture(scope="module")
def model():
  return mlp.build((2,), num_classes=2, width=4, head_width=3)


def client(
  x, y, domain_sizes=None, seed=(0, 0)
) -> client_dataset.ClientDataset:
  return client_dataset.ClientDataset.from_arrays(
    np.array(x, np.float32),
    np.array(y, np.int32),
    domain_sizes,
    np.array(seed, np.int32),
  )


def build_centre(
  model,
  *,
  client_weighting="uniform",
  is_stateless=False,
  starts_alike=False,
  aggregator=None,
) -> algorithm_lib.FederatedAlgorithm:
  """The server learns the mean of the examples, and each client counts rounds.

  The clients' state starts with the first word of their seed. A client's loss
  is its number of examples plus 100 times the round.
  """

  def train_client(weights, count, data, round_num):
    centre = tf.reduce_mean(data.x, axis=0)
    loss = tf.shape(data.y)[0] + 100 * round_num
    return algorithm_lib.ClientResult(
      update=collections.OrderedDict(centre=centre - weights["centre"]),
      client_state=() if is_stateless else count + 1.0,
      loss=tf.cast(loss, tf.float32),
    )

  def logits(x, threshold):
    return tf.stack([tf.fill(tf.shape(x)[:1], threshold), x[:, 0]], axis=1)

  work = algorithm_lib.AlgorithmSpec(
    initial_weights=lambda seed: collections.OrderedDict(
      centre=tf.cast(seed, tf.float32)
    ),
    initial_client_state=lambda seed, weights: (
      () if is_stateless else tf.cast(seed[0], tf.float32)
    ),
    starts_alike=starts_alike,
    train_client=train_client,
    predict_as_client=lambda weights, count, data, examples: logits(
      examples.x,
      weights["centre"][0]
      + (0.0 if is_stateless else count)
      + tf.reduce_max(data.x[:, 0]),
    ),
    summarize_client=lambda weights, data: (
      weights["centre"][1] + tf.reduce_sum(data.x[:, 0])
    ),
    predict_as_server=lambda weights, summary, examples: logits(
      examples.x, weights["centre"][0] + summary
    ),
  )
  return algorithm_lib.build(
    "centre",
    lambda model, hparams: work,
    model,
    hyperparameters.LocalHParams(client_weighting=client_weighting),
    num_evaluation_domains=NUM_EVALUATION_DOMAINS,
    aggregator=aggregator,
  )


# Means (1, 3), (5, -1), (0, 8).
CLIENTS = [
  client([[0, 2], [2, 4]], [0, 1], seed=(10, 1)),
  client([[5, -1]], [0], seed=(20, 2)),
  client([[0, 8]] * 5, [1] * 5, [2, 3], seed=(30, 3)),
]
SEEDS = [data.seed for data in CLIENTS]


@pytest.fixture(scope="module")
def algorithm(model):
  return build_centre(model)


@pytest.mark.slow
def test_states_start_alike_from_the_seed_of_the_run(model):
  algorithm = build_centre(model, starts_alike=True)
  (phase,) = algorithm.phases
  for run_seed in (SEED, SEED + 5):
    state = algorithm.initialize(run_seed)
    counts = algorithm.initialize_client(state, SEEDS)
    assert list(counts) == [run_seed[0]] * 3
    # A client that joins after a round as well.
    state, _, _ = phase(state, counts[:2], CLIENTS[:2])
    (late,) = algorithm.initialize_client(state, SEEDS[2:])
    assert late == run_seed[0]


class TestRounds:
  def test_two_rounds_by_hand(self, algorithm):
    (phase,) = algorithm.phases
    state = algorithm.initialize(SEED)
    counts = algorithm.initialize_client(state, SEEDS)
    assert_array_equal(state.weights["centre"], [3, 4])
    assert state.round_num == 0
    assert list(counts) == [10, 20, 30]

    state, counts, metrics = phase(state, counts, CLIENTS)
    # Each client counts alike: the mean of their means, (6, 10) / 3.
    assert_allclose(state.weights["centre"], [2, 10 / 3], rtol=1e-6)
    assert isinstance(state, algorithm_lib.ServerState) and state.round_num == 1
    assert list(counts) == [11, 21, 31]
    assert_allclose(metrics["loss"], (2 + 1 + 5) / 3, rtol=1e-6)
    assert metrics["num_clients"] == 3

    # The two others, in an order of their own, and the round that follows.
    state, counts, metrics = phase(
      state, [counts[2], counts[1]], [CLIENTS[2], CLIENTS[1]]
    )
    assert_allclose(state.weights["centre"], [2.5, 3.5], rtol=1e-6)
    assert state.round_num == 2
    assert list(counts) == [32, 22]
    assert_allclose(metrics["loss"], (105 + 101) / 2, rtol=1e-6)
    assert metrics["num_clients"] == 2

  def test_clients_predict_with_their_own_state_and_data(self, algorithm):
    state = algorithm.initialize(SEED)
    # Class 1 where x is above 3 + count + max(x of the training data).
    examples = [
      client([[4.5, 0], [5.5, 0], [6.5, 0]], [1, 1, 0], [2, 1]),
      client([[7.5, 0], [8.5, 0]], [1, 1], [0, 2]),
    ]
    metrics = algorithm.evaluate_clients(
      state, [np.float32(0), np.float32(-0.5)], CLIENTS[:2], examples
    )
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

    again, own = algorithm.evaluate_each_client(
      state, [np.float32(0), np.float32(-0.5)], CLIENTS[:2], examples
    )
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

  def test_server_predicts_with_the_sum_of_the_summaries(self, algorithm):
    state = algorithm.initialize(SEED)
    # Summaries 4 + 2, 4 + 5 and 4 + 0; class 1 where x is above 3 + 19.
    metrics = algorithm.evaluate_server(
      state, CLIENTS, client([[21, 0], [23, 0], [23, 0]], [0, 0, 1], [1, 2])
    )
    assert_array_equal(metrics["accuracy"], [1, 0.5])
    assert_array_equal(metrics["num_examples"], [1, 2])

  def test_state_at_clients_shows_in_the_flag(self, algorithm, model):
    assert not algorithm.is_stateless
    assert build_centre(model, is_stateless=True).is_stateless


@pytest.mark.slow
def test_examples_count_alike_if_asked(model):
  algorithm = build_centre(model, client_weighting="num_examples")
  state = algorithm.initialize(SEED)
  counts = algorithm.initialize_client(state, SEEDS)
  state, _, metrics = algorithm.phases[0](state, counts, CLIENTS)
  # The mean of all eight examples: (2 + 5 + 0, 6 - 1 + 40) / 8.
  assert_allclose(state.weights["centre"], [7 / 8, 45 / 8], rtol=1e-6)
  # The loss is a mean over clients all the same.
  assert_allclose(metrics["loss"], 8 / 3, rtol=1e-6)


class Numbers(NamedTuple):
  """Data of a kind of its own: values [n] float32 and a weight, int32."""

  values: np.ndarray
  weight: np.int32


NUMBERS_TYPE = tff.types.to_type(
  Numbers(tff.TensorType(np.float32, (None,)), tff.TensorType(np.int32))
)


def build_on_numbers(model, **functions) -> algorithm_lib.FederatedAlgorithm:
  """The server knows a centre, or nothing, and a client a number."""
  functions = {
    "initial_weights": lambda seed: collections.OrderedDict(
      centre=tf.cast(seed[0], tf.float32)
    ),
    "initial_client_state": lambda seed, weights: tf.cast(seed[1], tf.float32),
    "train_client": None,
    "predict_as_client": lambda weights, number, data, examples: tf.stack(
      [tf.fill(tf.shape(examples.y), data.values[0]), examples.x[:, 0]], axis=1
    ),
    "predict_as_server": None,
    "examples_type": NUMBERS_TYPE,
    **functions,
  }
  return algorithm_lib.build(
    "numbers",
    lambda model, hparams: algorithm_lib.AlgorithmSpec(**functions),
    model,
    hyperparameters.LocalHParams(client_weighting="num_examples"),
  )


NUMBERS = [
  Numbers(np.float32([1, 5]), np.int32(1)),
  Numbers(np.float32([7]), np.int32(3)),
]


class TestTwoPhases:
  """Clients move the centre to their mean; then note what it has become."""

  @pytest.fixture(scope="class")
  def algorithm(self, model):
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

    return build_on_numbers(
      model,
      train_client=train_client,
      personalize_client=personalize_client,
      num_examples=lambda data: data.weight,
    )

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

  def test_clients_predict_other_data_than_they_adapt_to(self, algorithm):
    for phase in algorithm.phases:
      assert phase.type_signature.parameter[2] == tff.FederatedType(
        NUMBERS_TYPE, tff.CLIENTS
      )
    # Class 1 where x is above the first of the client's values, 1 and 7.
    metrics = algorithm.evaluate_clients(
      algorithm.initialize(SEED),
      [np.float32(0)] * 2,
      NUMBERS,
      [client([[2, 0], [0, 0]], [1, 0]), client([[2, 0], [0, 0]], [1, 0])],
    )
    assert_allclose(metrics["accuracy"], [0.75], rtol=1e-6)
    assert algorithm.evaluate_server is None

  def test_it_is_no_learning_process(self, algorithm, refusal):
    assert not algorithm.is_local and not algorithm.is_stateless
    stateless = dataclasses.replace(algorithm, is_stateless=True)
    told = refusal(learning_process.as_learning_process, stateless)
    assert "exactly one phase per round" in told


def test_clients_predict_from_what_they_prepare(model):
  algorithm = build_on_numbers(
    model,
    prepare_client=lambda weights, number, data, round_num: (
      weights["centre"] + number + data.values[0],
      tf.cast(round_num, tf.float32),
    ),
    predict_as_client=lambda weights, prepared, data, examples: tf.stack(
      [tf.fill(tf.shape(examples.y), sum(prepared)), examples.x[:, 0]], axis=1
    ),
  )
  state = algorithm.initialize(SEED)._replace(round_num=np.int32(40))
  # Class 1 where x is above 3 + 2 + 1 + 40 and 3 + 4 + 7 + 40.
  metrics = algorithm.evaluate_clients(
    state,
    [np.float32(2), np.float32(4)],
    NUMBERS,
    [client([[45, 0], [47, 0]], [0, 1]), client([[53, 0], [55, 0]], [0, 0])],
  )
  assert_allclose(metrics["accuracy"], [0.75], rtol=1e-6)


class TestFewerPhases:
  def test_algorithm_that_trains_nothing_has_no_phase(self, model):
    algorithm = build_on_numbers(model)
    assert algorithm.phases == ()
    assert not algorithm.is_local
    state = algorithm.initialize(SEED)
    assert state.weights["centre"] == 3 and state.round_num == 0
    metrics = algorithm.evaluate_clients(
      state, [np.float32(0)], NUMBERS[:1], [client([[2, 0]], [1])]
    )
    assert metrics["accuracy"] == [1]

  def test_clients_that_share_nothing_are_local(self, model):
    algorithm = build_on_numbers(
      model,
      initial_weights=lambda seed: (),
      train_client=lambda nothing, number, data, round_num: (
        algorithm_lib.ClientResult((), number + 1.0, data.values[0])
      ),
    )
    assert algorithm.is_local
    (phase,) = algorithm.phases
    state, numbers, metrics = phase(
      algorithm.initialize(SEED), [np.float32(2), np.float32(4)], NUMBERS
    )
    assert list(numbers) == [3, 5]
    assert state.round_num == 1 and metrics["loss"] == 4

  def test_what_is_personal_may_be_all_of_a_round(self, model):
    algorithm = build_on_numbers(
      model,
      personalize_client=lambda weights, number, data, round_num: (
        algorithm_lib.PersonalResult(number + weights["centre"], data.values[0])
      ),
    )
    (phase,) = algorithm.phases
    state, numbers, _ = phase(
      algorithm.initialize(SEED), [np.float32(2), np.float32(4)], NUMBERS
    )
    assert list(numbers) == [5, 7]
    assert state.weights["centre"] == 3 and state.round_num == 1


@pytest.mark.slow
class TestAggregators:
  """Updates (3, 4) and (0.3, 0.4), and 1 as the largest norm."""

  DATA = (client([[3, 4]], [0]), client([[0.3, 0.4]] * 3, [0] * 3))
  ZERO = np.int32([0, 0])

  def start(self, algorithm):
    state = algorithm.initialize(self.ZERO)
    return state, algorithm.initialize_client(state, [self.ZERO] * 2)

  @pytest.mark.parametrize(
    "option, name", [("aggregator", "secure"), ("server_optimizer", "fed_adam")]
  )
  def test_name_in_place_of_its_object_is_refused(
    self, model, option, name, refusal
  ):
    told = refusal(algorithms.build, "fed_avg", model, **{option: name})
    assert f"={name!r}" in told and f"ts.build_{option}(name)" in told

  def test_aggregator_without_weights_is_made_to_fit(self, model):
    # Differential privacy without its noise leaves the clipping, at 1.
    private = tff.aggregators.DifferentiallyPrivateFactory.gaussian_fixed(
      noise_multiplier=0.0, clients_per_round=2, clip=1.0
    )
    algorithm = build_centre(
      model, aggregator=tff.aggregators.as_weighted_aggregator(private)
    )
    state, _, _ = algorithm.phases[0](*self.start(algorithm), self.DATA)
    assert_allclose(state.weights["centre"], [0.45, 0.6], rtol=1e-6)

  def test_state_of_the_aggregator_lives_through_the_rounds(self, model):
    algorithm = build_centre(
      model, aggregator=tff.learning.robust_aggregator(zeroing=False)
    )
    state, counts = self.start(algorithm)
    estimates = []
    for _ in range(3):
      before = state.weights["centre"]
      state, counts, _ = algorithm.phases[0](state, counts, self.DATA)
      estimates.append(trees.leaves(state.aggregator))
      if len(estimates) == 1:
        # The first estimate of the norm to clip at is 1.
        assert_allclose(
          state.weights["centre"] - before, [0.45, 0.6], rtol=1e-6
        )
    # What the quantile of the norms is estimated to be moves every round.
    assert estimates[0] and len(set(map(tuple, estimates))) == 3


@pytest.mark.slow
class TestLearningProcess:
  HPARAMS = fed_avg.HParams(
    batch_size=4,
    local_steps=3,
    learning_rate=0.2,
    momentum=0.5,
    client_weighting="num_examples",
  )

  @pytest.fixture(scope="class")
  def algorithm(self, model):
    return algorithms.build(fed_avg, model, self.HPARAMS)

  @pytest.fixture(scope="class")
  def data(self):
    generator = np.random.default_rng(0)
    return [
      client(
        generator.normal(size=(sum(sizes), 2)),
        generator.integers(0, 2, sum(sizes)),
        sizes,
        randomness.client_seed(0, client_id),
      )
      for client_id, sizes in enumerate([[5, 4], [7, 3], [2, 12]])
    ]

  @pytest.fixture(scope="class")
  def learning_process(self, algorithm):
    return learning_process.as_learning_process(algorithm, seed=9)

  def test_learning_process_gives_what_the_phase_gives(
    self, algorithm, learning_process, data
  ):
    assert isinstance(learning_process, tff.learning.templates.LearningProcess)
    state = algorithm.initialize(randomness.server_seed(9))
    trees.assert_equal(learning_process.initialize(), state)
    output = learning_process.next(learning_process.initialize(), data)
    state, _, metrics = algorithm.phases[0](state, [()] * 3, data)
    trees.assert_equal(output.state, state)
    trees.assert_equal(output.metrics, metrics)

  def test_weights_of_the_learning_process_can_be_read_and_set(
    self, learning_process
  ):
    state = learning_process.initialize()
    weights = learning_process.get_model_weights(state)
    trees.assert_equal(weights, state.weights)
    doubled = trees.scale(weights, 2)
    changed = learning_process.set_model_weights(state, doubled)
    trees.assert_equal(changed.weights, doubled)
    assert changed.round_num == state.round_num
