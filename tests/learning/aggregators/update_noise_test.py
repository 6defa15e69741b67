"""Tests of how much of an update is noise, against what TFF adds."""

import warnings

import numpy as np
import pytest
import tensorflow_federated as tff

from tff_shift import algorithms
from tff_shift import models
from tff_shift._util import errors
from tff_shift.learning.aggregators import factories
from tff_shift.learning.aggregators import update_noise
from tff_shift.learning.aggregators.aggregator_hparams import (
  AggregatorHParams as HParams,
)

pytestmark = pytest.mark.usefixtures("context")


def build(hparams, clients):
  return factories.build("dp", hparams, clients_per_round=clients)


class TestRatio:
  def test_by_hand(self):
    factory = build(HParams(noise_multiplier=1.5, clipping="fixed"), clients=8)
    # Two tensors of 10,000 numbers: the norm is that of both.
    update_type = tff.to_type([(np.float32, [100, 50]), (np.float32, [5_000])])
    # 1.5 * sqrt(10,000) / 8
    assert update_noise.ratio(factory.traits.noise, update_type) == 18.75

  def test_without_noise_it_is_zero(self):
    update_type = tff.to_type([(np.float32, [16])])
    without = build(HParams(noise_multiplier=0.0), 20).traits.noise
    assert update_noise.ratio(without, update_type) == 0
    assert factories.build("robust").traits.noise is None
    assert update_noise.ratio(None, update_type) == 0


@pytest.fixture(scope="module")
def model():
  """3 * 4 + 4, three times 4 * 4 + 4, and 4 * 2 + 2: 86 weights."""
  return models.build(
    "mlp", input_shape=(3,), num_classes=2, width=4, head_width=4
  )


@pytest.mark.slow
class TestWarning:
  # 0.5 * sqrt(86) = 4.637.
  @pytest.mark.parametrize("clients, is_warned", [(4, True), (5, False)])
  def test_comes_where_noise_is_longer_than_an_update(
    self, model, clients, is_warned
  ):
    factory = build(HParams(noise_multiplier=0.5, clipping="fixed"), clients)
    with warnings.catch_warnings(record=True) as found:
      warnings.simplefilter("always")
      built = algorithms.build("fed_avg", model, aggregator=factory)
    lines = [
      str(each.message)
      for each in found
      if each.category is errors.NoiseWarning
    ]
    assert built.noise_ratio == pytest.approx(4.63681 / clients, rel=1e-5)
    assert len(lines) == is_warned
    if is_warned:
      (line,) = lines
      assert line.startswith(
        "fed_avg: the noise in the mean of a round is about 1.16 times as long"
      )
      assert "(0.5 * sqrt(86 weights) / 4 clients)" in line

  def test_only_what_is_sent_counts(self, model):
    # All but the last layer, of 10 weights.
    factory = build(HParams(noise_multiplier=0.5, clipping="fixed"), 2)
    with pytest.warns(errors.NoiseWarning, match=r"sqrt\(76 weights\)"):
      algorithms.build("fed_rep", model, aggregator=factory)


def test_what_may_help_is_less_noise_where_updates_are_noise():
  assert update_noise.what_may_help(0.9, " or rest") == (
    "a smaller learning rate or rest may help"
  )
  told = update_noise.what_may_help(12.34, " or rest")
  assert "12.3 times" in told and "--noise_multiplier" in told
  assert "learning rate" not in told
