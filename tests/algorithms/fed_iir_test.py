"""FedIIR: gradients of the classifier are drawn to their mean over clients."""

import numpy as np
import pytest

from tests.fixtures import trees
from tff_shift.algorithms import fed_iir

pytestmark = pytest.mark.slow

RATE, GAMMA = 0.3, 0.7
ROUND = 3
COMMON = {"batch_size": 4, "local_steps": 2, "learning_rate": RATE}
HPARAMS = fed_iir.HParams(alignment=GAMMA, **COMMON)


def head_gradient(oracle, weights, batch):
  """(p - y) z^T and p - y, means over the batch."""
  embeddings = oracle.embed(weights.backbone, batch.x)
  p = oracle.softmax(oracle.classify(weights.head, embeddings))
  error = (p - np.eye(3)[batch.y]) / len(batch.y)
  return embeddings.T @ error, error.sum(axis=0)


# Eleven examples: the last batch of size 4 is not full.
@pytest.mark.parametrize("batch_size", [4, 11])
def test_client_survey_is_the_gradient_of_all_examples(
  build, client, weights, oracle, compare, batch_size
):
  shared = fed_iir.Shared(weights, weights.head)
  (survey,) = build(
    HPARAMS, batch_size=batch_size, weight_decay=0.1, average_decay=0.9
  ).surveys
  result = survey.survey_client(shared, (), client, ROUND)
  expected = head_gradient(oracle, weights, client)
  compare.assert_close(result.update, expected, 1e-6)
  # The server has a moving average.
  after = survey.update_server(shared, result.update, (), None)
  expected = trees.mean(weights.head, expected, weights=[0.9, 0.1])
  compare.assert_close(after.gradient, expected, 1e-6)
  (loss,) = oracle.losses([client])
  np.testing.assert_allclose(result.loss, loss(weights), rtol=1e-5)


def test_client_steps_agree_with_the_oracle(
  client, weights, oracle, compare, functions
):
  assert not trees.largest(functions.initial_weights(client.seed).gradient)
  mean = trees.normal(weights.head)
  result = functions.train_client(
    fed_iir.Shared(weights, mean), (), client, ROUND
  )
  batches = oracle.of_training(client, 4, ROUND)

  def with_penalty(loss, batch):
    return lambda w: loss(w) + GAMMA * trees.squared_distance(
      head_gradient(oracle, w, batch), mean
    )

  trained, loss = oracle.descend(
    weights,
    [
      with_penalty(*each)
      for each in zip(oracle.losses(batches), batches, strict=True)
    ],
    RATE,
  )
  oracle.check(result, weights, trained, loss)
