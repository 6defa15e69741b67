"""Tests of what an algorithm needs of memory."""

import dataclasses

import numpy as np
import pytest
import tensorflow_federated as tff

from tff_shift import algorithms
from tff_shift._util import memory
from tff_shift.learning import algorithm
from tff_shift.learning import hyperparameters
from tff_shift.learning import sizes
from tff_shift.models.networks import mlp
from tff_shift.testing import fixtures
from tff_shift.testing import forms

model = fixtures.model
contract_hparams = fixtures.contract_hparams

HParams = hyperparameters.LocalWorkHParams


@pytest.fixture
def with_limit(monkeypatch):
  return lambda limit: monkeypatch.setattr(memory, "limit", lambda: limit)


def test_bytes_of_a_state():
  state = tff.to_type(
    [
      (np.float32, [2, 3]),
      (np.float32, [None, 5]),
      (np.int64, [4]),
      np.int32,
      tff.TensorType(np.float32, [0]),
    ]
  )
  assert sizes.num_bytes(state) == 6 * 4 + 0 + 4 * 8 + 4 + 0


def test_batch(with_limit, refusal):
  points = mlp.build((3,), num_classes=2, width=4, head_width=3)
  with_limit(2 * 3 * 4)
  sizes.check_batch(points, HParams(batch_size=2))
  told = refusal(sizes.check_batch, points, HParams(batch_size=3))
  assert told.startswith("batch_size=3 of shape [3]: ") and " 36 b" in told


def test_state_names_what_made_it_large(with_limit, refusal):
  state = tff.to_type((np.float32, [1001]))
  with_limit(4004)
  sizes.check_state("own", "the state of a client", state, HParams())
  with_limit(4003)
  assert refusal(
    sizes.check_state,
    "own",
    "the state of a client",
    state,
    HParams(batch_size=1001),
  ).startswith(
    "own with batch_size=1001, the state of a client: this would need"
  )


@pytest.mark.parametrize("name", algorithms.names())
def test_states_of_a_default_run_are_not_computed_twice(name):
  assert not sizes.asks_for_much(algorithms.get(name).HParams())


def _counts():
  """Each field of an algorithm's own; of those that several have, one."""
  found = {}
  for name in algorithms.names():
    for field in dataclasses.fields(algorithms.get(name).HParams):
      if type(field.default) is int and field not in dataclasses.fields(
        hyperparameters.LocalHParams
      ):
        marks = [pytest.mark.every_algorithm] if field.name in found else []
        found.setdefault(field.name, name)
        yield pytest.param(
          name, field.name, id=f"{name}-{field.name}", marks=marks
        )


@pytest.mark.slow
@pytest.mark.parametrize("name, field", _counts())
def test_largest_count_fits_or_is_refused(
  name, field, model, contract_hparams, with_limit
):
  with_limit(2**28)
  hparams = dataclasses.replace(contract_hparams(name), **{field: 2_500_000})
  try:
    hyperparameters.validate(hparams)
    # Neither takes minutes, nor memory.
    build = algorithms.spec_builder(name, forms.NUM_CLIENTS)
    algorithm.check_sizes(name, build, model, hparams)
  except ValueError as error:
    assert field in str(error)
    assert "\n" not in str(error)
