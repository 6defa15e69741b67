"""FedEvolve against eq. 3 and 4, Algorithm 3 and numbers made by hand."""

import numpy as np
import pytest
import tensorflow as tf
from numpy.testing import assert_allclose

from tests.fixtures import keras_models
from tests.fixtures import trees
from tff_shift import algorithms
from tff_shift.algorithms import fed_evolve
from tff_shift.data import client_dataset
from tff_shift.learning import local_training
from tff_shift.learning import randomness

pytestmark = pytest.mark.slow

layers = tf.keras.layers


@pytest.mark.parametrize(
  "distance, softmax_classes",
  [("squared_l2", "batch"), ("cosine", "batch"), ("l2", "domain")],
)
def test_training_sweeps_over_domains_agree_with_the_oracle(
  build, make_client, oracle, run_in_graph, distance, softmax_classes
):
  num_sweeps, num_domains, rate, round_num = 2, 3, 0.3, 6
  hparams = fed_evolve.HParams(
    local_steps=num_sweeps,
    batch_size=4,
    learning_rate=rate,
    distance=distance,
    softmax_classes=softmax_classes,
  )
  # Batches of 4 lack classes of the domains. The second of these has no
  # class 2, of which the first has prototypes.
  client = make_client(
    0, [6, 5, 7], [0, 0, 1, 1, 2, 2, 0, 0, 1, 0, 1, 2, 2, 1, 0, 2, 2, 2]
  )
  classes = [{0, 1}, {0, 1, 2}]

  def draw_batches(data):
    seed = randomness.fold(data.seed, randomness.Purpose.TRAIN, round_num)
    return [
      [
        local_training.domain_batches(
          data, sweep + 1, 4, randomness.fold(seed, which)
        )(domain + which, sweep)
        for which in (0, 1)
      ]
      for sweep in range(num_sweeps)
      for domain in range(num_domains - 1)
    ]

  functions = build(hparams)
  weights = functions.initial_weights(client.seed)
  result = functions.train_client(weights, (), client, round_num)

  def pair_loss(number, pair):
    earlier, later = pair
    in_domain = classes[number % 2] if softmax_classes == "domain" else None

    def loss(w):
      means = oracle.class_means(oracle.embed(w.phi, earlier.x), earlier.y)
      return oracle.alignment_loss(
        oracle.embed(w.psi, later.x), later.y, means, distance, in_domain
      )

    return loss

  pairs = run_in_graph(draw_batches, client)
  assert len(pairs) == 4
  assert any(
    classes[number % 2] - set(later.y.tolist())
    for number, (_, later) in enumerate(pairs)
  )
  expected, mean_loss = oracle.descend(
    weights, [pair_loss(*pair) for pair in enumerate(pairs)], rate
  )
  update = trees.subtract(expected, weights)
  assert trees.largest(update.phi) > 1e-2
  oracle.check(result, weights, expected, mean_loss)
  assert result.client_state == ()


def test_training_representations_start_different(build, model):
  weights = build(fed_evolve.HParams()).initial_weights(
    randomness.server_seed(0)
  )
  for name, phi, psi in zip(
    model.backbone.names, weights.phi, weights.psi, strict=True
  ):
    if name.endswith("kernel"):
      assert np.all(phi != psi)
      assert abs(np.corrcoef(phi.flat, psi.flat)[0, 1]) < 0.5
    else:
      assert np.all(phi == 0)
      assert np.all(psi == 0)


def points(values, y, domain_sizes):
  """A client whose examples are numbers."""
  return client_dataset.ClientDataset.from_arrays(
    np.array(values, np.float32)[:, np.newaxis],
    np.array(y, np.int32),
    domain_sizes,
    randomness.client_seed(0, 0),
  )


@pytest.fixture(scope="module")
def line():
  """A model of three classes whose representation starts as the identity."""
  return keras_models.split(
    (1,),
    lambda: [layers.Dense(1, use_bias=False, kernel_initializer="ones")],
    lambda: [layers.Dense(3)],
  )


