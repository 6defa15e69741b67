"""T3A: prototypes that test examples adjust, one after the other."""

import numpy as np
import pytest
import scipy.special
import scipy.stats

from tests.fixtures import trees
from tff_shift.algorithms import fed_avg_ft
from tff_shift.algorithms import t3a
from tff_shift.learning import randomness
from tff_shift.models import split_model

pytestmark = pytest.mark.slow

COMMON = {"batch_size": 4, "local_steps": 1, "learning_rate": 0.3}
HPARAMS = t3a.HParams(num_supports=3, **COMMON)


@pytest.fixture(scope="module")
def model(deep_model):
  return deep_model


@pytest.fixture(scope="module")
def cut(model):
  return split_model.with_head(model, "last_layer")


@pytest.fixture(scope="module")
def weights(cut, run_in_graph):
  """Weights with biases that are not zero."""
  drawn = run_in_graph(cut.initial_weights, randomness.server_seed(0))
  return trees.add(drawn, trees.normal(drawn, 1, 0.3))


def predict_by_hand(weights, features, num_supports):
  """The predictions for the examples of a domain, with lists as supports."""
  kernel, bias = weights.head
  supports = [[] for _ in bias]

  def add(z):
    p = scipy.special.softmax(z @ kernel + bias)
    own = supports[p.argmax()]
    own.append((scipy.stats.entropy(p), z / np.linalg.norm(z)))
    own.sort(key=lambda each: each[0])
    del own[num_supports:]

  for row in kernel.T:
    add(row)
  rows = []
  for z in features:
    add(z)
    totals = [sum(each for _, each in own) for own in supports]
    rows.append(
      [z @ t / np.linalg.norm(t) if np.any(t) else 0.0 for t in totals]
    )
  return np.array(rows).reshape(-1, len(bias))


@pytest.mark.parametrize("num_supports", [1, 3, 50])
def test_predict_agrees_with_lists(
  cut, weights, oracle, make_client, run_in_graph, num_supports
):
  # 50 keeps all.
  x = make_client(0, [30]).x
  hparams = t3a.HParams(num_supports=num_supports)
  found = run_in_graph(
    lambda w, x, sizes: t3a.predict(cut, hparams, w, x, sizes, None),
    weights,
    x,
    np.int32([12, 0, 18]),
  )
  expected = [
    predict_by_hand(weights, oracle.embed(weights.backbone, part), num_supports)
    for part in (x[:12], x[12:])
  ]
  np.testing.assert_allclose(found, np.concatenate(expected), atol=1e-5)


def test_clients_see_examples_in_orders_of_their_own(
  functions, weights, make_client
):
  examples = make_client(1, [4, 0, 9])
  one, other = (
    functions.predict_as_client(
      weights, weights, make_client(client, [6, 5]), examples
    )
    for client in (0, 2)
  )
  assert np.any(one != other)


def test_training_and_server_are_those_of_fed_avg_ft(
  build, model, functions, weights, client, compare
):
  def run(functions, w):
    return (
      functions.train_client(w, (), client, 2).update,
      functions.prepare_client(w, (), client, 2),
      functions.predict_as_server(w, (), client),
    )

  flat, num_backbone = trees.leaves(weights), len(model.backbone.names)
  whole = split_model.SplitWeights(
    tuple(flat[:num_backbone]), tuple(flat[num_backbone:])
  )
  plain = build(fed_avg_ft.HParams(**COMMON))
  assert compare.equal_bits(run(functions, weights), run(plain, whole))
