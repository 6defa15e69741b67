"""FedRep: the head stays at home, the backbone is averaged."""

import pytest

from tests.fixtures import trees
from tff_shift.algorithms import fed_rep
from tff_shift.learning import randomness
from tff_shift.models import split_model
from tff_shift.models.networks import cnn
from tff_shift.models.networks import mlp

pytestmark = pytest.mark.slow

HPARAMS = fed_rep.HParams(
  head_steps=2, local_steps=1, batch_size=4, learning_rate=0.3
)


@pytest.fixture(scope="module")
def model():
  """With a head of two layers, of which one may stay in the backbone."""
  return mlp.build((5,), num_classes=3, width=8, head_width=6)


@pytest.fixture(scope="module", params=split_model.HEADS)
def head(request):
  """What is personal."""
  return request.param


@pytest.fixture(scope="module")
def cut(model, head):
  """The model, cut where what is personal begins."""
  return split_model.with_head(model, head)


@pytest.fixture(scope="module")
def functions(build, head):
  return build(HPARAMS, head=head)


def test_head_first_then_backbone(
  cut, functions, make_client, oracle, run_in_graph, compare
):
  round_num = 5
  client = make_client(0, [6, 5])
  backbone = run_in_graph(cut.initial_backbone, randomness.server_seed(0))
  head = functions.initial_client_state(client.seed, ())
  result = functions.train_client(backbone, head, client, round_num)
  # Per iteration a step for each of the two domains.
  for_head, for_backbone = (
    oracle.of_training(client, number, round_num, part)
    for part, number in enumerate((4, 2))
  )
  weights = split_model.SplitWeights(backbone, head)
  only_head = split_model.SplitWeights(
    (False,) * len(backbone), (True,) * len(head)
  )
  with_head, _ = oracle.descend(
    weights, oracle.losses(for_head), 0.3, only_head
  )
  trained, mean_loss = oracle.descend(
    with_head,
    oracle.losses(for_backbone),
    0.3,
    trees.map(lambda moves: not moves, only_head),
  )
  compare.assert_close(result.client_state, with_head.head, 1e-5)
  oracle.check(result, backbone, trained.backbone, mean_loss)
  assert trees.largest(result.update) > 1e-3


def test_head_is_the_last_layer_by_default():
  # On rotated MNIST the paper's network has 64 x 10 weights there.
  assert fed_rep.HParams().head == "last_layer"
  digits = cnn.build()
  assert split_model.with_head(digits, "last_layer").head.num_parameters == 640
  assert digits.head.num_parameters == 8832
