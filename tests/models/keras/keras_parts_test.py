"""Tests of parts from Keras models: recurrent, masked, frozen, cut."""

import functools
import gc
import types
import weakref

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tests.fixtures import trees
from tests.fixtures.arrays import assert_close
from tests.fixtures.arrays import assert_equal
from tests.fixtures.arrays import normal
from tests.fixtures.keras_models import randomized
from tests.fixtures.keras_models import sequential
from tests.fixtures.refusals import refused
from tff_shift.execution import local
from tff_shift.models import parts
from tff_shift.models.keras import keras_parts

layers = tf.keras.layers
SEED = np.array([1, 2], np.int32)
UNITS = 3
# Tokens of titles of three, two, five and no words; 0 is the pad.
TOKENS = np.array(
  [[4, 1, 6, 0, 0], [2, 2, 0, 0, 0], [5, 6, 3, 1, 2], [0] * 5], np.int32
)
# An LSTM and a GRU that may run on kernels for GPUs take seconds to build: one
# of them, and an LSTM in `keras_3_test`.
simple_lstm = functools.partial(
  layers.LSTM, recurrent_activation="hard_sigmoid"
)
RECURRENT = {
  "gru": lambda: layers.GRU(UNITS, name="layer1"),
  "bidirectional_lstm": lambda: layers.Bidirectional(
    layers.RNN(layers.LSTMCell(UNITS)), name="layer1"
  ),
}


def embed_and(*stack):
  return sequential(
    (TOKENS.shape[1],),
    layers.Embedding(7, 2, mask_zero=True, name="words"),
    *stack,
    dtype="int32",
  )


def make_part(keras_model):
  return keras_parts.make_part(keras_model, parts.BACKBONE)


def by_keras_name(keras_model):
  """Keras's variables by the names that their parts should have."""
  variables = {}
  for variable in keras_model.variables:
    layer, *wrapped, name = variable.name.split(":")[0].split("/")
    # `layer1/forward_lstm/lstm_cell/kernel`, or `layer1/lstm_cell/kernel`.
    direction = wrapped[0].split("_")[0] if len(wrapped) == 2 else None
    layer = f"{layer}_{direction}" if direction else layer
    variables[f"{layer}/{name}"] = variable
  return variables


@pytest.fixture(scope="module")
def stack():
  """Two bidirectional layers, made a part."""
  return make_part(
    embed_and(
      layers.Bidirectional(
        simple_lstm(UNITS, return_sequences=True), name="layer1"
      ),
      layers.Bidirectional(simple_lstm(2), name="layer2"),
    )
  )


class Absolute(layers.Layer):
  """Changes the signs of a batch whose sum is negative."""

  def call(self, x):
    if tf.reduce_sum(x) < 0:
      x = -x
    return x


@pytest.mark.parametrize("sign", [1, -1])
def test_own_layers_may_have_conditions_on_values(sign, run_in_graph):
  part = make_part(sequential((2,), Absolute()))
  x = np.float32([[1, 2]])
  assert_equal(run_in_graph(lambda x: part((), x), sign * x), x)


def outputs_and_gradients(part):
  """Of the sum of the squares of the outputs."""

  def compute(weights, x):
    with tf.GradientTape() as tape:
      tape.watch(weights)
      outputs = part(weights, x)
      loss = tf.reduce_sum(tf.square(outputs))
    # An embedding's gradient is sparse.
    gradients = map(tf.convert_to_tensor, tape.gradient(loss, weights))
    return outputs, tuple(gradients)

  return compute


