"""Models that start from files of Keras: their logits are those of Keras."""

import functools
import pathlib
import shutil

import numpy as np
import pytest
import tensorflow as tf

from tests.fixtures import trees
from tests.fixtures.arrays import assert_close
from tests.fixtures.arrays import normal
from tests.fixtures.keras_models import dense
from tests.fixtures.keras_models import randomized
from tests.fixtures.keras_models import sequential
from tff_shift import models
from tff_shift.models import guided_model
from tff_shift.models import split_model
from tff_shift.models.networks import mlp

layers = tf.keras.layers
SEED = np.array([1, 2], np.int32)
NAMES = ("a.keras", "a.h5", "weights.hdf5", "a.weights.h5", "saved", "exported")


def perceptron(num_classes=3, **options):
  """Layers of Keras's own names, two of them of one shape."""
  return sequential(
    (6,),
    layers.Dense(6, activation="relu"),
    layers.Dense(6, activation="tanh", **options),
    layers.Dense(num_classes, name="last"),
    name="perceptron",
  )


def with_branches():
  """Two ways of one shape that come together, the second made first."""
  x = layers.Input((6,))
  second = layers.Dense(4, name="second")(x)
  y = layers.Subtract()([layers.Dense(4, name="first")(x), second])
  return tf.keras.Model(x, layers.Dense(3)(y), name="branches")


def recurrent():
  return sequential(
    (6,),
    layers.Reshape((3, 2)),
    layers.Bidirectional(layers.SimpleRNN(2)),
    layers.Dense(3),
    name="recurrent",
  )


frozen = functools.partial(perceptron, trainable=False)


@functools.cache
def of_perceptron():
  return models.from_keras(perceptron)


def save(model, path):
  if path.name.startswith("weights") or ".weights." in path.name:
    model.save_weights(path)
  elif path.name == "exported":
    model.export(str(path))
  else:
    model.save(path)
  return path


def examples(seed=0, size=5):
  return normal(seed, size, 6)


def predict(run_in_graph, model, x=None):
  return run_in_graph(
    lambda seed, x: model.predict(model.initial_weights(seed), x),
    SEED,
    examples() if x is None else x,
  )


def refusal(model, path):
  with pytest.raises(ValueError) as error:
    split_model.load_weights(model, path)
  (line,) = str(error.value).splitlines()
  assert line.startswith(f"weights file {str(path)!r}: ")
  return line


def saved(build, path):
  """Saves a model of random weights; returns its logits.

  Keras takes no calls of a model after a graph has had layers of its classes,
  so all that is asked of one is asked here.
  """
  model = randomized(build())
  logits = model(examples()).numpy()
  save(model, path)
  return logits


class TestLogits:
  @pytest.mark.slow
  @pytest.mark.parametrize("name", NAMES)
  def test_of_any_kind_of_file(self, name, run_in_graph, tmp_path):
    expected = saved(perceptron, tmp_path / name)
    model = of_perceptron()
    loaded = split_model.load_weights(model, tmp_path / name)
    found = predict(run_in_graph, loaded)
    assert_close(found, expected, 1e-5)
    # And not without it.
    assert abs(predict(run_in_graph, model) - found).max() > 0.1

  @pytest.mark.slow
  @pytest.mark.parametrize(
    "build",
    [with_branches, pytest.param(recurrent, marks=pytest.mark.slow), frozen],
  )
  def test_of_any_model(self, build, run_in_graph, tmp_path):
    for name in NAMES[:4]:
      expected = saved(build, tmp_path / name)
    model = models.from_keras(build)
    loaded = [
      split_model.load_weights(model, tmp_path / name) for name in NAMES[:4]
    ]
    assert_close(predict(run_in_graph, loaded[0]), expected, 1e-5, 1e-6)
    # All files give the same weights.
    first, *others = (
      (each.frozen, run_in_graph(each.initial_weights, SEED)) for each in loaded
    )
    for each in others:
      trees.assert_equal(each, first)

  def test_of_a_model_that_is_built_of_two(self, run_in_graph, tmp_path):
    expected = saved(
      lambda: sequential((6,), *(layers.Dense(6) for _ in range(3))),
      tmp_path / "a.keras",
    )
    # Names of Keras's own, which are not counted anew in such a model.
    model = split_model.build_split_model(
      "two",
      backbone=lambda: sequential((6,), layers.Dense(6), layers.Dense(6)),
      head=lambda: sequential((6,), layers.Dense(6)),
      input_dtype=tf.float32,
    )
    loaded = split_model.load_weights(model, tmp_path / "a.keras")
    assert_close(predict(run_in_graph, loaded), expected, 1e-5, 1e-5)

  @pytest.mark.slow
  def test_of_a_folder_that_a_run_has_left(
    self, by_name, run_in_graph, tmp_path
  ):
    model = of_perceptron()
    values = by_name(model, randomized(perceptron()).get_weights())
    np.savez(tmp_path / "weights.npz", **values)
    (tmp_path / "model.json").touch()
    loaded = split_model.load_weights(model, tmp_path)
    found = by_name(loaded, run_in_graph(loaded.initial_weights, SEED))
    np.testing.assert_equal(found, values)


