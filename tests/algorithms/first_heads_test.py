"""Heads that the server does not hold: all clients start with one."""

import numpy as np
import pytest
import tensorflow as tf

from tff_shift import algorithms
from tff_shift.learning import randomness


@pytest.mark.parametrize(
  "name", ["con_free", "fed_drm", "fed_pac", "fed_rep", "flute"]
)
def test_heads_start_alike(
  name, model, contract_hparams, run_in_graph, compare
):
  functions = algorithms.get(name).work(model, contract_hparams(name))
  one, other = (
    run_in_graph(
      lambda seed: functions.initial_client_state(
        seed, functions.initial_weights(seed)
      ),
      randomness.client_seed(0, client),
    )
    for client in (0, 1)
  )
  assert compare.equal_bits(one, other)
  # Drawn, not zeros.
  assert np.ptp(tf.nest.flatten(one)[0]) > 0
