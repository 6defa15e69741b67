"""Tiny clients of every kind, with random examples, as fixtures."""

import types

import numpy as np
import pytest

from tff_shift.algorithms.parts import adaptation
from tff_shift.data import client_dataset
from tff_shift.learning import local_training
from tff_shift.learning import periods
from tff_shift.learning import randomness
from tff_shift.testing import forms


def _make_client(client_id, domain_sizes, y=None, run_seed=0):
  generator = np.random.default_rng([run_seed, client_id])
  num_examples = sum(domain_sizes)
  if y is None:
    y = generator.integers(0, 3, num_examples)
  return client_dataset.ClientDataset.from_arrays(
    x=generator.normal(size=(num_examples, 5)).astype(np.float32),
    y=np.asarray(y, np.int32),
    domain_sizes=np.array(domain_sizes, np.int32),
    seed=randomness.client_seed(run_seed, client_id),
    client_id=np.int32(client_id % forms.NUM_CLIENTS),
  )


@pytest.fixture(scope="session")
def make_client():
  """Returns `make(client_id, domain_sizes, y=None)` for random examples."""
  return _make_client


def _make_adapting_client(client_id, num_initial, num_stream, run_seed=0):
  """Makes random data for adaptation, of the shapes of `_make_client`."""
  generator = np.random.default_rng([run_seed, client_id, 1])
  confusion = np.eye(3) + 0.1 * generator.random((3, 3))
  return adaptation.AdaptationData(
    x=generator.normal(size=(num_initial, 5)).astype(np.float32),
    # Every class occurs.
    y=np.arange(num_initial, dtype=np.int32) % 3,
    stream_x=generator.normal(size=(num_stream, 5)).astype(np.float32),
    timestep=np.int32(1),
    confusion=(confusion / confusion.sum(axis=0)).astype(np.float32),
    seed=randomness.client_seed(run_seed, client_id),
    client_id=np.int32(client_id % forms.NUM_CLIENTS),
  )


@pytest.fixture(scope="session")
def make_adapting_client():
  """Returns `make(client_id, num_initial, num_stream)` for random data."""
  return _make_adapting_client


def _make_period_client(
  client_id, num_examples, representation_size, run_seed=0
):
  """Makes random data of a period, with a representation of order 1."""
  generator = np.random.default_rng([run_seed, client_id, 2])
  representation = generator.normal(size=representation_size)
  data = _make_client(client_id, [num_examples], run_seed=run_seed)
  return periods.PeriodData(*(*data, representation.astype(np.float32)))


@pytest.fixture(scope="session")
def make_period_client():
  """Returns `make(client_id, num_examples, representation_size)`."""
  return _make_period_client


def _client_data_type(algorithm):
  return algorithm.evaluate_clients.type_signature.parameter[2].member


def _allows_padding(algorithm):
  """Returns whether clients' data may have rows that are no examples."""
  container = _client_data_type(algorithm).python_container
  return container is client_dataset.PaddedDataset


def _kind(algorithm):
  """Returns the container of an algorithm's data, for makers of data."""
  if _allows_padding(algorithm):
    return client_dataset.ClientDataset
  return _client_data_type(algorithm).python_container


def _make_client_of(algorithm, client_id, more=0):
  """Makes random data of an algorithm's type.

  They have three domains, a stream or a period; `more` is the number of
  examples beyond those of the smallest client.
  """
  data_type = _client_data_type(algorithm)
  make = {
    client_dataset.ClientDataset: lambda: _make_client(
      client_id, [5 + more, 7, 6]
    ),
    adaptation.AdaptationData: lambda: _make_adapting_client(
      client_id, 9 + more, 6 + more
    ),
    periods.PeriodData: lambda: _make_period_client(
      client_id, 9 + more, *data_type.representation.shape
    ),
  }
  return make[_kind(algorithm)]()


def _make_empty_of(algorithm, client_id):
  """Makes data of an algorithm's type, without examples.

  One of two clients with a stream has labelled examples, which are ignored.
  """
  data_type = _client_data_type(algorithm)
  make = {
    client_dataset.ClientDataset: lambda: _make_client(client_id, [0, 0, 0]),
    adaptation.AdaptationData: lambda: _make_adapting_client(
      client_id, 9 * (client_id % 2), 0
    ),
    periods.PeriodData: lambda: _make_period_client(
      client_id, 0, *data_type.representation.shape
    ),
  }
  return make[_kind(algorithm)]()


def _expected_data_type(algorithm, model):
  """Returns the expected type of the data of an algorithm's kind."""
  data_type = _client_data_type(algorithm)
  expected = {
    client_dataset.ClientDataset: lambda: local_training.data_type(
      model, allows_padding=_allows_padding(algorithm)
    ),
    adaptation.AdaptationData: lambda: adaptation.data_type(model),
    periods.PeriodData: lambda: periods.data_type(
      model, *data_type.representation.shape
    ),
  }
  return expected[_kind(algorithm)]()


@pytest.fixture(scope="session")
def client_data():
  """Makers of client data by algorithm, see the functions above."""
  return types.SimpleNamespace(
    allows_padding=_allows_padding,
    kind=_kind,
    expected_type=_expected_data_type,
    make=_make_client_of,
    make_empty=_make_empty_of,
  )
