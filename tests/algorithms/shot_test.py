"""SHOT against NumPy: its loss, its pseudo-labels, a round and its limits."""

import numpy as np
import pytest
import scipy.special
import scipy.stats
from numpy.testing import assert_allclose

from tests.fixtures import trees
from tff_shift.algorithms import shot

pytestmark = pytest.mark.slow

RATE = 0.3
STREAM = 9, 7
HPARAMS = shot.HParams(
  learning_rate=RATE,
  momentum=0.0,
  weight_decay=0.0,
  adaptation_steps=2,
  diversity=0.7,
  pseudo_label_weight=0.4,
)


def label_by_hand(embeddings, logits):
  """Pseudo-labels, example by example and class by class."""
  features = np.concatenate([embeddings, np.ones((len(logits), 1))], axis=1)
  features /= np.linalg.norm(features, axis=1, keepdims=True)
  weights = scipy.special.softmax(logits, axis=1)
  labels = weights.argmax(axis=1)
  for _ in range(2):
    classes = sorted(set(labels.tolist()))
    cosines = []
    for c in classes:
      centre = (weights[:, c : c + 1] * features).sum(0) / weights[:, c].sum()
      cosines.append(features @ centre / np.linalg.norm(centre))
    labels = np.array(classes)[np.argmax(cosines, axis=0)]
    weights = np.eye(logits.shape[1])[labels]
  return labels


@pytest.mark.parametrize("seed", range(5))
def test_pseudo_labels_agree_with_the_oracle(seed, run_in_graph):
  generator = np.random.default_rng(seed)
  embeddings = generator.normal(size=(40, 6))
  logits = embeddings @ generator.normal(size=(6, 4))
  # A class that is not predicted.
  logits[:, 3] -= 20
  found = run_in_graph(
    shot.pseudo_labels, np.float32(embeddings), np.float32(logits)
  )
  expected = label_by_hand(embeddings, logits)
  np.testing.assert_array_equal(found, expected)
  assert np.any(found != logits.argmax(axis=1))
  assert np.all(found != 3)


@pytest.mark.parametrize(
  "beta, diversity, num_steps", [(0.4, 0.7, 2), (0.0, 1.0, 2), (0.0, 0.0, 1)]
)
def test_round_agrees_with_the_oracle(
  build, client, weights, oracle, compare, beta, diversity, num_steps
):
  functions = build(
    HPARAMS,
    pseudo_label_weight=beta,
    diversity=diversity,
    adaptation_steps=num_steps,
  )
  state = functions.initial_client_state(client.seed, ())
  state = state._replace(backbone=weights.backbone)
  result = functions.train_client((), state, client, 3)
  embeddings = oracle.embed(weights.backbone, client.stream_x)
  labels = label_by_hand(embeddings, oracle.classify(weights.head, embeddings))

  def loss_of(backbone):
    logits = oracle.classify(
      weights.head, oracle.embed(backbone, client.stream_x)
    )
    p = scipy.special.softmax(logits, axis=1)
    return (
      oracle.entropy(logits)
      - diversity * scipy.stats.entropy(p.mean(axis=0))
      + beta * oracle.cross_entropy(logits, labels)
    )

  backbone, loss = oracle.descend(weights.backbone, [loss_of] * num_steps, RATE)
  compare.assert_close(result.client_state.backbone, backbone, 1e-5)
  assert_allclose(result.loss, loss, atol=1e-6)
  assert np.max(np.abs(backbone[0] - weights.backbone[0])) > 1e-3


def test_round_prediction_has_the_first_head(
  client, weights, make_client, oracle, functions
):
  examples = make_client(5, [7])
  backbone = trees.add(weights.backbone, trees.normal(weights.backbone))
  logits = functions.predict_as_client(
    (), shot.ClientState(backbone, ({},)), client, examples
  )
  expected = oracle.predict(weights._replace(backbone=backbone), examples.x)
  assert_allclose(logits, expected, atol=1e-5)
