"""SCAFFOLD: control variates correct the drift of clients."""

import numpy as np
import pytest
from numpy.testing import assert_allclose

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


class TestClient:
  @pytest.fixture(scope="class")
  def losses(self, client, oracle):
    # Two iterations of a step for each of the two domains.
    return oracle.losses(oracle.of_training(client, 4, ROUND))

  @pytest.mark.parametrize("decay", [0.0, 0.1])
  def test_steps_and_second_option_agree_with_the_oracle(
    self,
    build,
    client,
    weights,
    controls,
    losses,
    oracle,
    compare,
    decay,
  ):
    server, own = controls
    result = build(HPARAMS, weight_decay=decay).train_client(
      scaffold.Shared(weights, server), own, client, ROUND
    )

    correction = trees.subtract(server, own)
    rate, y, gradients, values = COMMON["learning_rate"], weights, [], []
    for loss in losses:
      values.append(loss(y))
      gradients.append(trees.add(oracle.gradient(loss, y), y, decay))
      y = trees.add(y, trees.add(gradients[-1], correction), -rate)
    # c_i - c + (x - y) / (K eta) is the mean of the gradients.
    mean = trees.mean(*gradients)
    compare.assert_close(result.update.model, trees.subtract(y, weights), 1e-5)
    compare.assert_close(result.client_state, mean, 1e-5)
    compare.assert_close(result.update.control, trees.subtract(mean, own), 1e-5)
    # The loss without the correction.
    assert_allclose(result.loss, np.mean(values), rtol=1e-5)

  # Eleven examples: the last batch of size 4 is not full.
  @pytest.mark.parametrize("batch_size", [4, 11])
  def test_first_option_is_the_gradient_of_all_examples(
    self,
    build,
    client,
    weights,
    controls,
    oracle,
    compare,
    batch_size,
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

  def test_rate_of_zero_keeps_the_control_variate(
    self, build, client, weights, controls, compare
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


class TestRounds:
  @pytest.fixture(scope="class")
  def runs(self, start, make_client):
    """The states of three rounds of SCAFFOLD and of FedAvg, half sampled."""
    data = [make_client(i, [5 + i]) for i in range(4)]
    found = []
    for hparams in (HPARAMS, fed_avg.HParams(**COMMON)):
      run = start(hparams, data, participation=0.5)
      states = []
      for _ in range(3):
        run.step()
        states.append((run.server_state.weights, run.client_states))
      found.append(states)
    return found

  def test_first_round_is_that_of_fed_avg_bit_for_bit(self, runs, compare):
    ((shared, _), *_), ((weights, _), *_) = runs
    assert compare.equal_bits(shared.model, weights)

  def test_control_variate_is_the_mean_over_all_clients(self, runs, compare):
    for shared, controls in runs[0]:
      mean = trees.mean(*controls)
      compare.assert_close(shared.control, mean, 1e-7)
      assert any(np.any(each) for each in trees.leaves(shared.control))
