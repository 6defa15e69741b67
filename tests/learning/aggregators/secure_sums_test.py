"""Tests of secure sums that are made plain."""

import collections
import logging

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tff_shift.learning.aggregators import secure_sums

pytestmark = pytest.mark.usefixtures("context")


class TestInTheOpen:
  def test_sum_is_that_of_the_integers(self):
    @tff.federated_computation(
      tff.FederatedType(
        tff.types.to_type(
          collections.OrderedDict(a=np.int32, b=(np.int64, (2,)))
        ),
        tff.CLIENTS,
      )
    )
    def total(value):
      ones = tff.federated_value(1, tff.CLIENTS)
      return (
        tff.federated_secure_sum_bitwidth(
          value, collections.OrderedDict(a=8, b=40)
        ),
        tff.federated_secure_sum_bitwidth(ones, 1),
      )

    plain = secure_sums.plaintext_sums(total)
    assert plain.type_signature == total.type_signature
    values = [
      collections.OrderedDict(a=i, b=np.array([2**33 + i, -i]))
      for i in range(4)
    ]
    summed, count = plain(values)
    assert summed["a"] == 6 and count == 4
    assert summed["b"].tolist() == [2**35 + 6, -6]

  def test_computation_without_secure_sums_stays_as_it_is(self):
    @tff.federated_computation(tff.FederatedType(np.float32, tff.CLIENTS))
    def mean(value):
      return tff.federated_mean(value)

    plain = secure_sums.plaintext_sums(mean)
    assert plain.type_signature == mean.type_signature
    assert plain([1.0, 4.0]) == 2.5


class TestQuiet:
  def test_only_the_one_message_is_left_out(self, caplog, monkeypatch):
    logger = tf.get_logger()
    monkeypatch.setattr(logger, "propagate", True)
    with caplog.at_level(logging.ERROR, "tensorflow"):
      with secure_sums.quiet():
        logger.error("Object was never used (type Operation)")
        logger.error("something else")
      logger.error("Object was never used, later")
    assert [record.getMessage() for record in caplog.records] == [
      "something else",
      "Object was never used, later",
    ]
