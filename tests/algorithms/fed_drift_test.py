"""FedDrift: models are opened for drifts, merged, and trained on all steps."""

import dataclasses

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest
import scipy.cluster.hierarchy
import scipy.spatial.distance
import tensorflow as tf
from numpy.testing import assert_allclose
from numpy.testing import assert_array_equal

from tests.fixtures import trees
from tff_shift.algorithms import fed_avg
from tff_shift.algorithms import fed_drift
from tff_shift.learning.aggregators import client_slots

pytestmark = pytest.mark.slow

RATE = 0.3
COMMON = {"batch_size": 4, "local_steps": 2, "learning_rate": RATE}
NUM_CLIENTS = 3
HPARAMS = fed_drift.HParams(num_models=3, **COMMON)
NOTHING = fed_drift._NO_LOSS


def table(rows):
  """A row is the number, into, owner, step of a place."""
  return np.float32([row.split() for row in rows.split(",")])


def known(numbers, step, best, has_drifted=False):
  """The state of a client with the models of its first steps."""
  padded = np.full(fed_drift._MAX_STEPS, -1, np.int32)
  padded[: len(numbers)] = numbers
  return fed_drift.ClientState(
    padded, np.int32(step), np.float32(best), np.bool_(has_drifted)
  )


@pytest.fixture(scope="module")
def models(initial):
  """Three different models."""
  return trees.stack(*map(initial, range(3)))


@pytest.fixture(scope="module")
def functions(build):
  return build(HPARAMS, num_clients=NUM_CLIENTS)


@pytest.mark.parametrize(
  "rows, drifts, best, eager, expected, copied_from",
  [
    # Each client that drifts gets a copy of its best model.
    (
      "0 0 -1 3, -1 1 -1 -1, -1 2 -1 -1",
      "0 1 1",
      "0 0 0",
      False,
      "0 0 -1 4, 1 1 1 4, 2 2 2 4",
      "0 0 0",
    ),
    # Eager clients share one.
    (
      "0 0 -1 3, -1 1 -1 -1, -1 2 -1 -1",
      "0 1 1",
      "0 0 0",
      True,
      "0 0 -1 4, 1 1 3 4, -1 2 -1 -1",
      "0 0 2",
    ),
    # Without a drift only steps and owners change.
    (
      "0 0 -1 3, 1 1 2 3, -1 2 -1 -1",
      "0 0 0",
      "1 1 1",
      False,
      "0 0 -1 3, 1 1 -1 4, -1 2 -1 -1",
      "0 1 2",
    ),
    # The model that was chosen least recently is replaced.
    (
      "5 0 -1 3, 4 1 -1 2, 7 2 -1 3",
      "1 0 0",
      "0 2 2",
      False,
      "5 0 -1 4, 8 1 0 4, 7 2 -1 4",
      "0 0 2",
    ),
    # Merged places are taken first.
    (
      "5 0 -1 1, 6 0 -1 3, 7 2 -1 2",
      "1 0 0",
      "2 2 2",
      False,
      "5 0 -1 1, 8 1 0 4, 7 2 -1 4",
      "0 2 2",
    ),
    # Then the least recent model, and what was merged into it is gone.
    (
      "5 0 -1 1, 6 0 -1 1, 7 2 -1 2, 8 0 -1 1",
      "1 1 1",
      "2 2 2",
      False,
      "11 0 2 4, 9 1 0 4, 7 2 -1 4, 10 3 1 4",
      "2 2 2 2",
    ),
    # A client stays if all models are chosen.
    ("0 0 -1 3, 1 1 -1 3", "1 0", "0 1", False, "0 0 -1 4, 1 1 -1 4", "0 1"),
  ],
)
def test_open_models_places_and_copies_by_hand(
  run_in_graph, rows, drifts, best, eager, expected, copied_from
):
  drifts, best, copied_from = (
    np.float32(each.split()) for each in (drifts, best, copied_from)
  )
  models = np.arange(len(copied_from), dtype=np.float32)[:, np.newaxis]
  found = run_in_graph(
    lambda *each: fed_drift.open_models(*each, eager),
    fed_drift.Weights(models, table(rows)),
    fed_drift.Report(drifts, best, np.full_like(best, 4)),
    np.ones_like(drifts),
  )
  assert_array_equal(found.table, table(expected))
  assert_array_equal(found.models[:, 0], copied_from)


