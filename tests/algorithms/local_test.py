"""Local training: what one client learns is nobody else's business."""

import numpy as np
import pytest

from tests.fixtures import trees
from tff_shift.algorithms import fed_avg
from tff_shift.algorithms import local
from tff_shift.learning.stock_tff import learning_process

HPARAMS = local.HParams(local_steps=1, batch_size=4, learning_rate=0.3)


@pytest.mark.slow
def test_rounds_are_local_training_of_fed_avg(
  start, build, make_client, compare, initial
):
  client = make_client(0, [6, 5])
  (state,) = start(HPARAMS, [client], 2).client_states
  weights = initial(client.seed)
  plain = build(fed_avg.HParams(local_steps=1, batch_size=4, learning_rate=0.3))
  for round_num in range(2):
    update = plain.train_client(weights, (), client, round_num).update
    weights = trees.add(weights, update)
  compare.assert_close(state, weights, 1e-6)


def test_server_learns_nothing(start, make_client, compare):
  run = start(HPARAMS, [make_client(0, [6, 5])])
  before = run.server_state
  assert before.weights == ()
  run.step()
  assert compare.equal_bits(
    run.server_state, before._replace(round_num=np.int32(1))
  )
  assert run.algorithm.evaluate_server is None
  with pytest.raises(ValueError, match="local keeps personal state"):
    learning_process.as_learning_process(run.algorithm)
