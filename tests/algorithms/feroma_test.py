"""Feroma: clients train from the models of clients with similar profiles."""

import dataclasses

import numpy as np
import pytest
from numpy.testing import assert_allclose

from tests.fixtures import trees
from tff_shift.algorithms import fed_avg
from tff_shift.algorithms import feroma
from tff_shift.learning.aggregators import client_slots

pytestmark = pytest.mark.slow

RATE = 0.3
NUM_CLIENTS = 3
COMMON = {"batch_size": 4, "local_steps": 2, "learning_rate": RATE}
HPARAMS = feroma.HParams(warm_up_rounds=2, **COMMON)
ROUND = 4


def numpy_profile(embeddings, y, num_classes=3):
  parts = [embeddings, *(embeddings[y == c] for c in range(num_classes))]
  nothing = np.zeros(2 * embeddings.shape[1])
  return np.concatenate(
    [
      np.concatenate([each.mean(axis=0), each.std(axis=0)])
      if len(each)
      else nothing
      for each in parts
    ]
  )


def mixed(weights, w):
  """The mean of the first two models."""
  models = (trees.row(weights.models, k) for k in range(2))
  return trees.mean(*models, weights=w)


def profile_of(oracle, extractor, client):
  return numpy_profile(oracle.embed(extractor, client.x), client.y)


@pytest.fixture(scope="module")
def weights(clients, oracle, initial):
  """Three models; the last one's profile is of the warm-up."""
  made = list(map(initial, range(5)))
  # Near to the client of the round, whose id is the next one.
  profiles = [
    profile_of(oracle, made[4].backbone, clients[(i + 1) % NUM_CLIENTS])
    + 0.01 * i
    for i in range(NUM_CLIENTS)
  ]
  return feroma.Weights(
    mean=made[3],
    extractor=made[4].backbone,
    models=trees.stack(*made[:3]),
    profiles=np.float32(profiles),
    written=np.float32([4, 2, 1]),
  )


@pytest.fixture(scope="module")
def functions(build):
  return build(HPARAMS, num_clients=NUM_CLIENTS)


@pytest.fixture(scope="module")
def clients(make_client):
  return [make_client(i, [7]) for i in range(NUM_CLIENTS)]


def test_profile_agrees_with_numpy(run_in_graph):
  generator = np.random.default_rng(0)
  embeddings = np.float32(100 + generator.normal(size=(9, 4)))
  y = np.int32([0, 2, 0, 2, 2, 0, 0, 2, 0])  # None is of class 1.
  found = run_in_graph(lambda e, y: feroma.profile(e, y, 3), embeddings, y)
  assert_allclose(found, numpy_profile(np.float64(embeddings), y), rtol=1e-4)
  assert not found[16:24].any()
  # The part without labels comes first.
  np.testing.assert_array_equal(
    run_in_graph(feroma.moments, embeddings), found[:8]
  )


@pytest.mark.parametrize(
  "distance, is_known, threshold, expected",
  [
    # 1 / (1 + e^-1).
    ([0, 1, 0], [1, 1, 0], 0.0, [0.731059, 0.268941, 0]),
    ([0, 1, 0], [1, 1, 0], 0.3, [1, 0, 0]),
    ([5, 5, 5], [1, 1, 1], 0.3, [1 / 3] * 3),
    ([5, 5, 5], [1, 1, 1], 0.4, [0] * 3),
    ([5, 5, 5], [0, 0, 0], 0.0, [0] * 3),
    ([1000, 1001, 1e9], [1, 1, 1], 0.0, [0.731059, 0.268941, 0]),
  ],
)
def test_association_by_hand(
  run_in_graph, distance, is_known, threshold, expected
):
  found = run_in_graph(
    lambda *each: feroma.associate(*each, threshold),
    np.float32(distance),
    np.array(is_known, bool),
  )
  assert_allclose(found, expected, atol=1e-6)


@pytest.mark.parametrize("threshold", [0.05, 0.9, 1.1])
def test_round_agrees_with_the_oracle(
  build, weights, clients, oracle, compare, round_by_hand, threshold
):
  results, new, _ = round_by_hand(
    build(HPARAMS, num_clients=NUM_CLIENTS, threshold=threshold),
    weights,
    [()] * 3,
    clients,
    ROUND,
    NUM_CLIENTS,
  )
  trained, profiles = [], []
  for client, result in zip(clients, results, strict=True):
    own = profile_of(oracle, weights.extractor, client)
    # The third client's profile is of another extractor.
    w = np.exp(-np.linalg.norm(weights.profiles[:2] - own, axis=1))
    w /= w.sum()
    w[w < threshold] = 0
    first = mixed(weights, w) if w.any() else weights.mean
    batches = oracle.of_training(client, 2, ROUND)
    after, loss = oracle.descend(first, oracle.losses(batches), RATE)
    oracle.check(result, weights.mean, after, loss, 1e-4)
    trained.append(after)
    profiles.append(own)
  compare.assert_close(new.models, trees.stack(*trained), 1e-4)
  compare.assert_close(new.mean, trees.mean(*trained), 1e-4)
  assert_allclose(new.profiles, profiles, atol=1e-4)
  assert new.written.tolist() == [5, 5, 5]
  assert compare.equal_bits(new.extractor, weights.extractor)


