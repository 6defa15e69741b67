"""SCAFFOLD: control variates correct the drift of clients."""

import numpy as np
import pytest

from tests.fixtures import trees
from tff_shift.algorithms import fed_avg
from tff_shift.algorithms import scaffold
from tff_shift.learning import function_types

pytestmark = pytest.mark.slow

ROUND = 3
COMMON = {"batch_size": 4, "local_steps": 2, "learning_rate": 0.3}
HPARAMS = scaffold.HParams(**COMMON)


@pytest.fixture(scope="module")
def controls(weights):
  """Some c and c_i."""
  return trees.normal(weights, 0), trees.normal(weights, 1)


@pytest.mark.parametrize("decay", [0.0, 0.1])
def test_client_steps_and_second_option_agree_with_the_oracle(
  build, client, weights, controls, oracle, compare, decay
):
  server, own = controls
  result = build(HPARAMS, weight_decay=decay).train_client(
    scaffold.Shared(weights, server), own, client, ROUND
  )

  correction = trees.subtract(server, own)
  rate, y, gradients, values = COMMON["learning_rate"], weights, [], []
  # Two iterations of a step for each of the two domains.
  for loss in oracle.losses(oracle.of_training(client, 4, ROUND)):
    values.append(loss(y))
    gradients.append(trees.add(oracle.gradient(loss, y), y, decay))
    y = trees.add(y, trees.add(gradients[-1], correction), -rate)
  # c_i - c + (x - y) / (K eta) is the mean of the gradients.
  mean = trees.mean(*gradients)
  compare.assert_close(result.client_state, mean, 1e-5)
  # The loss without the correction.
  oracle.check(
    result,
    scaffold.Shared(weights, own),
    scaffold.Shared(y, mean),
    np.mean(values),
  )


# Eleven examples: the last batch of size 4 is not full.
@pytest.mark.parametrize("batch_size", [4, 11])
def test_client_first_option_is_the_gradient_of_all_examples(
  build, client, weights, controls, oracle, compare, batch_size
):
  server, own = controls
  result = build(
    HPARAMS, control="gradient", batch_size=batch_size, weight_decay=0.1
  ).train_client(scaffold.Shared(weights, server), own, client, ROUND)
  (loss,) = oracle.losses([client])
  expected = trees.add(oracle.gradient(loss, weights), weights, 0.1)
  compare.assert_close(result.client_state, expected, 1e-5)
  compare.assert_close(
    result.update.control, trees.subtract(expected, own), 1e-5
  )


def test_client_rate_of_zero_keeps_the_control_variate(
  build, client, weights, controls, compare
):
  server, own = controls
  result = build(HPARAMS, cosine_rounds=ROUND).train_client(
    scaffold.Shared(weights, server), own, client, ROUND
  )
  assert compare.equal_bits(result.client_state, own)


def test_server_moves_the_control_variate_by_the_fraction_of_clients(
  model, weights, controls, compare
):
  functions = scaffold.build(
    model, scaffold.HParams(server_rate=0.5), num_clients=4
  )
  control, change = controls
  found = functions.update_server(
    scaffold.Shared(weights, control),
    scaffold.Shared(change, change),
    (),
    function_types.UpdateInfo(0, np.float32(3)),
  )
  compare.assert_close(
    found,
    scaffold.Shared(
      trees.add(weights, change, 0.5), trees.add(control, change, 0.75)
    ),
    1e-6,
  )


def test_first_round_is_that_of_fed_avg_and_controls_have_their_mean(
  start, make_client, compare
):
  data = [make_client(i, [5 + i]) for i in range(4)]
  run, plain = (
    start(hparams, data, 1, participation=0.5)
    for hparams in (HPARAMS, fed_avg.HParams(**COMMON))
  )
  assert compare.equal_bits(
    run.server_state.weights.model, plain.server_state.weights
  )
  for _ in range(3):
    control = run.server_state.weights.control
    compare.assert_close(control, trees.mean(*run.client_states), 1e-7)
    assert trees.largest(control) > 0
    run.step()
