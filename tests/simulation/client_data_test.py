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


def test_examples_to_predict_have_the_seed_of_no_client():
  examples = make_examples(5)
  data = client_data.to_predict(examples.x, examples.y, [2, 0, 3], client_id=4)
  assert data.x is examples.x and data.y is examples.y
  assert data.domain_sizes.tolist() == [2, 0, 3]
  assert data.domain_sizes.dtype == data.client_id.dtype == np.int32
  assert data.client_id == 4
  assert data.seed.tolist() == [0, 0] and data.seed.dtype == np.int32
