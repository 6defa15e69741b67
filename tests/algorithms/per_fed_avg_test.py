"""PerFedAvg: a server model that is good after one step on a client's data."""

import numpy as np
import pytest

from tests.fixtures import trees
from tff_shift import algorithms
from tff_shift.algorithms import per_fed_avg
from tff_shift.learning import randomness
from tff_shift.learning import work

pytestmark = pytest.mark.slow

ROUND = 3
RATE, ALPHA = 0.3, 0.2
# Of the oracle, in float64.
DELTA = 1e-3
COMMON = {"batch_size": 4, "local_steps": 2, "learning_rate": RATE}
HPARAMS = per_fed_avg.HParams(inner_rate=ALPHA, **COMMON)


@pytest.mark.parametrize(
  "options, tolerance",
  [
    ({"hessian": "exact"}, 1e-5),
    ({"hessian": "hessian_free", "hessian_delta": 0.01}, 1e-4),
    ({"hessian": "first_order"}, 1e-5),
    ({"hessian": "exact", "weight_decay": 0.1}, 1e-5),
  ],
)
def test_steps_agree_with_the_oracle(
  build, client, weights, oracle, compare, options, tolerance
):
  result = build(HPARAMS, **options).train_client(weights, (), client, ROUND)
  # D, D', D'', two iterations of a step for each of the two domains.
  inner, outer, curvature = (
    oracle.losses(oracle.of_training(client, 4, ROUND, *word))
    for word in [(0,), (), (1,)]
  )
  decay = options.get("weight_decay", 0.0)
  w, values = trees.map(np.float64, weights), []
  for step in range(4):
    adapted = trees.add(w, oracle.gradient(inner[step], w), -ALPHA)
    values.append(outer[step](adapted))
    gradient = oracle.gradient(outer[step], adapted)
    if options["hessian"] != "first_order":
      above, below = (
        oracle.gradient(curvature[step], trees.add(w, gradient, sign * DELTA))
        for sign in (1, -1)
      )
      product = trees.subtract(above, below)
      gradient = trees.add(gradient, product, -ALPHA / (2 * DELTA))
    w = trees.add(w, trees.add(gradient, w, decay), -RATE)
  oracle.check(result, weights, w, np.mean(values), tolerance)


def test_client_predicts_after_steps_of_the_inner_rate(
  build, client, weights, make_client, oracle
):
  """Without momentum and decay."""
  functions = build(HPARAMS, adaptation_steps=2, momentum=0.5, weight_decay=0.1)
  other = make_client(1, [9])
  batches = oracle.batches(client, 2, randomness.Purpose.PERSONALIZE)
  adapted, _ = oracle.descend(weights, oracle.losses(batches), ALPHA)
  prepared = functions.prepare_client(weights, (), client, 0)
  np.testing.assert_allclose(
    functions.predict_as_client(weights, prepared, client, other),
    oracle.predict(adapted, other.x),
    atol=1e-5,
  )


@pytest.mark.parametrize(
  "options, gradients",
  [
    ({"hessian": "exact"}, 3),
    ({"hessian": "hessian_free"}, 4),
    ({"hessian": "first_order"}, 2),
    ({"inner_rate": 0.0}, 1),
  ],
)
def test_gradients_are_counted(context, model, client, options, gradients):
  del context
  built = algorithms.build(
    per_fed_avg, model, per_fed_avg.HParams(**(COMMON | options))
  )
  # Two steps for each of two domains.
  assert work.gradients_of_round(built, [client]) == 4 * gradients
