"""The balanced softmax: what is added to logits in training."""

import numpy as np
import pytest

from tff_shift.algorithms.parts import balanced_softmax


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
    np.testing.assert_allclose(
      np.exp(found), np.power(weights, gamma), rtol=1e-6
    )
  assert not shift_of([0, 0, 1], 0.0, class_counts).any()


def test_shift_equal_counts_change_nothing(shift_of):
  assert not shift_of([0, 1, 2, 3] * 7).any()
  assert not shift_of([]).any()