@pytest.mark.parametrize(
  "sums, counts, expected",
  [
    # L_jk of model j on data of k: L_00 = 1, L_01 = 3, L_10 = 2, L_11 = 0.5,
    # and max(3 - 1, 2 - 0.5, 0).
    ([[2, 4], [12, 2]], [2, 4], [[0, 2], [2, 0]]),
    # A model that is better everywhere: max(2 - 1, 0 - 1, 0).
    ([[1, 0], [2, 1]], [1, 1], [[0, 1], [1, 0]]),
    # Without examples.
    ([[1, 1], [0, 0]], [1, 0], [[0, np.inf], [np.inf, np.inf]]),
  ],
)
def test_merging_distances_by_hand(run_in_graph, sums, counts, expected):
  losses = fed_drift.Losses(np.float32(sums), np.float32(counts))
  found = run_in_graph(fed_drift.distances, losses)
  assert_array_equal(found, expected)


@hypothesis.given(st.integers(0, 10_000), st.floats(0.05, 1.2))
@hypothesis.settings(
  max_examples=30,
  deadline=None,
  suppress_health_check=[hypothesis.HealthCheck.function_scoped_fixture],
)
def test_merging_clusters_are_those_of_scipy(run_in_graph, seed, threshold):
  points = np.random.default_rng(seed).random((7, 2))
  distance = scipy.spatial.distance.pdist(points)
  expected = scipy.cluster.hierarchy.fcluster(
    scipy.cluster.hierarchy.linkage(distance, "complete"), threshold, "distance"
  )
  found = run_in_graph(
    fed_drift.link,
    np.float32(scipy.spatial.distance.squareform(distance)),
    np.ones(7, bool),
    np.float32(threshold),
  )
  for i, own in enumerate(expected):
    assert found[i] == np.flatnonzero(expected == own)[0]


def test_merging_means_are_weighted_by_examples_and_others_keep_their_bits(
  run_in_graph, models, compare
):
  four = trees.stack(*(trees.row(models, k) for k in (0, 1, 2, 0)))
  # The third was just opened, for client 1; places 0 and 3 are alike.
  weights = fed_drift.Weights(
    four, table("0 0 -1 1, 1 1 -1 1, 2 2 1 1, 3 3 -1 2")
  )
  counts = np.float32([1, 2, 3, 3])
  means = np.float32([[1, 9, 1, 1], [9, 1, 9, 9], [1, 9, 1, 1], [1, 9, 1, 1]])
  losses = fed_drift.Losses(means * counts[:, np.newaxis], counts)
  changed = weights._replace(
    models=trees.map(
      lambda w: np.stack([w[0], w[1], w[2], 5 * w[3]]), weights.models
    )
  )
  found = run_in_graph(
    lambda *each: fed_drift.merge(*each, 0.5), changed, losses
  )
  assert found.table.astype(int)[:, 1].tolist() == [0, 1, 2, 0]
  # The newest of its members' steps.
  assert found.table.astype(int)[:, 3].tolist() == [2, 1, 1, 2]
  for k in (1, 2, 3):
    assert compare.equal_bits(
      trees.row(found.models, k), trees.row(changed.models, k)
    )
  # (1 + 3 * 5) / 4 = 4.
  expected = trees.scale(trees.row(models, 0), 4)
  compare.assert_close(trees.row(found.models, 0), expected, 1e-6)


# The first round of step 1, of clients with data of two models.
ROUND = 1
TABLE = "4 0 -1 0, 7 1 -1 0, -1 2 -1 -1"


@pytest.fixture(scope="module")
def clients(make_client):
  return [make_client(i, [4 + i, 3 + i]) for i in range(NUM_CLIENTS)]


@pytest.fixture(scope="module")
def weights(models):
  return fed_drift.Weights(models, table(TABLE))


@pytest.fixture(scope="module")
def losses(models, clients, oracle):
  """The loss of each model on each example, by client."""
  return [oracle.example_losses(models, client) for client in clients]


@pytest.fixture(scope="module")
def best(clients, losses):
  """The smallest loss on the data of step 1, and its model."""
  found = []
  for client, each in zip(clients, losses, strict=True):
    means = each[client.domain_sizes[0] :, :2].mean(axis=0)
    found.append((means.min(), means.argmin()))
  return found


@pytest.fixture(scope="module")
def states(best):
  # The first one drifts, the second just not; the third has no model yet.
  return [
    known([7], 0, best[0][0] - 0.51),
    known([4], 0, best[1][0] - 0.49),
    known([], -1, NOTHING),
  ]


def run_survey(functions, number, weights, states, clients):
  survey_client = functions.surveys[number].survey_client
  return [
    survey_client(weights, *each, ROUND)
    for each in zip(states, clients, strict=True)
  ]


@pytest.fixture(scope="module")
def looked(functions, weights, states, clients):
  return run_survey(functions, 0, weights, states, clients)


