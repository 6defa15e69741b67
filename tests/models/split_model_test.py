"""Tests of models as pure functions: names, given weights, files, errors."""

import dataclasses
import re

import numpy as np
import pytest
import tensorflow as tf

from tests.fixtures import tables
from tests.fixtures import trees
from tests.fixtures.arrays import assert_close
from tests.fixtures.arrays import normal
from tests.fixtures.keras_models import dense
from tests.fixtures.keras_models import sequential
from tests.fixtures.refusals import refused
from tff_shift.models import parts
from tff_shift.models import split_model
from tff_shift.models.networks import cnn
from tff_shift.models.networks import mlp

layers = tf.keras.layers
SEED = np.array([1, 2], np.int32)


def two_branches(branch=lambda name: layers.Dense(3, name=name)):
  """(x A + a) - (x B + b), with B made before A; all shapes are equal."""

  def backbone():
    x = layers.Input((3,))
    second = branch("second")(x)
    first = branch("first")(x)
    return tf.keras.Model(x, layers.Subtract()([first, second]))

  return split_model.build_split_model(
    "branches", backbone=backbone, head=dense(3, last=2), input_dtype=tf.float32
  )


def build_words(input_dtype=tf.int32, taken=tf.int32):
  """The mean of the vectors of four words, of which 0 stands for none."""
  return split_model.build_split_model(
    "words",
    backbone=lambda: sequential(
      (4,),
      layers.Embedding(6, 2, mask_zero=True, name="words"),
      layers.GlobalAveragePooling1D(),
      dtype=taken,
    ),
    head=dense(2, classifier=3),
    input_dtype=input_dtype,
  )


def equal_bits(one, other):
  trees.assert_equal(tf.nest.flatten(one), tf.nest.flatten(other))


SMALL = mlp.build(width=4, head_width=3)


@pytest.fixture(scope="module")
def drawn(run_in_graph):
  return run_in_graph(SMALL.initial_weights, SEED)


@pytest.fixture
def values(drawn, by_name):
  """The drawn weights plus one, by name."""
  return {name: weight + 1 for name, weight in by_name(SMALL, drawn).items()}


class TestNames:
  def test_names_of_branches_belong_to_the_weights_used(self, run_in_graph):
    model = two_branches()
    generator = np.random.default_rng(0)
    values = {
      f"backbone/{layer}/{kind}": generator.normal(size=shape)
      for layer in ("first", "second")
      for kind, shape in (("kernel", (3, 3)), ("bias", (3,)))
    }
    x = generator.normal(size=(5, 3)).astype(np.float32)
    given = split_model.with_weights(model, values)

    embedding = run_in_graph(
      lambda seed, x: given.embed(given.initial_backbone(seed), x), SEED, x
    )

    first, second = (
      x @ values[f"backbone/{layer}/kernel"] + values[f"backbone/{layer}/bias"]
      for layer in ("first", "second")
    )
    assert_close(embedding, first - second, 1e-5, 1e-5)

  def test_initializers_of_branches_belong_to_their_names(self, run_in_graph):
    scales = {"first": 2.0, "second": 5.0}
    model = two_branches(
      lambda name: layers.Dense(
        3,
        kernel_initializer=tf.keras.initializers.Constant(scales[name]),
        name=name,
      )
    )
    weights = run_in_graph(model.initial_backbone, SEED)
    found = dict(zip(model.backbone.names, weights, strict=True))
    for layer, scale in scales.items():
      np.testing.assert_array_equal(found[f"{layer}/kernel"], scale)


class TestErrors:
  def test_parts_that_do_not_fit_are_refused(self):
    with refused(r"gives \(3,\) and head takes \(4,\)"):
      split_model.build_split_model(
        "misfit",
        backbone=dense(2, first=3),
        head=dense(4, last=2),
        input_dtype=tf.float32,
      )

  @pytest.mark.parametrize(
    "input_dtype, taken, message",
    [
      (tf.int32, tf.float32, "come as int32 .* takes float32"),
      (tf.uint8, tf.int32, "come as float32 .* takes int32"),
    ],
  )
  def test_examples_of_another_dtype_are_refused(
    self, input_dtype, taken, message, refusal
  ):
    assert re.search(message, refusal(build_words, input_dtype, taken))

  def test_weight_whose_initializer_is_a_function_is_refused(self):
    def ones(shape, dtype=None, **_):
      return tf.ones(shape, dtype)

    class Scale(layers.Layer):
      def build(self, input_shape):
        self.scale = self.add_weight("scale", (), initializer=ones)

      def call(self, x):
        return x * self.scale

    with refused(r"'second'|'first'.*'scale'"):
      two_branches(lambda name: Scale(name=name))


