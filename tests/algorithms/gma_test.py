"""GMA: small steps where clients disagree."""

import fractions

import numpy as np
import pytest
from numpy.testing import assert_allclose

from tests.fixtures import trees
from tff_shift.algorithms import gma

pytestmark = pytest.mark.slow


HPARAMS = gma.HParams(batch_size=4, local_steps=2, learning_rate=0.3)


@pytest.fixture(scope="module")
def new_weights(build):
  """Returns `new(changes, threshold, weights=None)`.

  It gives what becomes of zeros when clients change them so.
  """

  def new(changes, threshold, weights=None):
    changes = np.float32(changes)
    if weights is None:
      weights = np.ones(len(changes), np.float32)
    votes = gma.Votes(
      np.float32(weights @ np.sign(changes)), np.float32(sum(weights))
    )
    return build(HPARAMS, agreement_threshold=threshold).update_server(
      np.zeros_like(changes[0]),
      np.average(changes, axis=0, weights=weights).astype(np.float32),
      votes,
      0,
    )

  return new


def test_mask_agreement_shortens_steps(new_weights):
  changes = [
    [1, 1, 1, 0, 3],
    [1, -3, 1, 0, 3],
    [1, 1, -1, 0, 3],
    [1, -1, 1] + [0] * 2,
  ]
  # Means 1, -1/2, 1/2, 0, 9/4; agreements 1, 0, 1/2, 0, 3/4.
  for threshold, expected in (
    (0.4, [1, 0, 1 / 2, 0, 9 / 4]),
    (0.6, [1, 0, 1 / 4, 0, 9 / 4]),
    (1.0, [1, 0, 1 / 4, 0, 27 / 16]),
    (0.0, [1, -1 / 2, 1 / 2, 0, 9 / 4]),
  ):
    result = new_weights(changes, threshold)
    assert_allclose(result, expected, rtol=1e-6)


def test_mask_weighted_votes_weigh_as_much_as_changes(new_weights):
  # Of weights 1 and 3 the heavier one decides: agreement 1/2, mean 5/4.
  changes, weights = [[-1.0], [2.0]], np.float32([1, 3])
  for threshold, expected in ((0.5, 5 / 4), (0.6, 5 / 8)):
    result = new_weights(changes, threshold, weights)
    assert_allclose(result, [expected], rtol=1e-6)


def test_mask_agreement_at_the_threshold_reaches_it(run_in_graph):
  # In any number of clients, thirds and tenths included.
  shares = sorted(
    {
      fractions.Fraction(votes, count)
      for count in range(1, 41)
      for votes in range(count + 1)
    }
  )
  numerators, denominators = np.float32(
    [(each.numerator, each.denominator) for each in shares]
  ).T
  for times in (1, 7):
    found = run_in_graph(
      gma.mask,
      times * numerators,
      times * denominators,
      np.float32([float(each) for each in shares]),
    )
    np.testing.assert_array_equal(found, 1)


@pytest.mark.parametrize(
  "client_weighting, vote_weighting, weight",
  [
    ("uniform", "uniform", 1),
    ("num_examples", "uniform", 1),
    ("uniform", "client_weighting", 1),
    ("num_examples", "client_weighting", 11),
  ],
)
def test_client_sends_the_signs_of_its_change(
  build, make_client, weights, compare, client_weighting, vote_weighting, weight
):
  client = make_client(0, [6, 5])
  # What no example has moves no weight.
  client.x[:, 2] = 0
  result = build(
    HPARAMS, client_weighting=client_weighting, vote_weighting=vote_weighting
  ).train_client(weights, (), client, 3)
  assert result.plaintext_sum.weight == weight
  signs = trees.map(
    lambda change: np.float32(weight) * np.sign(change), result.update
  )
  assert compare.equal_bits(result.plaintext_sum.signs, signs)
  assert not signs.backbone[0][2].any()
  assert signs.backbone[0].any()
