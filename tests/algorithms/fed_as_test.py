"""FedAS: backbones are aligned, and clients count by Fisher information."""

import dataclasses

import numpy as np
import pytest
from numpy.testing import assert_allclose

from tests.fixtures import trees
from tff_shift.algorithms import fed_as
from tff_shift.learning import local_training
from tff_shift.learning import randomness

pytestmark = pytest.mark.slow


HPARAMS = fed_as.HParams(
  local_steps=2,
  batch_size=4,
  learning_rate=0.2,
  # Neither counts in published alignment.
  momentum=0.9,
  alignment_learning_rate=0.5,
)
PLAIN = dataclasses.replace(HPARAMS, momentum=0.0)
ROUND = 3
# Nor does decay.
ALIGNED = dataclasses.replace(
  HPARAMS, predict_with="aligned", optimizer="adam", weight_decay=0.1
)


@pytest.fixture(scope="module")
def client(make_client):
  return make_client(0, [10], y=[0, 1, 2, 0, 0, 0, 2, 0, 0, 0])


@pytest.fixture(scope="module")
def received(weights):
  return weights.backbone


@pytest.fixture(scope="module")
def train(build, received, client):
  """Returns `train(hparams, personal)`, a client's result."""

  def run(hparams, personal):
    return build(hparams).train_client(received, personal, client, ROUND)

  return run


def align(oracle, client, received, personal, batches):
  """Step 1 in NumPy."""
  means = oracle.class_means(
    oracle.embed(personal.backbone, client.x), client.y
  )

  def loss_of(batch):
    def loss(w):
      features = oracle.embed(w.backbone, batch.x)
      return sum(
        np.mean((features[batch.y == k] - means[k]) ** 2)
        for k in np.unique(batch.y)
      )

    return loss

  aligned, _ = oracle.descend(
    personal._replace(backbone=received),
    [loss_of(b) for b in batches],
    0.5,
    "backbone",
  )
  return aligned


def test_published_aligns_trains_and_counts_by_its_fisher_information(
  received, personal, client, train, oracle, compare
):
  result = train(PLAIN, personal)
  # 10 examples are three batches of 4.
  aligned = align(
    oracle, client, received, personal, oracle.of_training(client, 3, ROUND, 0)
  )
  trained, loss = oracle.descend(
    aligned, oracle.losses(oracle.of_training(client, 2, ROUND, 1)), 0.2
  )
  compare.assert_close(result.client_state, trained, 1e-5)
  oracle.check(result, received, trained.backbone, loss)
  slopes = [
    oracle.gradient(nll, trained)
    for nll in oracle.losses(oracle.of_training(client, 3, ROUND, 2))
  ]
  trace = trees.inner(slopes, slopes)
  assert_allclose(result.weight, trace, rtol=1e-4)


@pytest.mark.parametrize("alignment_steps, number", [(0, 3), (1, 1)])
def test_published_prediction_may_be_with_what_the_next_round_trains(
  build, received, personal, client, oracle, compare, alignment_steps, number
):
  prepared = build(ALIGNED, alignment_steps=alignment_steps).prepare_client(
    received, personal, client, ROUND
  )
  batches = oracle.batches(
    client, number, randomness.Purpose.PERSONALIZE, ROUND
  )
  expected = align(oracle, client, received, personal, batches)
  compare.assert_close(prepared, expected, 1e-5)
  assert compare.equal_bits(prepared.head, personal.head)


@pytest.mark.parametrize("variant", ["published", "program"])
def test_published_client_that_has_never_trained_does_not_align(
  build, model, received, client, train, run_in_graph, compare, variant
):
  hparams = dataclasses.replace(HPARAMS, variant=variant)
  first = build(hparams).initial_client_state(client.seed, received)
  assert compare.equal_bits(first.backbone, received)
  found = train(hparams, first)

  def plain(weights, data):
    return local_training.train_on_pool(
      model.predict,
      weights,
      data,
      2,
      randomness.fold(data.seed, randomness.Purpose.TRAIN, ROUND, 1),
      hparams,
    ).weights

  assert compare.equal_bits(
    found.client_state, run_in_graph(plain, first, client)
  )


def test_program_aligns_each_example_as_it_trains(
  received, personal, client, train, oracle, compare
):
  # A quarter of eight steps.
  hparams = dataclasses.replace(
    PLAIN, variant="program", local_steps=8, weight_decay=0.1
  )
  result = train(hparams, personal)

  def distance(batch):
    return lambda w: (
      np.mean(
        (
          oracle.embed(w.backbone, batch.x)
          - oracle.embed(personal.backbone, batch.x)
        )
        ** 2
      )
    )

  aligned, _ = oracle.descend(
    personal._replace(backbone=received),
    [distance(b) for b in oracle.of_training(client, 2, ROUND, 0)],
    0.2,
    "backbone",
    decay=0.1,
  )
  batches = oracle.of_training(client, 8, ROUND, 1)
  trained, _ = oracle.descend(aligned, oracle.losses(batches), 0.2, decay=0.1)
  compare.assert_close(result.client_state, trained, 1e-5)


@pytest.mark.parametrize(
  "client_weighting, weight", [("uniform", 1), ("num_examples", 10)]
)
def test_program_clients_count_as_told(
  train, personal, client_weighting, weight
):
  hparams = dataclasses.replace(
    HPARAMS, variant="program", client_weighting=client_weighting
  )
  assert train(hparams, personal).weight == weight


@pytest.mark.parametrize(
  "changes, expected",
  [
    ({}, "trained"),
    ({"variant": "program"}, "received"),
    ({"predict_with": "received"}, "received"),
    ({"variant": "program", "predict_with": "trained"}, "trained"),
  ],
)
def test_client_predicts_with_the_model_of_the_variant_unless_told(
  build, received, personal, client, oracle, changes, expected
):
  functions = build(HPARAMS, **changes)
  prepare = functions.prepare_client or (lambda *_: personal)
  prepared = prepare(received, personal, client, ROUND)
  backbone = personal.backbone if expected == "trained" else received
  assert_allclose(
    functions.predict_as_client(received, prepared, client, client),
    oracle.predict(personal._replace(backbone=backbone), client.x),
    atol=1e-5,
  )
