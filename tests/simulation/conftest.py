"""What tests share: summaries, and types of an algorithm that is not built."""

import types

import pytest
import tensorflow_federated as tff

from tff_shift.learning import local_training
from tff_shift.reporting import summary


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


def _make_typed(model, data_type=None, num_domains=1):
  return types.SimpleNamespace(
    name="typed",
    model=model,
    num_classes=model.num_classes,
    is_local=False,
    phases=(),
    evaluate_clients=types.SimpleNamespace(
      type_signature=types.SimpleNamespace(
        parameter=[
          None,
          None,
          tff.FederatedType(
            data_type or local_training.data_type(model), tff.CLIENTS
          ),
          tff.FederatedType(
            local_training.data_type(model, num_domains), tff.CLIENTS
          ),
        ]
      )
    ),
  )


@pytest.fixture(scope="session")
def typed_algorithm():
  """Returns `typed(model, data_type, num_domains)`.

  It gives what tells the types of an algorithm's data, and computes nothing.
  """
  return _make_typed


@pytest.fixture
def asked(monkeypatch):
  """Returns `asked(module, *names)`: arguments and options by a figure's name.

  The figures are not drawn.
  """

  def record(module, *names):
    found = {}

    def note(name):
      return lambda *arguments, **options: found.update(
        {name: (arguments, options)}
      )

    for name in names:
      monkeypatch.setattr(module, name, note(name))
    return found

  return record
