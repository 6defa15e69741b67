"""Tests of surveys: phases whose aggregate the training phase uses.

The algorithm is DANE (Communication-Efficient Distributed Optimization using an
Approximate Newton-type Method, Shamir, Srebro, Zhang; ICML 2014) with gradient
steps, on clients whose loss is a / 2 * (w - b)^2. The survey is the mean
gradient at the received weights.
"""

import contextlib
from typing import Any
from typing import NamedTuple

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff
from numpy.testing import assert_allclose

from tests.fixtures import clients
from tff_shift import execution
from tff_shift.data import client_dataset
from tff_shift.execution import local
from tff_shift.learning import algorithm as algorithm_lib
from tff_shift.learning.aggregators import factories
from tff_shift.learning.aggregators import server_optimizers

SEED = np.int32([3, 4])
RATE, STEPS = 0.1, 5
# a, b and the number of examples of each client.
CLIENTS = (1.0, 0.0, 1), (4.0, 1.0, 3), (2.0, -3.0, 0)


class Weights(NamedTuple):
  """The weights, and the mean gradient of the survey of the same round."""

  w: Any
  gradient: Any


def gradient(w, data):
  return data.x[0, :1] * (w - data.x[0, 1:2])


def with_a_row(data):
  # Empty clients have no first row, and their results do not count.
  return data._replace(x=tf.concat([data.x, tf.zeros([1, 4])], 0))


def survey_client(weights, client_state, data, round_num):
  found = gradient(weights.w, with_a_row(data))
  return algorithm_lib.ClientResult(found, client_state, loss=0.0)


def update_after_survey(weights, mean_update, plaintext_sum, info):
  return weights._replace(gradient=mean_update)


def train_client(weights, client_state, data, round_num):
  data = with_a_row(data)
  correction = weights.gradient - gradient(weights.w, data)
  w = weights.w
  for _ in range(STEPS):
    w -= RATE * (gradient(w, data) + correction)
  update = Weights(w - weights.w, tf.zeros([1]))
  return algorithm_lib.ClientResult(update, client_state + 1, loss=1.0)


SURVEY = algorithm_lib.Survey(survey_client, update_after_survey)


def build(
  aggregator=None, functions=None, *, weighting="num_examples", **options
):
  spec = algorithm_lib.AlgorithmSpec(
    initial_weights=lambda seed: Weights(tf.zeros([1]), tf.zeros([1])),
    initial_client_state=lambda seed, weights: tf.constant(0),
    train_client=train_client,
    surveys=(SURVEY,),
    predict_as_client=lambda weights, state, data, examples: examples.x[:, 2:],
  )._replace(**(functions or {}))
  return clients.build(
    spec,
    weighting=weighting,
    requirements=factories.AggregationRequirements(
      surveys="clients report gradients before they train"
    ),
    aggregator=aggregator,
    **options,
  )


def data():
  return [
    client_dataset.ClientDataset.from_arrays(
      np.tile(np.float32([[a, b, 0, 0]]), (size, 1)),
      np.zeros(size, np.int32),
      seed=SEED,
    )
    for a, b, size in CLIENTS
  ]


def train(algorithm, num_rounds):
  """Returns the weights after each round, and the last client states."""
  state = algorithm.initialize(SEED)
  counts = algorithm.initialize_client(state, [SEED] * len(CLIENTS))
  found = []
  for _ in range(num_rounds):
    for phase in algorithm.phases:
      state, counts, _ = phase(state, counts, data())
    found.append(np.array(state.weights.w))
  assert state.round_num == num_rounds
  return np.concatenate(found), counts


def oracle(num_rounds):
  w, found = np.zeros(1), []
  a, b, sizes = np.array(CLIENTS).T
  shares = sizes / sizes.sum()
  for _ in range(num_rounds):
    mean_gradient = shares @ (a * (w - b))
    ends = np.repeat(w, len(a))
    for _ in range(STEPS):
      ends = ends - RATE * (a * (ends - b) - a * (w - b) + mean_gradient)
    w = np.atleast_1d(shares @ ends)
    found.append(w)
  return np.concatenate(found)