class TestGivenWeights:
  def test_head_left_out_is_drawn(self, values, drawn, run_in_graph):
    backbone = {k: v for k, v in values.items() if k.startswith("backbone/")}
    given = split_model.with_weights(SMALL, backbone)
    weights = run_in_graph(given.initial_weights, SEED)
    equal_bits(weights.head, drawn.head)
    equal_bits(weights.backbone, [weight + 1 for weight in drawn.backbone])

  @pytest.mark.parametrize(
    "changes, message",
    [
      ({"backbone/layer2/bias": None}, "'backbone/layer2/bias'"),
      ({"backbone/layer9/bias": np.zeros(4)}, "'backbone/layer9/bias'"),
      (
        {"head/layer5/kernel": np.zeros((3, 10))},
        r"'head/layer5/kernel'.*\(3, 10\).*\(3, 2\)",
      ),
    ],
    ids=["missing", "unknown", "wrong shape"],
  )
  def test_weight_that_does_not_fit_is_named(
    self, values, changes, message, refusal
  ):
    changed = {k: v for k, v in (values | changes).items() if v is not None}
    line = refusal(split_model.with_weights, SMALL, changed)
    assert re.search(message, line)

  def test_no_weights_are_refused(self, refusal):
    assert "no weights" in refusal(split_model.with_weights, SMALL, {})


class TestWeightsFile:
  def test_weights_are_initial_weights_of_any_seed(
    self, values, run_in_graph, tmp_path
  ):
    np.savez(tmp_path / "weights.npz", **values)
    loaded = split_model.load_weights(SMALL, tmp_path / "weights.npz")
    weights = run_in_graph(loaded.initial_weights, SEED + 7)
    equal_bits(
      weights, [*map(values.get, tf.nest.flatten(loaded.weight_names()))]
    )

  def test_missing_file_is_named(self, tmp_path):
    with pytest.raises(FileNotFoundError, match=r"^.*none\.npz.*\Z"):
      split_model.load_weights(SMALL, tmp_path / "none.npz")

  @pytest.mark.parametrize(
    "bias, reason",
    tables.cases(r"""
[0.0, 1e999]
    .* not finite
[3e38, 3e38]
    has 3e\+38 at \[0\]; numbers must lie between
["a", "a"]
    holds <U1, and no numbers
[1j, 1j]
    holds complex128, and no numbers
[1, 2, 3]
    has shape
"""),
  )
  def test_what_cannot_be_names_file_and_weight(
    self, values, tmp_path, bias, reason, refusal
  ):
    path = tmp_path / "weights.npz"
    np.savez(path, **values | {"head/layer5/bias": bias})
    line = refusal(split_model.load_weights, SMALL, path)
    assert re.search(rf"weights\.npz.*'head/layer5/bias' {reason}", line)


