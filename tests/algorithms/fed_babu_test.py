"""FedBABU: a head that is random, common, and not trained in rounds."""

import functools

import numpy as np
import pytest
import tensorflow as tf

from tff_shift import algorithms
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
def weights(model, client, run_in_graph):
  """What the server holds: the backbone, and the head that nobody trains."""
  return run_in_graph(model.initial_weights, client.seed)


def chosen(model, *parts):
  return tf.nest.map_structure(
    lambda name: name.split("/")[0] in parts, model.weight_names()
  )


def descend(oracle, weights, batches, parts):
  """Steps with weight decay on some parts; the weights and the mean loss."""
  losses = []
  for loss in oracle.losses(batches):
    losses.append(loss(weights))
    slopes = oracle.gradient(loss, weights)
    weights = tf.nest.map_structure(
      lambda w, g, moves: w - RATE * (g + 0.1 * w) * moves,
      weights,
      slopes,
      parts,
    )
  return weights, np.mean(losses)


def test_round_trains_the_backbone_under_the_head_that_stays(
  model, client, weights, oracle, run_in_graph, compare
):
  functions = fed_babu.build(model, fed_babu.HParams(**COMMON))
  result = run_in_graph(
    functions.train_client, weights, (), client, np.int32(ROUND)
  )
  # A step for each of the two domains.
  batches = oracle.batches(client, 2, randomness.Purpose.TRAIN, ROUND)
  expected, mean_loss = descend(
    oracle, weights, batches, chosen(model, "backbone")
  )
  # The head has no place in what is sent.
  compare.assert_close(
    result.update,
    tf.nest.map_structure(np.subtract, expected.backbone, weights.backbone),
    1e-5,
  )
  np.testing.assert_allclose(result.loss, mean_loss, rtol=1e-5)
  assert result.client_state == ()
  assert max(np.abs(w).max() for w in result.update) > 1e-3


@pytest.mark.parametrize(
  ("part", "moving"),
  [
    ("full", ("backbone", "head")),
    ("head", ("head",)),
    ("body", ("backbone",)),
  ],
)
def test_part_that_was_asked_for_is_fine_tuned(
  model, client, weights, oracle, run_in_graph, compare, part, moving
):
  functions = fed_babu.build(
    model, fed_babu.HParams(fine_tune_part=part, **COMMON)
  )
  prepared = run_in_graph(
    functions.prepare_client, weights, (), client, np.int32(ROUND)
  )
  batches = oracle.batches(client, 3, randomness.Purpose.PERSONALIZE)
  expected, _ = descend(oracle, weights, batches, chosen(model, *moving))
  compare.assert_close(prepared, expected, 1e-5)
  for name in split_model.SplitWeights._fields:
    is_still = compare.equal_bits(
      getattr(prepared, name), getattr(weights, name)
    )
    assert is_still == (name not in moving)


def test_fine_tuning_is_that_of_fed_avg_ft_bit_for_bit(
  model, client, weights, run_in_graph, compare
):
  hparams = COMMON | {"momentum": 0.5, "cosine_rounds": 6, "local_steps": 2}
  own, plain = (
    module.build(model, module.HParams(**hparams)).prepare_client
    for module in (fed_babu, fed_avg_ft)
  )
  arguments = (), client, np.int32(ROUND)
  assert compare.equal_bits(
    run_in_graph(own, weights, *arguments),
    run_in_graph(plain, weights, *arguments),
  )


def test_before_fine_tuning_all_predict_with_one_model(
  model, make_client, weights, oracle, run_in_graph, run_for_each
):
  functions = fed_babu.build(
    model,
    fed_babu.HParams(**COMMON | {"fine_tuning_steps": 0}, fine_tuning_epochs=0),
  )
  clients = [make_client(i, [5 + i]) for i in range(2)]
  examples = make_client(7, [6])

  def predict(received, data, examples):
    prepared = functions.prepare_client(received, (), data, tf.constant(ROUND))
    return functions.predict_as_client(received, prepared, data, examples)

  expected = oracle.predict(weights, examples.x)
  for logits in (
    *run_for_each(predict, [(weights, each, examples) for each in clients]),
    run_in_graph(functions.predict_as_server, weights, (), examples),
  ):
    np.testing.assert_allclose(logits, expected, atol=1e-5)


@pytest.mark.parametrize(
  ("head", "num_trained"), [("last_layer", 8), ("classifier", 6)]
)
def test_head_is_the_last_layer_unless_asked_otherwise(
  client, run_in_graph, head, num_trained
):
  assert fed_babu.HParams().head == "last_layer"
  model = mlp.build((5,), num_classes=3, width=8, head_width=6)
  functions = fed_babu.build(model, fed_babu.HParams(head=head, **COMMON))
  weights = run_in_graph(functions.initial_weights, client.seed)
  assert len(weights.backbone) == num_trained
  update = run_in_graph(
    lambda received, data: functions.train_client(
      received, (), data, tf.constant(ROUND)
    ).update,
    weights,
    client,
  )
  assert [w.shape for w in update] == [w.shape for w in weights.backbone]


class TestHeadOfARun:
  """The backbone is given, so that all that a seed draws is the head."""

  @pytest.fixture(scope="class")
  def pretrained(self, model, weights):
    names = model.weight_names().backbone
    return split_model.with_weights(
      model, dict(zip(names, weights.backbone, strict=True))
    )

  @pytest.fixture(scope="class")
  def server_loss(self, pretrained, make_client, context):
    """Returns `server_loss(module, run_seed)` before the first round."""
    examples = make_client(5, [9])

    @functools.cache
    def build(module):
      return algorithms.build(module, pretrained, module.HParams(**COMMON))

    def measure(module, run_seed):
      algorithm = build(module)
      state = algorithm.initialize(randomness.server_seed(run_seed))
      metrics = algorithm.evaluate_server(state, [examples], examples)
      return float(metrics["loss"][0])

    return measure

  def test_is_drawn_with_the_seed_as_that_of_fed_avg_ft(self, server_loss):
    losses = [server_loss(fed_babu, run_seed) for run_seed in range(4)]
    assert np.std(losses) > 0.05
    assert losses == [
      server_loss(fed_avg_ft, run_seed) for run_seed in range(4)
    ]
