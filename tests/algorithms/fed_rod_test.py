"""FedRoD: a generic predictor that is averaged, a personal head on top."""

import numpy as np
import pytest

from tests.fixtures import trees
from tff_shift.algorithms import fed_rod

pytestmark = pytest.mark.slow

COMMON = {"batch_size": 4, "local_steps": 1, "learning_rate": 0.3}
HPARAMS = fed_rod.HParams(**COMMON)
ROUND = 5


@pytest.fixture(scope="module")
def own_head(weights):
  """A personal head that has been trained before."""
  return trees.normal(weights.head, 1)


def test_training_agrees_with_the_oracle(
  weights, own_head, make_client, functions, oracle, compare
):
  client = make_client(0, [6, 5], y=[0] * 6 + [1] * 4 + [2])
  result = functions.train_client(weights, own_head, client, ROUND)
  log_counts = np.log([6, 4, 1])
  generic, own, losses = weights, own_head, []
  # A step for each domain.
  for batch in oracle.of_training(client, 2, ROUND):

    def generic_loss(w, batch=batch):
      return oracle.cross_entropy(
        oracle.predict(w, batch.x) + log_counts, batch.y
      )

    def own_loss(head, batch=batch, generic=generic):
      return oracle.cross_entropy(
        oracle.predict(generic, batch.x)
        + oracle.classify(head, oracle.embed(generic.backbone, batch.x)),
        batch.y,
      )

    own, of_own = oracle.descend(own, [own_loss], 0.3)
    generic, of_generic = oracle.descend(generic, [generic_loss], 0.3)
    losses.append(of_own + of_generic)
  oracle.check(result, weights, generic, np.mean(losses))
  compare.assert_close(result.client_state, own, 1e-5)
  assert np.abs(result.client_state[0] - own_head[0]).max() > 1e-2


def test_heads_add_up(
  functions, weights, own_head, client, make_client, oracle, compare
):
  examples = make_client(1, [0, 7])
  logits = functions.predict_as_client(weights, own_head, client, examples)
  both = trees.add(weights.head, own_head)
  np.testing.assert_allclose(
    logits, oracle.predict(weights._replace(head=both), examples.x), atol=1e-5
  )
  # Without training a client predicts as the server.
  state = functions.initial_client_state(client.seed, weights)
  assert compare.equal_bits(
    functions.predict_as_client(weights, state, client, examples),
    functions.predict_as_server(weights, (), examples),
  )
