"""An algorithm supports an aggregator, or gives the reason why not."""

import collections
import dataclasses
import functools

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tff_shift import algorithms
from tff_shift.learning.aggregators import aggregator_hparams
from tff_shift.learning.aggregators import factories
from tff_shift.testing import applicability
from tff_shift.testing import forms
from tff_shift.testing import running
from tff_shift.testing.applicability import applies_if

build = functools.partial(algorithms.build, num_clients=forms.NUM_CLIENTS)


@functools.cache
def _aggregators():
  no_clipping = aggregator_hparams.AggregatorHParams(
    clipping="none", zeroing=False
  )
  hparams = {
    **dict.fromkeys(
      aggregator_hparams.PRIVATE,
      aggregator_hparams.AggregatorHParams(
        noise_multiplier=0.0, clipping="fixed", clipping_norm=1e6
      ),
    ),
    # Clipping makes them slow to build.
    "secure": no_clipping,
    "compressed": no_clipping,
  }
  return {
    name: factories.build(name, hparams.get(name), clients_per_round=4)
    for name in aggregator_hparams.NAMES
  }


@pytest.fixture(scope="session")
def aggregators():
  """All aggregators; private ones without noise, at a norm without effect."""
  return _aggregators()


def uniform_hparams(name):
  """Returns hyper-parameters with uniform client weights."""
  hparams = forms.hparams(name)
  if not applicability.has_client_weights(name):
    return hparams
  return dataclasses.replace(hparams, client_weighting="uniform")


def refusal_of(name, aggregator):
  """Returns the reason against an aggregator; None if it is supported."""
  try:
    factories.check(
      name,
      algorithms.requirements(name),
      _aggregators()[aggregator].traits,
      uniform_hparams(name),
    )
  except ValueError as refusal:
    return str(refusal)
  return None


def supports_dp(name):
  return refusal_of(name, "dp") is None


@pytest.mark.slow
class TestAggregators:
  @pytest.fixture(scope="class")
  def uniform(self, built):
    return uniform_hparams(built.name)

  def test_algorithm_says_so_where_nothing_is_shared(self, built):
    algorithm = built.algorithm
    shares_nothing = algorithm.is_local or not algorithm.phases
    requirements = algorithms.requirements(built.name)
    assert bool(requirements.no_aggregation) == shares_nothing

  @applies_if(lambda name, aggregator: refusal_of(name, aggregator) is not None)
  @pytest.mark.parametrize("aggregator", aggregator_hparams.NAMES)
  def test_aggregator_that_does_not_fit_is_refused_with_a_reason(
    self, built, aggregators, model, uniform, aggregator
  ):
    factory = aggregators[aggregator]
    refusal = refusal_of(built.name, aggregator)
    # `build` enforces the module's requirements.
    with pytest.raises(ValueError) as error:
      build(built.name, model, uniform, aggregator=factory)
    assert str(error.value) == refusal
    reasons = dataclasses.astuple(algorithms.requirements(built.name))
    assert refusal.partition(": ")[2] in reasons

  # The template's own tests average with each aggregator, and include a private
  # mean.
  @applies_if(lambda name, aggregator: refusal_of(name, aggregator) is None)
  @pytest.mark.every_algorithm
  @pytest.mark.parametrize("aggregator", aggregator_hparams.NAMES)
  def test_aggregator_that_fits_averages_what_is_shared(
    self, built, aggregators, aggregator
  ):
    factory = aggregators[aggregator]
    algorithm = built.algorithm
    weights = algorithm.initialize.type_signature.result.member.weights
    if algorithm.spec.fixed_weights:
      weights = tff.types.to_type(
        collections.OrderedDict(
          (name, part)
          for name, part in tff.structure.iter_elements(weights)
          if name not in algorithm.spec.fixed_weights
        )
      )
    averaging = factory.create(weights, tff.TensorType(np.float32))
    assert averaging.next.type_signature.result.result == tff.FederatedType(
      weights, tff.SERVER
    )

  @pytest.fixture(scope="class")
  def private(self, built, aggregators, model, uniform):
    """The algorithm with `dp`, which ignores client weights."""
    return build(built.name, model, uniform, aggregator=aggregators["dp"])

  @applies_if(supports_dp)
  @pytest.mark.every_algorithm
  def test_private_mean_without_noise_is_the_mean(
    self, built, private, client_data, compare
  ):
    # Of equal sizes: weights are equal with or without sizes.
    data = [client_data.make(built.algorithm, i) for i in range(4)]
    runs = [running.start(each, data) for each in (private, built.algorithm)]
    for each in runs:
      running.step(each)
    compare.assert_close(*[each.server_state.weights for each in runs], 1e-6)
    compare.assert_close(*[each.client_states for each in runs], 1e-6)

  @applies_if(supports_dp)
  @pytest.mark.every_algorithm
  def test_private_round_without_clients_stays_finite(
    self, built, private, client_data
  ):
    # By Poisson sampling, nobody may take part.
    run = running.start(private, [client_data.make(built.algorithm, 0)])
    state = run.server_state
    for phase in private.phases:
      state, clients, metrics = phase(state, [], [])
      assert len(clients) == metrics["num_clients"] == 0
    assert all(
      np.isfinite(leaf).all() for leaf in tf.nest.flatten(state.weights)
    )

  @applies_if(applicability.has_client_weights)
  def test_weights_are_refused_where_they_do_not_count(
    self, built, aggregators, model, uniform
  ):
    with pytest.raises(ValueError, match="is not allowed"):
      build(
        built.name,
        model,
        dataclasses.replace(uniform, client_weighting="num_examples"),
        aggregator=aggregators["dp"],
      )

  @applies_if(supports_dp, applicability.has_server_predictions)
  @pytest.mark.every_algorithm
  def test_sums_for_the_server_are_not_sent_where_clients_are_hidden(
    self, built, private
  ):
    weights = built.algorithm.initialize.type_signature.result.member.weights
    summarize = tff.tensorflow.computation(
      built.functions.summarize_client,
      weights,
      built.algorithm.phases[0].type_signature.parameter[2].member,
    )
    sends_sums = tff.structure.flatten(summarize.type_signature.result)
    assert (private.evaluate_server is None) == bool(sends_sums)