@pytest.mark.slow
class TestRecurrent:
  @pytest.fixture(scope="class")
  def compared(self, run_in_graph):
    """Returns `compare(kind)`: by name what Keras and what its part gives."""

    @functools.cache
    def compare(kind):
      keras_model = embed_and(RECURRENT[kind]())
      generator = np.random.default_rng(0)
      variables = by_keras_name(keras_model)
      for variable in variables.values():
        variable.assign(generator.normal(size=variable.shape))
      # Keras gives up its own model when a graph has made another.
      with tf.GradientTape() as tape:
        expected = keras_model(TOKENS)
        loss = tf.reduce_sum(tf.square(expected))
      gradients = tape.gradient(loss, variables)
      weights = {name: each.numpy() for name, each in variables.items()}
      part = make_part(keras_model)
      assert set(part.names) == set(weights)
      outputs, found = run_in_graph(
        outputs_and_gradients(part),
        tuple(weights[name] for name in part.names),
        TOKENS,
      )
      return types.SimpleNamespace(
        weights=weights,
        of_keras=(expected, gradients),
        of_part=(outputs, dict(zip(part.names, found, strict=True))),
      )

    return compare

  @pytest.mark.parametrize("kind", RECURRENT)
  def test_outputs_and_gradients_are_those_of_keras(self, kind, compared):
    outputs, gradients = compared(kind).of_part
    expected, expected_gradients = compared(kind).of_keras
    assert_close(outputs, expected, 0, 1e-6)
    for name, one in gradients.items():
      other = tf.convert_to_tensor(expected_gradients[name])
      assert np.any(one), name
      assert_close(one, other, 1e-5, 1e-5)

  def test_masked_bidirectional_lstm_agrees_with_numpy(self, compared):
    found = compared("bidirectional_lstm")
    named = found.weights

    def sigmoid(x):
      return 1 / (1 + np.exp(-x))

    def last_state(direction, words):
      kernel, recurrent_kernel, bias = (
        named[f"layer1_{direction}/{name}"]
        for name in ("kernel", "recurrent_kernel", "bias")
      )
      hidden = cell = np.zeros(UNITS)
      for word in words:
        gates = named["words/embeddings"][word] @ kernel + bias
        i, f, c, o = np.split(gates + hidden @ recurrent_kernel, 4)
        cell = sigmoid(f) * cell + sigmoid(i) * np.tanh(c)
        hidden = sigmoid(o) * np.tanh(cell)
      return hidden

    expected = [
      np.concatenate(
        [last_state("forward", words), last_state("backward", words[::-1])]
      )
      for words in (title[title > 0] for title in TOKENS)
    ]
    outputs, _ = found.of_part
    assert_close(outputs, expected, 1e-5, 1e-6)

  def test_names_and_starts_are_those_of_keras(self, stack, run_in_graph):
    # Both directions are parts of one layer.
    assert stack.names == (
      "words/embeddings",
      *(
        f"{layer}_{direction}/{name}"
        for layer in ("layer1", "layer2")
        for direction in ("forward", "backward")
        for name in ("kernel", "recurrent_kernel", "bias")
      ),
    )
    first, again, other = (
      run_in_graph(stack.initial_weights, seed)
      for seed in (SEED, SEED, SEED + 1)
    )
    starts = []
    for name, weight, same, another in zip(
      stack.names, first, again, other, strict=True
    ):
      assert_equal(weight, same, name)
      kind = name.split("/")[1]
      if kind == "bias":
        units = len(weight) // 4
        ones = [0] * units + [1] * units + [0] * 2 * units
        assert_equal(weight, ones)
      else:
        starts += [weight.flat[0], another.flat[0]]
      if kind == "kernel":
        limit = np.sqrt(6 / sum(weight.shape))
        assert 0.8 * limit < np.abs(weight).max() <= limit
      elif kind == "recurrent_kernel":
        assert_close(weight @ weight.T, np.eye(len(weight)), atol=1e-5)
      elif kind == "embeddings":
        assert 0.02 < np.abs(weight).max() <= 0.05
    assert len(starts) == 2 * 9
    assert len(set(starts)) == len(starts)

  def test_forget_bias_can_be_zero_or_drawn(self, run_in_graph):
    options = {"unit_forget_bias": False, "bias_initializer": "ones"}
    drawn = {
      "bias_initializer": tf.keras.initializers.RandomUniform(2, 3, seed=0)
    }
    plain, random = (
      dict(
        zip(part.names, run_in_graph(part.initial_weights, SEED), strict=True)
      )["layer1/bias"]
      for part in (
        make_part(embed_and(simple_lstm(UNITS, name="layer1", **each)))
        for each in (options, drawn)
      )
    )
    assert_equal(plain, np.ones(4 * UNITS))
    assert_equal(random[UNITS : 2 * UNITS], 1)
    others = np.delete(random, np.s_[UNITS : 2 * UNITS])
    assert np.all((others >= 2) & (others < 3))
    assert len(set(others)) == len(others)


@pytest.mark.slow
class TestThroughTff:
  @pytest.fixture(scope="class")
  def case(self, run_in_graph):
    """A computation of an LSTM, its arguments, and what it should return."""
    part = make_part(embed_and(simple_lstm(UNITS, name="layer1")))
    compute = outputs_and_gradients(part)
    arguments = (tuple(normal(0, *shape) for shape in part.shapes), TOKENS)
    specs = tf.nest.map_structure(
      lambda value: tf.TensorSpec(value.shape, value.dtype), arguments
    )
    computation = tff.tensorflow.computation(
      compute, tff.types.tensorflow_to_type(specs)
    )
    expected = tf.nest.flatten(run_in_graph(compute, *arguments))
    assert len(expected) == 1 + 4
    assert all(np.any(each) for each in expected)
    return computation, arguments, expected

  def check(self, case):
    computation, arguments, expected = case
    trees.assert_close(
      tf.nest.flatten(computation(*arguments)), expected, 1e-5, 1e-6
    )

  def test_recurrent_part_in_process(self, case, context):
    del context
    self.check(case)

  @pytest.mark.cpp
  def test_recurrent_part_on_the_cpp_executor(self, case):
    with local.local_context():
      self.check(case)


class Shift(layers.Layer):
  """Adds a weight that is created as not trainable."""

  def build(self, input_shape):
    self.offset = self.add_weight(
      "offset", input_shape[1:], initializer="ones", trainable=False
    )

  def call(self, x):
    return x + self.offset


