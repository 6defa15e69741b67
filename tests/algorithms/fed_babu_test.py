"""FedBABU: a head that is random, common, and not trained in rounds."""

import pytest

from tests.fixtures import trees
from tff_shift.algorithms import fed_babu
from tff_shift.learning import randomness

pytestmark = pytest.mark.slow

ROUND = 2
COMMON = {
  "batch_size": 4,
  "local_steps": 1,
  "learning_rate": 0.3,
  # It would shrink a head that is only given a gradient of zeros.
  "weight_decay": 0.1,
  "fine_tuning_steps": 3,
}
HPARAMS = fed_babu.HParams(**COMMON)


def test_round_trains_the_backbone_under_the_head_that_stays(
  functions, client, weights, oracle
):
  result = functions.train_client(weights, (), client, ROUND)
  # A step for each of the two domains.
  losses = oracle.losses(oracle.of_training(client, 2, ROUND))
  expected, mean_loss = oracle.descend(
    weights, losses, 0.3, "backbone", decay=0.1
  )
  # The head has no place in what is sent.
  oracle.check(result, weights.backbone, expected.backbone, mean_loss)
  assert result.client_state == ()
  assert trees.largest(result.update) > 1e-3


@pytest.mark.parametrize(
  "part, moving", [("full", None), ("head", "head"), ("body", "backbone")]
)
def test_part_that_was_asked_for_is_fine_tuned(
  build, client, weights, oracle, compare, part, moving
):
  prepared = build(HPARAMS, fine_tune_part=part).prepare_client(
    weights, (), client, ROUND
  )
  batches = oracle.batches(client, 3, randomness.Purpose.PERSONALIZE)
  expected, _ = oracle.descend(
    weights, oracle.losses(batches), 0.3, moving, decay=0.1
  )
  compare.assert_close(prepared, expected, 1e-5)
  for name, part in prepared._asdict().items():
    is_still = compare.equal_bits(part, getattr(weights, name))
    assert is_still == (moving not in (None, name))


@pytest.mark.parametrize(
  "options, num_trained", [({}, 8), ({"head": "classifier"}, 6)]
)
def test_head_is_the_last_layer_unless_asked_otherwise(
  build, deep_model, client, options, num_trained
):
  functions = build(HPARAMS, model=deep_model, **options)
  weights = functions.initial_weights(client.seed)
  update = functions.train_client(weights, (), client, ROUND).update
  assert len(weights.backbone) == len(update) == num_trained
