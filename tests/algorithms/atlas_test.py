"""ATLAS against gradient descent and exponential weights in NumPy."""

import numpy as np
import pytest
from numpy.testing import assert_allclose

from tests.fixtures import trees
from tff_shift.algorithms import atlas

pytestmark = pytest.mark.slow

STREAM = 6, 10
HPARAMS = atlas.HParams(
  batch_size=6, local_epochs=1, smallest_rate=0.1, num_learners=3, meta_rate=0.7
)


def test_learners_step_and_are_weighted(
  functions, client, weights, oracle, compare
):
  states = [functions.initial_client_state(client.seed, ())]
  for round_num in range(2):
    result = functions.train_client((), states[-1], client, round_num)
    states.append(result.client_state)
  classes = oracle.estimated_classes(weights, client)
  embeddings = oracle.embed(weights.backbone, client.x)

  def risk(head):
    return oracle.risk(oracle.classify(head, embeddings), client.y, classes)

  heads = [trees.map(np.float64, weights.head)] * 3
  cumulative = np.zeros(3)
  for after in states[1:]:
    cumulative = cumulative + [risk(head) for head in heads]
    heads = [
      oracle.descend(head, [risk], rate)[0]
      for head, rate in zip(heads, (0.1, 0.2, 0.4), strict=True)
    ]
    assert_allclose(after.cumulative_risk, cumulative, rtol=1e-5)
    compare.assert_close(after.heads, trees.stack(*heads), 1e-5)


def test_prediction_is_that_of_the_weighted_head(
  functions, client, weights, make_client, oracle
):
  examples = make_client(4, [5])
  risks = np.float32([1, 2, 3])
  heads = [
    trees.scale(weights.head, factor) for factor in np.float32([1, 2, 4])
  ]
  state = atlas.Ensemble(trees.stack(*heads), cumulative_risk=risks)
  head = trees.mean(*heads, weights=np.exp(-0.7 * risks))
  assert_allclose(
    functions.predict_as_client((), state, client, examples),
    oracle.predict(weights._replace(head=head), examples.x),
    atol=1e-5,
  )
