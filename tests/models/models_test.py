"""Tests of what every model has to be, and of finding one by its name."""

import types

import numpy as np
import pytest
import tensorflow as tf

from tests.fixtures import tables
from tests.fixtures import trees
from tests.fixtures.refusals import refused
from tff_shift import models
from tff_shift._util import memory
from tff_shift.models import model_size
from tff_shift.models import split_model

INPUT_SHAPE = (16, 16, 2)
NUM_CLASSES = 3
BATCH_SIZE = 4

# Small versions. A family that is not named here is tested as it is.
SMALL = {
  "cnn": {"channels": (16, 16, 16, 16), "head_width": 16},
  "guided_cnn": {"channels": (8, 16, 16), "width": 16},
  # By default blocks start at a scale of 0, where no gradient passes.
  "guided_resnet": {"width": 8, "groups": 4, "initial_scale": 1.0},
  "mlp": {"width": 32, "head_width": 16},
  "residual_cnn": {"width": 8, "groups": 4},
  "wide_resnet": {"depth": 10, "widening_factor": 1},
}


def glorot_variance(shape):
  positions = np.prod(shape[:-2])
  return 2 / (positions * (shape[-2] + shape[-1]))


def he_variance(shape):
  return 2 / (np.prod(shape[:-2]) * shape[-1])


def kernel_variance(name, weight_name, shape):
  if name == "lenet":
    return 1 / (3 * np.prod(shape[:-1]))  # Uniform in +-1 / sqrt(inputs).
  if name in ("mini_resnet", "residual_cnn", "wide_resnet"):
    of_backbone = weight_name.startswith("backbone/")
    return he_variance(shape) if of_backbone else glorot_variance(shape)
  if name in ("guided_cnn", "guided_resnet"):
    is_linear = len(shape) == 2
    return 2 / shape[0] if is_linear else he_variance(shape)
  return glorot_variance(shape)


# Of titles, and of tokens of a folder that has to be there: their own tests
# look at what is looked at here. And the trunk of `guided_resnet`, see there.
NOT_HERE = ("bi_lstm", "llama", "resnet")

# The last layer of the backbone, and the number of its weights: with its
# normalisation.
LAST_LAYERS = {
  "cnn": ("layer4_", 4),
  "guided_cnn": ("projection_", 4),
  "guided_resnet": ("projection_", 4),
  "lenet": ("projection_", 4),
  "mini_resnet": ("block3.layer2_", 3),
  "mlp": ("layer3/", 2),
  "residual_cnn": ("block3.layer2_", 3),
  "wide_resnet": ("stage3.block1.layer2_", 5),
}

# With many layers, which take seconds to build.
LARGE = (
  "cnn",
  "guided_cnn",
  "guided_resnet",
  "lenet",
  "residual_cnn",
  "wide_resnet",
)


@pytest.fixture(
  scope="module",
  params=[
    pytest.param(
      name,
      # Of 18 layers: half a minute.
      marks=pytest.mark.long
      if name == "guided_resnet"
      else [pytest.mark.slow] * (name in LARGE),
    )
    for name in models.names()
    if name not in NOT_HERE
  ],
)
def case(request, compile_in_graph):
  """One model and all that the tests look at, from two graphs."""
  name = request.param
  model = models.build(
    name,
    input_shape=INPUT_SHAPE,
    num_classes=NUM_CLASSES,
    input_dtype=tf.uint8,
    **SMALL.get(name, {}),
  )
  generator = np.random.default_rng(0)
  x = generator.integers(0, 256, (BATCH_SIZE, *INPUT_SHAPE), np.uint8)
  y = generator.integers(0, NUM_CLASSES, BATCH_SIZE, np.int32)

  def starts(seed):
    # To draw a large backbone once more takes as long as all else.
    backbone = () if name in LARGE else model.initial_backbone(seed)
    return model.initial_weights(seed), backbone

  def gradients(weights, x, y):
    loss = tf.reduce_mean(
      tf.nn.sparse_softmax_cross_entropy_with_logits(
        y, model.predict(weights, x)
      )
    )
    return tf.nest.map_structure(
      lambda g: tf.zeros([]) if g is None else g,
      tf.gradients(loss, tf.nest.flatten(weights)),
    )

  # To build a graph takes its time, to run it does not.
  start = compile_in_graph(starts, tf.TensorSpec([2], tf.int32))
  weights, backbone = start(np.array([3, 4], np.int32))
  differentiate = compile_in_graph(
    gradients,
    *tf.nest.map_structure(
      lambda value: tf.TensorSpec(value.shape, value.dtype), (weights, x, y)
    ),
  )
  return types.SimpleNamespace(
    name=name,
    model=model,
    weights=weights,
    backbone=backbone,
    again=start(np.array([3, 4], np.int32))[0],
    other_weights=start(np.array([4, 3], np.int32))[0],
    gradients=differentiate(weights, x, y),
  )


