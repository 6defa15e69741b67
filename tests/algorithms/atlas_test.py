"""ATLAS against gradient descent and exponential weights in NumPy."""

import numpy as np
import pytest
import tensorflow as tf

from tff_shift.algorithms import atlas
from tff_shift.models import split_model

pytestmark = pytest.mark.slow

NUM_INITIAL = 6
HPARAMS = atlas.HParams(
  batch_size=NUM_INITIAL,
  local_epochs=1,
  smallest_rate=0.1,
  num_learners=3,
  meta_rate=0.7,
)


@pytest.fixture(scope="module")
def functions(model, context):
  return atlas.build(model, HPARAMS)


@pytest.fixture(scope="module")
def client(make_adapting_client):
  return make_adapting_client(0, NUM_INITIAL, 10)


@pytest.fixture(scope="module")
def pretrained(model, client, run_in_graph):
  return run_in_graph(model.initial_weights, client.seed)


def risk(oracle, head, embeddings, y, classes):
  logits = oracle.classify(head, embeddings)
  return sum(
    classes[c] * oracle.cross_entropy(logits[y == c], y[y == c])
    for c in range(3)
  )


class TestAtlas:
  def test_learners_step_and_are_weighted(
    self, functions, client, pretrained, oracle, run_in_graph, compare
  ):
    state = run_in_graph(functions.initial_client_state, client.seed, ())
    states = [state]
    for round_num in range(2):
      result = run_in_graph(
        functions.train_client, (), states[-1], client, np.int32(round_num)
      )
      states.append(result.client_state)
    predicted = oracle.predict(pretrained, client.stream_x).argmax(axis=1)
    shares = np.bincount(predicted, minlength=3) / len(predicted)
    classes = np.maximum(np.linalg.solve(client.confusion, shares), 0)
    classes /= classes.sum()
    embeddings = oracle.embed(pretrained.backbone, client.x)

    heads = [tf.nest.map_structure(np.float64, pretrained.head)] * 3
    cumulative = np.zeros(3)
    for after in states[1:]:
      risks = [
        risk(oracle, head, embeddings, client.y, classes) for head in heads
      ]
      cumulative = cumulative + risks
      heads = [
        oracle.descend(
          head, [lambda h: risk(oracle, h, embeddings, client.y, classes)], rate
        )[0]
        for head, rate in zip(heads, (0.1, 0.2, 0.4), strict=True)
      ]
      np.testing.assert_allclose(after.cumulative_risk, cumulative, rtol=1e-5)
      stacked = tf.nest.map_structure(lambda *each: np.stack(each), *heads)
      compare.assert_close(after.heads, stacked, 1e-5)

  def test_prediction_is_that_of_the_weighted_head(
    self, functions, client, pretrained, make_client, oracle, run_in_graph
  ):
    examples = make_client(4, [5])
    state = run_in_graph(functions.initial_client_state, client.seed, ())
    scale = np.array([1.0, 2.0, 4.0], np.float32)
    state = atlas.Ensemble(
      tf.nest.map_structure(
        lambda w: w * scale.reshape(-1, *[1] * (w.ndim - 1)), state.heads
      ),
      cumulative_risk=np.array([1.0, 2.0, 3.0], np.float32),
    )
    weights = np.exp(-0.7 * np.array([1.0, 2.0, 3.0]))
    factor = weights @ scale / weights.sum()
    head = tf.nest.map_structure(lambda w: factor * w, pretrained.head)
    np.testing.assert_allclose(
      run_in_graph(functions.predict_as_client, (), state, client, examples),
      oracle.predict(
        split_model.SplitWeights(pretrained.backbone, head), examples.x
      ),
      atol=1e-5,
    )
