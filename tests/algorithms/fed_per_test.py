"""FedPer and LG-FedAvg: all layers train together, one part is averaged."""

import numpy as np
import pytest

from tests.fixtures import trees
from tff_shift import algorithms
from tff_shift.learning import randomness
from tff_shift.models import split_model
from tff_shift.models.networks import mlp

pytestmark = pytest.mark.slow

COMMON = {"local_steps": 2, "batch_size": 4, "learning_rate": 0.3}
# The part that the server averages.
SHARED = {"fed_per": "backbone", "lg_fed_avg": "head"}


@pytest.fixture(scope="module")
def model():
  """With a head of two layers, of which one may stay in the backbone."""
  return mlp.build((5,), num_classes=3, width=8, head_width=6)


@pytest.fixture(scope="module", params=split_model.HEADS)
def head(request):
  """Where the model is cut."""
  return request.param


@pytest.fixture(scope="module")
def cut(model, head):
  """The model, cut there."""
  return split_model.with_head(model, head)


@pytest.fixture(scope="module")
def weights(cut, run_in_graph):
  """The initial weights of both parts."""
  return run_in_graph(cut.initial_weights, randomness.server_seed(0))


@pytest.mark.parametrize("name", SHARED)
def test_all_layers_train_together_and_one_part_is_sent(
  name, head, weights, build, make_client, oracle, compare
):
  shared = SHARED[name]
  (kept,) = {"backbone", "head"} - {shared}
  round_num, client = 5, make_client(0, [6, 5])
  functions = build(algorithms.hparams(name, head=head, **COMMON))
  result = functions.train_client(
    getattr(weights, shared), getattr(weights, kept), client, round_num
  )
  # Two steps for each of the two domains.
  batches = oracle.of_training(client, 4, round_num)
  trained, mean_loss = oracle.descend(weights, oracle.losses(batches), 0.3)
  compare.assert_close(result.client_state, getattr(trained, kept), 1e-6)
  oracle.check(
    result, getattr(weights, shared), getattr(trained, shared), mean_loss
  )
  assert trees.largest(result.update) > 1e-3


@pytest.mark.parametrize("name", SHARED)
def test_with_the_parts_of_fed_avg_it_trains_as_fed_avg(
  name, head, cut, weights, build, make_client, compare
):
  shared = SHARED[name]
  (kept,) = {"backbone", "head"} - {shared}
  client = make_client(0, [6, 5])
  for options in ({"momentum": 0.5}, {"optimizer": "adam"}):
    result = build(
      algorithms.hparams(name, head=head, **COMMON, **options)
    ).train_client(getattr(weights, shared), getattr(weights, kept), client, 2)
    expected = build(
      algorithms.hparams("fed_avg", **COMMON, **options), model=cut
    ).train_client(weights, (), client, 2)
    assert compare.equal_bits(
      (result.update, result.loss),
      (getattr(expected.update, shared), expected.loss),
    )
    moved = trees.map(
      np.add, getattr(weights, kept), getattr(expected.update, kept)
    )
    assert compare.equal_bits(result.client_state, moved)
