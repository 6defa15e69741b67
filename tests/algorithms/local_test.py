"""Local training: what one client learns is nobody else's business."""

import numpy as np
import pytest
import tensorflow as tf

from tff_shift import algorithms
from tff_shift.algorithms import fed_avg
from tff_shift.algorithms import local
from tff_shift.learning import randomness
from tff_shift.learning.stock_tff import learning_process
from tff_shift.simulation.engine import rounds

HPARAMS = local.HParams(local_steps=1, batch_size=4, learning_rate=0.3)


class TestLocal:
  @pytest.fixture(scope="class")
  def algorithm(self, model, context):
    return algorithms.build(local, model, HPARAMS, num_evaluation_domains=2)

  def run(self, algorithm, clients, num_rounds=2):
    run = rounds.Rounds(algorithm, clients, run_seed=0)
    for _ in range(num_rounds):
      run.step()
    return run

  @pytest.mark.slow
  def test_client_learns_the_same_in_any_company(
    self, algorithm, make_client, compare
  ):
    client = make_client(0, [6, 5])
    companies = [
      [],
      [make_client(1, [7, 4])],
      [make_client(2, [3, 8]), make_client(3, [5, 5])],
    ]
    states = [
      self.run(algorithm, [client, *others]).client_states
      for others in companies
    ]
    for one in states[1:]:
      assert compare.equal_bits(one[0], states[0][0])
      assert not compare.equal_bits(one[0], one[1])

  def test_rounds_are_local_training_of_fed_avg(
    self, algorithm, model, make_client, run_in_graph, compare
  ):
    client = make_client(0, [6, 5])
    (state,) = self.run(algorithm, [client]).client_states
    weights = run_in_graph(model.initial_weights, client.seed)
    for round_num in range(2):
      update = run_in_graph(
        lambda w, data, i: fed_avg.train_client(
          model, HPARAMS, w, data, i
        ).update,
        weights,
        client,
        np.int32(round_num),
      )
      weights = tf.nest.map_structure(np.add, weights, update)
    compare.assert_close(state, weights, 1e-6)

  def test_server_learns_nothing(self, algorithm, make_client, compare):
    run = self.run(algorithm, [make_client(0, [6, 5])])
    start = algorithm.initialize(randomness.server_seed(0))
    assert start.weights == ()
    assert compare.equal_bits(
      run.server_state, start._replace(round_num=np.int32(2))
    )
    assert algorithm.evaluate_server is None
    with pytest.raises(ValueError, match="local keeps personal state"):
      learning_process.as_learning_process(algorithm)
