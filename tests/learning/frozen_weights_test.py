"""Tests of weights that nobody trains: beside constants of the same values."""

import dataclasses

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff
from numpy.testing import assert_allclose

from tests.fixtures import clients as random_clients
from tests.fixtures import keras_models
from tests.fixtures import trees
from tff_shift import algorithms
from tff_shift.execution import in_process
from tff_shift.execution import local as local_execution
from tff_shift.learning import frozen_weights
from tff_shift.learning import randomness
from tff_shift.learning.stock_tff import learning_process
from tff_shift.models import guided_model
from tff_shift.simulation.engine import checkpoints
from tff_shift.simulation.engine import rounds

NUM_CLIENTS = 3
# No other tensor has this shape.
FROZEN_SHAPE = (5, 11)


def make_model():
  """A frozen layer, a layer that is trained, and a head; with a guide."""
  layers = tf.keras.layers
  kernel = np.random.default_rng(0).normal(size=FROZEN_SHAPE)
  model = keras_models.split(
    (5,),
    lambda: [
      layers.Dense(
        11,
        use_bias=False,
        kernel_initializer=tf.keras.initializers.Constant(kernel),
        trainable=False,
      ),
      layers.Dense(6, activation="relu"),
    ],
    lambda: [layers.Dense(3)],
  )
  return guided_model.with_guide(model, NUM_CLIENTS, width=7)


@pytest.fixture(scope="module")
def model():
  return make_model()


@pytest.fixture(scope="module")
def clients():
  return [
    random_clients.make(i, 6 + i, num_features=5, num_classes=3)
    for i in range(NUM_CLIENTS)
  ]


def build(name, model):
  module = algorithms.get(name)
  hparams = dataclasses.replace(
    module.HParams(), batch_size=4, local_steps=2, learning_rate=0.3
  )
  return algorithms.build(name, model, hparams, num_queries=4)


@pytest.fixture(scope="module")
def algorithm(model, context):
  """With personal heads and a guide."""
  del context
  return build("fed_drm", model)


def build_with_constants(name, model):
  """The algorithm with the frozen weights as constants of its graphs."""
  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(frozen_weights, "has_any", lambda model: False)
    return build(name, model)


@pytest.fixture(scope="module")
def with_constants(model, context):
  del context
  return build_with_constants("fed_drm", model)


def two_rounds(algorithm, clients):
  run = rounds.Rounds(algorithm, clients, run_seed=0)
  for _ in range(2):
    run.step()
  return run


def num_of_frozen_shape(type_signature):
  tensors = tff.structure.flatten(
    tff.types.to_type([type_signature])
    if not isinstance(type_signature, tff.FederatedType)
    else type_signature.member
  )
  return sum(each.shape == FROZEN_SHAPE for each in tensors)


