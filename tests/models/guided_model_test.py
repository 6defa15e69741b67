"""Tests of models with a guide: both tasks, their gradients, starts, errors."""

import dataclasses

import numpy as np
import pytest
import tensorflow as tf

from tests.fixtures import trees
from tests.fixtures.arrays import assert_close
from tests.fixtures.arrays import assert_equal
from tests.fixtures.arrays import normal
from tests.fixtures.keras_models import dense
from tests.fixtures.keras_models import sequential
from tests.fixtures.refusals import refused
from tff_shift.models import fingerprint
from tff_shift.models import guided_model
from tff_shift.models import input_scaling
from tff_shift.models import split_model
from tff_shift.models.networks import mlp

layers = tf.keras.layers
SEED = np.array([1, 2], np.int32)
NUM_CLIENTS = 5


def build_small(input_dtype=tf.float32, **replaced):
  """Points [3] to features [4], embedding [2], 2 classes and 5 clients."""
  parts = {
    "trunk": dense(3, trunk=4),
    "target_branch": dense(4, goal=2),
    "head": dense(2, head=2),
    "client_branch": dense(4, guide=NUM_CLIENTS),
  }
  return guided_model.build_guided_model(
    "small", **(parts | replaced), input_dtype=input_dtype
  )


def build_without_sharing(input_dtype=tf.float32):
  return build_small(
    input_dtype,
    trunk=None,
    target_branch=dense(3, goal=2),
    client_branch=dense(3, guide=NUM_CLIENTS),
  )


def build_with_guide():
  return guided_model.with_guide(
    # Wide enough that some unit of each layer is above zero.
    mlp.build((3,), width=16, head_width=16),
    NUM_CLIENTS,
    width=6,
  )


def random_weights(model, seed=0):
  """Weights of the `SplitModel` and of the client branch, none at 0 or 1."""
  parts = model.backbone, model.head, model.client_branch
  backbone, head, client_branch = trees.normal(
    [tuple(map(np.zeros, part.shapes)) for part in parts], seed
  )
  return split_model.SplitWeights(backbone, head), client_branch


def examples(model):
  return normal(1, 7, *model.input_shape)


@pytest.fixture(
  scope="module",
  params=[
    build_small,
    build_without_sharing,
    build_with_guide,
  ],
)
def model(request):
  return request.param()


class TestPrediction:
  @pytest.mark.slow
  def test_both_are_the_single_predictions(self, model, run_in_graph):
    weights, client_branch = random_weights(model)

    def predict(x):
      return (
        model.predict_both(weights, client_branch, x),
        model.predict(weights, x),
        model.predict_client(weights.backbone, client_branch, x),
      )

    both, classes, clients = run_in_graph(predict, examples(model))
    assert both[0].shape == (7, 2)
    assert both[1].shape == (7, NUM_CLIENTS)
    assert np.std(both[0]) > 0 and np.std(both[1]) > 0
    assert_close(both[0], classes, 1e-6)
    assert_close(both[1], clients, 1e-6)

  def test_every_part_is_given_scaled_pixels(self, run_in_graph):
    """Where the tasks share nothing, the guide takes the image itself."""
    model = build_without_sharing()
    scaled = split_model.with_input_scaling(
      build_without_sharing(tf.uint8), input_scaling.MINUS_ONE_ONE
    )
    weights, guide = random_weights(model)

    def both(x):
      by_hand = tf.cast(x, tf.float32) / 127.5 - 1
      return (
        scaled.predict_both(weights, guide, x),
        scaled.predict_client(weights.backbone, guide, x),
        model.predict_both(weights, guide, by_hand),
      )

    x = np.random.default_rng(0).integers(0, 256, (5, 3), np.uint8)
    actual, client, expected = run_in_graph(both, x)
    trees.assert_close((*actual, client), (*expected, expected[1]), 0, 1e-5)

  def test_trunk_is_computed_once(self, run_in_graph):
    model = build_small()
    calls = []

    def count(weights, x, frozen):
      calls.append(x)
      return model.trunk.function(weights, x, frozen)

    counted = dataclasses.replace(
      model, trunk=dataclasses.replace(model.trunk, function=count)
    )
    run_in_graph(
      lambda x: counted.predict_both(*random_weights(model), x),
      examples(model),
    )
    assert len(calls) == 1