@pytest.fixture(scope="module")
def opened(weights, looked, run_in_graph):
  slots = client_slots.total(
    [each.plaintext_sum for each in looked], NUM_CLIENTS
  )
  return run_in_graph(
    lambda *each: fed_drift.open_models(*each, False), weights, *slots
  )


def test_round_clients_report_drifts(looked, best, losses, clients):
  for number, found in enumerate(looked):
    assert found.has_trained
    state, report = found.client_state, found.plaintext_sum.value
    assert_allclose(state.best, best[number][0], rtol=1e-5)
    assert state.step == 1 and state.has_drifted == (number == 0)
    assert found.plaintext_sum.number == number + 1
    assert report.has_drifted == (number == 0)
    assert report.best == best[number][1]
    assert report.step == 1
  names = np.array([4, 7])
  first = losses[2][: clients[2].domain_sizes[0], :2].mean(axis=0).argmin()
  assert [each.client_state.numbers[:3].tolist() for each in looked] == [
    [7, names[best[0][1]], -1],
    [4, names[best[1][1]], -1],
    [names[first], names[best[2][1]], -1],
  ]


def places_of(best, losses, clients):
  """The model of each example of each client; the new one is a copy."""
  first = losses[2][: clients[2].domain_sizes[0], :2].mean(axis=0).argmin()
  pairs = [(1, 2), (0, best[1][1]), (first, best[2][1])]
  return [
    np.repeat(pair, client.domain_sizes)
    for pair, client in zip(pairs, clients, strict=True)
  ]


def test_round_clients_report_the_losses_of_models(
  functions, looked, opened, best, losses, clients
):
  states = [each.client_state for each in looked]
  reported = run_survey(functions, 1, opened, states, clients)
  for found, each, place in zip(
    reported, losses, places_of(best, losses, clients), strict=True
  ):
    # The new model is a copy.
    each = np.stack([each[:, 0], each[:, 1], each[:, best[0][1]]], axis=1)
    for k in range(3):
      assert_allclose(
        found.plaintext_sum.sums[k], each[place == k].sum(axis=0), rtol=1e-5
      )
      assert found.plaintext_sum.counts[k] == np.sum(place == k)


@pytest.mark.parametrize("weighting", ["uniform", "num_examples"])
def test_round_training_agrees_with_the_oracle(
  build, looked, opened, best, losses, clients, oracle, compare, weighting
):
  functions = build(
    HPARAMS, num_clients=NUM_CLIENTS, client_weighting=weighting
  )
  all_places = places_of(best, losses, clients)
  totals = trees.map(lambda w: np.zeros(w.shape, np.float64), opened.models)
  weight_of_model = np.zeros(3)
  results = []
  for number, (client, place) in enumerate(
    zip(clients, all_places, strict=True)
  ):
    result = functions.train_client(
      opened, looked[number].client_state, client, ROUND
    )
    results.append(result.update)
    loss_sum = 0.0
    for k in np.unique(place):
      own = place == k
      sizes = [part.sum() for part in np.split(own, client.domain_sizes[:1])]
      part = client._replace(
        x=client.x[own],
        y=client.y[own],
        domain_sizes=np.int32(sizes),
        num_examples=np.int32(own.sum()),
      )
      steps = 2 * np.count_nonzero(sizes)
      batches = oracle.of_training(part, steps, ROUND)
      start = trees.row(opened.models, k)
      trained, loss = oracle.descend(start, oracle.losses(batches), RATE)
      loss_sum += loss * own.sum()
      weight = own.sum() if weighting == "num_examples" else 1
      weight_of_model[k] += weight
      for total, new, old in trees.pairs(totals, trained, start):
        total[k] += weight * (new - old)
    assert_allclose(result.loss, loss_sum / len(place), rtol=1e-5)
    assert_array_equal(result.update.members > 0, np.isin(np.arange(3), place))
  weights = [1] * NUM_CLIENTS
  if weighting == "num_examples":
    weights = [len(client.y) for client in clients]
  mean = trees.map(np.float32, trees.mean(*results, weights=weights))
  after, fractions = functions.update_server(opened, mean, (), 0)
  for k in range(3):
    expected = trees.add(
      trees.row(opened.models, k), trees.row(totals, k), 1 / weight_of_model[k]
    )
    compare.assert_close(trees.row(after.models, k), expected, 1e-5)
  assert_array_equal(after.table, opened.table)
  assert_allclose(fractions, weight_of_model / np.sum(weights), rtol=1e-6)


def test_round_later_rounds_of_a_step_report_nothing(
  build, weights, clients, compare
):
  state = known([7, 7], 1, 0.0)
  for survey in build(HPARAMS, num_clients=3, task_rounds=4).surveys:
    result = survey.survey_client(weights, state, clients[0], 3)
    assert not result.has_trained
    assert compare.equal_bits(result.client_state, state)


