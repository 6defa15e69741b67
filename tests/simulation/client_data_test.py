"""What a client trains on, made of its examples."""

import numpy as np

from tff_shift.data import examples as examples_lib
from tff_shift.learning import randomness
from tff_shift.simulation import client_data


def make_examples(size):
  return examples_lib.Examples(
    np.full([size, 2], size, np.float32), np.arange(size, dtype=np.int32)
  )


def test_examples_are_one_domain_of_a_client_that_is_numbered_by_position():
  examples = [make_examples(size) for size in (2, 3)]
  data = client_data.training_data(examples, run_seed=4)
  for client, (each, expected) in enumerate(zip(data, examples, strict=True)):
    assert each.x is expected.x and each.y is expected.y
    assert each.domain_sizes.tolist() == [len(expected.y)]
    assert each.domain_sizes.dtype == each.client_id.dtype == np.int32
    assert each.client_id == client
    np.testing.assert_array_equal(each.seed, randomness.client_seed(4, client))
