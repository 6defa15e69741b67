"""What is drawn before the first round, of all algorithms."""

import numpy as np
import pytest

from tests.fixtures import trees
from tff_shift import algorithms
from tff_shift.learning import randomness
from tff_shift.testing import forms

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def start(run_in_graph):
  """Returns `start(name, run_seed, client_id)`: all weights and a state."""

  def run(name, run_seed, client_id):
    functions = forms.functions(name)

    def draw(server_seed, client_seed):
      weights = functions.initial_weights(server_seed)
      seed = server_seed if functions.starts_alike else client_seed
      return weights, functions.initial_client_state(seed, weights)

    return run_in_graph(
      draw,
      randomness.server_seed(run_seed),
      randomness.client_seed(run_seed, client_id),
    )

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


def shapes_of(weights):
  return [np.shape(leaf) for leaf in trees.leaves(weights)]


def test_head_is_that_of_all_clients_and_of_the_model(start, compare, initial):
  # As if the model had been sent to all, with the head that FedAvg starts from.
  expected = initial(3).head
  names = [
    name for name in algorithms.names() if forms.functions(name).starts_alike
  ]
  assert "fed_rep" in names
  for name in names:
    for client in (0, 1):
      _, state = start(name, 3, client)
      head = getattr(state, "head", state)
      # Personal layers of another place are not the head.
      if shapes_of(head) == shapes_of(expected):
        assert compare.equal_bits(head, expected)


@pytest.mark.parametrize("name", ["fed_rep", "fed_rod"])
def test_personal_head_is_the_last_layer_by_default(name, build, deep_model):
  functions = build(algorithms.hparams(name), model=deep_model)
  seed = randomness.server_seed(0)
  state = functions.initial_client_state(seed, functions.initial_weights(seed))
  assert shapes_of(state) == [(6, 3), (3,)]