class TestEveryModel:
  @pytest.mark.slow
  def test_equal_seeds_give_equal_weights_and_no_other_does(
    self, case, by_name
  ):
    np.testing.assert_equal(case.again, case.weights)
    if case.backbone:
      np.testing.assert_equal(case.backbone, case.weights.backbone)
    name, starts = case.name, []
    others = by_name(case.model, case.other_weights)
    for weight_name, one in by_name(case.model, case.weights).items():
      other = others[weight_name]
      if weight_name.endswith("/kernel"):
        assert not np.any(one == other), weight_name
        # In units of the standard deviation: one seed for two layers would give
        # equal numbers, whatever the shapes.
        deviation = np.sqrt(kernel_variance(name, weight_name, one.shape))
        starts += [round(float(k.flat[0] / deviation), 5) for k in (one, other)]
    assert len(starts) >= 2 * (1 if name == "linear" else 5)
    assert len(set(starts)) == len(starts)

  def test_initial_values_have_their_distribution(self, case, by_name):
    name = case.name
    assert case.model.num_parameters == sum(
      w.size for w in tf.nest.flatten(case.weights)
    )
    for weight_name, weight in by_name(case.model, case.weights).items():
      assert weight.dtype == np.float32
      kind = weight_name.split("/")[-1]
      if kind == "kernel":
        # Five standard errors of a variance, which are largest for a normal
        # distribution: sqrt(2 / n).
        variance = kernel_variance(name, weight_name, weight.shape)
        ratio = np.mean(np.square(weight, dtype=np.float64)) / variance
        assert abs(ratio - 1) < 5 * np.sqrt(2 / weight.size), weight_name
        mean = np.mean(weight, dtype=np.float64)
        assert abs(mean) < 5 * np.sqrt(variance / weight.size), weight_name
      elif kind == "bias" and name == "lenet":
        assert 0 < np.abs(weight).max() < 1  # In lenet_test, exactly.
      else:
        constant = {"bias": 0, "beta": 0, "gamma": 1}[kind]
        np.testing.assert_array_equal(weight, constant, weight_name)

  def test_gradient_reaches_every_weight(self, case, by_name):
    for (name, weight), gradient in zip(
      by_name(case.model, case.weights).items(), case.gradients, strict=True
    ):
      assert gradient.shape == weight.shape, name
      assert np.all(np.isfinite(gradient)), name
      assert np.any(gradient), name

  def test_last_layer_is_the_end_of_the_backbone_only(self, case):
    names, is_last = case.model.backbone.names, case.model.last_backbone_layer()
    if case.name == "linear":
      assert not names and not is_last
      return
    layer, size = LAST_LAYERS[case.name]
    last = np.array(names)[list(is_last)]
    assert last.tolist() == [each for each in names if each.startswith(layer)]
    assert len(last) == size < len(names)

  def test_head_can_be_cut_to_one_linear_layer(self, case):
    cut = split_model.with_head(case.model, "last_layer")
    assert len({name.split("/")[0] for name in cut.head.names}) == 1
    assert cut.head.shapes[0] == (cut.embedding_size, NUM_CLASSES)
    assert cut.num_parameters == case.model.num_parameters


class TestBuild:
  def test_model_that_fits_exactly_is_built(self, monkeypatch):
    def build():
      return models.build(
        "mlp", input_shape=(3,), num_classes=4, width=5, head_width=6
      )

    model = build()
    # 3*5 + 5, twice 5*5 + 5; 5*6 + 6, 6*4 + 4.
    assert model.num_parameters == 20 + 2 * 30 + 36 + 28 == 144
    assert model.input_shape == (3,)
    assert model.num_classes == 4
    assert model.embedding_size == 5
    # The 144 weights of above; weights, gradients and new weights are float32.
    monkeypatch.setattr(memory, "limit", lambda: 144 * 3 * 4)
    build()
    monkeypatch.setattr(memory, "limit", lambda: 144 * 3 * 4 - 1)
    with pytest.raises(memory.TooLargeError) as error:
      build()
    assert str(error.value) == (
      "model 'mlp' for examples [3] of 4 classes, width=5, head_width=6: this"
      " would need 1.69 KiB of memory, but only 1.69 KiB are available"
    )

  @pytest.mark.parametrize("name", ["mlp", "resnet"])
  def test_model_that_cannot_fit_takes_no_memory(self, name, monkeypatch):
    monkeypatch.setattr(memory, "limit", lambda: 2**30)
    drawn = []
    initializers = tf.keras.initializers
    for kind in (initializers.GlorotUniform, initializers.HeNormal):
      draw = kind.__call__

      def draw_and_note(self, shape, draw=draw, **options):
        if tf.executing_eagerly():
          drawn.append(np.prod(shape))
        return draw(self, shape, **options)

      monkeypatch.setattr(kind, "__call__", draw_and_note)
    # The first layers fit, and would take seconds: 784 * 30,000 numbers.
    with pytest.raises(memory.TooLargeError, match=f"{name}.*, width=30000: "):
      models.build(name, input_shape=(28, 28, 1), num_classes=10, width=30_000)
    assert sum(drawn) < 2**24

  @pytest.mark.slow
  def test_large_weights_are_drawn_as_small_ones(
    self, run_in_graph, monkeypatch
  ):
    def drawn():
      model = models.build("cnn", input_shape=(8, 8, 3), num_classes=3)
      weights = run_in_graph(model.initial_weights, np.array([1, 2], np.int32))
      return tf.nest.flatten(weights)

    expected = drawn()
    monkeypatch.setattr(model_size, "_MANY", 100)
    np.testing.assert_equal(drawn(), expected)


