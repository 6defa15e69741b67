"""CFeD: distillation, and its public inputs."""

import dataclasses

import numpy as np
import pytest
import tensorflow as tf
from sklearn import datasets

from tff_shift.algorithms import cfed
from tff_shift.models import input_scaling
from tff_shift.models import split_model
from tff_shift.models.networks import bi_lstm
from tff_shift.models.networks import mlp

pytestmark = pytest.mark.slow

HPARAMS = cfed.HParams(
  public_examples=6, batch_size=6, temperature=2.0, distillation_weight=0.1
)


def linear_model(dtype=tf.float32, shape=(2,)):
  layers = tf.keras.layers
  return split_model.build_split_model(
    "linear",
    backbone=lambda: tf.keras.Sequential(
      [
        layers.InputLayer(shape),
        layers.Flatten(),
        layers.Dense(4, use_bias=False, name="layer1"),
      ]
    ),
    head=lambda: tf.keras.Sequential(
      [layers.InputLayer((4,)), layers.Dense(3, use_bias=False, name="layer2")]
    ),
    input_dtype=dtype,
  )


def softmax(logits):
  weights = np.exp(logits - logits.max(axis=1, keepdims=True))
  return weights / weights.sum(axis=1, keepdims=True)


def make_public_inputs(model, public_data, number, bound=1.0):
  return cfed.make_public_inputs(
    model,
    cfed.HParams(
      public_data=public_data, public_examples=number, public_bound=bound
    ),
  )


class TestDistillation:
  @pytest.fixture(scope="class")
  def distilling(self):
    model = linear_model()
    public = cfed.make_public_inputs(model, HPARAMS)
    return cfed.Distillation(model, HPARAMS, public)

  @pytest.fixture(scope="class")
  def found(self, distilling, run_in_graph):
    """Weights of teacher and student, and what is computed of them."""
    generator = np.random.default_rng(0)
    teacher, student = (
      split_model.SplitWeights(
        (generator.normal(size=(2, 4)).astype(np.float32),),
        (generator.normal(size=(4, 3)).astype(np.float32),),
      )
      for _ in range(2)
    )

    def compute(teacher, student):
      targets = distilling.probabilities(teacher)
      loss = distilling.loss(targets, 1, tf.constant([0, 0]))
      slopes = [
        tf.gradients(loss(w, 0), w.head[0])[0] for w in (teacher, student)
      ]
      return targets, loss(student, 0), slopes

    return teacher, student, run_in_graph(compute, teacher, student)

  def test_loss_is_the_cross_entropy_at_the_temperature(
    self, distilling, found
  ):
    teacher, student, (targets, loss, _) = found
    said = [
      softmax(distilling.x @ w.backbone[0] @ w.head[0] / 2.0)
      for w in (teacher, student)
    ]
    np.testing.assert_allclose(targets, said[0], rtol=1e-5)
    # The batch has all inputs, in some order.
    expected = -0.1 * np.mean(np.sum(said[0] * np.log(said[1]), axis=1))
    np.testing.assert_allclose(loss, expected, rtol=1e-5)

  def test_teacher_has_nothing_to_learn_from_itself(self, found):
    _, _, (_, _, (of_teacher, of_student)) = found
    assert np.abs(of_teacher).max() < 1e-7
    assert np.abs(of_student).max() > 1e-3


class TestPublicInputs:
  def test_uniform_numbers_fill_the_range(self):
    x = make_public_inputs(mlp.build((2,)), "uniform", 500, bound=3.0)
    assert x.shape == (500, 2) and x.dtype == np.float32
    assert 2.9 < x.max() <= 3.0 and -3.0 <= x.min() < -2.9
    np.testing.assert_array_equal(
      x, make_public_inputs(mlp.build((2,)), "uniform", 500, bound=3.0)
    )

  def test_uniform_numbers_fill_the_range_of_each_scaled_feature(self):
    scaling = input_scaling.InputScaling((5.0, -100.0), (1.0, 50.0))
    model = split_model.with_input_scaling(mlp.build((2,)), scaling)
    x = make_public_inputs(model, "uniform", 500, bound=3.0)
    plain = make_public_inputs(mlp.build((2,)), "uniform", 500, bound=3.0)
    np.testing.assert_allclose(x, plain * [1, 50] + [5, -100], rtol=1e-5)

  def test_uniform_images_have_all_values(self):
    model = mlp.build((4, 4, 3), input_dtype=tf.uint8)
    x = make_public_inputs(model, "uniform", 50)
    assert x.shape == (50, 4, 4, 3) and x.dtype == np.uint8
    assert set(np.unique(x)) == set(range(256))

  def test_titles_have_all_lengths_and_all_words(self):
    model = bi_lstm.build(input_shape=(4,), vocabulary_size=9, width=1)
    x = make_public_inputs(model, "uniform", 400)
    assert x.shape == (400, 4) and x.dtype == np.int32
    # Padding is where a title has ended, and nowhere else.
    lengths = np.sum(x > 0, axis=1)
    np.testing.assert_array_equal(x > 0, np.arange(4) < lengths[:, np.newaxis])
    # Five standard errors: 5 * sqrt(400 * 3 / 16), and 5 * sqrt(1000 / 8).
    np.testing.assert_allclose(np.bincount(lengths), [0] + [100] * 4, atol=44)
    counts = np.bincount(x[x > 0], minlength=9)
    assert counts[0] == 0
    np.testing.assert_allclose(counts[1:], lengths.sum() / 8, atol=56)

  def test_digits_are_those_of_scikit_learn(self):
    model = mlp.build((8, 8, 1), input_dtype=tf.uint8)
    x = make_public_inputs(model, "digits", 5)
    distances = [
      np.abs(datasets.load_digits().images * (255 / 16) - image[..., 0])
      for image in x
    ]
    assert all(each.max(axis=(1, 2)).min() <= 0.5 for each in distances)
    assert len(np.unique(x, axis=0)) == 5

  def test_digits_have_the_size_of_the_model(self):
    sizes = [(8, 8, 1), (16, 8, 3), (4, 8, 1)]
    plain, larger, smaller = (
      make_public_inputs(mlp.build(size, input_dtype=tf.uint8), "digits", 5)
      for size in sizes
    )
    np.testing.assert_array_equal(
      larger, np.repeat(np.repeat(plain, 2, axis=1), 3, axis=3)
    )
    np.testing.assert_array_equal(smaller, plain[:, ::2])

  @pytest.mark.parametrize(
    ("name", "dtype"), [("digits", tf.float32), ("uniform", tf.int32)]
  )
  def test_model_of_other_inputs_is_refused(self, name, dtype):
    model = dataclasses.replace(linear_model(), input_dtype=dtype)
    with pytest.raises(ValueError, match=f"^public_data={name}.*must be"):
      make_public_inputs(model, name, 5)


def test_inputs_that_no_graph_holds_are_refused():
  # Two float32 each.
  with pytest.raises(ValueError, match=r"^public_examples=268435456: 2 GiB of"):
    make_public_inputs(linear_model(), "uniform", 2**28)
