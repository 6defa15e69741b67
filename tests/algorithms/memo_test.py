"""MEMO: a model adapts to each example alone, before it predicts it."""

import dataclasses

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


@pytest.fixture(scope="module")
def predict(build, images_model, weights, run_for_each):
  """Returns `predict(calls)`; a call is data and examples."""
  work = build(HPARAMS, model=images_model).predict_as_client
  return lambda calls: run_for_each(work, [(weights, (), *c) for c in calls])


class TestAdaptation:
  @pytest.mark.parametrize(
    "num_steps, augmentation", [(1, "none"), (2, "augmix")]
  )
  def test_agrees_with_the_oracle(
    self,
    build,
    images_model,
    make_images,
    weights,
    oracle,
    num_steps,
    augmentation,
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

  def test_rate_and_optimizer_of_the_program(
    self, images_model, make_images, weights, run_in_graph, compare
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


def test_each_example_is_adapted_to_alone(predict, make_images):
  """From the same weights, whatever stands beside it."""
  client, examples = make_images(0, [6, 0]), make_images(1, [3, 4])
  order = np.array([6, 2, 0, 5, 1, 3, 4])
  shuffled = examples._replace(x=examples.x[order])
  last = examples._replace(
    x=examples.x[3:], y=examples.y[3:], domain_sizes=np.int32([0, 4])
  )
  logits, *found, of_last, of_other_data, of_other_client = predict(
    [
      (client, examples),
      (client, shuffled),
      (client, shuffled._replace(domain_sizes=np.int32([0, 7]))),
      (client, last),
      (make_images(2, [6, 0])._replace(seed=client.seed), examples),
      (client._replace(seed=make_images(1, [1]).seed), examples),
    ]
  )
  assert_array_equal(found, [logits[order]] * 2)
  assert_array_equal(of_last, logits[3:])
  assert_array_equal(of_other_data, logits)
  # Clients draw their own augmentations.
  assert np.all(of_other_client != logits)


class TestBesideFedAvg:
  @pytest.fixture(scope="class")
  def everything(self, build, images_model, make_images, weights, run_in_graph):
    """Returns what an algorithm does with a client, and predicts."""
    client, examples = make_images(0, [6, 5]), make_images(1, [3, 4])

    def compute(hparams):
      functions = build(hparams, model=images_model)
      prepare = functions.prepare_client or (lambda *_: ())
      return run_in_graph(
        lambda weights, data, examples: (
          functions.train_client(weights, (), data, tf.constant(0)),
          functions.predict_as_client(
            weights, prepare(weights, (), data, tf.constant(0)), data, examples
          ),
          functions.predict_as_server(weights, (), examples),
        ),
        weights,
        client,
        examples,
      )

    return compute

  @pytest.fixture(scope="class")
  def of_fed_avg(self, everything):
    common = {"batch_size": 4, "local_steps": 1, "learning_rate": 0.3}
    return {
      False: everything(fed_avg.HParams(**common)),
      True: everything(fed_avg_ft.HParams(**common)),
    }

  @pytest.mark.parametrize("personalized", [False, True])
  def test_without_steps_nothing_differs(
    self, everything, of_fed_avg, compare, personalized
  ):
    hparams = changed(
      personalized=personalized, test_time_steps=0, augmentation="none"
    )
    assert compare.equal_bits(everything(hparams), of_fed_avg[personalized])

  def test_who_adapts(self, everything, of_fed_avg, compare):
    for personalized in (False, True):
      trained, client, server = everything(
        changed(personalized=personalized, augmentation="none")
      )
      plain = of_fed_avg[personalized]
      assert compare.equal_bits(trained, plain[0])
      assert np.all(client != plain[1])
      assert compare.equal_bits(server, plain[2]) == personalized

  def test_personal_model_is_what_is_adapted(
    self, build, images_model, make_images, weights, run_in_graph, compare
  ):
    hparams = changed(personalized=True, augmentation="none")
    functions = build(hparams, model=images_model)
    client, examples = make_images(0, [6, 5]), make_images(1, [3, 4])
    tuned, found = run_in_graph(
      lambda weights, data, examples: (
        tuned := functions.prepare_client(weights, (), data, tf.constant(0)),
        functions.predict_as_client(weights, tuned, data, examples),
      ),
      weights,
      client,
      examples,
    )
    expected = run_in_graph(
      lambda tuned, examples: memo.predict(
        images_model, hparams, tuned, examples, client.seed
      ),
      tuned,
      examples,
    )
    compare.assert_close(found, expected, 1e-5)


@pytest.mark.cpp
@pytest.mark.every_algorithm
class TestThroughTff:
  @pytest.fixture(scope="class")
  def algorithm(self, images_model, context):
    return algorithms.build(
      memo, images_model, HPARAMS, num_evaluation_domains=2
    )

  def test_agrees_with_the_cpp_executor(self, algorithm, make_images, compare):
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
