"""Lengths, and their gradient where they are 0."""

import numpy as np
import tensorflow as tf
from numpy.testing import assert_allclose

from tff_shift.learning import safe_norms


class TestLength:
  def test_is_the_root_of_the_sum_of_squares(self, run_in_graph):
    values = np.float32([[3, 4], [0, 12]])
    rows, whole = run_in_graph(
      lambda v: (safe_norms.length(v, axis=1), safe_norms.length(v)), values
    )
    assert_allclose(rows, [5, 12])
    assert_allclose(whole, 13)

  def test_has_a_gradient_at_zero(self, run_in_graph):
    gradient = run_in_graph(
      lambda v: tf.gradients(safe_norms.length(v), v)[0],
      np.zeros(3, np.float32),
    )
    assert gradient.tolist() == [0, 0, 0]