@pytest.mark.slow
class TestComputations:
  def test_rounds_and_evaluations_are_those_with_constants(
    self, algorithm, with_constants, clients
  ):
    runs = [two_rounds(each, clients) for each in (algorithm, with_constants)]
    one, other = runs
    assert trees.bits(one.server_state) == trees.bits(other.server_state)
    assert trees.bits(one.client_states) == trees.bits(other.client_states)

    def evaluate(run):
      found = [
        run.algorithm.evaluate_clients(
          run.server_state, run.client_states, clients, clients
        ),
        run.algorithm.guidance.vote(
          run.server_state, run.client_states, clients, clients[0].x[:4]
        ),
      ]
      found.append(
        run.algorithm.guidance.guide(
          run.server_state, clients, clients[0].x[:4]
        )
      )
      return found

    assert trees.bits(evaluate(one)) == trees.bits(evaluate(other))

  def test_server_predicts_as_with_constants(
    self, context, model, clients, refusal
  ):
    del context
    found = []
    for make in (build, build_with_constants):
      algorithm = make("fed_avg", model)
      state = algorithm.initialize(randomness.server_seed(0))
      metrics = algorithm.evaluate_server(state, clients, clients[0])
      found.append(trees.bits((state, metrics)))
      if make is build:
        server, *others = algorithm.evaluate_server.type_signature.parameter
        assert num_of_frozen_shape(server) == 1
        assert not any(map(num_of_frozen_shape, others))
        assert "frozen weights" in refusal(
          learning_process.as_learning_process, algorithm
        )
    assert found[0] == found[1]

  def test_types_show_them_at_the_server_and_nowhere_else(self, algorithm):
    state_type = algorithm.initialize.type_signature.result
    assert num_of_frozen_shape(state_type) == 0
    for computation in (
      *algorithm.phases,
      algorithm.evaluate_clients,
      algorithm.guidance.vote,
    ):
      server, *others = computation.type_signature.parameter
      assert server.placement is tff.SERVER
      assert num_of_frozen_shape(server) == 1
      assert server.member.state == state_type.member
      assert not any(map(num_of_frozen_shape, others))
    for phase in algorithm.phases:
      assert not any(map(num_of_frozen_shape, phase.type_signature.result))

  def test_graphs_do_not_contain_them(self, algorithm, with_constants):
    def serialized(computation):
      proto = tff.framework.serialize_computation(computation)
      return proto.SerializeToString()

    (phase,) = algorithm.phases
    values = np.asarray(trees.leaves(phase.frozen)[0]).tobytes()
    assert values not in serialized(phase.computation)
    assert values in serialized(with_constants.phases[0])

  def test_other_values_take_their_place_without_a_new_computation(
    self, algorithm, clients, model
  ):
    (phase,) = algorithm.phases
    other = dataclasses.replace(
      phase, frozen=tf.nest.map_structure(np.zeros_like, phase.frozen)
    )
    run = rounds.Rounds(algorithm, clients, run_seed=0)
    states = run.client_states
    with_values = phase(run.server_state, states, clients)[0]
    without = other(run.server_state, states, clients)[0]
    assert trees.bits(with_values) != trees.bits(without)
    assert model.num_frozen_parameters == 55


def map_with_weights(function, weights_type):
  """Returns a computation of the server's weights and clients' numbers."""
  call = tff.tensorflow.computation(function, weights_type, np.float32)

  @tff.federated_computation(
    tff.FederatedType(weights_type, tff.SERVER),
    tff.FederatedType(np.float32, tff.CLIENTS),
  )
  def mapped(weights, numbers):
    return tff.federated_map(call, (tff.federated_broadcast(weights), numbers))

  return mapped


class TestReferences:
  NUMBERS = (np.float32(1), np.float32(2))

  def test_clients_receive_the_tensor_itself_in_process(self):
    """An eager tensor is passed on, not copied: it keeps its address."""
    frozen = tf.random.stateless_normal([1000, 100], [0, 1])
    received = map_with_weights(
      lambda weights, number: weights, tff.TensorType(np.float32, (1000, 100))
    )

    def address(tensor):
      return tf.raw_ops.Identity(input=tensor).numpy().ctypes.data

    with in_process.in_process_context(materialize=False):
      results = received(frozen, [*self.NUMBERS])
    assert {address(each) for each in results} == {address(frozen)}

  @pytest.mark.cpp
  def test_bfloat16_reaches_clients_of_both_executors(self):
    """As the bases of language models are published."""
    frozen = tf.cast(tf.random.stateless_normal([3, 4], [0, 1]), tf.bfloat16)
    use = map_with_weights(
      lambda weights, number: (
        tf.reduce_sum(tf.cast(weights, tf.float32), axis=0) * number
      ),
      tff.TensorType(tf.bfloat16.as_numpy_dtype, (3, 4)),
    )
    total = np.asarray(frozen, np.float32).sum(axis=0)
    for context in (
      in_process.in_process_context(),
      local_execution.local_context(),
    ):
      with context:
        results = use(frozen, [*self.NUMBERS])
      assert_allclose(results, np.outer(self.NUMBERS, total), rtol=1e-6)


@pytest.mark.slow
def test_checkpoints_hold_none_of_them(model, algorithm, clients, tmp_path):
  checkpoint = checkpoints.Run(tmp_path / "run", "key", every=1)
  run = rounds.Rounds(algorithm, clients, run_seed=0)
  for _ in checkpoints.steps(
    checkpoint, 1, run, [], make=dict, replay=lambda each: None
  ):
    run.step()
  (values,) = trees.bits(model.frozen)
  saved = [path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()]
  assert any(map(len, saved))
  assert not any(values in content for content in saved)
