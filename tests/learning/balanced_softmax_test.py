"""The balanced softmax: what is added to logits in training."""

import numpy as np
import pytest

from tff_shift.learning import balanced_softmax


class TestShift:
  @pytest.fixture(scope="class")
  def shift_of(self, run_in_graph):
    return lambda y, gamma=1.0: run_in_graph(
      lambda classes: balanced_softmax.shift(classes, 4, gamma), np.int32(y)
    )

  def test_is_the_logarithm_of_the_counts_less_the_largest(self, shift_of):
    # Of class 3 there is none: it counts as one.
    found = shift_of([0, 0, 0, 0, 1, 2, 2])
    np.testing.assert_allclose(found, np.log([1, 1 / 4, 1 / 2, 1 / 4]), 1e-6)

  def test_gamma_is_an_exponent(self, shift_of):
    found = shift_of([0, 0, 0, 0, 1, 2, 2], gamma=0.5)
    np.testing.assert_allclose(
      found, np.log([1, 1 / 2, np.sqrt(1 / 2), 1 / 2]), 1e-6
    )
    assert not shift_of([0, 0, 1], gamma=0.0).any()

  def test_equal_counts_change_nothing(self, shift_of):
    assert not shift_of([0, 1, 2, 3] * 7).any()
    assert not shift_of([]).any()
