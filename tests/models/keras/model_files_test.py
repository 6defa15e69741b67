"""Whole models in `.keras` files, of both generations of Keras."""

import hashlib
import importlib
import importlib.util
import json

import numpy as np
import pytest
import tensorflow as tf

from tests.fixtures import archives
from tests.fixtures.refusals import refused
from tff_shift import models

GENERATIONS = ["tf.keras"]
if importlib.util.find_spec("tf_keras"):
  GENERATIONS.append("Keras 3")


def keras_of(generation):
  if generation == "tf.keras":
    return tf.keras
  return importlib.import_module("keras")


def sequential(keras, *stack):
  layers = keras.layers
  return keras.Sequential([layers.InputLayer((4,)), *stack, layers.Dense(3)])


def build(path, **options):
  return models.build(str(path), input_shape=(4,), num_classes=3, **options)


def with_version(path, version):
  """Changes the version that a file names."""

  def change(files):
    metadata = json.loads(files["metadata.json"]) | {"keras_version": version}
    files["metadata.json"] = json.dumps(metadata)

  archives.rewrite(path, change)


@pytest.mark.slow
@pytest.mark.parametrize("generation", GENERATIONS)
def test_model_has_weights_and_logits_of_the_file(tmp_path, generation):
  keras, path = keras_of(generation), tmp_path / "mine.keras"
  layers = keras.layers
  stack = layers.Dense(5, "relu"), layers.BatchNormalization()
  keras_model = sequential(keras, *stack)
  generator = np.random.default_rng(1)
  keras_model.set_weights(
    [generator.uniform(0.1, 1, w.shape) for w in keras_model.get_weights()]
  )
  keras_model.save(path)
  model = build(path)
  x = generator.normal(size=(6, 4)).astype(np.float32)
  for seed in 1, 2:  # The initial weights of all seeds.
    logits = model.predict(model.initial_weights(tf.constant([seed, 0])), x)
    np.testing.assert_allclose(logits, keras_model(x), rtol=1e-5, atol=1e-5)
  assert model.name == "mine.keras"
  assert models.options(str(path)) == frozenset()
  digest = hashlib.sha256(path.read_bytes()).hexdigest()
  assert models.digest(str(path)) == digest


class TestRefusal:
  @pytest.mark.parametrize("generation", GENERATIONS)
  def test_of_a_lambda_layer(self, tmp_path, generation):
    keras, path = keras_of(generation), tmp_path / "mine.keras"
    sequential(keras, keras.layers.Lambda(lambda x: 2 * x)).save(path)
    with refused("it has a Lambda layer, whose Python code is not"):
      build(path)

  @pytest.mark.parametrize("version", ["2.14.0", "3.15.1"])
  def test_of_the_other_generation_names_it(self, tmp_path, version):
    is_keras_3 = version[0] == "3"
    writer = GENERATIONS[0] if is_keras_3 else GENERATIONS[-1]
    path = tmp_path / "mine.keras"
    keras = keras_of(writer)
    sequential(keras, keras.layers.BatchNormalization()).save(path)
    with_version(path, version)
    if len(GENERATIONS) == 1 and not is_keras_3:
      assert build(path).num_parameters == 23
      return
    with refused(
      rf"it was written by Keras {version}, and .*build the model by a"
      r" function \(--model=file.py:build\)"
    ):
      build(path)

  def test_of_other_files(self, tmp_path):
    path = tmp_path / "mine.keras"
    with refused(f"^{path}: there is no such file$"):
      build(path)
    path.write_text("weights")
    with refused("it is not a .keras file, which model.save writes"):
      build(path)

  def test_of_other_examples(self, tmp_path):
    path = tmp_path / "mine.keras"
    sequential(tf.keras).save(path)
    with refused("num_classes 3, and the data have 4"):
      models.build(str(path), input_shape=(4,), num_classes=4)
    with refused("has no option 'width'"):
      build(path, width=3)