class TestWithHead:
  @pytest.mark.long
  @pytest.mark.parametrize(
    "build", [pytest.param(cnn.build, marks=pytest.mark.slow), mlp.build]
  )
  def test_last_layer_leaves_function_and_starts(self, build, run_in_graph):
    model = build((8, 8, 1), num_classes=3)
    cut = split_model.with_head(model, "last_layer")
    x = np.random.default_rng(0).integers(0, 256, (4, 8, 8, 1))
    x = x.astype(model.input_dtype.as_numpy_dtype)

    def predict(seed, x):
      one, other = model.initial_weights(seed), cut.initial_weights(seed)
      return (
        (one, model.predict(one, x)),
        (other, cut.predict(other, x)),
        (cut.embed(other.backbone, x), cut.initial_backbone(seed)),
      )

    whole, parted, (embedding, backbone) = run_in_graph(predict, SEED, x)
    equal_bits(parted, whole)
    equal_bits(backbone, parted[0].backbone)
    assert embedding.shape == (4, cut.embedding_size) == (4, 64)
    assert np.all(embedding >= 0)  # The ReLU is part of the backbone.

  @pytest.mark.slow
  def test_layers_are_those_of_the_cut(self):
    model = cnn.build(channels=(8, 8, 8, 8))
    cut = split_model.with_head(model, "last_layer")
    assert cut.name == model.name
    assert cut.weight_names().head == ("head/layer6/kernel",)
    assert cut.weight_names().backbone == (
      *model.weight_names().backbone,
      "backbone/layer5/kernel",
    )
    assert cut.head.num_parameters == 640
    assert cut.num_parameters == model.num_parameters
    assert cut.last_backbone_layer() == (False,) * 16 + (True,)
    every, none = (True,) * 17, (False,) * 17
    assert cut.weights_of("backbone") == (every, (False,))
    assert cut.weights_of("head") == (none, (True,))
    assert cut.weights_of("full") == (every, (True,))
    for each in (model, cut):
      names = np.array(tf.nest.flatten(each.weight_names()))
      last, two, three = (
        {
          name.partition("/")[2]
          for name in names[tf.nest.flatten(each.last_layers(number))]
        }
        for number in (1, 2, 3)
      )
      # However the model is cut, and with the normalisation of a layer.
      assert last == {"layer6/kernel"}
      assert two == last | {"layer5/kernel"}
      assert {name[:6] for name in three - two} == {"layer4"}
      assert len(three - two) == 4
      for number in (0, 99):
        assert each.last_layers(number) == each.weights_of("full")

  @pytest.mark.slow
  def test_given_weights_are_kept(self, values, run_in_graph):
    head = {k: v for k, v in values.items() if k.startswith("head/")}
    given = split_model.with_weights(SMALL, head)
    cut = split_model.with_head(given, "last_layer")
    equal_bits(
      run_in_graph(cut.initial_weights, SEED),
      run_in_graph(given.initial_weights, SEED),
    )
    again = split_model.with_weights(
      cut, {"head/layer5/kernel": np.ones((3, 2)), "head/layer5/bias": [4, 5]}
    )
    weights = run_in_graph(again.initial_weights, SEED)
    np.testing.assert_array_equal(weights.head[1], [4, 5])

  @pytest.mark.parametrize("head", split_model.HEADS)
  def test_model_is_itself_where_nothing_changes(self, head):
    one_layer = two_branches()
    assert split_model.with_head(one_layer, head) is one_layer
    cut = split_model.with_head(SMALL, "last_layer")
    assert split_model.with_head(cut, head) is cut
    assert split_model.with_head(SMALL, "classifier") is SMALL

  def test_layers_without_weights_move_too(self, run_in_graph):
    model = split_model.build_split_model(
      "activated",
      backbone=dense(2, first=3),
      head=lambda: sequential((3,), layers.ReLU(), layers.Dense(2)),
      input_dtype=tf.float32,
    )
    cut = split_model.with_head(model, "last_layer")
    assert cut.weight_names() == model.weight_names()

    def predict(seed, x):
      weights = model.initial_weights(seed)
      return (
        cut.predict(weights, x),
        model.predict(weights, x),
        cut.embed(weights.backbone, x),
        tf.nn.relu(model.embed(weights.backbone, x)),
      )

    x = normal(0, 5, 2)
    logits, expected, embedding, activated = run_in_graph(predict, SEED, x)
    equal_bits((logits, embedding), (expected, activated))
    assert np.any(embedding == 0) and np.any(embedding > 0)

  def test_unknown_head_is_refused_with_the_known_ones(self):
    with refused(r"'all'.*last_layer, classifier"):
      split_model.with_head(SMALL, "all")

  def test_model_that_cannot_be_cut_is_named(self, refusal):
    model = dataclasses.replace(SMALL, head=parts.identity())
    line = refusal(split_model.with_head, model, "last_layer")
    assert "'mlp': the head does not" in line


