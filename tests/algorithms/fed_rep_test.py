"""FedRep: the head stays at home, the backbone is averaged."""

import dataclasses
import itertools

import numpy as np
import pytest
import tensorflow as tf

from tff_shift import algorithms
from tff_shift.algorithms import fed_rep
from tff_shift.learning import local_training
from tff_shift.learning import randomness
from tff_shift.models import cnn
from tff_shift.models import mlp
from tff_shift.models import split_model
from tff_shift.simulation import rounds

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
def built(model, head):
  hparams = dataclasses.replace(HPARAMS, head=head)
  return algorithms.build(fed_rep, model, hparams), fed_rep.work(model, hparams)


@pytest.fixture(scope="module")
def algorithm(built):
  return built[0]


@pytest.fixture(scope="module")
def functions(built):
  return built[1]


class TestTraining:
  def test_head_first_then_backbone(
    self, cut, functions, make_client, oracle, run_in_graph, compare
  ):
    round_num = 5
    client = make_client(0, [6, 5])
    backbone = run_in_graph(cut.initial_backbone, randomness.server_seed(0))
    head = run_in_graph(functions.initial_client_state, client.seed, ())
    result = run_in_graph(
      lambda shared, own, data: functions.train_client(
        shared, own, data, tf.constant(round_num)
      ),
      backbone,
      head,
      client,
    )

    def draw_batches(data):
      seed = randomness.fold(data.seed, randomness.Purpose.TRAIN, round_num)
      return [
        [
          local_training.pooled_batches(
            data, visit + 1, 4, randomness.fold(seed, part)
          )(visit)
          # Per iteration a step for each of the two domains.
          for visit in range(2 * num_steps)
        ]
        for part, num_steps in enumerate((2, 1))
      ]

    def losses(batches):
      return [
        lambda w, batch=batch: oracle.cross_entropy(
          oracle.predict(w, batch.x), batch.y
        )
        for batch in batches
      ]

    weights = split_model.SplitWeights(backbone, head)
    for_head, for_backbone = run_in_graph(draw_batches, client)
    assert (len(for_head), len(for_backbone)) == (4, 2)
    only_head = split_model.SplitWeights(
      (False,) * len(backbone), (True,) * len(head)
    )
    with_head, _ = oracle.descend(weights, losses(for_head), 0.3, only_head)
    trained, mean_loss = oracle.descend(
      with_head,
      losses(for_backbone),
      0.3,
      tf.nest.map_structure(lambda moves: not moves, only_head),
    )
    compare.assert_close(result.client_state, with_head.head, 1e-5)
    compare.assert_close(
      result.update,
      tf.nest.map_structure(np.subtract, trained.backbone, backbone),
      1e-5,
    )
    np.testing.assert_allclose(result.loss, mean_loss, rtol=1e-5)
    assert max(np.abs(w).max() for w in result.update) > 1e-3


class TestRounds:
  @pytest.fixture(scope="class")
  def clients(self, make_client):
    return [make_client(i, [5 + i]) for i in range(3)]

  def test_backbone_is_averaged_and_heads_are_kept(
    self, algorithm, functions, clients, context, run_for_each, compare
  ):
    run = rounds.Rounds(algorithm, clients, run_seed=0)
    backbone, heads = run.server_state.weights, list(run.client_states)
    run.step()
    # They start alike, and then go their own ways.
    for one, other in itertools.combinations(run.client_states, 2):
      assert not compare.equal_bits(one, other)
    alone = run_for_each(
      functions.train_client,
      [
        (backbone, head, client, np.int32(0))
        for head, client in zip(heads, clients, strict=True)
      ],
    )
    compare.assert_close(
      run.server_state.weights,
      tf.nest.map_structure(
        lambda w, *updates: w + np.mean(updates, axis=0),
        backbone,
        *(result.update for result in alone),
      ),
      1e-6,
    )
    compare.assert_close(
      run.client_states, [result.client_state for result in alone], 1e-6
    )

  def test_only_the_backbone_is_aggregated(self, algorithm, cut, type_walk):
    (phase,) = algorithm.phases
    sent = type_walk.sent_tensors(type_walk.aggregations(phase))
    shapes = [tuple(each.shape) for each in sent]
    # The scalars are losses and weights of the mean.
    assert [s for s in shapes if s] == list(cut.backbone.shapes)

  def test_head_is_the_last_layer_by_default(self):
    # On rotated MNIST the paper's network has 64 x 10 weights there.
    assert fed_rep.HParams().head == "last_layer"
    digits = cnn.build()
    assert (
      split_model.with_head(digits, "last_layer").head.num_parameters == 640
    )
    assert digits.head.num_parameters == 8832

  def test_server_has_no_model_to_predict_with(self, algorithm):
    assert algorithm.evaluate_server is None
    assert not algorithm.is_stateless
    with pytest.raises(ValueError, match="fed_rep keeps a personal state"):
      algorithm.as_learning_process()
