"""Tests of models as pure functions: names, given weights, files, errors."""

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tff_shift.execution import local
from tff_shift.models import mlp
from tff_shift.models import split_model

layers = tf.keras.layers
SEED = np.array([1, 2], np.int32)


def one_line(error) -> bool:
  return "\n" not in str(error.value)


def two_branches(branch=lambda name: layers.Dense(3, name=name)):
  """(x A + a) - (x B + b), with B made before A; all shapes are equal."""

  def backbone():
    x = layers.Input((3,))
    second = branch("second")(x)
    first = branch("first")(x)
    return tf.keras.Model(x, layers.Subtract()([first, second]))

  def head():
    return tf.keras.Sequential([layers.InputLayer((3,)), layers.Dense(2)])

  return split_model.build_split_model(
    "branches", backbone=backbone, head=head, input_dtype=tf.float32
  )


@pytest.fixture(scope="module")
def small_mlp():
  return mlp.build(width=4, head_width=3)


@pytest.fixture(scope="module")
def drawn(small_mlp, run_in_graph):
  return run_in_graph(small_mlp.initial_weights, SEED)


@pytest.fixture
def values(small_mlp, drawn):
  """The drawn weights plus one, by name."""
  return {
    name: weight + 1
    for name, weight in zip(
      tf.nest.flatten(small_mlp.weight_names()),
      tf.nest.flatten(drawn),
      strict=True,
    )
  }


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
    np.testing.assert_allclose(embedding, first - second, rtol=1e-5, atol=1e-5)

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
    with pytest.raises(ValueError, match=r"gives \(3,\) and head takes \(4,\)"):
      split_model.build_split_model(
        "misfit",
        backbone=lambda: tf.keras.Sequential(
          [layers.InputLayer((2,)), layers.Dense(3)]
        ),
        head=lambda: tf.keras.Sequential(
          [layers.InputLayer((4,)), layers.Dense(2)]
        ),
        input_dtype=tf.float32,
      )

  def test_weights_that_are_not_trainable_are_refused(self):
    with pytest.raises(ValueError, match="not trainable"):
      two_branches(lambda name: layers.BatchNormalization(name=name))

  def test_weight_without_initializer_is_refused(self):
    class Scale(layers.Layer):
      def build(self, input_shape):
        self.scale = self.add_weight("scale", (), initializer="ones")

      def call(self, x):
        return x * self.scale

    with pytest.raises(ValueError, match=r"'second'|'first'.*'scale'"):
      two_branches(lambda name: Scale(name=name))


class TestGivenWeights:
  def test_given_weights_are_initial_weights_of_any_seed(
    self, small_mlp, values, run_in_graph
  ):
    given = split_model.with_weights(small_mlp, values)
    weights = run_in_graph(given.initial_weights, SEED + 7)
    for name, weight in zip(
      tf.nest.flatten(given.weight_names()),
      tf.nest.flatten(weights),
      strict=True,
    ):
      np.testing.assert_array_equal(weight, values[name])

  def test_head_left_out_is_drawn(self, small_mlp, values, drawn, run_in_graph):
    backbone = {k: v for k, v in values.items() if k.startswith("backbone/")}
    given = split_model.with_weights(small_mlp, backbone)
    weights = run_in_graph(given.initial_weights, SEED)
    for one, other in zip(weights.head, drawn.head, strict=True):
      np.testing.assert_array_equal(one, other)
    for one, other in zip(weights.backbone, drawn.backbone, strict=True):
      np.testing.assert_array_equal(one, other + 1)

  def test_missing_weight_is_named(self, small_mlp, values):
    del values["backbone/layer2/bias"]
    with pytest.raises(ValueError, match="'backbone/layer2/bias'") as error:
      split_model.with_weights(small_mlp, values)
    assert one_line(error)

  def test_unknown_weight_is_named(self, small_mlp, values):
    values["backbone/layer9/bias"] = np.zeros(4)
    with pytest.raises(ValueError, match="'backbone/layer9/bias'") as error:
      split_model.with_weights(small_mlp, values)
    assert one_line(error)

  def test_wrong_shape_is_named(self, small_mlp, values):
    values["head/layer5/kernel"] = np.zeros((3, 10))
    with pytest.raises(
      ValueError, match=r"'head/layer5/kernel'.*\(3, 10\).*\(3, 2\)"
    ) as error:
      split_model.with_weights(small_mlp, values)
    assert one_line(error)

  def test_no_weights_are_refused(self, small_mlp):
    with pytest.raises(ValueError, match="no weights"):
      split_model.with_weights(small_mlp, {})


class TestWeightsFile:
  def test_round_trip_gives_equal_bits(
    self, small_mlp, values, run_in_graph, tmp_path
  ):
    np.savez(tmp_path / "weights.npz", **values)
    loaded = split_model.load_weights(small_mlp, tmp_path / "weights.npz")
    weights = run_in_graph(loaded.initial_weights, SEED)
    for name, weight in zip(
      tf.nest.flatten(loaded.weight_names()),
      tf.nest.flatten(weights),
      strict=True,
    ):
      np.testing.assert_array_equal(weight, values[name])

  def test_missing_file_is_named(self, small_mlp, tmp_path):
    with pytest.raises(FileNotFoundError, match=r"none\.npz") as error:
      split_model.load_weights(small_mlp, tmp_path / "none.npz")
    assert one_line(error)

  def test_file_of_another_form_is_refused(self, small_mlp, tmp_path):
    path = tmp_path / "weights.h5"
    path.write_bytes(b"\x89HDF\r\n")
    with pytest.raises(ValueError, match=r"weights\.h5.*not an \.npz") as error:
      split_model.load_weights(small_mlp, path)
    assert one_line(error)

  def test_misfit_names_file_and_weight(self, small_mlp, values, tmp_path):
    path = tmp_path / "weights.npz"
    values["head/layer5/bias"] = np.zeros(9)
    np.savez(path, **values)
    with pytest.raises(
      ValueError, match=r"weights\.npz.*'head/layer5/bias'"
    ) as error:
      split_model.load_weights(small_mlp, path)
    assert one_line(error)


@pytest.mark.cpp
class TestThroughTff:
  def test_tff_and_graph_agree(self, small_mlp, run_in_graph):
    def predict(seed, x):
      weights = small_mlp.initial_weights(seed)
      return weights, small_mlp.predict(weights, x)

    x = np.random.default_rng(0).normal(size=(5, 2)).astype(np.float32)
    expected_weights, expected_logits = run_in_graph(predict, SEED, x)
    computation = tff.tensorflow.computation(
      predict,
      tff.types.tensorflow_to_type(
        (tf.TensorSpec([2], tf.int32), tf.TensorSpec([5, 2], tf.float32))
      ),
    )
    with local.local_context():
      weights, logits = computation(SEED, x)
    assert isinstance(weights, split_model.SplitWeights)
    for one, other in zip(
      tf.nest.flatten(weights),
      tf.nest.flatten(expected_weights),
      strict=True,
    ):
      np.testing.assert_array_equal(one, other)
    np.testing.assert_allclose(logits, expected_logits, rtol=1e-6, atol=1e-6)
