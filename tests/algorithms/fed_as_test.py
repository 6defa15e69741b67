"""FedAS: backbones are aligned, and clients count by Fisher information."""

import dataclasses

import numpy as np
import pytest
import tensorflow as tf
from numpy.testing import assert_allclose

from tests.fixtures import trees
from tff_shift.algorithms import fed_as
from tff_shift.learning import local_training
from tff_shift.learning import randomness
from tff_shift.models import split_model

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
BACKBONE = split_model.SplitWeights((True,) * 2, (False,) * 2)


@pytest.fixture(scope="module")
def client(make_client):
  return make_client(0, [10], y=[0, 1, 2, 0, 0, 0, 2, 0, 0, 0])


@pytest.fixture(scope="module")
def received(model, run_in_graph):
  return run_in_graph(model.initial_backbone, randomness.server_seed(0))


@pytest.fixture(scope="module")
def last(initial):
  """What the client has of its last round: other weights."""
  return initial(1)


@pytest.fixture(scope="module")
def train(build, received, client):
  """Returns `train(hparams, last)`, a client's result."""

  def run(hparams, last):
    return build(hparams).train_client(received, last, client, ROUND)

  return run


def part_of(part):
  return randomness.Purpose.TRAIN, ROUND, part


TO_PREDICT = randomness.Purpose.PERSONALIZE, ROUND


def align(oracle, client, received, last, batches):
  """Step 1 in NumPy."""
  means = oracle.class_means(oracle.embed(last.backbone, client.x), client.y)

  def loss_of(batch):
    def loss(w):
      features = oracle.embed(w.backbone, batch.x)
      return sum(
        np.mean((features[batch.y == k] - means[k]) ** 2)
        for k in np.unique(batch.y)
      )

    return loss

  weights = split_model.SplitWeights(received, last.head)
  aligned, _ = oracle.descend(
    weights, [loss_of(b) for b in batches], 0.5, BACKBONE
  )
  return aligned


class TestPublished:
  def test_aligns_trains_and_counts_by_its_fisher_information(
    self, received, last, client, train, oracle, compare
  ):
    result = train(PLAIN, last)
    # 10 examples are three batches of 4.
    aligned = align(
      oracle, client, received, last, oracle.batches(client, 3, *part_of(0))
    )
    trained, loss = oracle.descend(
      aligned, oracle.losses(oracle.batches(client, 2, *part_of(1))), 0.2
    )
    compare.assert_close(result.client_state, trained, 1e-5)
    oracle.check(result, received, trained.backbone, loss)
    slopes = [
      oracle.gradient(nll, trained)
      for nll in oracle.losses(oracle.batches(client, 3, *part_of(2)))
    ]
    trace = trees.inner(slopes, slopes)
    assert_allclose(result.weight, trace, rtol=1e-4)

  @pytest.mark.parametrize("alignment_steps, number", [(0, 3), (1, 1)])
  def test_prediction_may_be_with_what_the_next_round_trains(
    self,
    build,
    received,
    last,
    client,
    oracle,
    compare,
    alignment_steps,
    number,
  ):
    prepared = build(ALIGNED, alignment_steps=alignment_steps).prepare_client(
      received, last, client, ROUND
    )
    batches = oracle.batches(client, number, *TO_PREDICT)
    expected = align(oracle, client, received, last, batches)
    compare.assert_close(prepared, expected, 1e-5)
    assert compare.equal_bits(prepared.head, last.head)

  @pytest.mark.parametrize("variant", ["published", "program"])
  def test_client_that_has_never_trained_does_not_align(
    self, build, model, received, client, train, run_in_graph, compare, variant
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
        randomness.fold(data.seed, *part_of(1)),
        hparams,
      ).weights

    assert compare.equal_bits(
      found.client_state, run_in_graph(plain, first, client)
    )


class TestProgram:
  def test_aligns_each_example_as_it_trains(
    self, received, last, client, train, oracle, compare
  ):
    # A quarter of eight steps.
    hparams = dataclasses.replace(
      PLAIN, variant="program", local_steps=8, weight_decay=0.1
    )
    result = train(hparams, last)

    def distance(batch):
      return lambda w: (
        np.mean(
          (
            oracle.embed(w.backbone, batch.x)
            - oracle.embed(last.backbone, batch.x)
          )
          ** 2
        )
      )

    def with_decay(losses, chosen):
      return [
        lambda w, loss=loss: (
          loss(w) + 0.05 * trees.inner(chosen(w), chosen(w))
        )
        for loss in losses
      ]

    aligned, _ = oracle.descend(
      split_model.SplitWeights(received, last.head),
      with_decay(
        [distance(b) for b in oracle.batches(client, 2, *part_of(0))],
        lambda w: w.backbone,
      ),
      0.2,
      BACKBONE,
    )
    trained, _ = oracle.descend(
      aligned,
      with_decay(
        oracle.losses(oracle.batches(client, 8, *part_of(1))), lambda w: w
      ),
      0.2,
    )
    compare.assert_close(result.client_state, trained, 1e-5)

  @pytest.mark.parametrize(
    "client_weighting, weight", [("uniform", 1), ("num_examples", 10)]
  )
  def test_clients_count_as_told(self, train, last, client_weighting, weight):
    hparams = dataclasses.replace(
      HPARAMS, variant="program", client_weighting=client_weighting
    )
    assert train(hparams, last).weight == weight


class TestPrediction:
  """Which of its models a client is judged by."""

  @pytest.mark.parametrize(
    "changes, expected",
    [
      ({}, "trained"),
      ({"variant": "program"}, "received"),
      ({"predict_with": "received"}, "received"),
      ({"variant": "program", "predict_with": "trained"}, "trained"),
    ],
  )
  def test_model_is_that_of_the_variant_unless_told(
    self, build, received, last, client, oracle, run_in_graph, changes, expected
  ):
    functions = build(HPARAMS, **changes)

    def predict(backbone, last, data):
      prepared = last
      if functions.prepare_client is not None:
        prepared = functions.prepare_client(
          backbone, last, data, tf.constant(ROUND)
        )
      return functions.predict_as_client(backbone, prepared, data, data)

    backbone = last.backbone if expected == "trained" else received
    assert_allclose(
      run_in_graph(predict, received, last, client),
      oracle.predict(last._replace(backbone=backbone), client.x),
      atol=1e-5,
    )