class TestSurvey:
  @pytest.fixture(autouse=True)
  def _in_process(self, context):
    pass

  @pytest.mark.slow
  def test_training_uses_the_survey_of_its_round(self):
    found, counts = train(build(), 4)
    assert_allclose(found, oracle(4), rtol=1e-6)
    # The first gradient is -3, the mean of 0 and -4 over 1 and 3 examples.
    first = 0.25 * 3 * (1 - 0.9**5) + 0.75 * 3 / 4 * (1 - 0.6**5)
    assert_allclose(found[0], first, rtol=1e-6)
    # It goes to the minimum of the mean loss; FedAvg does not.
    assert_allclose(train(build(), 40)[0][-1], 12 / 13, rtol=1e-4)
    # A survey leaves the states of clients as they are.
    assert counts == [4, 4, 4]

  @pytest.mark.slow
  def test_each_phase_aggregates_once(self):
    phases = build().phases
    assert len(phases) == 2
    for phase in phases:
      form = tff.backends.native.compile_to_mergeable_comp_form(phase)
      assert isinstance(form, tff.framework.MergeableCompForm)

  @pytest.mark.slow
  def test_surveys_follow_each_other(self):
    def survey_square(weights, client_state, data, round_num):
      # Sees the gradient of the first survey.
      update = tf.square(weights.gradient)
      return algorithm_lib.ClientResult(update, client_state, loss=0.0)

    second = algorithm_lib.Survey(survey_square, update_after_survey)
    algorithm = build(functions={"surveys": (SURVEY, second)})
    assert len(algorithm.phases) == 3
    state = algorithm.initialize(SEED)
    counts = algorithm.initialize_client(state, [SEED] * len(CLIENTS))
    for phase in algorithm.phases[:2]:
      state, counts, _ = phase(state, counts, data())
    assert_allclose(state.weights.gradient, [9.0])

  @pytest.mark.slow
  def test_each_aggregator_has_its_own_state(self):
    clipping = tff.learning.robust_aggregator(zeroing=False)
    algorithm = build(clipping)
    state = algorithm.initialize(SEED)
    survey, training = state.aggregator
    assert repr(survey) == repr(training)
    counts = algorithm.initialize_client(state, [SEED] * len(CLIENTS))
    state, counts, _ = algorithm.phases[0](state, counts, data())
    # Updates above the first norm, 1, make the norm of the survey grow.
    surveyed = repr(state.aggregator[0])
    assert surveyed != repr(survey)
    assert repr(state.aggregator[1]) == repr(training)
    state, _, _ = algorithm.phases[1](state, counts, data())
    assert repr(state.aggregator[0]) == surveyed
    assert repr(state.aggregator[1]) != repr(training)

  @pytest.mark.slow
  def test_server_optimizer_steps_after_training_alone(self):
    def after_survey(weights, mean_update, plaintext_sum, info):
      return weights._replace(gradient=info.step(tf.zeros([1]), mean_update))

    survey = algorithm_lib.Survey(survey_client, after_survey)
    algorithm = build(
      functions={"surveys": (survey,)},
      server_optimizer=server_optimizers.build("fed_avg_m"),
    )
    found, _ = train(algorithm, 2)
    first, second = oracle(2)
    # The second mean update, from the first weights, and the first one again.
    assert_allclose(found, [first, second + 0.9 * first], rtol=1e-6)

  @pytest.mark.parametrize(
    "functions, message",
    [
      ({"train_client": None}, "toy has surveys, but no train_client"),
      ({"surveys": ()}, "toy must have surveys if and only if"),
    ],
  )
  def test_without_training_or_not_as_declared_is_refused(
    self, functions, message
  ):
    with pytest.raises(TypeError, match=message):
      build(functions=functions)

  def test_dp_is_refused_because_it_is_counted_once_a_round(self, refusal):
    aggregator = factories.build("dp", clients_per_round=99)
    assert refusal(build, aggregator, weighting="uniform").startswith(
      "aggregator=dp is not allowed for toy: clients report grad"
    )


@pytest.mark.cpp
@pytest.mark.slow
def test_executors_agree():
  built = build()
  with contextlib.ExitStack() as stack:
    workers = [stack.enter_context(local.Worker.start()) for _ in range(2)]
    remote = execution.RemoteWorkers([each.address for each in workers])
    for name, options in (
      ("local", {}),
      ("remote", {"remote_workers": remote}),
    ):
      with execution.use(name, **options):
        found, counts = train(built, 3)
      assert_allclose(found, oracle(3), rtol=1e-6)
      assert counts == [3, 3, 3]