@pytest.mark.parametrize(
  "name, options, message",
  tables.cases(r"""
"vgg", {}
    'vgg'.*lenet, .*mlp,
"mlp", {"depth": 3}
    'depth'.*head_width
"cnn", {"channels": (8, 8, 8, 12)}
    multiples of 8
"cnn", {"channels": (4, 8, 8, 8)}
    multiples of 8
"guided_cnn", {"groups": 3}
    groups=3 does not divide the 16
"lenet", {"sharing": "half"}
    'half'.*none, shallow, mid, deep
"lenet", {"input_shape": (15, 16, 1)}
    \(15, 16, 1\).*16 x 16
"resnet", {"stem": "mnist"}
    'mnist'.*imagenet, cifar
"wide_resnet", {"groups": 5}
    groups=5 does not divide
"wide_resnet", {"depth": 4}
    depth=4 .* 10, 16, 22
"wide_resnet", {"depth": 12}
    depth=12 .* 10, 16, 22
"residual_cnn", {"width": 8, "groups": 0}
    groups=0.* 8 channels
"residual_cnn", {"width": 8, "groups": 3}
    groups=3.* 8 channels
"resnet", {"width": 8, "groups": 16}
    groups=16.* 8 channels
"bi_lstm", {"input_shape": (4, 4), "input_dtype": "int32"}
    takes titles, int32 \[length\], got int32 \[4
"bi_lstm", {"input_shape": (4,), "input_dtype": "float32"}
    takes titles, int32 \[length\], got float32
"bi_lstm", {"input_shape": (4,), "input_dtype": "int32", "width": 0}
    width=0 of bi_lstm must be at least 1
"llama", {"input_shape": (8,)}
    llama needs model_dir
"llama", {"input_shape": (8,), "lora_rank": 0}
    a rank of at least 1
"llama", {"input_shape": (8,), "input_dtype": "uint8"}
    the examples are uint8
"llama", {"input_shape": (4, 4, 1)}
    the examples are int32 \[4, 4, 1\]
"""),
)
def test_options_that_make_no_network_are_refused(name, options, message):
  settings = {"input_shape": (32, 32, 3), "num_classes": 10} | options
  if "input_dtype" in settings:
    settings["input_dtype"] = tf.as_dtype(settings["input_dtype"])
  with refused(message):
    models.build(name, **settings)


class TestSettingsOfTheUser:
  """Keras's settings are hidden inputs of the layers that name none."""

  NAMES = (
    *("cnn", "mlp", "residual_cnn", "mini_resnet", "wide_resnet"),
    *("lenet", "guided_cnn"),
  )

  @pytest.fixture(params=["channels_first", "float64", "mixed_float16"])
  def setting(self, request):
    """Changes a setting as `keras.json` or a program would."""
    keras, name = tf.keras, request.param
    before = keras.backend.image_data_format(), keras.backend.floatx()
    policy = keras.mixed_precision.global_policy()

    def change():
      if name == "channels_first":
        keras.backend.set_image_data_format(name)
      elif name == "float64":
        keras.backend.set_floatx(name)
      keras.mixed_precision.set_global_policy(
        policy if name == "channels_first" else name
      )

    yield change
    keras.backend.set_image_data_format(before[0])
    keras.backend.set_floatx(before[1])
    keras.mixed_precision.set_global_policy(policy)

  def _numbers(self, name):
    shape = (16, 16, 3)
    model = models.build(
      name,
      input_shape=shape,
      num_classes=3,
      input_dtype=tf.float32,
      **SMALL.get(name, {}),
    )
    x = np.random.default_rng(0).normal(size=(2, *shape)).astype(np.float32)
    weights = model.initial_weights(np.int32([1, 2]))
    return tf.nest.flatten((weights, model.predict(weights, x)))

  @pytest.mark.long
  @pytest.mark.parametrize("name", NAMES)
  def test_do_not_change_the_networks(self, name, setting):
    expected = self._numbers(name)
    setting()
    trees.assert_equal(self._numbers(name), expected)
