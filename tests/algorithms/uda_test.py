"""UDA's training against gradients in NumPy."""

import dataclasses

import numpy as np
import pytest

from tests.fixtures import trees
from tff_shift.algorithms import uda
from tff_shift.learning import local_training
from tff_shift.learning import randomness

pytestmark = pytest.mark.slow

RATE = 0.3
# A batch is all examples of either domain.
HPARAMS = uda.HParams(
  batch_size=9,
  local_epochs=1,
  learning_rate=RATE,
  domain_weight=0.8,
  domain_ramp=4,
  domain_width=6,
)


@pytest.fixture(scope="module")
def client(make_adapting_client):
  return make_adapting_client(0, 9, 9)._replace(timestep=np.int32(2))


@pytest.fixture(scope="module")
def state(client, functions):
  return functions.initial_client_state(client.seed, ())


def test_round_two_gradients_of_a_step(
  state, client, oracle, compare, functions
):
  result = functions.train_client((), state, client, 3)

  (of_classes,) = oracle.losses([client])

  def of_domains(state):
    kernel1, bias1, kernel2, bias2 = state.classifiers[0]

    def odds(x):
      embeddings = oracle.embed(state.weights.backbone, x)
      hidden = np.maximum(embeddings @ kernel1 + bias1, 0)
      return np.exp(hidden @ kernel2 + bias2)

    return np.mean(np.log(1 + 1 / odds(client.x))) + np.mean(
      np.log(1 + odds(client.stream_x))
    )

  strength = 0.8 * (2 / (1 + np.exp(-5)) - 1)
  down, up = (
    oracle.gradient(
      lambda s, sign=sign: of_classes(s.weights) + sign * of_domains(s), state
    )
    for sign in (1, -strength)
  )
  gradient = down._replace(
    weights=down.weights._replace(backbone=up.weights.backbone)
  )
  expected = trees.add(state, gradient, -RATE)
  compare.assert_close(result.client_state, expected, 1e-5)
  np.testing.assert_allclose(
    result.loss, of_classes(state.weights) + of_domains(state), rtol=1e-5
  )
  # The reversal is not lost in the tolerance.
  difference = down.weights.backbone[0] - up.weights.backbone[0]
  assert np.max(np.abs(difference)) > 1e-2


def test_without_reversal_the_model_learns_as_from_labels_alone(
  build, model, state, client, run_in_graph, compare
):
  hparams = dataclasses.replace(
    HPARAMS, domain_weight=0.0, batch_size=4, local_epochs=3
  )
  result = build(hparams).train_client((), state, client, 3)

  def learn(weights, data):
    seed = randomness.fold(data.seed, randomness.Purpose.TRAIN, 3)
    return local_training.train_on_pool(
      model.predict,
      weights,
      data.labelled,
      local_training.num_local_steps(hparams, data.labelled, 3),
      randomness.fold(seed, 0),
      hparams,
    ).weights

  plain = run_in_graph(learn, state.weights, client)
  assert compare.equal_bits(result.client_state.weights, plain)
  assert not compare.equal_bits(result.client_state.weights, state.weights)
  # The classifier learns all the same.
  assert not compare.equal_bits(
    result.client_state.classifiers, state.classifiers
  )


def test_round_clients_start_from_the_model_with_classifiers_of_their_own(
  state, make_adapting_client, functions
):
  other = make_adapting_client(1, 9, 9)
  second = functions.initial_client_state(other.seed, ())
  assert np.all(state.classifiers[0][0] != second.classifiers[0][0])
  shapes = [np.shape(w) for w in second.classifiers[0]]
  assert shapes == [(8, 6), (6,), (6, 1), (1,)]
