"""Gradients of a client's round against numbers by hand."""

import dataclasses

import pytest
import tensorflow as tf

from tff_shift import algorithms
from tff_shift.learning import local_training
from tff_shift.learning import work
from tff_shift.testing import clients
from tff_shift.testing import forms

make_client = clients.make_client


@pytest.fixture
def gradients(make_client):
  """Returns `gradients(name, *clients, **changes of hyper-parameters)`."""

  def count(name, *sizes, **changes):
    hparams = dataclasses.replace(forms.hparams(name), **changes)
    algorithm = algorithms.build(name, forms.model(), hparams)
    data = [make_client(i, each) for i, each in enumerate(sizes)]
    return work.gradients_of_round(algorithm, data)

  return count


@pytest.mark.slow
def test_local_steps_of_each_domain(gradients):
  # Two iterations of one and of three domains.
  assert gradients("fed_avg", [9]) == 2
  assert gradients("fed_avg", [5, 7, 6], [9]) == (2 * 3 + 2) / 2
  # A client without examples does not train.
  assert gradients("fed_avg", [0], [9]) == 1


def test_epochs_follow_the_examples(gradients):
  # Three batches of at most four examples, twice.
  assert gradients("fed_avg", [12], local_epochs=2) == 6


@pytest.mark.slow
@pytest.mark.parametrize(
  "name, number",
  [
    # A copy of the server model, and the personal one.
    ("ditto", 4),
    # Sharpness-aware minimisation needs two gradients for a step.
    ("fed_sam_ft", 4),
    # The steps of the head come on top.
    ("fed_rep", 2 + 3),
    ("local", 2),
    ("source", 0),
  ],
)
def test_what_methods_add(gradients, name, number):
  changes = {"head_steps": 3} if name == "fed_rep" else {}
  assert gradients(name, [9], **changes) == number


@pytest.mark.slow
def test_number_that_depends_on_losses_is_not_known(gradients):
  # FedALA's passes over its mixing weights end when their losses do not vary.
  assert gradients("fed_ala", [9]) is None
  assert gradients("fed_avg") is None


@pytest.mark.slow
def test_count_is_that_of_real_steps():
  calls = []

  def loss(weights, step, carry):
    tf.py_function(lambda: calls.append(1), [], [])
    return tf.reduce_sum(weights), carry

  def train():
    return local_training.train(
      loss, tf.zeros([2]), 7, forms.hparams("fed_avg"), seed=None
    )

  @tf.function
  def count_steps():
    with local_training.count_steps() as count:
      train()
    (number,) = count.gradients
    return number

  assert int(count_steps()) == 7
  assert not calls, "a count trains nothing"
  tf.function(train)()
  assert len(calls) == 7


@pytest.mark.slow
def test_calls_within_loops_are_not_counted():
  def train(_):
    return local_training.train(
      lambda weights, step, carry: (tf.reduce_sum(weights), carry),
      tf.zeros([2]),
      7,
      forms.hparams("fed_avg"),
      seed=None,
    ).loss

  @tf.function
  def run():
    with local_training.count_steps() as count:
      tf.map_fn(train, tf.zeros([3]))
    assert not count.is_complete and not count.gradients
    return 0

  run()
