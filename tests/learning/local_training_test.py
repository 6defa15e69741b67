"""Tests of local training: batches, numbers of steps, and the steps."""

import dataclasses
import functools
import itertools

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest
import scipy.stats
import tensorflow as tf
from numpy.testing import assert_allclose
from numpy.testing import assert_array_equal

from tests.fixtures import trees
from tff_shift.data import client_dataset
from tff_shift.learning import local_training
from tff_shift.learning import randomness
from tff_shift.learning.hyperparameters import LocalHParams
from tff_shift.learning.hyperparameters import LocalWorkHParams
from tff_shift.models.split_model import SplitWeights

# Nothing here has random layers.
train = functools.partial(local_training.train, seed=None)

SEED = np.int32([11, -12])
DATA_SPEC = client_dataset.ClientDataset(
  x=tf.TensorSpec([None, 1], tf.float32),
  y=tf.TensorSpec([None], tf.int32),
  domain_sizes=tf.TensorSpec([None], tf.int32),
  num_examples=tf.TensorSpec([], tf.int32),
  seed=tf.TensorSpec([2], tf.int32),
)
SCALAR = tf.TensorSpec([], tf.int32)
# Tests of frequencies fail by chance once in so many runs.
CHANCE = 1e-6

# Few, since each compiles a graph.
batch_sizes = st.sampled_from([1, 2, 5, 12])
sizes_of_domains = st.lists(st.integers(1, 9), min_size=1, max_size=4)
seeds = st.tuples(*[st.integers(-(2**31), 2**31 - 1)] * 2).map(
  lambda words: np.array(words, np.int32)
)


def numbered(domain_sizes, seed=SEED) -> client_dataset.ClientDataset:
  """A client's data whose class is the number of the example."""
  number = np.arange(sum(domain_sizes), dtype=np.int32)
  return client_dataset.ClientDataset.from_arrays(
    x=10.0 * number[:, np.newaxis].astype(np.float32),
    y=number,
    domain_sizes=domain_sizes,
    seed=np.asarray(seed, np.int32),
  )


@pytest.fixture(scope="module")
def draw_pooled(compile_in_graph):
  """Returns `draw(batch_size)(data, visit, seed)`."""

  @functools.cache
  def draw(batch_size):
    return compile_in_graph(
      lambda data, visit, seed: local_training.pooled_batches(
        data, visit + 1, batch_size, seed
      )(visit),
      DATA_SPEC,
      SCALAR,
      DATA_SPEC.seed,
    )

  return draw


@pytest.fixture(scope="module")
def draw_domain(compile_in_graph):
  """Returns `draw(batch_size)(data, domain, visit, seed)`."""

  @functools.cache
  def draw(batch_size):
    return compile_in_graph(
      lambda data, domain, visit, seed: local_training.domain_batches(
        data, visit + 1, batch_size, seed
      )(domain, visit),
      DATA_SPEC,
      SCALAR,
      SCALAR,
      DATA_SPEC.seed,
    )

  return draw


