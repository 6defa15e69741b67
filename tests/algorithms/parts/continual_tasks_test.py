"""Domains that are learned one after the other."""

import numpy as np
import pytest

from tff_shift.algorithms.parts import continual_tasks


@pytest.mark.parametrize(
  "task_rounds, expected",
  [
    (6, [0, 0, 1, 1, 2, 2, 2, 2]),
    # m of r in [m 7 / 3, (m + 1) 7 / 3).
    (7, [0, 0, 0, 1, 1, 2, 2, 2]),
    # Fewer rounds than domains: some have none.
    (2, [0, 1, 2, 2, 2, 2, 2, 2]),
    (0, [0, 1, 2, 2, 2, 2, 2, 2]),
  ],
)
def test_rounds_are_in_equal_parts(run_in_graph, task_rounds, expected):
  found = run_in_graph(
    lambda r: continual_tasks.current_domain(task_rounds, r, 3),
    np.arange(8, dtype=np.int32),
  )
  assert found.tolist() == expected
