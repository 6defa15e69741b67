"""FedTHE: training, predictions by two heads, and FedTHE+."""

import numpy as np
import pytest
import tensorflow as tf
from numpy.testing import assert_allclose

from tff_shift.algorithms import fed_the
from tff_shift.algorithms.parts import augmentations
from tff_shift.algorithms.parts import test_time_adaptation
from tff_shift.data import client_dataset
from tff_shift.learning import randomness
from tff_shift.models.networks import mlp

pytestmark = pytest.mark.slow

COMMON = {"batch_size": 4, "local_steps": 1, "learning_rate": 0.3}
HPARAMS = fed_the.HParams(personal_epochs=2, **COMMON)
ROUND = 5


@pytest.fixture(scope="module")
def weights(shared):
  """What the server may hold after some rounds."""
  descriptor = np.random.default_rng(1).uniform(0, 1, 8)
  return shared._replace(descriptor=np.float32(descriptor))


@pytest.fixture(scope="module")
def own_head():
  return np.random.default_rng(2).normal(size=(8, 3)).astype(np.float32)


class TestTraining:
  @pytest.fixture(scope="class")
  def client(self, make_client):
    return make_client(0, [6, 4], y=[0] * 5 + [1] * 4 + [2])

  def test_agrees_with_the_oracle(
    self, functions, weights, own_head, client, oracle, compare
  ):
    arguments = weights, own_head, client, ROUND
    result = functions.train_client(*arguments)
    # A client predicts with what the next round trains first.
    prepared = functions.prepare_client(*arguments)
    assert compare.equal_bits(prepared.head, result.client_state)
    # Per epoch three batches of 4, and a step for each of two domains.
    for_head, for_generic = (
      oracle.batches(client, number, purpose, ROUND)
      for purpose, number in (
        (randomness.Purpose.PERSONALIZE, 6),
        (randomness.Purpose.TRAIN, 2),
      )
    )
    backbone = weights.model.backbone
    head, _ = oracle.descend(
      own_head,
      [
        lambda q, batch=batch: oracle.cross_entropy(
          oracle.embed(backbone, batch.x) @ q, batch.y
        )
        for batch in for_head
      ],
      0.3,
    )
    generic, mean_loss = oracle.descend(
      weights.model,
      [
        lambda w, batch=batch: oracle.cross_entropy(
          oracle.predict(w, batch.x) + np.log([5, 4, 1]), batch.y
        )
        for batch in for_generic
      ],
      0.3,
    )
    compare.assert_close(result.client_state, head, 1e-5)
    descriptor = oracle.embed(backbone, client.x).mean(axis=0)
    oracle.check(
      result, weights, fed_the.Weights(generic, descriptor), mean_loss
    )


class TestPredictions:
  @pytest.fixture(scope="class")
  def personal(self, own_head):
    descriptor = np.random.default_rng(3).uniform(0, 1, 8)
    return fed_the.Personal(own_head, np.float32(descriptor))

  @pytest.fixture(scope="class")
  def examples(self, make_client):
    return make_client(1, [4, 0, 9])

  def test_agrees_with_the_parts(
    self, functions, weights, personal, client, examples, run_in_graph, oracle
  ):
    result = functions.predict_as_client(weights, personal, client, examples)
    # The order in which they come.
    order = run_in_graph(
      lambda seed, sizes: test_time_adaptation.adapt_each(
        tf.zeros([13, 1]),
        tf.constant(0.0),
        lambda count, *_: (tf.stack([count]), count + 1.0),
        domain_sizes=sizes,
        width=1,
        seed=randomness.fold(seed, randomness.Purpose.TEST_TIME),
      ),
      client.seed,
      examples.domain_sizes,
    )[:, 0].astype(int)
    z = oracle.embed(weights.model.backbone, examples.x)
    smoothed = np.zeros_like(z)
    for first, size in ((0, 4), (4, 9)):
      history = None
      for place in first + np.argsort(order[first : first + size]):
        history = (
          z[place] if history is None else 0.1 * z[place] + 0.9 * history
        )
        smoothed[place] = 0.1 * z[place] + 0.9 * history
    logits = oracle.classify(weights.model.head, z), z @ personal.head
    distances = [
      np.linalg.norm(smoothed - each.descriptor, axis=1)
      for each in (weights, personal)
    ]
    inputs = fed_the.MixtureInputs(
      *map(np.float32, (*logits, np.stack(distances, axis=1)))
    )
    # Ten times the rate of training.
    mixtures = run_in_graph(
      lambda inputs: fed_the.find_mixtures(inputs, 20, 3.0), inputs
    )
    assert_allclose(
      result, (mixtures.T[:, :, np.newaxis] * logits).sum(axis=0), atol=1e-3
    )

  def test_without_steps_heads_count_alike(
    self, build, weights, personal, client, examples, oracle
  ):
    functions = build(HPARAMS, ensemble_steps=0)
    z = oracle.embed(weights.model.backbone, examples.x)
    logits = oracle.classify(weights.model.head, z)
    assert_allclose(
      functions.predict_as_client(weights, personal, client, examples),
      (logits + z @ personal.head) / 2,
      atol=1e-5,
    )
    assert_allclose(
      functions.predict_as_server(weights, (), examples), logits, atol=1e-5
    )


