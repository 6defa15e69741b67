"""FTH by hand."""

import numpy as np
import pytest
from numpy.testing import assert_allclose

from tff_shift.algorithms import fth

STREAM = 6, 8
HPARAMS = fth.HParams()


@pytest.mark.slow
def test_history_is_the_mean_of_one_estimate_per_timestep(
  functions, client, make_adapting_client, rounds_alone
):
  # The stream of another client comes in at time step 2.
  other = make_adapting_client(1, *STREAM)
  later = client._replace(stream_x=other.stream_x, timestep=np.int32(2))
  first, again, second = (
    state for _, state, _ in rounds_alone(functions, client, [1, 1, later])
  )
  assert [each.num_timesteps for each in (first, again, second)] == [1, 1, 2]
  np.testing.assert_array_equal(first.total, again.total)
  assert_allclose(np.sum(first.total), 1, rtol=1e-6)
  assert_allclose(np.sum(second.total), 2, rtol=1e-6)


def test_predictions_are_weighted_by_the_history(
  functions, client, make_client
):
  examples = make_client(5, [7])
  nothing = fth.History(np.zeros(3, np.float32), np.float32(0), np.int32(0))
  history = fth.History(
    np.array([1.0, 0.5, 0.5], np.float32), np.float32(2), np.int32(2)
  )
  plain, weighted = (
    functions.predict_as_client((), state, client, examples)
    for state in (nothing, history)
  )
  # Shares 1/2, 1/4, 1/4 over the uniform prior.
  expected = np.log([1.5, 0.75, 0.75])
  assert_allclose(weighted - plain, np.tile(expected, (7, 1)), atol=1e-5)
