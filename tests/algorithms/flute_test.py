"""FLUTE: heads that stay at home and are pushed towards a simplex."""

import dataclasses

import numpy as np
import pytest
import tensorflow as tf

from tff_shift import algorithms
from tff_shift.algorithms import flute
from tff_shift.learning import randomness
from tff_shift.models import split_model
from tff_shift.simulation.engine import rounds

pytestmark = pytest.mark.slow

HPARAMS = flute.HParams(
  head_steps=1,
  local_steps=1,
  batch_size=4,
  learning_rate=0.1,
  feature_penalty=0.01,
  head_penalty=0.02,
)
ROUND = 5


def distance(kernel, present):
  """R(W) in NumPy, with W = kernel^T."""
  products = kernel.T @ kernel
  num_classes = len(products)
  simplex = np.eye(num_classes) - 1 / num_classes
  simplex = simplex / np.sqrt(num_classes - 1) * np.outer(present, present)
  return np.linalg.norm(products / np.linalg.norm(products) - simplex)


class TestSimplex:
  def test_distance_is_that_of_the_formula(self, run_in_graph):
    generator = np.random.default_rng(0)
    kernel = generator.normal(size=(4, 3)).astype(np.float32)
    for present in ([1, 1, 1], [1, 0, 1]):
      present = np.array(present, np.float32)
      found = run_in_graph(flute.simplex_distance, kernel, present)
      np.testing.assert_allclose(found, distance(kernel, present), rtol=1e-5)

  def test_step_goes_down_the_gradient(self, run_in_graph, oracle):
    generator = np.random.default_rng(2)
    kernel = generator.normal(size=(4, 3)).astype(np.float32)
    bias = np.array([1, 2, 3], np.float32)
    present = np.array([1, 1, 0], np.float32)
    moved, same = run_in_graph(
      lambda *head: flute.step_to_simplex(head, present, 0.5), kernel, bias
    )
    slope = oracle.gradient(lambda w: distance(w, present), kernel)
    np.testing.assert_allclose(moved, kernel - 0.5 * slope, atol=1e-5)
    assert same.tolist() == bias.tolist()
    assert distance(moved, present) < distance(kernel, present)

  def test_weights_of_zeros_stay_numbers(self, run_in_graph):
    moved, _ = run_in_graph(
      lambda *head: flute.step_to_simplex(head, np.ones(3, np.float32), 0.5),
      np.zeros((4, 3), np.float32),
      np.zeros(3, np.float32),
    )
    assert np.isfinite(moved).all()


class TestTraining:
  @pytest.mark.parametrize("feature_norm", ["mean", "sum"])
  def test_head_first_then_all_then_the_server_step(
    self, build, model, make_client, oracle, run_in_graph, compare, feature_norm
  ):
    over_batch = getattr(np, feature_norm)
    client = make_client(0, [6, 5], y=[0, 2] * 5 + [0])
    present = np.array([1, 0, 1])
    weights = run_in_graph(model.initial_weights, client.seed)
    result = build(HPARAMS, feature_norm=feature_norm).train_client(
      *weights, client, ROUND
    )

    def loss_of(batch, feature_penalty):
      def loss(w):
        features = oracle.embed(w.backbone, batch.x)
        kernel = w.head[0]
        return (
          oracle.cross_entropy(oracle.classify(w.head, features), batch.y)
          + HPARAMS.simplex_penalty * distance(kernel, present)
          + HPARAMS.head_penalty * np.sum(kernel**2)
          + feature_penalty * over_batch(np.sum(features**2, axis=1))
        )

      return loss

    for_head, for_all = (
      oracle.batches(client, 2, randomness.Purpose.TRAIN, ROUND, part)
      for part in range(2)
    )
    only_head = split_model.SplitWeights((False,) * 2, (True,) * 2)
    expected, _ = oracle.descend(
      weights, [loss_of(batch, 0.0) for batch in for_head], 0.1, only_head
    )
    expected, mean_loss = oracle.descend(
      expected, [loss_of(batch, 0.01) for batch in for_all], 0.1
    )
    kernel, bias = expected.head
    slope = oracle.gradient(lambda w: distance(w, present), kernel)
    compare.assert_close(
      result.client_state, (kernel - 0.025 * slope, bias), 1e-5
    )
    compare.assert_close(
      result.update,
      tf.nest.map_structure(np.subtract, expected.backbone, weights.backbone),
      1e-5,
    )
    np.testing.assert_allclose(result.loss, mean_loss, rtol=1e-5)


class TestSharedHead:
  @pytest.fixture(scope="class")
  def hparams(self):
    return dataclasses.replace(HPARAMS, share_head=True)

  @pytest.fixture(scope="class")
  def algorithm(self, model, hparams):
    return algorithms.build(flute, model, hparams)

  def test_server_has_the_mean_and_clients_are_as_without(
    self, build, algorithm, make_client, run_for_each, context, compare
  ):
    clients = [make_client(i, [5 + i]) for i in range(3)]
    run = rounds.Rounds(algorithm, clients, run_seed=0)
    backbone, heads = run.server_state.weights.backbone, list(run.client_states)
    # Heads that start apart would pull the backbone apart.
    assert compare.equal_bits(heads[0], heads[1])
    run.step()
    alone = run_for_each(
      build(HPARAMS).train_client,
      [
        (backbone, head, client, np.int32(0))
        for head, client in zip(heads, clients, strict=True)
      ],
    )
    compare.assert_close(
      run.client_states, [each.client_state for each in alone], 1e-6
    )
    found = run.server_state.weights
    compare.assert_close(
      found.head,
      tf.nest.map_structure(
        lambda *each: np.mean(each, axis=0),
        *(result.client_state for result in alone),
      ),
      1e-6,
    )
    assert not compare.equal_bits(found.backbone, backbone)
    assert algorithm.evaluate_server is not None
    assert build(HPARAMS).predict_as_server is None
