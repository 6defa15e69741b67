"""MEMO: a model adapts to each example alone, before it predicts it."""

import dataclasses
import types

import numpy as np
import pytest
import scipy.stats
import tensorflow as tf
from numpy.testing import assert_allclose
from numpy.testing import assert_array_equal

from tests.fixtures import trees
from tff_shift import algorithms
from tff_shift.algorithms import fed_avg
from tff_shift.algorithms import fed_avg_ft
from tff_shift.algorithms import memo
from tff_shift.algorithms.parts import augmentations
from tff_shift.execution import local as local_execution
from tff_shift.learning import randomness
from tff_shift.models.networks import mlp

pytestmark = pytest.mark.slow

SHAPE = (4, 5, 1)
# High rates, so that something happens.
HPARAMS = memo.HParams(
  batch_size=4,
  local_steps=1,
  learning_rate=0.3,
  test_time_steps=2,
  test_time_learning_rate=0.2,
  num_augmentations=6,
  augmentation_strength=5.0,
)


def changed(**changes):
  return dataclasses.replace(HPARAMS, **changes)


@pytest.fixture(scope="module")
def images_model():
  return mlp.build(
    SHAPE, num_classes=3, width=6, head_width=5, input_dtype=tf.uint8
  )


@pytest.fixture(scope="module")
def make_images(make_client):
  """Returns `make(client_id, domain_sizes)` for random images."""

  def make(client_id, domain_sizes):
    generator = np.random.default_rng([client_id, 3])
    shape = (sum(domain_sizes), *SHAPE)
    return make_client(client_id, domain_sizes)._replace(
      x=generator.integers(0, 256, shape).astype(np.uint8)
    )

  return make


@pytest.fixture(scope="module")
def weights(images_model, run_in_graph):
  """Random weights whose predictions are neither alike nor certain."""
  drawn = run_in_graph(images_model.initial_weights, np.int32([1, 2]))
  return trees.map(lambda w: w + np.float32(0.2), trees.normal(drawn, 4, 0.5))


@pytest.mark.parametrize(
  "num_steps, augmentation", [(1, "none"), (2, "augmix")]
)
def test_adaptation_agrees_with_the_oracle(
  build, images_model, make_images, weights, oracle, num_steps, augmentation
):
  client, examples = make_images(0, [5]), make_images(1, [2, 1])
  hparams = changed(test_time_steps=num_steps, augmentation=augmentation)
  result = build(hparams, model=images_model).predict_as_client(
    weights, (), client, examples
  )
  flat = lambda x: np.reshape(x, [-1, 20]) / 255  # noqa: E731
  seed = randomness.fold(client.seed, randomness.Purpose.TEST_TIME)
  for x, logits in zip(examples.x, result, strict=True):

    def entropy_at(step, x=x):
      views = x[np.newaxis]
      if augmentation == "augmix":
        views = augmentations.augment(
          tf.constant(x), randomness.fold(seed, step), 6, strength=5.0
        )

      def loss(current):
        p = oracle.softmax(oracle.predict(current, flat(views)))
        return scipy.stats.entropy(p.mean(axis=0))

      return loss

    adapted, _ = oracle.descend(
      weights, [entropy_at(step) for step in range(num_steps)], 0.2
    )
    expected = oracle.predict(adapted, flat(x))[0]
    assert_allclose(logits, expected, atol=1e-4)
    # The oracle sees whether anything was done.
    before = oracle.predict(weights, flat(x))[0]
    assert np.max(np.abs(expected - before)) > 0.01


def test_adaptation_rate_and_optimizer_of_the_program(
  images_model, make_images, weights, run_in_graph, compare
):
  x, seed = make_images(0, [1]).x[0], np.int32([1, 2])

  def adapt(**changes):
    hparams = changed(augmentation="none", test_time_steps=1, **changes)
    return run_in_graph(
      lambda w, x: memo.adapt(images_model, hparams, w, x, seed), weights, x
    )

  # A rate of 0 is that of training.
  assert compare.equal_bits(
    adapt(test_time_learning_rate=0.0), adapt(test_time_learning_rate=0.3)
  )
  # The first step of Adam is of the rate, wherever there is a gradient.
  moved = adapt(test_time_optimizer="adam", test_time_learning_rate=0.01)
  steps = trees.map(lambda a, b: np.max(np.abs(a - b)), moved, weights)
  assert_allclose(trees.leaves(steps), 0.01, rtol=0.01)


