"""Domains that are learned one after the other."""

import numpy as np
import pytest

from tff_shift.algorithms import fed_avg
from tff_shift.algorithms.parts import continual_tasks
from tff_shift.data import client_dataset

SEED = np.zeros(2, np.int32)


def data(sizes):
  x = np.arange(sum(sizes), dtype=np.float32)[:, np.newaxis]
  y = np.arange(sum(sizes), dtype=np.int32)
  return client_dataset.ClientDataset.from_arrays(
    x, y, np.array(sizes, np.int32), SEED
  )


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


@pytest.mark.parametrize(
  "domain, expected", [(0, [0, 1]), (1, []), (2, [2, 3, 4])]
)
def test_of_domain_has_the_examples_of_the_domain(
  run_in_graph, domain, expected
):
  found = run_in_graph(
    continual_tasks.of_domain, data([2, 0, 3]), np.int32(domain)
  )
  assert found.y.tolist() == found.x[:, 0].tolist() == expected
  assert found.domain_sizes.tolist() == [len(expected)]


@pytest.mark.parametrize("domain, expected", [(0, 6), (1, 0)])
def test_num_steps_is_that_of_all_domains_unless_there_is_no_example(
  run_in_graph, domain, expected
):
  hparams = fed_avg.HParams(local_steps=2)
  found = run_in_graph(
    lambda all_data, domain: continual_tasks.num_steps(
      hparams, all_data, continual_tasks.of_domain(all_data, domain), 0
    ),
    data([2, 0, 3]),
    np.int32(domain),
  )
  assert found == expected
