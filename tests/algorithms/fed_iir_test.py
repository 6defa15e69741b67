"""FedIIR: gradients of the classifier are drawn to their mean over clients."""

import numpy as np
import pytest
from numpy.testing import assert_allclose

from tests.fixtures import trees
from tff_shift.algorithms import fed_iir

pytestmark = pytest.mark.slow

RATE, GAMMA = 0.3, 0.7
ROUND = 3
COMMON = {"batch_size": 4, "local_steps": 2, "learning_rate": RATE}
HPARAMS = fed_iir.HParams(alignment=GAMMA, **COMMON)
# Gradients u and 4 (u - 1) of the only weight, which is the head.
QUADRATIC = {
  "head": "classifier",
  "learning_rate": 0.1,
  "local_steps": 1,
  "alignment": 0.5,
}


def head_gradient(oracle, weights, batch):
  """(p - y) z^T and p - y, means over the batch."""
  embeddings = oracle.embed(weights.backbone, batch.x)
  p = oracle.softmax(oracle.classify(weights.head, embeddings))
  error = (p - np.eye(3)[batch.y]) / len(batch.y)
  return embeddings.T @ error, error.sum(axis=0)


class TestClient:
  # Eleven examples: the last batch of size 4 is not full.
  @pytest.mark.parametrize("batch_size", [4, 11])
  def test_survey_is_the_gradient_of_all_examples(
    self, build, client, weights, oracle, compare, batch_size
  ):
    shared = fed_iir.Shared(weights, weights.head)
    (survey,) = build(HPARAMS, batch_size=batch_size, weight_decay=0.1).surveys
    result = survey.survey_client(shared, (), client, ROUND)
    expected = head_gradient(oracle, weights, client)
    compare.assert_close(result.update, expected, 1e-6)
    (loss,) = oracle.losses([client])
    assert_allclose(result.loss, loss(weights), rtol=1e-5)

  def test_steps_agree_with_the_oracle(
    self, client, weights, oracle, compare, functions
  ):
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


class TestQuadratics:
  def test_rounds_computed_by_hand(self, quadratics):
    run = quadratics.start("fed_iir", **QUADRATIC, num_rounds=1)
    # The mean of 0 and -4 is -2, and g = -0.1. The clients' gradients are
    # 0 + (0 + 0.1) and -4 + 4 (-4 + 0.1).
    assert_allclose(run.server_state.weights.gradient[0], -0.1, rtol=1e-6)
    assert_allclose(quadratics.u(run), -0.1 * (0.1 - 19.6) / 2, rtol=1e-5)
    run.step()
    # The same round's gradients at 0.975: 0.975 and -0.1.
    assert_allclose(
      run.server_state.weights.gradient[0], -0.095 + 0.05 * 0.4375, rtol=1e-5
    )

  def test_without_decay_the_average_is_the_mean_of_the_round(self, quadratics):
    run = quadratics.start(
      "fed_iir", **QUADRATIC, average_decay=0.0, num_rounds=1
    )
    assert_allclose(run.server_state.weights.gradient[0], -2.0, rtol=1e-6)
    # 0 + (0 + 2) and -4 + 4 (-4 + 2).
    assert_allclose(quadratics.u(run), -0.1 * (2 - 12) / 2, rtol=1e-5)
