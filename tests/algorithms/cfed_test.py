"""CFeD: some clients learn, some review, and the server distils."""

import numpy as np
import pytest

from tests.fixtures import trees
from tff_shift.algorithms import cfed
from tff_shift.data import client_dataset
from tff_shift.learning import randomness

pytestmark = pytest.mark.slow


COMMON = {"batch_size": 4, "learning_rate": 0.1}
# Three domains in six rounds.
HPARAMS = cfed.HParams(
  task_rounds=6,
  local_steps=1,
  server_steps=2,
  public_examples=7,
  # Large enough to be seen.
  distillation_weight=2.0,
  **COMMON,
)
SIZES = [4, 6, 5]


@pytest.fixture(scope="module")
def weights(initial):
  return cfed.Weights(*map(initial, range(2)), seed=randomness.server_seed(5))


@pytest.fixture(scope="module")
def public(model):
  return cfed.make_public_inputs(model, HPARAMS)


def says(oracle, weights, x):
  """The probabilities at temperature 2, in NumPy."""
  return oracle.softmax(oracle.predict(weights, x) / 2)


def distillation_losses(oracle, targets, public, seed, num_steps, *words):
  """The losses of distillation of steps on batches of 4, in NumPy."""
  numbers = client_dataset.ClientDataset.from_arrays(
    public, np.arange(len(public), dtype=np.int32), seed=seed
  )
  return [
    lambda w, chosen=batch.y: -2.0
    * np.mean(
      np.sum(targets[chosen] * np.log(says(oracle, w, public[chosen])), axis=1)
    )
    for batch in oracle.of_training(numbers, num_steps, *words)
  ]


@pytest.mark.parametrize(
  "review_share, round_num, domain", [(1.0, 1, 0), (0.0, 3, 1)]
)
def test_client_who_learns_does_what_fed_avg_does_on_the_domain(
  learn_alone, build, weights, client, compare, review_share, round_num, domain
):
  result = build(HPARAMS, review_share=review_share).train_client(
    weights, (), client, round_num
  )
  expected = learn_alone(weights.model, client, domain, round_num)
  assert compare.equal_bits(result.update, expected.update)
  assert compare.equal_bits(result.loss, expected.loss)


def test_client_who_reviews_distils_from_the_teacher(
  build, weights, client, public, oracle, compare
):
  functions = build(HPARAMS, review_share=1.0)
  result = functions.train_client(weights, (), client, 3)
  targets = says(oracle, weights.teacher, public)
  losses = distillation_losses(oracle, targets, public, client.seed, 3, 3, 1)
  expected, mean_loss = oracle.descend(weights.model, losses, 0.1)
  update = trees.subtract(expected, weights.model)
  assert trees.largest(update) > 1e-3
  oracle.check(result, weights.model, expected, mean_loss)
  # The classes are not looked at.
  other = client._replace(y=2 - client.y)
  again = functions.train_client(weights, (), other, 3)
  assert compare.equal_bits(again, result)


def test_client_who_reviews_is_drawn_for_each_client_and_round(
  weights, make_client, run_for_each, functions
):
  # A client that learns tells classes apart, one that reviews does not.
  clients = [make_client(i, SIZES) for i in range(20)]
  calls_of_labels = [
    [
      (weights, (), each._replace(y=np.roll(each.y, shift)), np.int32(number))
      for number in (3, 4)
      for each in clients
    ]
    for shift in (0, 1)
  ]
  train = functions.train_client
  losses, others = (
    np.array([result.loss for result in run_for_each(train, calls)])
    for calls in calls_of_labels
  )
  reviews = (losses == others).reshape(2, 20)
  assert np.all((reviews.sum(axis=1) >= 2) & (reviews.sum(axis=1) <= 14))
  assert np.any(reviews[0] != reviews[1])


@pytest.mark.parametrize(
  "round_num, is_later, is_last",
  [(0, 0, 0), (1, 0, 1), (2, 1, 0), (3, 1, 1), (5, 1, 0), (9, 1, 0)],
)
def test_client_contributes_what_it_says_and_where_the_rounds_are(
  weights, client, public, oracle, round_num, is_later, is_last, functions
):
  result = functions.train_client(weights, (), client, round_num)
  found = result.plaintext_sum
  trained = trees.add(weights.model, result.update)
  np.testing.assert_allclose(
    found.probabilities, says(oracle, trained, public), atol=1e-5
  )
  assert (found.num_clients, found.is_later) == (1, is_later)
  assert found.is_last == is_last


@pytest.fixture(scope="module")
def change(weights):
  """A mean update."""
  return trees.map(lambda w: np.full_like(w, 0.01), weights.model)


def contribution(is_later, is_last):
  generator = np.random.default_rng(0)
  # Of two clients.
  said = generator.dirichlet(np.ones(3), (2, 7)).sum(axis=0)
  return cfed.Contribution(
    said.astype(np.float32),
    np.float32(2),
    np.int32(2 * is_later),
    np.int32(2 * is_last),
  )


@pytest.mark.parametrize(
  "is_later, options",
  [(False, {"distil_from": "second_domain"}), (True, {"server_steps": 0})],
)
def test_server_adds_the_mean_where_it_does_not_distil(
  build, weights, change, compare, is_later, options
):
  updated = build(HPARAMS, **options).update_server(
    weights, change, contribution(is_later, False), 3
  )
  assert compare.equal_bits(updated.model, trees.add(weights.model, change))
  assert compare.equal_bits(updated.teacher, weights.teacher)


@pytest.mark.parametrize(
  "is_later, distil_from",
  [(False, "first_domain"), (True, "first_domain"), (True, "second_domain")],
)
def test_server_distils_from_the_mean_of_the_clients_and_its_old_model(
  build, weights, change, public, oracle, compare, is_later, distil_from
):
  plaintext_sum = contribution(is_later, True)
  result = build(HPARAMS, distil_from=distil_from).update_server(
    weights, change, plaintext_sum, 3
  )
  targets = plaintext_sum.probabilities + says(oracle, weights.model, public)
  losses = distillation_losses(oracle, targets / 3, public, weights.seed, 2, 3)
  start = trees.add(weights.model, change)
  expected, _ = oracle.descend(start, losses, 0.1)
  compare.assert_close(result.model, expected, 1e-5)
  moved = trees.subtract(expected, start)
  assert trees.largest(moved) > 1e-3
  # The domain is over: it is the next teacher.
  assert compare.equal_bits(result.teacher, result.model)