@pytest.mark.long
@pytest.mark.parametrize("weighting", ["uniform", "num_examples"])
@pytest.mark.parametrize(
  "options",
  [{"num_models": 1, "drift_threshold": 0.0}, {"drift_threshold": 1e9}],
)
def test_without_drifts_the_last_step_is_fed_avg_bit_for_bit(
  start, make_client, compare, weighting, options
):
  data = [make_client(i, [5 + 2 * i, 4]) for i in range(NUM_CLIENTS)]
  common = COMMON | {"client_weighting": weighting}
  run = start(dataclasses.replace(HPARAMS, **common, **options), data, 1)
  plain = start(fed_avg.HParams(**common), data, 1)
  plain.server_state = plain.server_state._replace(
    weights=trees.row(run.server_state.weights.models, 0)
  )
  for _ in range(2):
    assert run.step()["loss"] == plain.step()["loss"]
  assert compare.equal_bits(
    trees.row(run.server_state.weights.models, 0), plain.server_state.weights
  )


@pytest.fixture
def run(start, make_client):
  """Returns `run(first_step, **options)`, after twelve rounds.

  Two of four clients have reversed labels, from the step on.
  """

  def run(first_step, **options):
    direction = np.random.default_rng(0).normal(size=(5, 3))
    data = [make_client(i, [40] * 4) for i in range(4)]
    for number, client in enumerate(data):
      client.y[:] = np.argmax(client.x @ direction, axis=1)
      if number < 2:
        client.y[40 * first_step :] = 2 - client.y[40 * first_step :]
    hparams = fed_drift.HParams(
      task_rounds=12,
      batch_size=40,
      local_steps=10,
      learning_rate=RATE,
      **options,
    )
    return start(hparams, data, 12)

  return run


@pytest.mark.long
@pytest.mark.parametrize(
  "options",
  [{}, {"eager": True}, {"criterion": "error", "drift_threshold": 0.2}],
)
def test_two_concepts_drift_opens_a_model_that_both_clients_share(run, options):
  drifted = run(2, **options)
  numbers = [state.numbers[:4].tolist() for state in drifted.client_states]
  assert numbers[2] == numbers[3] == [0, 0, 0, 0]
  for own in numbers[:2]:
    assert own[:2] == [0, 0] and own[2] == own[3] == numbers[0][3] > 0
  assert_allclose(np.sort(drifted.server_state.memory)[-2:], [0.5, 1])


def test_models_of_clients_are_merged_to_one_per_concept(run):
  states = run(0, start="clients", num_models=6).client_states
  numbers = [int(state.numbers[3]) for state in states]
  assert numbers[0] == numbers[1] != numbers[2] == numbers[3]
  # All data of a client moved to the merged model.
  for state, number in zip(states, numbers, strict=True):
    assert state.numbers[:4].tolist() == [number] * 4


def test_prediction_is_by_the_model_of_the_newest_data(
  functions, models, make_client, oracle
):
  client, other = make_client(0, [4, 5]), make_client(1, [7])
  weights = fed_drift.Weights(models, table("4 0 -1 0, 7 0 -1 0, 8 2 -1 1"))
  for state, number in (
    (known([4, 8], 1, 0.0), 2),
    # Model 7 was merged into model 4.
    (known([8, 7], 1, 0.0), 0),
  ):
    prepared = functions.prepare_client(weights, state, client, 2)
    assert_allclose(
      functions.predict_as_client(weights, prepared, client, other),
      oracle.predict(trees.row(models, number), other.x),
      atol=1e-5,
    )


def test_client_that_joins_takes_the_best_for_its_newest_data(
  functions, models, make_client, oracle, compare
):
  client = make_client(0, [4, 5])
  weights = fed_drift.Weights(models, table(TABLE))
  best = oracle.example_losses(models, client)[4:, :2].mean(axis=0).argmin()
  for state in (known([], -1, NOTHING), known([4], 0, 0.0)):
    prepared = functions.prepare_client(weights, state, client, 2)
    assert compare.equal_bits(prepared, trees.row(models, best))
  # Before the second step, the model of the first one.
  prepared = functions.prepare_client(weights, known([7], 0, 0.0), client, 1)
  assert compare.equal_bits(prepared, trees.row(models, 1))


def test_more_steps_than_states_have_are_refused(
  functions, shared, make_client
):
  client = make_client(0, [1] * (fed_drift._MAX_STEPS + 1))
  with pytest.raises(
    tf.errors.InvalidArgumentError, match="at most 1000 domains"
  ):
    functions.train_client(shared, known([], -1, NOTHING), client, 0)