class TestParts:
  @pytest.mark.parametrize("has_backbone", [True, False])
  def test_one_alone(self, has_backbone, run_in_graph, tmp_path):
    *stack, last = randomized(perceptron()).layers
    part = sequential((6,), *(stack if has_backbone else [last]))
    save(part, tmp_path / "a.keras")
    model = of_perceptron()
    given = split_model.load_weights(model, tmp_path / "a.keras")
    weights, drawn = (
      run_in_graph(each.initial_weights, SEED) for each in (given, model)
    )
    parts, left = (weights.backbone, weights.head), (drawn.backbone, drawn.head)
    place = int(not has_backbone)
    np.testing.assert_equal(list(parts[place]), part.get_weights())
    np.testing.assert_equal(parts[1 - place], left[1 - place])

  @pytest.mark.slow
  @pytest.mark.parametrize("is_built_in", [True, False])
  def test_a_guide_stays(self, is_built_in, run_in_graph, tmp_path):
    path = tmp_path / "a.keras"
    expected = saved(frozen, path)
    model = models.from_keras(frozen)
    if is_built_in:
      model = guided_model.with_guide(model, 4, width=2)
    given = split_model.load_weights(model, path)
    if not is_built_in:
      model, given = (
        guided_model.with_guide(each, 4, width=2) for each in (model, given)
      )
    assert_close(predict(run_in_graph, given), expected, 1e-5)

    def features(seed, x):
      backbone = given.initial_backbone(seed)
      return given.features(backbone, x), given.embed(backbone, x)

    # Both tasks see the frozen weights of the file.
    np.testing.assert_array_equal(*run_in_graph(features, SEED, examples()))
    np.testing.assert_equal(
      run_in_graph(given.initial_client_branch, SEED),
      run_in_graph(model.initial_client_branch, SEED),
    )

  def test_layers_of_a_model_with_a_trunk(self, run_in_graph, tmp_path):
    built = randomized(dense(6, first=5, second=4, third=3)())
    save(built, tmp_path / "a.keras")
    expected = built.get_weights()
    model = guided_model.build_guided_model(
      "guided",
      trunk=dense(6, first=5),
      target_branch=dense(5, second=4),
      head=dense(4, third=3),
      client_branch=dense(5, guide=2),
      input_dtype=tf.float32,
    )
    given = split_model.load_weights(model, tmp_path / "a.keras")
    weights = run_in_graph(given.initial_weights, SEED)
    np.testing.assert_equal(tf.nest.flatten(weights), expected)


class TestRefusals:
  @pytest.mark.parametrize(
    "name, message",
    [
      (
        "a.keras",
        "has 1 array(s), and the model has 2 weight(s) there (kernel, bias)",
      ),
      ("a.h5", "'backbone/dense.2/bias' is missing; give all weights of"),
    ],
  )
  def test_layer_without_one_of_its_weights(self, name, message, tmp_path):
    model = of_perceptron()
    path = save(perceptron(use_bias=False), tmp_path / name)
    assert message in refusal(model, path)

  def test_statistics_are_named_and_not_dropped(self, tmp_path):
    model = of_perceptron()
    with_statistics = sequential(
      (6,),
      layers.Dense(6),
      layers.BatchNormalization(),
      layers.Dense(6),
      layers.Dense(3, name="last"),
    )
    line = refusal(model, save(with_statistics, tmp_path / "a.keras"))
    assert "it has 'batch_normalization" in line

  def test_frozen_weights_must_be_there(self, tmp_path):
    model = models.from_keras(frozen)
    first = sequential((6,), layers.Dense(6))
    # It is told of the layer that comes first: that is not a frozen one.
    line = refusal(model, save(first, tmp_path / "a.keras"))
    assert "'backbone/dense.2/kernel' is missing" in line

  def test_trained_weights_must_be_there(self, tmp_path):
    def build(is_whole):
      stack = [layers.Dense(6, name="b")] if is_whole else []
      return sequential(
        (6,),
        layers.Dense(6, name="a", trainable=False),
        *stack,
        layers.Dense(3, name="c"),
      )

    model = models.from_keras(functools.partial(build, True))
    path = save(build(False), tmp_path / "a.keras")
    assert "'backbone/b/kernel' is missing" in refusal(model, path)

  @pytest.mark.parametrize("name", ["a.ckpt", "a", "a.npy", "a.zip"])
  def test_kinds_of_files_are_listed(self, name, tmp_path):
    (tmp_path / name).touch()
    line = refusal(mlp.build(width=4), tmp_path / name)
    assert "must end in .npz, .keras, .h5, .hdf5, or it must be" in line

  def test_empty_file(self, tmp_path):
    empty = sequential((6,), layers.ReLU())
    path = save(empty, tmp_path / "a.keras")
    assert "it has no weights" in refusal(of_perceptron(), path)


class TestDigest:
  def test_is_of_the_content(self, tmp_path):
    path = tmp_path / "a.npz"
    path.write_bytes(b"abc")
    # sha256sum.
    assert split_model.weights_digest(path) == (
      "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    )

  def test_of_a_saved_model_sees_each_of_its_weights(self, tmp_path):
    path = save(perceptron(), tmp_path / "saved")
    digest = split_model.weights_digest(path)
    shutil.copytree(path, tmp_path / "copy")
    assert split_model.weights_digest(tmp_path / "copy") == digest
    (data,) = pathlib.Path(path, "variables").glob("*.data-*")
    content = bytearray(data.read_bytes())
    content[0] ^= 1
    data.write_bytes(content)
    assert split_model.weights_digest(path) != digest

  def test_of_nothing(self, tmp_path):
    with pytest.raises(FileNotFoundError, match=r"no weights file '.*none'"):
      split_model.weights_digest(tmp_path / "none")
