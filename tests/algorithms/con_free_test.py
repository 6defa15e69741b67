"""ConFREE: FedRep without the conflicts of its clients."""

import numpy as np
import pytest
from numpy.testing import assert_allclose

from tests.fixtures import trees
from tff_shift.algorithms import con_free
from tff_shift.algorithms import fed_rep

pytestmark = pytest.mark.slow


COMMON = {
  "head_steps": 1,
  "local_steps": 1,
  "batch_size": 4,
  "learning_rate": 0.3,
}
HPARAMS = con_free.HParams(**COMMON)
MODEL_CLIENTS = 4
ORDER_KEYS = np.float32(
  [[0.4, 0.1, 0.2, 0.3], [0.2, 0.4, 0.1, 0.3], [0.3] * 4, [0.1, 0.4, 0.3, 0.2]]
)


def inner(one, other):
  return np.sum(np.float64(one) * other)


def project(updates, keys):
  """PCGrad over one layer's updates, by client; returns their mean."""
  projected = []
  for client, update in updates.items():
    current = np.float64(update)
    for other in np.argsort(keys[client], kind="stable"):
      if other in updates and other != client:
        against = min(inner(current, updates[other]), 0)
        squares = inner(updates[other], updates[other])
        current = current - against / squares * updates[other]
    projected.append(current)
  return projected


def tables(updates, weights=None):
  """Each tensor of all clients, their weights, and who has sent something."""
  nothing = trees.zeros(updates[0])
  clients = range(MODEL_CLIENTS)
  present = np.float32([client in updates for client in clients])
  weight = present * [(weights or {}).get(client, 1) for client in clients]
  rows = trees.stack(*(updates.get(client, nothing) for client in clients))
  return rows, np.float32(weight), present


def mean_of(rows, weight):
  return trees.map(lambda w: np.average(w, axis=0, weights=weight), rows)


@pytest.fixture(scope="module")
def backbone(initial):
  return initial(0).backbone


@pytest.fixture
def updates(backbone):
  """Of three of the four clients; two are nearly each other's opposite."""
  found = {client: trees.normal(backbone, client) for client in (0, 1, 3)}
  found[3] = trees.map(lambda v, u: 0.3 * v - 2 * u, found[3], found[0])
  return found


@pytest.fixture(scope="module")
def update_server(build, backbone):
  """Returns `update(updates, weights=None, **changes)`, the server's change."""

  def run(updates, weights=None, **changes):
    rows, weight, present = tables(updates, weights)
    slots = con_free.Sent(rows, weight, ORDER_KEYS), present
    return build(HPARAMS, **changes).update_server(
      trees.zeros(backbone), mean_of(rows, weight), slots, 0
    )

  return run


@pytest.mark.parametrize("weights", [None, {0: 5.0, 1: 1.0, 3: 2.0}])
def test_server_guide_is_the_mean_of_what_is_not_in_conflict(
  update_server, updates, weights
):
  found = update_server(updates, weights, conflict_aversion=0.0)
  shares = list(weights.values()) if weights else [1, 1, 1]
  for layer, change in enumerate(found):
    of_layer = {client: each[layer] for client, each in updates.items()}
    projected = project(of_layer, ORDER_KEYS)
    expected = np.average(projected, axis=0, weights=shares)
    assert_allclose(change, expected, atol=1e-5)
    plain = np.average(list(of_layer.values()), axis=0, weights=shares)
    assert np.abs(expected - plain).max() > 0.1


def test_server_step_is_away_from_the_guide(update_server, updates):
  alpha = 0.8
  guides = update_server(updates, conflict_aversion=0.0)
  found = update_server(updates, conflict_aversion=alpha)
  for layer, (guide, change) in enumerate(zip(guides, found, strict=True)):
    step = (1 + alpha**2) * change
    distance = np.linalg.norm(step - guide)
    assert_allclose(distance, alpha * np.linalg.norm(guide), rtol=1e-4)
    # It turns to the client that it helps least.
    before, after = (
      min(inner(each[layer], direction) for each in updates.values())
      for direction in (guide, step)
    )
    assert after > before


def test_server_program_projects_pairs_on_the_whole_backbone(
  update_server, updates
):
  weights = {0: 5.0, 1: 1.0, 3: 2.0}
  found = update_server(updates, weights, variant="program")
  whole = {
    client: np.concatenate([np.ravel(w) for w in each])
    for client, each in updates.items()
  }
  expected = 0.0
  for client, own in whole.items():
    adjusted = np.float64(own)
    for other in whole.values():
      if inner(own, other) < 0:
        adjusted -= inner(own, other) / inner(other, other) * other
    expected += weights[client] / 8 * adjusted
  found = np.concatenate([np.ravel(w) for w in found])
  assert_allclose(found, expected, atol=1e-5)


@pytest.mark.parametrize("variant", ["published", "program"])
def test_server_without_conflict_the_mean_is_added_bit_for_bit(
  update_server, updates, compare, variant
):
  agreeing = {
    client: trees.map(np.abs, each) for client, each in updates.items()
  }
  found = update_server(agreeing, variant=variant, conflict_aversion=0.0)
  rows, weight, _ = tables(agreeing)
  assert compare.equal_bits(found, mean_of(rows, weight))


def test_client_sends_what_fed_rep_sends_in_its_row(
  build, backbone, make_client, compare
):
  client = make_client(2, [11])
  keys = []
  for weighting, weight in (("uniform", 1), ("num_examples", 11)):
    common = COMMON | {"client_weighting": weighting}
    con_free_functions, fed_rep_functions = (
      build(module.HParams(**common)) for module in (con_free, fed_rep)
    )
    head = fed_rep_functions.initial_client_state(client.seed, backbone)
    for round_num in (3, 4):
      found, plain = (
        functions.train_client(backbone, head, client, round_num)
        for functions in (con_free_functions, fed_rep_functions)
      )
      assert compare.equal_bits(found._replace(plaintext_sum=()), plain)
      sent, number = found.plaintext_sum
      assert (number, sent.weight) == (3, weight)
      assert compare.equal_bits(sent.update, plain.update)
      keys.append(sent.order_keys)
  # The order is that of client and round, and of nothing else.
  np.testing.assert_array_equal(keys[:2], keys[2:])
  assert np.argsort(keys[0]).tolist() != np.argsort(keys[1]).tolist()