def partly_frozen():
  """Dense layers a, b and c, with a shift after b; a and b are frozen or not.

  All kernels have one shape, so that a mistaken order does not show as such.
  """
  return randomized(
    sequential(
      (2,),
      layers.Dense(2, name="a", trainable=False),
      layers.Dense(2, name="b"),
      Shift(name="shift"),
      layers.Dense(2, name="c", trainable=False),
    )
  )


class TestFrozen:
  def test_values_are_those_of_keras_or_given(self, run_in_graph):
    keras_model = partly_frozen()
    x = normal(0, 4, 2)
    of_keras = keras_model(x)
    weights = tuple(keras_model.get_layer("b").get_weights())
    part = make_part(keras_model)

    assert part.names == ("b/kernel", "b/bias")
    assert part.num_parameters == 6
    assert [value.shape for value in part.frozen] == [
      *((2, 2), (2,)),  # a
      *((2, 2), (2,)),  # c
      (2,),  # Created as not trainable, which TFF puts after all others.
    ]
    frozen = trees.normal(part.frozen)

    def compute(weights, frozen, x):
      outputs, gradients = outputs_and_gradients(part)(weights, x)
      return outputs, part.with_frozen(frozen)(weights, x), gradients

    outputs, of_given, gradients = run_in_graph(compute, weights, frozen, x)
    assert_close(outputs, of_keras, 1e-5, 1e-6)
    a, a_bias, c, c_bias, offset = frozen
    expected = (x @ a + a_bias) @ weights[0] + weights[1] + offset
    assert_close(of_given, expected @ c + c_bias, 1e-4, 1e-5)
    # Of the trained weights only.
    assert [g.shape for g in gradients] == [(2, 2), (2,)]
    assert all(np.any(g) for g in gradients)

  def test_frozen_layers_take_no_part_in_the_draws(self, run_in_graph):
    part = make_part(partly_frozen())
    alone = make_part(sequential((2,), layers.Dense(2, name="b")))
    trees.assert_equal(
      *(run_in_graph(model.initial_weights, SEED) for model in (part, alone))
    )

  @pytest.mark.slow
  @pytest.mark.parametrize("whole", [True, False])
  def test_model_can_be_frozen_as_a_whole(self, whole, run_in_graph):
    keras_model = embed_and(
      layers.Bidirectional(layers.SimpleRNN(UNITS), name="layer1")
    )
    keras_model.trainable = False
    if not whole:
      # The model's own flag still says that nothing is trained.
      keras_model.get_layer("layer1").trainable = True
    expected = keras_model(TOKENS)
    part = make_part(keras_model)
    assert part.names == ()
    assert len(part.frozen) == 7
    assert run_in_graph(part.initial_weights, SEED) == ()
    result = run_in_graph(lambda x: part((), x), TOKENS)
    assert_close(result, expected, 0, 1e-6)


class TestMemory:
  def test_graphs_that_a_part_was_called_in_are_let_go(self):
    part = make_part(sequential((2,), layers.Dense(3)))

    def trace():
      with tf.Graph().as_default() as graph:
        part((tf.zeros([2, 3]), tf.zeros([3])), tf.zeros([4, 2]))
      return weakref.ref(graph)

    graphs = [trace() for _ in range(6)]
    gc.collect()
    assert not any(each() for each in graphs)


@pytest.mark.slow
def test_layer_normalization_has_no_kernel_that_is_unsafe_in_parallel():
  """TensorFlow's fused kernel corrupts memory, see `keras_parts`."""
  layer = layers.LayerNormalization(epsilon=0.01)
  part = make_part(sequential((3,), layer))

  def gradient(scale, shift, x):
    with tf.GradientTape() as tape:
      tape.watch(x)
      loss = tf.reduce_sum(tf.square(part((scale, shift), x)))
    return tape.gradient(loss, x)

  arguments = np.ones(3, "f"), np.ones(3, "f"), np.ones((2, 3), "f")
  graph = tf.function(gradient).get_concrete_function(*arguments).graph
  definition = graph.as_graph_def()
  names = {
    node.op
    for nodes in (
      definition.node,
      *(each.node_def for each in definition.library.function),
    )
    for node in nodes
  }
  assert not any("FusedBatchNorm" in each for each in names)


def dense_twice(x):
  shared = layers.Dense(2)
  return shared(shared(x))


class TestErrors:
  @pytest.mark.parametrize(
    "build",
    [
      lambda x: layers.Dense(2, activation="softmax")(x),
      lambda x: layers.LayerNormalization()(layers.Dense(3)(x)),
      lambda x: layers.Dense(3)(layers.Reshape((2, 1))(x)),
      dense_twice,
      # Not of Keras.
      None,
    ],
  )
  def test_part_without_linear_end_cannot_be_cut(self, build):
    part = parts.identity()
    if build:
      x = layers.Input((2,))
      part = make_part(tf.keras.Model(x, build(x)))
    with refused("does not end in a linear"):
      keras_parts.cut_last_layer(part)
