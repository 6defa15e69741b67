"""SCAFFOLD: control variates correct the drift of clients."""

import numpy as np
import pytest
import tensorflow as tf

from tff_shift.algorithms import fed_avg
from tff_shift.algorithms import scaffold
from tff_shift.learning import function_types
from tff_shift.learning import randomness

pytestmark = pytest.mark.slow

ROUND = 3
COMMON = {"batch_size": 4, "local_steps": 2, "learning_rate": 0.3}
HPARAMS = scaffold.HParams(**COMMON)
QUADRATIC = {"learning_rate": 0.1, "local_steps": 5}


@pytest.fixture(scope="module")
def controls(weights):
  """Some c and c_i."""
  generator = np.random.default_rng(0)

  def draw():
    return tf.nest.map_structure(
      lambda w: generator.normal(size=w.shape).astype(np.float32), weights
    )

  return draw(), draw()


def minus(one, other):
  return tf.nest.map_structure(np.subtract, one, other)


class TestClient:
  @pytest.fixture(scope="class")
  def losses(self, client, oracle):
    # Two iterations of a step for each of the two domains.
    return oracle.losses(
      oracle.batches(client, 4, randomness.Purpose.TRAIN, ROUND)
    )

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

    def gradient(loss, at):
      return tf.nest.map_structure(
        lambda g, w: g + decay * w, oracle.gradient(loss, at), at
      )

    rate, y, gradients, values = COMMON["learning_rate"], weights, [], []
    for loss in losses:
      values.append(loss(y))
      gradients.append(gradient(loss, y))
      y = tf.nest.map_structure(
        lambda w, g, c_i, c: w - rate * (g - c_i + c),
        y,
        gradients[-1],
        own,
        server,
      )
    # c_i - c + (x - y) / (K eta) is the mean of the gradients.
    mean = tf.nest.map_structure(
      lambda *each: np.mean(each, axis=0), *gradients
    )
    compare.assert_close(result.update.model, minus(y, weights), 1e-5)
    compare.assert_close(result.client_state, mean, 1e-5)
    compare.assert_close(result.update.control, minus(mean, own), 1e-5)
    # The loss without the correction.
    np.testing.assert_allclose(result.loss, np.mean(values), rtol=1e-5)

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
    expected = tf.nest.map_structure(
      lambda g, w: g + 0.1 * w, oracle.gradient(loss, weights), weights
    )
    compare.assert_close(result.client_state, expected, 1e-5)
    compare.assert_close(result.update.control, minus(expected, own), 1e-5)

  def test_options_agree_for_one_step_on_all_examples(
    self, build, make_client, weights, controls, compare
  ):
    server, own = controls
    found = [
      build(HPARAMS, control=control, batch_size=6, local_steps=1).train_client(
        scaffold.Shared(weights, server), own, make_client(1, [6]), ROUND
      )
      for control in ("steps", "gradient")
    ]
    assert compare.equal_bits(*[each.update.model for each in found])
    compare.assert_close(*[each.client_state for each in found], 1e-5)

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
      tf.nest.map_structure(lambda x, d: x + 0.5 * d, weights, change),
      tf.nest.map_structure(lambda c, d: c + 0.75 * d, control, change),
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
      mean = tf.nest.map_structure(lambda *c: np.mean(c, axis=0), *controls)
      compare.assert_close(shared.control, mean, 1e-7)
      assert any(np.any(each) for each in tf.nest.flatten(shared.control))


class TestQuadratics:
  """Two clients whose mean loss is smallest at 0.8."""

  def test_rounds_computed_by_hand(self, quadratics):
    run = quadratics.start("scaffold", **QUADRATIC, num_rounds=1)
    # 1 - 0.6^5 = 0.92224 for the second client; the first stays at 0.
    np.testing.assert_allclose(quadratics.u(run), 0.46112, rtol=1e-6)
    controls = [float(each.head[0]) for each in run.client_states]
    np.testing.assert_allclose(controls, [0.0, -1.84448], atol=1e-6)
    run.step()
    np.testing.assert_allclose(quadratics.u(run), 0.6977091, rtol=1e-6)

  @pytest.mark.parametrize("control", ["steps", "gradient"])
  def test_optimum_is_the_fixed_point(self, quadratics, control):
    run = quadratics.start("scaffold", control=control, **QUADRATIC)
    for _ in range(40):
      run.step()
    np.testing.assert_allclose(quadratics.u(run), 0.8, rtol=1e-5)
