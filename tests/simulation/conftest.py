"""What tests share: types of an algorithm that is not built."""

import types

import pytest
import tensorflow_federated as tff

from tff_shift.learning import local_training


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