class TestFrozen:
  @pytest.fixture(scope="class")
  def model(self):
    """Layers a and c are frozen; the head is b -> ReLU -> c."""

    def layer(name, trainable):
      return layers.Dense(
        2, bias_initializer="ones", name=name, trainable=trainable
      )

    return split_model.build_split_model(
      "frozen",
      backbone=lambda: sequential((2,), layer("a", False)),
      head=lambda: sequential(
        (2,), layer("b", True), layers.ReLU(), layer("c", False)
      ),
      input_dtype=tf.float32,
    )

  def test_frozen_weights_are_counted_apart(self, model):
    assert model.weight_names() == ((), ("head/b/kernel", "head/b/bias"))
    assert model.num_parameters == 6
    assert model.num_frozen_parameters == 12
    assert model.last_backbone_layer() == ()
    shapes = tf.nest.map_structure(np.shape, model.frozen)
    assert shapes == (((2, 2), (2,)), ((2, 2), (2,)))

  @pytest.mark.parametrize("head", split_model.HEADS)
  def test_tensors_take_their_place(self, model, head, run_in_graph):
    model = split_model.with_head(model, head)
    frozen = trees.normal(model.frozen)
    kernel, bias, x = normal(1, 2, 2), normal(2, 2), normal(3, 5, 2)

    def predict(frozen, x):
      weights = tf.nest.pack_sequence_as(model.weight_names(), [kernel, bias])
      return model.with_frozen(frozen).predict(weights, x)

    a, a_bias, c, c_bias = tf.nest.flatten(frozen)
    hidden = np.maximum((x @ a + a_bias) @ kernel + bias, 0)
    assert_close(run_in_graph(predict, frozen, x), hidden @ c + c_bias, 1e-4)

  def test_cut_leaves_values_and_starts(self, model, run_in_graph):
    cut = split_model.with_head(model, "last_layer")
    equal_bits(cut.frozen, model.frozen)
    others = tf.nest.map_structure(lambda value: value + 1, model.frozen)
    cut_later = split_model.with_head(model.with_frozen(others), "last_layer")
    equal_bits(cut_later.frozen, others)
    assert cut.weight_names() == (("backbone/b/kernel", "backbone/b/bias"), ())
    equal_bits(
      run_in_graph(cut.initial_weights, SEED),
      run_in_graph(model.initial_weights, SEED),
    )

  def test_model_without_frozen_weights_has_none(self):
    assert SMALL.frozen == ()
    assert SMALL.num_frozen_parameters == 0
    assert SMALL.with_frozen(()) == SMALL

  def test_values_of_another_structure_are_refused(self, model):
    for one, values in ((model, ()), (SMALL, model.frozen)):
      with pytest.raises(ValueError, match="structure"):
        one.with_frozen(values)

  def test_traced_tensors_leave_no_constants(self, model):
    large = tf.nest.map_structure(
      lambda v: tf.TensorSpec(v.shape, v.dtype), model.frozen
    )

    def constants(compute, *specs):
      with tf.Graph().as_default() as graph:
        placeholders = tf.nest.map_structure(
          lambda spec: tf.compat.v1.placeholder(spec.dtype, spec.shape), specs
        )
        compute(*placeholders)
      return sum(
        node.attr["value"].tensor.tensor_shape.dim[0].size == 2
        for node in graph.as_graph_def().node
        if node.op == "Const" and node.attr["value"].tensor.tensor_shape.dim
      )

    x = tf.TensorSpec((None, 2), tf.float32)
    assert constants(lambda x: model.embed((), x), x) == 2
    assert (
      constants(lambda f, x: model.with_frozen(f).embed((), x), large, x) == 0
    )


class TestTokens:
  def test_tokens_stay_whole_and_pads_are_left_out(self, run_in_graph):
    model = build_words()
    words, kernel = normal(0, 6, 2), normal(1, 2, 3)
    weights = split_model.SplitWeights((words,), (kernel, np.zeros(3, "f")))
    x = np.array([[5, 1, 0, 0], [2, 2, 3, 4]], np.int32)
    expected = np.stack([words[[5, 1]].mean(0), words[[2, 2, 3, 4]].mean(0)])
    embedding, logits = run_in_graph(
      lambda x: (model.embed(weights.backbone, x), model.predict(weights, x)),
      x,
    )
    assert_close(embedding, expected, 1e-5)
    assert_close(logits, expected @ kernel, 1e-4)
    assert model.input_dtype == tf.int32
