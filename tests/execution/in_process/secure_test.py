"""Tests of secure sums, which are simulated: they are exact, and in range."""

import collections

import numpy as np
import pytest
import tensorflow_federated as tff

INTS_AT_CLIENTS = tff.FederatedType(np.int32, tff.CLIENTS)
LIMITS = {
  "sum_bitwidth": lambda values: tff.federated_secure_sum_bitwidth(values, 4),
  "sum": lambda values: tff.federated_secure_sum(values, 15),
}


def computation(function, member=np.int32):
  return tff.federated_computation(
    function, tff.FederatedType(member, tff.CLIENTS)
  )


@pytest.mark.parametrize("kind", LIMITS)
class TestSum:
  def test_is_the_sum(self, run, context, kind):
    assert run(context, computation(LIMITS[kind]), [1, 15, 0, 7]) == 23

  def test_value_above_the_limit_is_an_error(self, run, context, kind):
    message = "client value larger than maximum specified for secure sum"
    with pytest.raises(Exception, match=message):
      run(context, computation(LIMITS[kind]), [1, 16])


def test_limits_of_a_structure(run, context):
  member = tff.types.to_type(
    collections.OrderedDict(a=np.int32, b=(np.int64, [2]))
  )
  found = run(
    context,
    computation(
      lambda values: tff.federated_secure_sum(
        values, collections.OrderedDict(a=3, b=10**12)
      ),
      member,
    ),
    [{"a": 3, "b": [10**12, 1]}, {"a": 1, "b": [5, 0]}],
  )
  assert found["a"] == 4
  assert found["b"].tolist() == [10**12 + 5, 1]


def test_modular_sum(run, context):
  modular = computation(
    lambda values: tff.backends.mapreduce.federated_secure_modular_sum(
      values, 10
    )
  )
  assert run(context, modular, [7, 8, 9]) == 4
