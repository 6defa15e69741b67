"""What the tests of summaries and of their file share."""

import pytest

from tff_shift.simulation import summary


def _make_summary(algorithm="fed_avg", **changes):
  values = {
    "algorithm": algorithm,
    "dataset": "circle",
    "setting": {"dirichlet": "inf"},
    "metrics_by_seed": {
      0: {"client_accuracy": 70.0, "server_accuracy": 60.0},
      1: {"client_accuracy": 72.0, "server_accuracy": 60.0},
      2: {"client_accuracy": 77.0, "server_accuracy": 60.0},
    },
    "rounds": 50,
    "seconds_per_round": 0.25,
  }
  return summary.RunSummary(**(values | changes))


@pytest.fixture(scope="session")
def make_summary():
  """Returns `make(algorithm, **changes)`, which gives a `RunSummary`."""
  return _make_summary