def stream(draw, batch_size, size, num_epochs=3) -> np.ndarray:
  """Draws batches until every epoch is full; returns the examples' numbers."""
  num_batches = -(-num_epochs * size // batch_size)
  batches = [draw(visit) for visit in range(num_batches)]
  for batch in batches:
    assert batch.x.shape == (batch_size, 1)
    assert batch.y.shape == (batch_size,)
    assert_array_equal(batch.x[:, 0], 10.0 * batch.y)
  return np.concatenate([batch.y for batch in batches])


class TestBatches:
  @pytest.mark.slow
  @hypothesis.settings(max_examples=40)
  @hypothesis.given(sizes_of_domains, batch_sizes, seeds, st.data())
  def test_epochs_hold_each_example_once(
    self, draw_pooled, draw_domain, sizes, batch_size, seed, choice
  ):
    data, size, start = numbered(sizes), sum(sizes), 0
    # Of one domain, or of all.
    domain = choice.draw(st.none() | st.integers(0, len(sizes) - 1))
    draw = draw_pooled(batch_size), data
    if domain is not None:
      size, start = sizes[domain], sum(sizes[:domain])
      draw = draw_domain(batch_size), data, domain
    drawn = stream(
      lambda visit: draw[0](*draw[1:], visit, seed), batch_size, size
    )
    # Also what is drawn beyond the last full epoch is of the domain.
    assert start <= drawn.min() and drawn.max() < start + size
    for epoch in range(3):
      in_epoch = drawn[epoch * size : (epoch + 1) * size]
      assert_array_equal(np.sort(in_epoch), start + np.arange(size))

  def test_domains_without_examples_do_not_shift_the_others(self, draw_domain):
    batch = draw_domain(2)(numbered([3, 0, 2]), 2, 0, SEED)
    assert sorted(batch.y) == [3, 4]

  def test_equal_seeds_give_equal_batches_and_others_do_not(self, draw_pooled):
    clients = [randomness.client_seed(0, i) for i in range(10)]
    # The seed of the data has no part in it.
    first, again = (
      [
        draw_pooled(30)(numbered([60], of_data), 0, seed).y.tolist()
        for seed in clients
      ]
      for of_data in (SEED, -SEED)
    )
    assert first == again
    assert len({tuple(batch) for batch in first}) == 10
    assert len({frozenset(batch) for batch in first}) == 10

  def test_epochs_and_domains_have_orders_of_their_own(
    self, draw_pooled, draw_domain
  ):
    orders = [
      draw_pooled(30)(numbered([30]), epoch, SEED).y for epoch in range(5)
    ] + [
      draw_domain(30)(numbered([30] * 5), domain, 0, SEED).y - 30 * domain
      for domain in range(5)
    ]
    assert len({tuple(order) for order in orders}) == 10
    assert tuple(range(30)) not in {tuple(order) for order in orders}

  @pytest.mark.slow
  def test_every_example_is_drawn_first_equally_often_over_rounds(
    self, compile_in_graph
  ):
    first = compile_in_graph(
      lambda data, round_num: local_training.pooled_batches(
        data,
        1,
        2,
        randomness.fold(data.seed, randomness.Purpose.TRAIN, round_num),
      )(0).y,
      DATA_SPEC,
      SCALAR,
    )
    drawn = [first(numbered([5]), round_num) for round_num in range(2000)]
    for position in (0, 1):
      counts = np.bincount([batch[position] for batch in drawn], minlength=5)
      assert scipy.stats.chisquare(counts).pvalue > CHANCE


class TestSizes:
  def test_domain_of_example(self, run_in_graph):
    domains = run_in_graph(
      local_training.domain_of_example, numbered([3, 0, 2])
    )
    assert_array_equal(domains, [0, 0, 0, 2, 2])

  @pytest.mark.parametrize(
    "sizes, batch_size, steps",
    [([4], 2, 2), ([1], 32, 1), ([3, 5], 7, 2)],
  )
  def test_epoch_steps(self, run_in_graph, sizes, batch_size, steps):
    assert steps == run_in_graph(
      lambda data: local_training.epoch_steps(data, batch_size), numbered(sizes)
    )


class TestNumLocalSteps:
  @pytest.fixture(scope="class")
  def count(self, compile_in_graph):
    """Returns `count(data, round_num, **hparams)`."""

    @functools.cache
    def compiled(hparams):
      return compile_in_graph(
        lambda data, round_num: local_training.num_local_steps(
          hparams, data, round_num
        ),
        DATA_SPEC,
        SCALAR,
      )

    return lambda data, round_num, **values: int(
      compiled(LocalHParams(**values))(data, round_num)
    )

  def test_steps_are_those_asked_for(self, count):
    assert count(numbered([50, 50]), 3, local_steps=7) == 7

  @pytest.mark.parametrize(
    "sizes, batch_size, epochs, steps",
    [
      ([10], 4, 1, 3),  # 2.5 rounded up.
      ([10], 4, 2, 5),  # Rounded once, not per epoch.
      ([6, 4], 3, 3, 5),  # 30 examples, 6 of them in an iteration.
      ([2, 2, 2], 100, 1, 1),
    ],
  )
  def test_epochs_replace_the_steps(
    self, count, sizes, batch_size, epochs, steps
  ):
    assert steps == count(
      numbered(sizes),
      0,
      local_steps=99,
      local_epochs=epochs,
      batch_size=batch_size,
    )

  @pytest.mark.slow
  def test_stragglers_train_a_uniform_number_of_steps(self, count):
    tau, ratio, num_draws = 4, 0.3, 2000
    drawn = [
      count(
        numbered([4], randomness.client_seed(1, client)),
        round_num,
        local_steps=tau,
        straggler_ratio=ratio,
      )
      for client, round_num in itertools.product(range(40), range(50))
    ]
    counts = np.bincount(drawn, minlength=tau + 1)
    assert counts[0] == 0 and len(counts) == tau + 1
    # A straggler trains each of 1..tau with equal probability; whoever is none
    # trains tau. Each count is binomial.
    for steps in range(1, tau + 1):
      probability = ratio / tau + (1 - ratio) * (steps == tau)
      low, high = scipy.stats.binom.interval(1 - CHANCE, num_draws, probability)
      assert low <= counts[steps] <= high, (steps, counts)

  def test_stragglers_are_drawn_by_client_and_round_alone(self, count):
    def draw(client, round_num, sizes):
      return count(
        numbered(sizes, randomness.client_seed(0, client)),
        round_num,
        local_steps=1000,
        straggler_ratio=1.0,
      )

    by_client = [draw(client, 0, [4]) for client in range(8)]
    by_round = [draw(0, round_num, [4]) for round_num in range(8)]
    # Two of eight numbers out of 1,000 may happen to be equal, not more.
    assert len(set(by_client)) >= 6 and len(set(by_round)) >= 6
    assert by_client == [draw(client, 0, [3, 5]) for client in range(8)]

  @pytest.mark.parametrize("straggler_ratio", [0.0, 0.5, 1.0])
  def test_client_without_examples_has_no_steps(self, count, straggler_ratio):
    for round_num in range(4):
      assert (
        count(
          numbered([0, 0]),
          round_num,
          local_steps=3,
          straggler_ratio=straggler_ratio,
        )
        == 0
      )

  def test_stragglers_of_epochs_train_at_most_the_epochs(self, count):
    drawn = {
      count(
        numbered([10], randomness.client_seed(0, client)),
        0,
        local_epochs=3,
        batch_size=10,
        straggler_ratio=1.0,
      )
      for client in range(60)
    }
    assert drawn == {1, 2, 3}


def regression_loss(weights, x, y):
  """The mean square error of a linear map; TensorFlow and NumPy alike."""
  kernel, bias = weights
  return ((x @ kernel + bias - y) ** 2).mean()


def regression_gradient(weights, x, y):
  kernel, bias = weights
  slope = 2 * (x @ kernel + bias - y) / y.size
  return [x.T @ slope, slope.sum(axis=0)]


@pytest.mark.parametrize(
  "schedule, rates",
  [
    ({}, [0.4] * 5),
    ({"cosine_rounds": 4}, [0.4, 0.341421, 0.2, 0.058579, 0.0]),
    ({"decay_rounds": 2}, [0.4, 0.4, 0.04, 0.04, 0.004]),
    ({"decay_rounds": 1, "decay_factor": 0.5}, [0.4, 0.2, 0.1, 0.05, 0.025]),
  ],
)
def test_scheduled_rates_of_rounds(run_in_graph, schedule, rates):
  hparams = LocalHParams(learning_rate=0.4, **schedule)
  found = [
    run_in_graph(
      lambda number: local_training.scheduled_rate(hparams, number) + 0.0,
      np.int32(number),
    )
    for number in range(5)
  ]
  assert_allclose(found, rates, rtol=1e-5, atol=1e-7)
  # Outside of rounds there is no schedule.
  assert local_training.scheduled_rate(hparams, None) == 0.4


class Oracle:
  """Optimizers in NumPy: the update of one weight by its gradient.

  Weight decay and momentum are those of PyTorch. Adam is in the form of the
  last paragraph of Section 2 of its paper, in which epsilon stands beside the
  root that is not corrected: that is TFF's.
  """

  BETA_1, BETA_2, EPSILON = 0.9, 0.999, 1e-7

  def __init__(self, hparams):
    self.hparams = hparams
    self.step = 0
    self.mean = self.square = 0.0

  def update(self, weight, gradient):
    hparams = self.hparams
    rate, decay = hparams.learning_rate, hparams.weight_decay
    self.step += 1
    if hparams.optimizer == "adamw":
      weight = weight * (1 - rate * decay)
    else:
      gradient = gradient + decay * weight
    if hparams.optimizer == "sgd":
      self.mean = hparams.momentum * self.mean + gradient
      return weight - rate * self.mean
    self.mean = self.BETA_1 * self.mean + (1 - self.BETA_1) * gradient
    self.square = self.BETA_2 * self.square + (1 - self.BETA_2) * gradient**2
    correction = np.sqrt(1 - self.BETA_2**self.step) / (
      1 - self.BETA_1**self.step
    )
    return weight - rate * correction * self.mean / (
      np.sqrt(self.square) + self.EPSILON
    )


def train_by_hand(hparams, weights, examples, trainable=(True, True)):
  """Returns the trained weights and the losses, in float64."""
  weights = [np.float64(weight) for weight in weights]
  optimizers = [Oracle(hparams) for _ in weights]
  losses = []
  for x, y in zip(*examples, strict=True):
    losses.append(regression_loss(weights, x, y))
    gradients = regression_gradient(weights, x, y)
    weights = [
      optimizer.update(weight, gradient) if moves else weight
      for optimizer, weight, gradient, moves in zip(
        optimizers, weights, gradients, trainable, strict=True
      )
    ]
  return weights, losses


NUM_STEPS = 7


OPTIMIZERS = {
  "sgd": LocalHParams(learning_rate=0.1),
  "sgd_decay": LocalHParams(learning_rate=0.1, weight_decay=0.3),
  "momentum": LocalHParams(learning_rate=0.05, momentum=0.9),
  "momentum_decay": LocalHParams(
    learning_rate=0.05, momentum=0.5, weight_decay=0.3
  ),
  "adam": LocalHParams(optimizer="adam", learning_rate=0.01),
  "adam_decay": LocalHParams(
    optimizer="adam", learning_rate=0.01, weight_decay=0.3
  ),
  "adamw_decay": LocalHParams(
    optimizer="adamw", learning_rate=0.01, weight_decay=0.3
  ),
}


@pytest.fixture(scope="module")
def problem():
  """Weights [3, 2] and [2], and a batch of 5 examples for each step."""
  generator = np.random.default_rng(0)
  weights = SplitWeights(
    (generator.normal(size=(3, 2)).astype(np.float32),),
    (generator.normal(size=2).astype(np.float32),),
  )
  examples = (
    generator.normal(size=(NUM_STEPS, 5, 3)).astype(np.float32),
    generator.normal(size=(NUM_STEPS, 5, 2)).astype(np.float32),
  )
  return weights, examples


def run_training(
  run_in_graph, problem, hparams, num_steps, trainable=None, rate=None
):
  """Trains on the problem.

  The number of steps, and the rate where one is given, are known only in the
  graph.
  """

  def work(weights, x, y, steps, *rates):
    def loss_fn(current, step, carry):
      (kernel,), (bias,) = current
      error = x[step] @ kernel + bias - y[step]
      return tf.reduce_mean(error**2), carry

    return train(
      loss_fn,
      weights,
      steps,
      hparams,
      trainable=trainable,
      learning_rate=rates[0] if rates else None,
    )

  weights, (x, y) = problem
  rates = () if rate is None else (np.float32(rate),)
  return run_in_graph(work, weights, x, y, np.int32(num_steps), *rates)


@pytest.mark.parametrize("is_weighted", [False, True])
def test_steps_use_the_pooled_batches_in_order(
  run_in_graph, draw_pooled, is_weighted
):
  generator = np.random.default_rng(5)
  data = numbered([4, 3])
  data = data._replace(x=generator.normal(size=(7, 1)).astype(np.float32))
  labels = generator.integers(0, 3, 7).astype(np.int32)
  start = generator.normal(size=(1, 3)).astype(np.float32)
  hparams = LocalHParams(batch_size=4, learning_rate=0.5)
  of_examples = generator.uniform(0, 2, 7).astype(np.float32)
  if not is_weighted:
    of_examples[:] = 1

  result = run_in_graph(
    lambda data, weight, steps: local_training.train_on_pool(
      lambda weights, x: x @ weights[0],
      (weight,),
      data,
      steps,
      SEED,
      hparams,
      example_weights=tf.constant(of_examples) if is_weighted else (),
    ),
    data._replace(y=labels),
    start,
    np.int32(5),
  )

  weight, losses = np.float64(start), []
  for visit in range(5):
    # The classes of `data` are the numbers of the examples.
    chosen = draw_pooled(4)(data, visit, SEED).y
    x, y = data.x[chosen], labels[chosen]
    probabilities = scipy.special.softmax(x @ weight, axis=1)
    of_batch = of_examples[chosen]
    losses.append(-np.mean(of_batch * np.log(probabilities[range(4), y])))
    errors = of_batch[:, np.newaxis] * (probabilities - np.eye(3)[y])
    weight = weight - 0.5 * x.T @ errors / 4
  assert_allclose(result.weights[0], weight, rtol=0, atol=2e-6)
  assert_allclose(result.loss, np.mean(losses), rtol=1e-6)
  assert result.carry == ()


class TestTrain:
  @pytest.mark.parametrize(
    "name, moves",
    [
      *((name, (True, True)) for name in OPTIMIZERS),
      ("momentum_decay", (True, False)),
      ("adam_decay", (False, True)),
      ("adamw_decay", (True, False)),
      *((name, (False, False)) for name in OPTIMIZERS if "decay" in name),
    ],
  )
  def test_steps_are_those_of_the_optimizer_and_frozen_weights_stay(
    self, run_in_graph, problem, name, moves
  ):
    start = trees.leaves(problem[0])
    expected, losses = train_by_hand(OPTIMIZERS[name], start, problem[1], moves)
    backbone, head = moves

    result = run_training(
      run_in_graph,
      problem,
      OPTIMIZERS[name],
      NUM_STEPS,
      trainable=None if all(moves) else SplitWeights((backbone,), (head,)),
    )

    assert isinstance(result.weights, SplitWeights)
    for actual, value, before, is_moved in zip(
      trees.leaves(result.weights), expected, start, moves, strict=True
    ):
      if is_moved:
        assert np.abs(value - before).max() > 0.02
        # Seven steps of float32 beside float64.
        assert_allclose(actual, value, rtol=0, atol=2e-6)
      else:
        assert trees.bits(actual) == trees.bits(before)
    assert_allclose(result.loss, np.mean(losses), rtol=1e-6)

  @pytest.mark.parametrize(
    "name", ["momentum_decay", "adam_decay", "adamw_decay"]
  )
  def test_rate_that_is_computed_replaces_that_of_the_hyperparameters(
    self, run_in_graph, problem, name
  ):
    hparams = OPTIMIZERS[name]
    given, computed = (
      run_training(
        run_in_graph,
        problem,
        dataclasses.replace(hparams, learning_rate=of_hparams),
        NUM_STEPS,
        rate=rate,
      )
      for of_hparams, rate in (
        (hparams.learning_rate, None),
        (0.7, hparams.learning_rate),
      )
    )
    assert trees.bits(computed) == trees.bits(given)

  def test_weight_without_part_in_the_loss_only_decays(self, run_in_graph):
    result = run_in_graph(
      lambda weights: train(
        lambda now, step, carry: (tf.reduce_sum(now["used"]), carry),
        weights,
        2,
        LocalHParams(learning_rate=0.5, weight_decay=0.2),
      ),
      {"used": np.float32([1.0]), "unused": np.float32([8.0])},
    )
    # Each step takes 0.5 * 0.2 of it: 8, 7.2, 6.48.
    assert_allclose(result.weights["unused"], [6.48], rtol=1e-6)
    # And 1 - 0.5 (1 + 0.2) = 0.4, 0.4 - 0.5 (1 + 0.08) = -0.14.
    assert_allclose(result.weights["used"], [-0.14], rtol=1e-6)

  @pytest.mark.parametrize(
    "steps, weight, carry, loss",
    # (w, c): (1, 2), (0, 3), (-1.5, 0), (-1.5, -4.5); losses 2, 0, 0.
    [(3, -1.5, (-4.5, 10 + 0 + 1 + 2), 2 / 3), (0, 1, (2, 10), 0)],
  )
  def test_carry_is_passed_along_and_is_constant_in_a_step(
    self, run_in_graph, steps, weight, carry, loss
  ):
    # With loss w * c and the next c = 3 w: were c not a constant for the
    # gradient, steps would not be those of c alone.
    def loss_fn(weights, step, carry):
      value, steps = carry
      (weight,) = weights
      return weight * value, (3.0 * weight, steps + step)

    result = run_in_graph(
      lambda weight, value: train(
        loss_fn,
        (weight,),
        steps,
        LocalHParams(learning_rate=0.5),
        carry=(value, tf.constant(10)),
      ),
      np.float32(1.0),
      np.float32(2.0),
    )
    assert result.weights == (weight,)
    assert result.carry == carry
    assert_allclose(result.loss, loss, rtol=1e-6)

  def test_each_step_ends_where_trained_weights_may_be(self, run_in_graph):
    # The loss is the sum of all weights, so that a step takes 0.5.
    result = run_in_graph(
      lambda weights: train(
        lambda current, step, carry: (
          tf.reduce_sum(current.backbone[0] + current.head[0]),
          carry,
        ),
        weights,
        2,
        LocalHParams(learning_rate=0.5),
        trainable=SplitWeights((True,), (False,)),
        project=lambda moved: tuple(tf.clip_by_value(w, 0, 3) for w in moved),
      ).weights,
      SplitWeights(
        (np.float32([0.2, 5.0, 2.0]),), (np.full(3, 7, np.float32),)
      ),
    )
    # The first step leaves 3 of 5.
    assert result.backbone[0].tolist() == [0, 2.5, 1]
    # What is not trained is not projected.
    assert result.head[0].tolist() == [7, 7, 7]


class TestMoments:
  """Steps down sum(w^2) / 2, in two calls and in one."""

  START = (np.float32([1.0, -2.0]), np.float32(0.5))

  def steps(self, hparams, numbers, **options):
    def loss_fn(current, step, carry):
      return sum(tf.reduce_sum(w**2) / 2 for w in current), carry

    def work(weights):
      moments = local_training.initial_moments(weights, hparams)
      for number in numbers:
        result = train(
          loss_fn, weights, number, hparams, moments=moments, **options
        )
        weights, moments = result.weights, result.moments
      return result

    return work

  @pytest.mark.parametrize(
    "options",
    [{"optimizer": "adam"}, {"momentum": 0.9}, {}],
    ids=["adam", "momentum", "sgd"],
  )
  def test_two_calls_are_one(self, run_in_graph, options):
    hparams = LocalHParams(learning_rate=0.1, **options)
    two, one = (
      run_in_graph(self.steps(hparams, numbers), self.START)
      for numbers in ((2, 3), (5,))
    )
    assert trees.bits((two.weights, two.moments)) == trees.bits(
      (one.weights, one.moments)
    )

  def test_loss_gets_what_the_gradient_is_asked_with(self, run_in_graph):
    # The loss 3 w, and the gradient of 5 w.
    result = run_in_graph(
      lambda weights: train(
        lambda current, step, carry, factor: (factor * current[0], carry + 1),
        weights,
        1,
        LocalHParams(learning_rate=1.0),
        carry=tf.constant(0),
        differentiate=lambda gradient_at, trained: gradient_at(
          trained, 3.0
        )._replace(gradients=gradient_at(trained, 5.0).gradients),
      ),
      (np.float32(2),),
    )
    assert result.loss == 6 and result.weights[0] == -3
    # What is carried is carried once a step, however often it was computed.
    assert result.carry == 1

  def test_step_that_is_not_taken_changes_nothing(self, run_in_graph):
    hparams = LocalHParams(learning_rate=0.1, momentum=0.9)
    result = run_in_graph(
      self.steps(
        hparams,
        (3,),
        differentiate=lambda gradient_at, trained: (
          gradient_at(trained)._replace(takes_step=tf.constant(False))
        ),
      ),
      self.START,
    )
    assert trees.bits(result.weights) == trees.bits(self.START)
    assert not any(map(np.any, trees.leaves(result.moments)))


def test_local_training_without_a_rate_is_refused():
  with pytest.raises(TypeError) as error:
    train(
      lambda weights, step, carry: (tf.reduce_sum(weights), carry),
      tf.constant([1.0]),
      1,
      LocalWorkHParams(),
    )
  assert "train needs a learning_rate" in str(error.value)
  assert "LocalHParams, got LocalWorkHParams" in str(error.value)
