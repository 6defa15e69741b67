"""UNIDA's weights, training and predictions against NumPy."""

import numpy as np
import pytest
import scipy.special
import scipy.stats
import tensorflow as tf
from numpy.testing import assert_allclose

from tests.fixtures import trees
from tff_shift.algorithms import unida
from tff_shift.algorithms.parts import domain_adversaries

pytestmark = pytest.mark.slow

STREAM = 9, 9
RATE = 0.3
# A batch is all examples of either domain, and lambda is 0.8 at once.
HPARAMS = unida.HParams(
  batch_size=9,
  local_epochs=1,
  learning_rate=RATE,
  domain_weight=0.8,
  domain_ramp=0,
  domain_width=6,
  source_temperature=5.0,
  target_temperature=0.5,
)


def transferability(logits, separate_logits, temperature):
  shares = scipy.special.softmax(logits / temperature, axis=1)
  entropy = scipy.stats.entropy(shares, axis=1) / np.log(logits.shape[1])
  return scipy.special.expit(separate_logits) - entropy


def normalize(weights):
  scaled = (weights - weights.min()) / (weights.max() - weights.min())
  return scaled / scaled.mean()


def domain_logits(classifier, embeddings):
  for kernel, bias in zip(classifier[:-2:2], classifier[1:-2:2], strict=True):
    embeddings = np.maximum(embeddings @ kernel + bias, 0)
  return (embeddings @ classifier[-2] + classifier[-1])[:, 0]


@pytest.mark.parametrize("number", [1, 3])
def test_equal_weights_are_ones(number):
  found = unida.normalize(tf.fill([number], -0.4))
  np.testing.assert_array_equal(found, np.ones(number))


@pytest.fixture(scope="module")
def state(client, functions):
  return functions.initial_client_state(client.seed, ())


def test_round_gradients_of_a_step(state, client, oracle, compare, functions):
  result = functions.train_client((), state, client, 0)

  def weigh(x, temperature):
    return transferability(
      oracle.predict(state.weights, x),
      domain_logits(
        state.classifiers[1], oracle.embed(state.weights.backbone, x)
      ),
      temperature,
    )

  # No gradient goes through them: they are those of before the step.
  source_weights = normalize(-weigh(client.x, 5.0))
  target_weights = normalize(weigh(client.stream_x, 0.5))

  def losses(state):
    (of_classes,) = oracle.losses([client])
    source, target = (
      oracle.embed(state.weights.backbone, x)
      for x in (client.x, client.stream_x)
    )
    (weighted, _), (_, separate) = (
      [
        np.mean(of_source * np.log(1 + np.exp(-domain_logits(part, source))))
        + np.mean(of_target * np.log(1 + np.exp(domain_logits(part, target))))
        for of_source, of_target in ((source_weights, target_weights), (1, 1))
      ]
      for part in state.classifiers
    )
    return of_classes(state.weights), weighted, separate

  def of_backbone(state):
    # That of d' ends before it.
    of_classes, weighted, _ = losses(state)
    return of_classes - 0.8 * weighted

  def total(state):
    return sum(losses(state))

  gradient = oracle.gradient(total, state)
  backbone = oracle.gradient(of_backbone, state).weights.backbone
  gradient = gradient._replace(
    weights=gradient.weights._replace(backbone=backbone)
  )
  expected = trees.add(state, gradient, -RATE)
  compare.assert_close(result.client_state, expected, 1e-5)
  assert_allclose(result.loss, total(state), rtol=1e-5)


def test_unknown_is_no_class(build, state, client, make_client, oracle):
  examples = make_client(5, [40])
  logits = oracle.predict(state.weights, examples.x)
  weights = transferability(
    logits,
    domain_logits(
      state.classifiers[1], oracle.embed(state.weights.backbone, examples.x)
    ),
    0.5,
  )

  def predict(**changes):
    functions = build(HPARAMS, **changes)
    return functions.predict_as_client((), state, client, examples)

  # By default all are known.
  assert_allclose(predict(), logits, atol=1e-5)
  threshold = float(np.median(weights))
  found = predict(unknown_threshold=threshold)
  is_known = weights >= threshold
  assert 0 < is_known.sum() < 40
  assert_allclose(found[is_known], logits[is_known], atol=1e-5)
  assert np.all(np.isnan(found[~is_known]))


def test_both_classifiers_have_two_hidden_layers(state):
  assert len(state.classifiers) == 2
  for classifier in state.classifiers:
    assert [np.shape(w) for w in classifier[::2]] == [(8, 6), (6, 6), (6, 1)]
  assert isinstance(state, domain_adversaries.ClientState)