@pytest.mark.slow
class TestGradients:
  def test_each_loss_moves_its_own_branch_and_the_trunk(
    self, model, run_in_graph
  ):
    def norms(weights, x):
      # A loss on which a weight has no influence has the gradient None.
      return [
        [
          tf.constant(0.0) if g is None else tf.norm(g)
          for g in tf.gradients(
            tf.nn.sparse_softmax_cross_entropy_with_logits(
              tf.zeros(len(examples(model)), tf.int32), logits
            ),
            tf.nest.flatten(weights),
          )
        ]
        for logits in model.predict_both(*weights, x)
      ]

    weights = random_weights(model)
    of_classes, of_clients = np.sign(
      run_in_graph(norms, weights, examples(model))
    )
    trunk = model.trunk_size
    target = len(tf.nest.flatten(weights[0])) - trunk
    client = len(weights[1])
    assert_equal(of_classes, [1] * trunk + [1] * target + [0] * client)
    assert_equal(of_clients, [1] * trunk + [0] * target + [1] * client)


class TestParts:
  def test_backbone_is_trunk_then_target_branch_beside_the_guide(self):
    model = build_small()
    assert model.backbone.names == (
      "trunk/kernel",
      "trunk/bias",
      "goal/kernel",
      "goal/bias",
    )
    assert model.trunk_size == 2
    assert model.input_shape == (3,)
    assert model.embedding_size == 2
    assert model.last_backbone_layer() == (False, False, True, True)

    # 3*4 + 4, 4*2 + 2; 2*2 + 2; 4*5 + 5.
    assert model.num_parameters == 16 + 10 + 6
    assert model.num_guided_parameters == model.num_parameters + 25
    # Without sharing the guide has all of its weights.
    model = build_without_sharing()
    assert model.trunk_size == 0
    # 3*2 + 2, 2*2 + 2; 3*5 + 5.
    assert model.num_parameters == 8 + 6
    assert model.num_guided_parameters == 14 + 20

  @pytest.mark.slow
  def test_digest_is_that_of_the_function_without_the_guide(self):
    digest = fingerprint.function_digest(build_small())
    other_guide = build_small(client_branch=dense(4, other=9))
    other_trunk = build_small(
      trunk=lambda: sequential(
        (3,), layers.Dense(4, activation="relu", name="trunk")
      )
    )
    assert fingerprint.function_digest(other_guide) == digest
    assert fingerprint.function_digest(other_trunk) != digest


class TestInitialWeights:
  def test_client_branch_has_numbers_of_its_own(self, run_in_graph):
    # Same shapes and initializers everywhere: one stream would give equal bits.
    model = build_small(
      trunk=None,
      target_branch=dense(3, square=3),
      head=dense(3, square=3),
      client_branch=dense(3, square=3),
    )
    weights, client_branch, of_other_seed = run_in_graph(
      lambda seed: (
        model.initial_weights(seed),
        model.initial_client_branch(seed),
        model.initial_client_branch(seed + 1),
      ),
      SEED,
    )
    assert not np.any(client_branch[0] == of_other_seed[0])
    assert not np.any(client_branch[0] == weights.backbone[0])
    assert not np.any(client_branch[0] == weights.head[0])


class TestWithGuide:
  @pytest.mark.slow
  def test_model_stays_as_it_is_beside_the_guide(self, run_in_graph):
    model = mlp.build(width=4, head_width=3)
    guided = guided_model.with_guide(model, NUM_CLIENTS, width=6)
    one, other = run_in_graph(
      lambda seed: (model.initial_weights(seed), guided.initial_weights(seed)),
      SEED,
    )
    np.testing.assert_equal(other, one)
    assert guided.weight_names() == model.weight_names()
    assert guided.num_parameters == model.num_parameters
    assert fingerprint.function_digest(guided) == (
      fingerprint.function_digest(model)
    )
    # The guide is that of figure 2.
    # 4*6 + 6, a scale and an offset for each of 6, 6*5 + 5.
    added = guided.num_guided_parameters - guided.num_parameters
    assert added == 30 + 12 + 35
    assert guided.client_branch.names == (
      "projection_linear/kernel",
      "projection_linear/bias",
      "projection_normalization/gamma",
      "projection_normalization/beta",
      "client_classifier/kernel",
      "client_classifier/bias",
    )
    assert guided.trunk_size == len(guided.backbone.names)

  def test_guide_of_a_guided_model_is_replaced(self):
    guided = guided_model.with_guide(build_small(), 9, width=6)
    assert guided.num_clients == 9
    # On the embedding of 2: 2*6 + 6, 12, 6*9 + 9.
    assert guided.client_branch.num_parameters == 18 + 12 + 63

  @pytest.mark.parametrize(
    "num_clients, width, culprit",
    [(0, 6, "num_clients=0"), (5, 0, "width=0")],
  )
  def test_numbers_below_one_are_refused(self, num_clients, width, culprit):
    with refused(culprit):
      guided_model.with_guide(mlp.build(width=4), num_clients, width)


