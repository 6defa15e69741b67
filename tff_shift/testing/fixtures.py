"""Fixtures of the contract: a model, an algorithm and its data."""

import types
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tff_shift import algorithms
from tff_shift.testing import forms

# The number of domains of the evaluation data.
NUM_EVALUATION_DOMAINS = 4


@pytest.fixture(scope="session")
def model():
  """The model of the contract's tests."""
  return forms.model()


@pytest.fixture(scope="session")
def contract_hparams():
  """Returns `make(name)` for the hyper-parameters of the contract's tests."""
  return forms.hparams


@pytest.fixture(scope="session")
def built(request, model, context):
  """An algorithm chosen by `parametrize`, and its functions.

  Its scope is the session: the tests of an algorithm, from all files, run
  consecutively, and it is built once.
  """
  name, hparams = request.param, forms.hparams(request.param)
  return types.SimpleNamespace(
    name=name,
    algorithm=algorithms.build(
      name,
      model,
      hparams,
      num_clients=forms.NUM_CLIENTS,
      num_evaluation_domains=NUM_EVALUATION_DOMAINS,
    ),
    functions=forms.functions(name),
    num_domains=NUM_EVALUATION_DOMAINS,
  )


def parametrize(metafunc: pytest.Metafunc, names: Sequence[Any]) -> None:
  """Parametrizes tests with algorithms; for the hook `pytest_generate_tests`.

  Args:
    metafunc: A test; only tests with an argument `built` or `algorithm_name`
      are parametrized.
    names: The names of the algorithms, or pytest parameters with these values.
  """
  if "built" in metafunc.fixturenames:
    metafunc.parametrize("built", names, indirect=True, scope="session")
  elif "algorithm_name" in metafunc.fixturenames:
    metafunc.parametrize("algorithm_name", names)


@pytest.fixture(scope="module")
def evaluation_data(make_client):
  """The source domains and the next one; some clients lack a domain."""
  sizes = [[3, 2, 4, 6], [2, 0, 5, 3], [0, 0, 0, 7], [4, 1, 2, 0]]
  return [make_client(10 + i, each) for i, each in enumerate(sizes)]


@pytest.fixture(scope="module")
def data(built, client_data):
  """The data of four clients of different sizes."""
  return [client_data.make(built.algorithm, i, more=i) for i in range(4)]


@pytest.fixture(scope="module")
def other_data(built, client_data):
  """Other data with the same numbers of examples."""
  return [client_data.make(built.algorithm, 20 + i, more=i) for i in range(4)]


def _assert_close(actual, expected, tolerance):
  for one, other in zip(
    tf.nest.flatten(actual), tf.nest.flatten(expected), strict=True
  ):
    np.testing.assert_allclose(one, other, rtol=0, atol=tolerance)


def _equal_bits(one, other):
  pairs = zip(tf.nest.flatten(one), tf.nest.flatten(other), strict=True)
  return all(
    np.asarray(a).dtype == np.asarray(b).dtype
    and np.shape(a) == np.shape(b)
    and np.asarray(a).tobytes() == np.asarray(b).tobytes()
    for a, b in pairs
  )


@pytest.fixture(scope="session")
def compare():
  """`assert_close(a, b, tolerance)`, `equal_bits(a, b)` of structures."""
  return types.SimpleNamespace(
    assert_close=_assert_close, equal_bits=_equal_bits
  )
