"""What is drawn before the first round, of all algorithms."""

import numpy as np
import pytest

from tests.fixtures import trees
from tff_shift import algorithms
from tff_shift.learning import randomness
from tff_shift.testing import forms

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def start(model, contract_hparams, run_in_graph, initial):
  """Returns `start(name, run_seed, client_id)`: all weights and a state."""

  def run(name, run_seed, client_id):
    build = algorithms.spec_builder(name, forms.NUM_CLIENTS)
    functions = build(model, contract_hparams(name))
    seeds = (
      randomness.server_seed(run_seed),
      randomness.client_seed(run_seed, client_id),
    )

    def initial(server_seed, client_seed):
      weights = functions.initial_weights(server_seed)
      seed = server_seed if functions.starts_alike else client_seed
      return weights, functions.initial_client_state(seed, weights)

    return run_in_graph(initial, *seeds)

  return run


@pytest.mark.parametrize("name", forms.parameters(algorithms.names()))
def test_all_draws_are_those_of_the_run(name, start):
  one, other = (start(name, run_seed, 0) for run_seed in (0, 1))
  for first, second in trees.pairs(one, other):
    # What is the same in two runs was not drawn: zeros, ones, flags, or one
    # number over and over.
    assert (
      not np.array_equal(first, second)
      or np.array_equal(first, np.round(first))
      or np.ptp(first) == 0
    )


def map_shapes(weights):
  return [np.shape(each) for each in trees.leaves(weights)]


def test_head_is_that_of_all_clients_and_of_the_model(
  model, contract_hparams, start, compare, initial
):
  # As if the model had been sent to all, with the head that FedAvg starts from.
  expected = initial(3).head
  found = []
  for name in algorithms.names():
    build = algorithms.spec_builder(name, forms.NUM_CLIENTS)
    if build(model, contract_hparams(name)).starts_alike:
      found.append(name)
      for client in (0, 1):
        _, state = start(name, 3, client)
        head = getattr(state, "head", state)
        # Personal layers of another place are not the head.
        if map_shapes(head) == map_shapes(expected):
          assert compare.equal_bits(head, expected)
  assert "fed_rep" in found
