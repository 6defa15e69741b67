"""The balanced softmax: what is added to logits in training."""

import numpy as np
import pytest
import tensorflow as tf
from numpy.testing import assert_allclose

from tff_shift.algorithms.parts import balanced_softmax
from tff_shift.learning import local_training


@pytest.fixture(scope="module")
def shift_of(run_in_graph):
  return lambda y, *options: run_in_graph(
    lambda classes: balanced_softmax.shift(classes, 4, *(options or (1.0,))),
    np.int32(y),
  )


@pytest.mark.parametrize(
  "class_counts, weights",
  [
    ("observed", [1, 1 / 4, 1 / 2, 0]),
    ("at_least_one", [1, 1 / 4, 1 / 2, 1 / 4]),
    ("add_one", [1, 2 / 5, 3 / 5, 1 / 5]),
  ],
)
def test_shift_class_weighs_as_it_counts(shift_of, class_counts, weights):
  # Of class 3 there is none.
  for gamma in (1.0, 0.5):
    found = shift_of([0, 0, 0, 0, 1, 2, 2], gamma, class_counts)
    assert np.all(np.isfinite(found))
    assert_allclose(np.exp(found), np.power(weights, gamma), rtol=1e-6)
  assert not shift_of([0, 0, 1], 0.0, class_counts).any()


def test_shift_absent_class_has_no_part_in_loss_and_gradient(run_in_graph):
  # Its logit is the largest by far.
  logits = np.float32([[0.5, -0.5, 60.0], [1.0, 2.0, 60.0]])
  y = np.int32([0, 1])

  def loss_and_gradient(logits, y):
    with tf.GradientTape() as tape:
      tape.watch(logits)
      loss = local_training.cross_entropy(
        logits + balanced_softmax.shift(y, 3, 1.0), y
      )
    return loss, tape.gradient(loss, logits)

  loss, gradient = run_in_graph(loss_and_gradient, logits, y)
  # Both classes count alike, and their logits differ by 1.
  assert_allclose(loss, np.log1p(np.exp(-1)), rtol=1e-6)
  other = np.exp(-1) / (1 + np.exp(-1)) / 2
  assert_allclose(gradient, [[-other, other, 0], [other, -other, 0]], atol=1e-7)


def test_shift_equal_counts_change_nothing(shift_of):
  assert not shift_of([0, 1, 2, 3] * 7).any()
  assert not shift_of([]).any()