# With augmentations that are copies, of a linear model of four pixels.
@pytest.fixture
def copies(monkeypatch):
  monkeypatch.setattr(
    augmentations,
    "augment",
    lambda x, seed, count: tf.repeat(x[tf.newaxis], count, axis=0),
  )


# Of each test: `build` keeps what it traced, with `copies` or without.
@pytest.fixture
def images():
  return mlp.build(
    (2, 2, 1), num_classes=3, width=8, head_width=6, input_dtype=tf.uint8
  )


def predict_images(build, model, clients=(0,), **options):
  """Returns the predictions of each client, the weights and the pixels."""
  functions = build(
    fed_the.HParams(ensemble_steps=0, plus_augmentations=3, **options),
    model=model,
  )
  generator = np.random.default_rng(0)
  weights = functions.initial_weights(randomness.server_seed(1))
  personal = fed_the.Personal(
    np.float32(generator.normal(size=(6, 3))), np.zeros(6, np.float32)
  )
  x = generator.integers(0, 256, (5, 2, 2, 1)).astype(np.uint8)
  found = []
  for client in clients:
    seed = randomness.client_seed(2, client)
    data = client_dataset.ClientDataset.from_arrays(
      x, np.zeros(5, np.int32), np.int32([2, 3]), seed
    )
    found.append(functions.predict_as_client(weights, personal, data, data))
  return found, weights.model, personal.head, x


def test_plus_step_is_down_the_entropy_of_the_mixture(
  copies, build, images, oracle
):
  (found,), weights, head, x = predict_images(
    build, images, plus=True, plus_steps=1, plus_learning_rate=0.2
  )
  # The hidden layer of the classifier belongs to the backbone here.

  def logits(parts, pixels):
    shared, own = parts
    z = oracle.embed(shared.backbone, pixels.reshape(1, 4) / 255)
    return (oracle.classify(shared.head, z) + z @ own) / 2

  moved = []
  for row, pixels in zip(found, x, strict=True):
    adapted, _ = oracle.descend(
      (weights, head),
      [lambda parts, pixels=pixels: oracle.entropy(logits(parts, pixels))],
      0.2,
    )
    assert_allclose(row, logits(adapted, pixels)[0], atol=1e-5)
    moved.append(np.abs(row - logits((weights, head), pixels)).max())
  # Far more than the tolerance.
  assert max(moved) > 1e-3


def test_plus_draws_depend_on_the_client(build, images):
  options = {"plus": True, "plus_steps": 1, "plus_learning_rate": 0.2}
  (one, again, other), *_ = predict_images(
    build, images, clients=(0, 0, 1), **options
  )
  np.testing.assert_array_equal(one, again)
  assert np.all(np.isfinite(one))
  assert np.any(one != other)
