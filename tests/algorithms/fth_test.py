"""FTH by hand."""

import numpy as np
import pytest
from numpy.testing import assert_allclose

from tff_shift.algorithms import fth


class TestFth:
  @pytest.mark.slow
  def test_history_is_the_mean_of_one_estimate_per_timestep(
    self, start, make_adapting_client
  ):
    clients = [make_adapting_client(0, 6, 8), make_adapting_client(1, 6, 8)]
    run = start(fth.HParams(), clients[:1])
    totals = []
    # The stream of another client comes in at time step 2.
    for timestep, stream in ((1, 0), (1, 0), (2, 1)):
      run.data = [
        clients[0]._replace(
          stream_x=clients[stream].stream_x, timestep=np.int32(timestep)
        )
      ]
      run.step()
      totals.append(run.client_states[0])
    assert [float(state.num_timesteps) for state in totals] == [1, 1, 2]
    np.testing.assert_array_equal(totals[0].total, totals[1].total)
    assert_allclose(np.sum(totals[0].total), 1, rtol=1e-6)
    assert_allclose(np.sum(totals[2].total), 2, rtol=1e-6)

  def test_predictions_are_weighted_by_the_history(
    self, build, make_adapting_client, make_client
  ):
    data, examples = make_adapting_client(0, 6, 8), make_client(5, [7])
    nothing = fth.History(np.zeros(3, np.float32), np.float32(0), np.int32(0))
    history = fth.History(
      np.array([1.0, 0.5, 0.5], np.float32), np.float32(2), np.int32(2)
    )
    plain, weighted = (
      build(fth.HParams()).predict_as_client((), state, data, examples)
      for state in (nothing, history)
    )
    # Shares 1/2, 1/4, 1/4 over the uniform prior.
    expected = np.log([1.5, 0.75, 0.75])
    assert_allclose(weighted - plain, np.tile(expected, (7, 1)), atol=1e-5)