def test_each_example_is_adapted_to_alone(
  build, images_model, weights, make_images, run_for_each
):
  """From the same weights, whatever stands beside it."""
  client, examples = make_images(0, [6, 0]), make_images(1, [3, 4])
  order = np.array([6, 2, 0, 5, 1, 3, 4])
  shuffled = examples._replace(x=examples.x[order])
  last = examples._replace(
    x=examples.x[3:], y=examples.y[3:], domain_sizes=np.int32([0, 4])
  )
  logits, *found, of_last, of_other_data, of_other_client = run_for_each(
    build(HPARAMS, model=images_model).predict_as_client,
    [
      (weights, (), *call)
      for call in (
        (client, examples),
        (client, shuffled),
        (client, shuffled._replace(domain_sizes=np.int32([0, 7]))),
        (client, last),
        (make_images(2, [6, 0])._replace(seed=client.seed), examples),
        (client._replace(seed=make_images(1, [1]).seed), examples),
      )
    ],
  )
  assert_array_equal(found, [logits[order]] * 2)
  assert_array_equal(of_last, logits[3:])
  assert_array_equal(of_other_data, logits)
  # Clients draw their own augmentations.
  assert np.all(of_other_client != logits)


@pytest.fixture(scope="module")
def everything(build, images_model, make_images, weights):
  """Returns what an algorithm does with a client, and predicts."""
  client, examples = make_images(0, [6, 5]), make_images(1, [3, 4])

  def compute(hparams, weights=weights):
    functions = build(hparams, model=images_model)
    prepare = functions.prepare_client or (lambda *_: ())
    prepared = prepare(weights, (), client, 0)
    return types.SimpleNamespace(
      prepared=prepared,
      trained=functions.train_client(weights, (), client, 0),
      client=functions.predict_as_client(weights, prepared, client, examples),
      server=functions.predict_as_server(weights, (), examples),
    )

  return compute


@pytest.mark.parametrize("personalized", [False, True])
def test_who_adapts(everything, compare, personalized):
  module = fed_avg_ft if personalized else fed_avg
  plain = everything(
    module.HParams(batch_size=4, local_steps=1, learning_rate=0.3)
  )
  hparams = changed(personalized=personalized, augmentation="none")
  found = everything(hparams)
  assert compare.equal_bits(found.trained, plain.trained)
  assert np.all(found.client != plain.client)
  assert compare.equal_bits(found.server, plain.server) == personalized
  # Without steps nothing differs.
  still = everything(dataclasses.replace(hparams, test_time_steps=0))
  assert compare.equal_bits(
    (still.trained, still.client, still.server),
    (plain.trained, plain.client, plain.server),
  )
  if personalized:
    # The personal model is what is adapted.
    alike = everything(changed(augmentation="none"), found.prepared)
    compare.assert_close(found.client, alike.client, 1e-5)


@pytest.mark.cpp
@pytest.mark.every_algorithm
def test_agrees_with_the_cpp_executor(
  images_model, context, make_images, compare
):
  algorithm = algorithms.build(
    memo, images_model, HPARAMS, num_evaluation_domains=2
  )
  clients = [make_images(i, [4 + i, 3]) for i in range(2)]

  def evaluate():
    state = algorithm.initialize(np.int32([1, 2]))
    return (
      algorithm.evaluate_clients(state, [(), ()], clients, clients),
      algorithm.evaluate_server(state, clients, clients[0]),
    )

  here = evaluate()
  with local_execution.local_context():
    there = evaluate()
  # Sums of losses, up to 3 here: 1e-5 of them.
  compare.assert_close(here, there, 3e-5)
  assert np.all(here[1]["num_examples"] == [4, 3])
