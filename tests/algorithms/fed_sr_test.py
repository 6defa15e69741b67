"""FedSR: a noisy representation, kept short and close to its class."""

import numpy as np
import pytest
from numpy.testing import assert_allclose

from tests.fixtures import arrays
from tests.fixtures import trees
from tff_shift._util import draws
from tff_shift.algorithms import fed_avg
from tff_shift.algorithms import fed_sr
from tff_shift.learning import local_training
from tff_shift.learning import randomness

pytestmark = pytest.mark.slow

COMMON = {"batch_size": 4, "local_steps": 1, "learning_rate": 0.1}
HPARAMS = fed_sr.HParams(norm_penalty=0.3, class_penalty=0.2, **COMMON)
ROUND = 5
SIZE = 8


@pytest.fixture(scope="module")
def weights(shared):
  """Weights whose layer for sigma is not zeros."""
  kernel, bias = trees.normal(shared.deviation)
  return shared._replace(deviation=(kernel / 4, bias))


@pytest.fixture(scope="module")
def gaussians():
  # Of a C below 0 its size counts.
  return fed_sr.ClassGaussians(*arrays.normal(1, 2, 3, SIZE), np.float32(-0.7))


def softplus(x):
  return np.log1p(np.exp(x))


def represent(oracle, weights, x):
  mean = oracle.embed(weights.model.backbone, x)
  kernel, bias = weights.deviation
  return mean, softplus(mean @ kernel + bias)


def test_divergence_without_deviations_is_a_number(run_in_graph):
  zeros = np.zeros((1, 1), np.float32)
  assert np.isfinite(run_in_graph(fed_sr.divergence, *[zeros] * 4)).all()


def test_training_agrees_with_the_oracle(
  functions, weights, gaussians, client, oracle, run_in_graph, compare
):
  result = functions.train_client(weights, gaussians, client, ROUND)

  def draw(data):
    seed = randomness.fold(data.seed, randomness.Purpose.TRAIN, ROUND)
    return [
      (
        local_training.pooled_batches(data, 2, 4, seed)(step),
        draws.normal([4, SIZE], randomness.fold(seed, 0, step)),
      )
      for step in range(2)
    ]

  def loss_of(batch, noise):
    def loss(both):
      shared, own = both
      mean, deviation = represent(oracle, shared, batch.x)
      z = mean + deviation * noise
      means, deviations = own.mean[batch.y], softplus(own.deviation[batch.y])
      mean, deviation = own.scale * mean, np.abs(own.scale) * deviation
      divergences = np.sum(
        np.log(deviations / deviation)
        + (deviation**2 + (mean - means) ** 2) / (2 * deviations**2)
        - 0.5,
        axis=1,
      )
      return (
        oracle.cross_entropy(oracle.classify(shared.model.head, z), batch.y)
        + 0.3 * np.mean(np.linalg.norm(z, axis=1))
        + 0.2 * np.mean(divergences)
      )

    return loss

  (trained, own), mean_loss = oracle.descend(
    (weights, gaussians),
    [loss_of(*each) for each in run_in_graph(draw, client)],
    0.1,
  )
  update = trees.subtract(trained, weights)
  for part in (update.model, update.deviation):
    assert trees.largest(part) > 1e-3
  oracle.check(result, weights, trained, mean_loss)
  compare.assert_close(result.client_state, own, 1e-5)


def test_without_noise_and_penalties_it_is_fed_avg(
  build, client, compare, initial
):
  functions = build(
    fed_sr.HParams(norm_penalty=0.0, class_penalty=0.0, **COMMON)
  )
  plain = initial(client.seed)
  # The softplus of it is 0.
  kernel = np.zeros((SIZE, SIZE), np.float32)
  weights = fed_sr.Weights(plain, (kernel, kernel[0] - np.float32(1e4)))
  gaussians = functions.initial_client_state(client.seed, weights)
  result = functions.train_client(weights, gaussians, client, ROUND)
  expected = build(fed_avg.HParams(**COMMON)).train_client(
    plain, (), client, ROUND
  )
  assert compare.equal_bits(result.update.model, expected.update)
  assert compare.equal_bits(result.client_state, gaussians)


def test_prediction_is_the_mean_of_probabilities(
  build, weights, client, oracle, run_in_graph
):
  result, of_mean = (
    build(HPARAMS, **options).predict_as_server(weights, (), client)
    for options in ({}, {"num_samples": 0})
  )
  noise = run_in_graph(
    lambda seed: draws.normal([20, 1, SIZE], seed), np.zeros(2, np.int32)
  )
  mean, deviation = represent(oracle, weights, client.x)
  logits = oracle.classify(weights.model.head, mean + deviation * noise)
  assert_allclose(
    np.exp(result), oracle.softmax(logits).mean(axis=0), atol=1e-5
  )
  # Without draws the mean is classified.
  expected = oracle.predict(weights.model, client.x)
  assert_allclose(of_mean, expected, atol=1e-5)


def test_prediction_depends_on_the_example_alone(
  functions, weights, gaussians, make_client
):
  client, other = make_client(0, [7]), make_client(1, [2])
  turned = client._replace(x=client.x[::-1], y=1 - client.y)
  # More than one batch of the evaluation.
  many = client._replace(x=np.tile(client.x, (40, 1)))
  alone, of_turned, of_many = (
    functions.predict_as_client(weights, gaussians, other, examples)
    for examples in (client, turned, many)
  )
  assert_allclose(of_turned[::-1], alone, atol=1e-6)
  assert_allclose(of_many, np.tile(alone, (40, 1)), atol=1e-6)


def test_first_gaussians_are_standard(functions, client, weights):
  first = functions.initial_client_state(client.seed, weights)
  zeros = np.zeros((3, SIZE))
  trees.assert_equal(first, fed_sr.ClassGaussians(zeros, zeros + 1, 1.0))
