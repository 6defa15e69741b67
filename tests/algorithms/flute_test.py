"""FLUTE: heads that stay at home and are pushed towards a simplex."""

import dataclasses

import numpy as np
import pytest

from tests.fixtures import trees
from tff_shift.algorithms import flute

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


def test_weights_of_zeros_stay_numbers(run_in_graph):
  moved, _ = run_in_graph(
    lambda *head: flute.step_to_simplex(head, np.ones(3, np.float32), 0.5),
    np.zeros((4, 3), np.float32),
    np.zeros(3, np.float32),
  )
  assert np.isfinite(moved).all()


@pytest.mark.parametrize("feature_norm", ["mean", "sum"])
def test_head_first_then_all_then_the_server_step(
  build, make_client, oracle, compare, feature_norm, initial
):
  over_batch = getattr(np, feature_norm)
  client = make_client(0, [6, 5], y=[0, 2] * 5 + [0])
  present = np.array([1, 0, 1])
  weights = initial(client.seed)
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
    oracle.of_training(client, 2, ROUND, part) for part in range(2)
  )
  expected, _ = oracle.descend(
    weights, [loss_of(batch, 0.0) for batch in for_head], 0.1, "head"
  )
  expected, mean_loss = oracle.descend(
    expected, [loss_of(batch, 0.01) for batch in for_all], 0.1
  )
  kernel, bias = expected.head
  slope = oracle.gradient(lambda w: distance(w, present), kernel)
  compare.assert_close(
    result.client_state, (kernel - 0.025 * slope, bias), 1e-5
  )
  oracle.check(result, weights.backbone, expected.backbone, mean_loss)


def test_shared_head_is_the_mean_and_clients_are_as_without(
  start, make_client, run_for_each, compare, functions
):
  clients = [make_client(i, [5 + i]) for i in range(3)]
  run = start(dataclasses.replace(HPARAMS, share_head=True), clients)
  backbone, heads = run.server_state.weights.backbone, list(run.client_states)
  # Heads that start apart would pull the backbone apart.
  assert compare.equal_bits(heads[0], heads[1])
  run.step()
  alone = [
    result.client_state
    for result in run_for_each(
      functions.train_client,
      [
        (backbone, head, client, np.int32(0))
        for head, client in zip(heads, clients, strict=True)
      ],
    )
  ]
  compare.assert_close(run.client_states, alone, 1e-6)
  found = run.server_state.weights
  compare.assert_close(found.head, trees.mean(*alone), 1e-6)
  assert not compare.equal_bits(found.backbone, backbone)
  assert run.algorithm.evaluate_server is not None
  assert functions.predict_as_server is None