def test_round_client_outside_of_the_cohort_keeps_its_row(
  functions, weights, clients, compare
):
  sent = functions.train_client(weights, (), clients[1], ROUND)
  updated = functions.update_server(
    weights,
    sent.update,
    client_slots.total([sent.plaintext_sum], NUM_CLIENTS),
    ROUND,
  )
  assert updated.written.tolist() == [4, 5, 1]
  for number in (0, 2):
    assert compare.equal_bits(
      *(
        trees.row((state.models, state.profiles), number)
        for state in (updated, weights)
      )
    )


def test_round_noise_is_added_to_the_sent_profile_alone(
  build, weights, clients, compare
):
  plain, noisy = (
    build(HPARAMS, num_clients=3, profile_noise=noise).train_client(
      weights, (), clients[0], ROUND
    )
    for noise in (0.0, 0.5)
  )
  assert compare.equal_bits(plain.update, noisy.update)
  difference = noisy.plaintext_sum.value[1] - plain.plaintext_sum.value[1]
  assert abs(difference.std() - 0.5) < 0.15


@pytest.fixture
def data(make_client):
  return [make_client(i, [5 + 2 * i]) for i in range(NUM_CLIENTS)]


@pytest.mark.parametrize("weighting", ["uniform", "num_examples"])
def test_warm_up_is_fed_avg_bit_for_bit(start, data, compare, weighting):
  common = COMMON | {"client_weighting": weighting}
  run = start(feroma.HParams(warm_up_rounds=3, **common), data)
  plain = start(fed_avg.HParams(**common), data)
  for _ in range(3):
    received = plain.server_state.weights.backbone
    assert run.step()["loss"] == plain.step()["loss"]
    assert compare.equal_bits(
      run.server_state.weights.mean, plain.server_state.weights
    )
  # What clients received in the last of them.
  for _ in range(2):
    assert compare.equal_bits(run.server_state.weights.extractor, received)
    losses = run.step()["loss"], plain.step()["loss"]
  assert losses[0] != losses[1]


def test_a_threshold_above_one_is_fed_avg_bit_for_bit(start, data, compare):
  hparams = dataclasses.replace(HPARAMS, threshold=1.5, warm_up_rounds=0)
  run, plain = (
    start(each, data, 3).server_state.weights
    for each in (hparams, fed_avg.HParams(**COMMON))
  )
  assert compare.equal_bits(run.mean, plain)


def test_prediction_by_training_data_near_models_are_mixed(
  functions, weights, clients, make_client, oracle
):
  client, other = clients[0], make_client(9, [6])
  own = profile_of(oracle, weights.extractor, client)
  w = np.exp(-np.linalg.norm(weights.profiles[:2] - own, axis=1))
  w[w / w.sum() < HPARAMS.threshold] = 0
  expected = mixed(weights, w)
  prepared = functions.prepare_client(weights, (), client, ROUND)
  assert_allclose(
    functions.predict_as_client(weights, prepared, client, other),
    oracle.predict(expected, other.x),
    atol=1e-4,
  )


def test_prediction_by_inputs_the_nearest_profile_without_labels_decides(
  build, weights, clients, oracle
):
  functions = build(HPARAMS, num_clients=3, assignment="inputs")
  assert functions.prepare_client is None and functions.predicts_batches
  found = []
  for client in clients:
    logits = functions.predict_as_client(weights, (), clients[0], client)
    own = profile_of(oracle, weights.extractor, client)[:16]
    nearest = np.linalg.norm(weights.profiles[:2, :16] - own, axis=1).argmin()
    found.append(nearest)
    expected = oracle.predict(trees.row(weights.models, nearest), client.x)
    assert_allclose(logits, expected, atol=1e-4)
  # The profiles are those of the next clients.
  assert found[1:] == [0, 1]


@pytest.mark.parametrize("assignment", ["training", "inputs"])
def test_prediction_without_a_profile_it_is_the_mean_model(
  build, weights, clients, oracle, assignment
):
  functions = build(HPARAMS, num_clients=3, assignment=assignment)
  nothing = weights._replace(written=np.zeros(3, np.float32))
  prepare = functions.prepare_client or (lambda *_: ())
  prepared = prepare(nothing, (), clients[0], ROUND)
  logits = functions.predict_as_client(
    nothing, prepared, clients[0], clients[1]
  )
  assert_allclose(logits, oracle.predict(weights.mean, clients[1].x), atol=1e-5)
