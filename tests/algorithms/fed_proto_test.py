"""FedProto: mean embeddings of classes are shared, and no weights."""

import dataclasses

import numpy as np
import pytest
import tensorflow as tf
from numpy.testing import assert_allclose
from numpy.testing import assert_array_equal

from tests.fixtures import arrays
from tff_shift.algorithms import fed_proto
from tff_shift.learning import evaluation

pytestmark = pytest.mark.slow

RATE = 0.3
ROUND = 2
COMMON = {"batch_size": 4, "local_steps": 2, "learning_rate": RATE}
HPARAMS = fed_proto.HParams(prototype_weight=0.7, **COMMON)


@pytest.fixture(scope="module")
def shared():
  """Prototypes of two of three classes."""
  means = arrays.normal(0, 3, 8)
  means[1] = 0
  return means


@pytest.mark.parametrize("distance", ["mean_square", "l2"])
def test_round_steps_agree_with_the_oracle(
  build, weights, shared, client, oracle, compare, distance
):
  result = build(HPARAMS, prototype_distance=distance).train_client(
    shared, weights, client, ROUND
  )

  def loss_on(batch):
    (classify,) = oracle.losses([batch])
    known = batch.y != 1

    def loss(current):
      embeddings = oracle.embed(current.backbone, batch.x)
      away = embeddings[known] - shared[batch.y[known]]
      far = np.mean(away**2, axis=1)
      if distance == "l2":
        far = np.linalg.norm(away, axis=1)
      return classify(current) + 0.7 * (np.mean(far) if len(far) else 0.0)

    return loss

  batches = oracle.of_training(client, 4, ROUND)
  assert any(1 in batch.y for batch in batches)
  expected, mean_loss = oracle.descend(
    weights, [loss_on(batch) for batch in batches], RATE
  )
  compare.assert_close(result.client_state, expected, 1e-5)
  assert_allclose(result.loss, mean_loss, rtol=1e-5)


@pytest.mark.parametrize("weighting", ["num_examples", "uniform"])
def test_round_prototypes_are_means_over_the_clients_with_the_class(
  start, make_client, oracle, weighting
):
  labels = [[0, 0, 0, 1, 1], [0, 1, 1], [1, 1, 1, 1, 1, 1, 1]]
  data = [make_client(i, [len(y)], y=y) for i, y in enumerate(labels)]
  hparams = dataclasses.replace(HPARAMS, client_weighting=weighting)
  run = start(hparams, data, 1)
  found = run.server_state.weights
  assert_array_equal(found[2], np.zeros(8))
  means = [
    oracle.class_means(oracle.embed(state.backbone, client.x), client.y)
    for state, client in zip(run.client_states, data, strict=True)
  ]
  for c in range(2):
    having = [i for i, y in enumerate(labels) if c in y]
    counts = [labels[i].count(c) for i in having]
    expected = np.average(
      [means[i][c] for i in having],
      axis=0,
      weights=counts if weighting == "num_examples" else None,
    )
    assert_allclose(found[c], expected, atol=1e-5)


def test_round_prototype_stays_while_nobody_has_the_class(functions, shared):
  mean = tf.constant([[0.5] * 8 + [0.25], [0.0] * 9, [0.0] * 9])
  result = functions.update_server(shared, mean, (), 0)
  assert_array_equal(result[0], np.full(8, 2))
  assert_array_equal(result[1:], shared[1:])


def test_prediction_is_the_class_of_the_nearest_prototype(
  weights, shared, make_client, oracle, functions
):
  client = make_client(0, [9])
  logits = functions.predict_as_client(shared, weights, client, client)
  embeddings = oracle.embed(weights.backbone, client.x)
  distances = np.linalg.norm(embeddings[:, np.newaxis] - shared, axis=-1)
  assert_allclose(logits[:, [0, 2]], -distances[:, [0, 2]], rtol=1e-5)
  assert_array_equal(logits[:, 1], [evaluation.NO_LOGIT] * 9)
  predicted = evaluation.predicted_classes(logits)
  assert_array_equal(
    predicted, np.where(distances[:, 0] < distances[:, 2], 0, 2)
  )