# The prototypes are 1 and 10 in the first domain, 20 and 40 in the second,
# and there is no example of class 2.
TRAINING = points(
  [0, 2, 10, 18, 22, 20, 35, 45], [0, 0, 1, 0, 0, 0, 1, 1], [3, 5]
)


@pytest.fixture
def predict(build, line):
  """Returns `predict(examples)`; psi doubles, phi does nothing."""
  one, two = np.ones((1, 1), np.float32), np.full((1, 1), 2, np.float32)
  functions = build(fed_evolve.HParams(distance="squared_l2"), model=line)
  weights = fed_evolve.Weights((one,), (two,))
  # What a client has prepared is all that it needs of its data.
  prepared = functions.prepare_client(weights, (), TRAINING, 0)
  return lambda examples: functions.predict_as_client(
    weights, prepared, examples, examples
  )


def test_client_prediction_uses_prototypes_of_the_domain_before(predict):
  logits = predict(points([3, 4, 5, 6, 7], [0] * 5, [1, 1, 2, 1]))
  # The first domain has none before it; what follows the last has the last.
  psi = 2 * np.arange(3, 8)[:, np.newaxis]
  means = np.array([[1, 10], [1, 10], [20, 40], [20, 40], [20, 40]])
  expected = -((psi - means) ** 2)
  assert_allclose(logits[:, :2], expected, rtol=1e-6)


def test_client_prediction_absent_class_is_never_predicted(predict):
  examples = points([-1e4, -3, 0, 1e4], [2] * 4, [4, 0, 0, 0])
  logits = predict(examples)
  assert np.all(logits.argmax(axis=1) != 2)
  assert np.all(np.isfinite(logits))


def test_client_prediction_domain_without_examples_is_left_out(predict):
  logits = predict(points([5], [0], [0, 0, 1, 0]))
  assert_allclose(logits[:, :2], [[-100, -900]], rtol=1e-6)


# In the last domain the first client has class 0 at 0 and 0.2 and class 1 at
# 1, the second class 0 at 0.8 and class 1 at 2 and 3.
CLIENTS = (
  points([99, -99, 0, 0.2, 1], [0, 1, 0, 0, 1], [2, 3]),
  points([-50, 0.8, 2, 3], [1, 0, 1, 1], [1, 3]),
)


@pytest.fixture(scope="module")
def evaluate(line, context):
  """Returns `evaluate(values, y, *more_clients)`."""
  algorithm = algorithms.build(
    fed_evolve, line, fed_evolve.HParams(distance="squared_l2")
  )
  one = np.ones((1, 1), np.float32)
  state = algorithm.initialize(randomness.server_seed(0))._replace(
    weights=fed_evolve.Weights((one,), (one,))
  )
  return lambda values, y, *more_clients: algorithm.evaluate_server(
    state, [*CLIENTS, *more_clients], points(values, y, [len(y)])
  )


def test_server_evaluation_clients_count_by_their_examples_of_a_class(evaluate):
  # Over all examples the prototypes are 1 / 3 and 2, and 1.13 is nearer to
  # the first. The mean of the clients' prototypes, 0.45 and 1.75, would say
  # the second.
  metrics = evaluate([1.13], [0])
  assert metrics["accuracy"] == 1
  margin = (2 - 1.13) ** 2 - (1.13 - 1 / 3) ** 2
  assert_allclose(metrics["loss"], np.log1p(np.exp(-margin)), rtol=1e-5)
  # With a third class, at 1000, the other two are where they were.
  metrics = evaluate([1.13, 600], [0, 2], points([1000], [2], [1]))
  assert metrics["accuracy"] == 1
  # A class that no client has is never predicted, and has no finite loss.
  metrics = evaluate([-1e4, 0, 1e4], [2, 2, 2])
  assert metrics["accuracy"] == 0 and np.isnan(metrics["loss"])
