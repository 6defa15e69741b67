"""FedRep: the head stays at home, the backbone is averaged."""

import pytest

from tests.fixtures import trees
from tff_shift.algorithms import fed_rep
from tff_shift.learning import randomness
from tff_shift.models import split_model

pytestmark = pytest.mark.slow

HPARAMS = fed_rep.HParams(
  head_steps=2, local_steps=1, batch_size=4, learning_rate=0.3
)


@pytest.mark.parametrize("head", split_model.HEADS)
def test_head_first_then_backbone(
  build, deep_model, client, oracle, run_in_graph, compare, head
):
  """What is personal may be one layer of two."""
  functions = build(HPARAMS, model=deep_model, head=head)
  cut = split_model.with_head(deep_model, head)
  round_num = 5
  backbone = run_in_graph(cut.initial_backbone, randomness.server_seed(0))
  head = functions.initial_client_state(client.seed, ())
  result = functions.train_client(backbone, head, client, round_num)
  # Per iteration a step for each of the two domains.
  for_head, for_backbone = (
    oracle.of_training(client, number, round_num, part)
    for part, number in enumerate((4, 2))
  )
  weights = split_model.SplitWeights(backbone, head)
  with_head, _ = oracle.descend(weights, oracle.losses(for_head), 0.3, "head")
  trained, mean_loss = oracle.descend(
    with_head, oracle.losses(for_backbone), 0.3, "backbone"
  )
  compare.assert_close(result.client_state, with_head.head, 1e-5)
  oracle.check(result, backbone, trained.backbone, mean_loss)
  assert trees.largest(result.update) > 1e-3