class TestWithHead:
  @pytest.fixture(scope="class")
  def model(self):
    """With a hidden layer of 3 in its head."""
    return build_small(
      head=lambda: sequential(
        (2,),
        layers.Dense(3, activation="tanh", name="hidden"),
        layers.Dense(2, name="head"),
      )
    )

  @pytest.mark.slow
  def test_target_branch_gets_the_hidden_layers(self, model, run_in_graph):
    cut = split_model.with_head(model, "last_layer")
    assert isinstance(cut, guided_model.GuidedModel)
    assert cut.embedding_size == 3
    assert cut.trunk is model.trunk
    assert cut.client_branch is model.client_branch
    assert cut.target_branch.names == (
      *("goal/kernel", "goal/bias"),
      *("hidden/kernel", "hidden/bias"),
    )

    def predict(seed, x):
      one, other = model.initial_weights(seed), cut.initial_weights(seed)
      guide = model.initial_client_branch(seed)
      return (
        (one, model.predict_both(one, guide, x)),
        (other, cut.predict_both(other, cut.initial_client_branch(seed), x)),
      )

    one, other = run_in_graph(predict, SEED, examples(model))
    assert len(other[0].head) == 2
    np.testing.assert_equal(tf.nest.flatten(other), tf.nest.flatten(one))

  def test_guide_stands_on_the_embedding_of_a_cut_model(self):
    cut = split_model.with_head(mlp.build(width=4, head_width=3), "last_layer")
    guided = guided_model.with_guide(cut, NUM_CLIENTS, width=6)
    assert guided.client_branch.shapes[0] == (3, 6)
    assert guided.trunk_size == 8

  def test_one_layer_stays(self):
    model = build_small()
    assert split_model.with_head(model, "last_layer") is model


class TestFrozen:
  @pytest.fixture(scope="class")
  def model(self):
    """Half of the trunk, all of the target branch, half of the guide."""
    return build_small(
      trunk=lambda: sequential(
        (3,),
        layers.Dense(4, name="trunk", trainable=False),
        layers.Dense(4, name="trunk2"),
      ),
      target_branch=lambda: sequential(
        (4,), layers.Dense(2, name="goal", trainable=False)
      ),
      client_branch=lambda: sequential(
        (4,),
        layers.Dense(4, name="guide", trainable=False),
        layers.Dense(NUM_CLIENTS, name="guide2"),
      ),
    )

  def test_numbers_and_names_are_those_of_trained_weights(self, model):
    assert model.backbone.names == ("trunk2/kernel", "trunk2/bias")
    assert model.trunk_size == 2
    assert model.num_frozen_parameters == 16 + 10 + 20
    assert model.num_guided_parameters == 20 + 6 + 25

  def test_given_values_reach_both_tasks(self, model, run_in_graph):
    frozen = trees.normal(model.frozen)
    weights, client_branch = random_weights(model)
    x = examples(model)

    def predict(frozen, x):
      bound = model.with_frozen(frozen)
      return (
        bound.predict(weights, x),
        bound.predict_both(weights, client_branch, x),
        bound.predict_client(weights.backbone, client_branch, x),
      )

    def linear(x, kernel, bias):
      return x @ kernel + bias

    (trunk, trunk_bias, goal, goal_bias), _, guide = frozen
    features = linear(linear(x, trunk, trunk_bias), *weights.backbone)
    classes = linear(linear(features, goal, goal_bias), *weights.head)
    clients = linear(linear(features, *guide), *client_branch)
    single, both, client = run_in_graph(predict, frozen, x)
    expected = classes, clients, classes, clients
    trees.assert_close((*both, single, client), expected, 1e-3, 1e-4)

  def test_guide_keeps_them(self, model):
    guided = guided_model.with_guide(model, 9, width=6)
    backbone, head, client_branch = guided.frozen
    assert backbone is model.backbone.frozen
    assert (head, client_branch) == ((), ())
    assert guided.num_frozen_parameters == 26


class TestErrors:
  @pytest.mark.parametrize(
    "replaced, message",
    [
      (
        {"target_branch": dense(3, goal=2)},
        r"trunk gives \(4,\) and target branch takes \(3,\)",
      ),
      (
        {"client_branch": dense(3, guide=5)},
        r"trunk gives \(4,\) and client branch takes \(3,\)",
      ),
      (
        {
          "trunk": None,
          "client_branch": dense(3, guide=5),
        },
        r"target branch takes \(4,\) and client branch takes \(3,\)",
      ),
      (
        {"head": dense(3, head=2)},
        r"target branch gives \(2,\) and head takes \(3,\)",
      ),
      (
        {
          "client_branch": lambda: sequential(
            (4,), layers.Dense(4), layers.Reshape((2, 2))
          )
        },
        r"client branch gives \(2, 2\); logits",
      ),
      (
        {"target_branch": dense(4, trunk=2)},
        "both have a weight 'trunk/bias'",
      ),
    ],
  )
  def test_parts_that_do_not_fit_are_refused(self, replaced, message):
    with refused(message):
      build_small(**replaced)
