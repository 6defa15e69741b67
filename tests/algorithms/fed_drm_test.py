"""FedDRM: two tasks on one backbone, a head that stays at home."""

import numpy as np
import pytest
import tensorflow_federated as tff
from numpy.testing import assert_array_equal

from tests.fixtures import trees
from tff_shift import algorithms
from tff_shift.algorithms import fed_drm
from tff_shift.learning import randomness
from tff_shift.scenarios.guidance import queries
from tff_shift.simulation.engine import rounds

pytestmark = pytest.mark.slow

NUM_CLIENTS = 4
LAMBDA = 0.7
HPARAMS = fed_drm.HParams(
  lambda_=LAMBDA, local_steps=2, batch_size=4, learning_rate=0.3
)


@pytest.fixture(scope="module")
def clients(make_client):
  return [make_client(i, [6 + 3 * i]) for i in range(NUM_CLIENTS)]


@pytest.fixture(scope="module")
def weights(model, run_in_graph, initial):
  """Weights of all parts; those of the client branch moved off their start."""
  drawn = initial(0)
  branch = run_in_graph(model.initial_client_branch, randomness.server_seed(0))
  branch = trees.add(branch, trees.normal(branch, scale=0.1))
  return fed_drm.Weights(fed_drm.Shared(drawn.backbone, branch), drawn.head)


def client_logits(branch, embeddings):
  """The client branch in NumPy: linear, layer normalisation, ReLU, linear."""
  kernel, bias, scale, offset, last_kernel, last_bias = branch
  x = embeddings @ kernel + bias
  x = (x - x.mean(axis=1, keepdims=True)) / np.sqrt(
    x.var(axis=1, keepdims=True) + 1e-5
  )
  return np.maximum(x * scale + offset, 0) @ last_kernel + last_bias


def test_two_steps_are_those_of_gradient_descent(
  weights, clients, oracle, compare, functions
):
  client = clients[3]

  def loss_of(batch):
    def loss(current):
      embeddings = oracle.embed(current.shared.backbone, batch.x)
      of_classes = oracle.cross_entropy(
        oracle.classify(current.head, embeddings), batch.y
      )
      of_clients = oracle.cross_entropy(
        client_logits(current.shared.client_branch, embeddings),
        [3] * len(batch.y),
      )
      return LAMBDA * of_classes + (1 - LAMBDA) * of_clients

    return loss

  batches = oracle.of_training(client, 2, 3)
  expected, loss = oracle.descend(
    weights, [loss_of(batch) for batch in batches], 0.3
  )
  result = functions.train_client(weights.shared, weights.head, client, 3)
  oracle.check(result, weights.shared, expected.shared, loss)
  compare.assert_close(result.client_state, expected.head, 1e-5)


@pytest.fixture(scope="module")
def run(model, clients, context):
  algorithm = algorithms.build(fed_drm, model, HPARAMS, num_queries=11)
  running = rounds.Rounds(algorithm, clients, run_seed=0)
  running.step()
  return running


@pytest.fixture(scope="module")
def federation(run, clients):
  return queries.Federation(
    run.algorithm, run.server_state, run.client_states, clients
  )


def test_no_head_is_placed_at_the_server(run, model, type_walk):
  algorithm = run.algorithm
  heads = {tuple(shape) for shape in model.head.shapes}
  for computation in (
    algorithm.initialize,
    *algorithm.phases,
    algorithm.evaluate_clients,
    algorithm.guidance.guide,
    algorithm.guidance.answer,
    algorithm.guidance.vote,
  ):
    signature = computation.type_signature
    placed = [
      tensor
      for part in (signature.parameter, signature.result)
      if part is not None
      for value in type_walk.placed(part, tff.SERVER)
      for tensor in type_walk.tensors(value)
    ]
    sent = type_walk.sent_tensors(type_walk.aggregations(computation))
    shapes = {tuple(tensor.shape) for tensor in (*placed, *sent)}
    assert not shapes & heads, signature


def test_guide_is_the_softmax_of_the_client_branch(
  run, federation, clients, oracle
):
  shared = run.server_state.weights
  x = clients[0].x[:5]
  logits = client_logits(shared.client_branch, oracle.embed(shared.backbone, x))
  prior = np.log(np.array([6, 9, 12, 15]) / 42)
  for corrected, expected in ((False, logits), (True, logits - prior)):
    routing = federation.guide(x, corrected=corrected)
    np.testing.assert_allclose(
      routing.probabilities, oracle.softmax(expected), atol=1e-5
    )
    assert_array_equal(routing.routes, expected.argmax(axis=1))


def test_routed_client_answers_with_its_own_head(
  run, federation, clients, oracle
):
  x = np.concatenate([client.x for client in clients])
  answers = federation.answer(x)
  assert_array_equal(answers.routes, federation.guide(x).routes)
  embeddings = oracle.embed(run.server_state.weights.backbone, x)
  expected = [
    np.argmax(oracle.classify(run.client_states[route], row))
    for route, row in zip(answers.routes, embeddings, strict=True)
  ]
  assert_array_equal(answers.classes, expected)
