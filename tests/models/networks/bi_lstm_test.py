"""The BiLSTM: Keras's layers say the same, and padding says nothing."""

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tff_shift.execution import local
from tff_shift.models import parts
from tff_shift.models import split_model
from tff_shift.models.keras import keras_parts
from tff_shift.models.networks import bi_lstm

layers = tf.keras.layers

SEED = np.array([1, 2], np.int32)
LENGTH, VOCABULARY, EMBEDDING, UNITS, CLASSES = 6, 11, 4, 5, 3
# The last ones are of one word, and of none.
TITLES = np.loadtxt(
  """
3 4 5 0 0 0
1 2 3 4 0 0
7 7 7 7 2 0
9 0 0 0 0 0
0 0 0 0 0 0
""".splitlines(),
  np.int32,
)
# What the logits count in a loss.
SLOPES = np.linspace(-1, 1, 15, dtype=np.float32).reshape(5, CLASSES)


MODEL = bi_lstm.build(
  input_shape=(LENGTH,),
  num_classes=CLASSES,
  vocabulary_size=VOCABULARY,
  embedding_width=EMBEDDING,
  width=UNITS,
)


@pytest.fixture(scope="module")
def weights():
  """Weights at which gates open and close."""
  generator = np.random.default_rng(0)
  return split_model.SplitWeights(
    *(
      tuple(
        generator.normal(size=shape).astype(np.float32) for shape in part.shapes
      )
      for part in (MODEL.backbone, MODEL.head)
    )
  )


def keras_layers():
  """The backbone in Keras, by whose layers the weights are called."""

  def both(name, **options):
    # As an LSTM, without the kernel for GPUs, which takes seconds to build.
    directed = layers.RNN(layers.LSTMCell(UNITS), **options)
    return layers.Bidirectional(directed, name=name)

  return tf.keras.Sequential(
    [
      layers.InputLayer((LENGTH,), dtype="int32"),
      layers.Embedding(VOCABULARY, EMBEDDING, mask_zero=True, name="embedding"),
      both("layer1", return_sequences=True),
      both("layer2"),
    ]
  )


def run_in(context, function, *arguments):
  """Runs a function of tensors as a computation of TFF."""
  types = tf.nest.map_structure(
    lambda each: tff.TensorType(each.dtype, each.shape), arguments
  )
  computation = tff.tensorflow.computation(
    function, [tff.types.to_type(each) for each in types]
  )
  with tff.framework.get_context_stack().install(context):
    return computation(*arguments)


def logits_and_gradients(model):
  """Of the sum of all logits, as `SLOPES` has them count."""

  def compute(weights, x):
    weights = split_model.SplitWeights(*weights)
    with tf.GradientTape() as tape:
      tape.watch(weights)
      logits = model.predict(weights, x)
      loss = tf.reduce_sum(logits * SLOPES)
    gradients = tf.nest.flatten(tape.gradient(loss, weights))
    # Without a conversion: that of the words is no sparse one.
    assert all(isinstance(each, tf.Tensor) for each in gradients)
    return [logits, *gradients]

  return compute


@pytest.fixture(scope="module")
def of_keras(weights):
  """What Keras's layers make of the titles: logits, and gradients."""
  reference = tf.keras.Sequential([keras_layers(), layers.Dense(CLASSES)])
  reference(TITLES)
  reference.set_weights(tf.nest.flatten(weights))
  with tf.GradientTape() as tape:
    logits = reference(TITLES)
    loss = tf.reduce_sum(logits * SLOPES)
  gradients = tape.gradient(loss, reference.trainable_variables)
  return [logits, *map(tf.convert_to_tensor, gradients)]


def assert_same(model, found, expected):
  names = ["logits", *tf.nest.flatten(model.weight_names())]
  for name, one, other in zip(names, found, expected, strict=True):
    assert np.any(one), name
    np.testing.assert_allclose(one, other, rtol=1e-6, atol=1e-6, err_msg=name)


@pytest.mark.slow
def test_logits_and_gradients_are_those_of_keras(weights, of_keras, context):
  found = run_in(context, logits_and_gradients(MODEL), weights, TITLES)
  assert_same(MODEL, found, of_keras)


@pytest.mark.cpp
@pytest.mark.slow
def test_so_they_are_in_the_cpp_executor(weights, of_keras):
  with local.local_context() as cpp:
    found = run_in(cpp, logits_and_gradients(MODEL), weights, TITLES)
  assert_same(MODEL, found, of_keras)


@pytest.mark.long
def test_weights_start_and_are_called_as_in_keras(run_in_graph):
  reference = keras_parts.make_part(keras_layers(), parts.BACKBONE)
  assert MODEL.backbone.names == reference.names
  assert MODEL.backbone.shapes == reference.shapes
  found, expected = run_in_graph(
    lambda seed: (
      MODEL.initial_backbone(seed),
      reference.initial_weights(seed),
    ),
    SEED,
  )
  np.testing.assert_equal(found, expected)


@pytest.mark.slow
def test_padding_says_nothing(weights, run_in_graph):
  longer = np.pad(TITLES, ((0, 0), (0, 3)))
  alone, with_more, nothing, none = run_in_graph(
    lambda *titles: [MODEL.embed(weights.backbone, x) for x in titles],
    *(TITLES[:1, :3], longer, TITLES[-1:], TITLES[:0]),
  )
  np.testing.assert_allclose(with_more[0], alone[0], rtol=0, atol=1e-6)
  # A title of no words, among others and by itself; and no title.
  np.testing.assert_array_equal(with_more[-1], np.zeros(2 * UNITS))
  np.testing.assert_array_equal(nothing[0], np.zeros(2 * UNITS))
  assert none.shape == (0, 2 * UNITS)


def test_sizes_are_those_of_appendix_e():
  model = bi_lstm.build()
  assert model.input_shape == (30,) and model.input_dtype == tf.int32
  assert model.embedding_size == 512
  sizes = dict(zip(model.backbone.names, model.backbone.shapes, strict=True))
  by_layer = {}
  for name, shape in sizes.items():
    layer = name.split("/")[0].split("_")[0]
    by_layer[layer] = by_layer.get(layer, 0) + int(np.prod(shape))
  # Two directions of four gates of 256.
  assert by_layer == {
    "embedding": 20_002 * 100,
    "layer1": 2 * 4 * 256 * (100 + 256 + 1),
    "layer2": 2 * 4 * 256 * (512 + 256 + 1),
  }
  assert model.head.num_parameters == 512 * 5 + 5


def test_last_layer_is_the_second_in_both_directions():
  chosen = np.array(MODEL.backbone.names)[list(MODEL.last_backbone_layer())]
  assert {name.split("/")[0] for name in chosen} == {
    "layer2_forward",
    "layer2_backward",
  }
  assert len(chosen) == 6
  assert split_model.with_head(MODEL, "last_layer") is MODEL
