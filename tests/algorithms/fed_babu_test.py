"""FedBABU: a head that is random, common, and not trained in rounds."""

import numpy as np
import pytest

from tests.fixtures import trees
from tff_shift.algorithms import fed_avg_ft
from tff_shift.algorithms import fed_babu
from tff_shift.learning import randomness
from tff_shift.models import split_model
from tff_shift.models.networks import mlp

pytestmark = pytest.mark.slow

ROUND = 2
RATE = 0.3
COMMON = {
  "batch_size": 4,
  "local_steps": 1,
  "learning_rate": RATE,
  # It would shrink a head that is only given a gradient of zeros.
  "weight_decay": 0.1,
  "fine_tuning_steps": 3,
}


@pytest.fixture(scope="module")
def weights(client, initial):
  """What the server holds: the backbone, and the head that nobody trains."""
  return initial(client.seed)


def chosen(model, *parts):
  return trees.map(
    lambda name: name.split("/")[0] in parts, model.weight_names()
  )


def descend(oracle, weights, batches, parts):
  """Steps with weight decay on some parts; the weights and the mean loss."""
  losses = []
  for loss in oracle.losses(batches):
    losses.append(loss(weights))
    slopes = trees.add(oracle.gradient(loss, weights), weights, 0.1)
    weights = trees.map(
      lambda w, g, moves: w - RATE * g * moves, weights, slopes, parts
    )
  return weights, np.mean(losses)


def test_round_trains_the_backbone_under_the_head_that_stays(
  build, model, client, weights, oracle, compare
):
  result = build(fed_babu.HParams(**COMMON)).train_client(
    weights, (), client, ROUND
  )
  # A step for each of the two domains.
  batches = oracle.of_training(client, 2, ROUND)
  expected, mean_loss = descend(
    oracle, weights, batches, chosen(model, "backbone")
  )
  # The head has no place in what is sent.
  oracle.check(result, weights.backbone, expected.backbone, mean_loss)
  assert result.client_state == ()
  assert trees.largest(result.update) > 1e-3


@pytest.mark.parametrize(
  "part, moving",
  [
    ("full", ("backbone", "head")),
    ("head", ("head",)),
    ("body", ("backbone",)),
  ],
)
def test_part_that_was_asked_for_is_fine_tuned(
  build, model, client, weights, oracle, compare, part, moving
):
  prepared = build(
    fed_babu.HParams(fine_tune_part=part, **COMMON)
  ).prepare_client(weights, (), client, ROUND)
  batches = oracle.batches(client, 3, randomness.Purpose.PERSONALIZE)
  expected, _ = descend(oracle, weights, batches, chosen(model, *moving))
  compare.assert_close(prepared, expected, 1e-5)
  for name in split_model.SplitWeights._fields:
    is_still = compare.equal_bits(
      getattr(prepared, name), getattr(weights, name)
    )
    assert is_still == (name not in moving)


@pytest.mark.parametrize(
  "options, num_trained", [({}, 8), ({"head": "classifier"}, 6)]
)
def test_head_is_the_last_layer_unless_asked_otherwise(
  build, client, options, num_trained
):
  model = mlp.build((5,), num_classes=3, width=8, head_width=6)
  functions = build(fed_babu.HParams(**options, **COMMON), model=model)
  weights = functions.initial_weights(client.seed)
  update = functions.train_client(weights, (), client, ROUND).update
  assert len(weights.backbone) == len(update) == num_trained


def test_head_is_drawn_with_the_seed_as_that_of_fed_avg_ft(build, compare):
  heads = []
  for run_seed in range(2):
    seed = randomness.server_seed(run_seed)
    result, plain = (
      build(module.HParams(**COMMON)).initial_weights(seed)
      for module in (fed_babu, fed_avg_ft)
    )
    assert compare.equal_bits(result, plain)
    heads.append(result.head)
  assert np.any(heads[0][0] != heads[1][0])
