"""Tests of sequences of examples: what they may be, and what they become."""

import collections

import numpy as np
import pytest
import tensorflow as tf
from numpy.testing import assert_array_equal

from tff_shift.learning import local_training
from tff_shift.learning.stock_tff import sequences
from tff_shift.models.networks import mlp

pytestmark = pytest.mark.usefixtures("context")


def spec(dtype, *shape):
  return tf.TensorSpec(shape, dtype)


@pytest.fixture(scope="module")
def data_type():
  return local_training.data_type(mlp.build((2,), num_classes=3, width=2))


class TestCheck:
  @pytest.mark.parametrize(
    "element_spec, are_batches, has_domains",
    [
      ((spec(tf.float32, 2), spec(tf.int32)), False, False),
      ([spec(tf.float64, 2), spec(tf.int64)], False, False),
      ((spec(tf.float32, 32, 2), spec(tf.uint8, 32)), True, False),
      ((spec(tf.float32, 2), spec(tf.int32), spec(tf.int64)), False, True),
      (
        collections.OrderedDict(
          y=spec(tf.int32, None),
          x=spec(tf.float16, None, 2),
          domain=spec(tf.int32, None),
        ),
        True,
        True,
      ),
    ],
  )
  def test_what_a_model_can_take(
    self, data_type, element_spec, are_batches, has_domains
  ):
    elements = sequences.check(element_spec, data_type)
    assert elements[1:] == (are_batches, has_domains)

  @pytest.mark.parametrize(
    "element_spec, complaint",
    [
      (
        spec(tf.float32, 2),
        "elements must be (x, y) or (x, y, domain), tensors of known rank, or a"
        " mapping with these names; got float32 [2]",
      ),
      ({"x": spec(tf.float32, 2), "label": spec(tf.int32)}, "elements must be"),
      ((spec(tf.float32, 2), (spec(tf.int32),)), "elements must be"),
      ((tf.TensorSpec(None, tf.float32), spec(tf.int32)), "elements must be"),
      (
        (spec(tf.float32, 3), spec(tf.int32)),
        "x must be float32 of shape [2], or batches of such examples, the"
        " inputs of the model; got float32 [3]",
      ),
      ((spec(tf.int32, 2), spec(tf.int32)), "x must be float32"),
      (
        (spec(tf.float32, None, 2), spec(tf.int32)),
        "y must be an integer for each example, got int32 [] beside x float32"
        " [None, 2]",
      ),
      ((spec(tf.float32, 2), spec(tf.float32)), "y must be an integer"),
      (
        (spec(tf.float32, 2), spec(tf.int32), spec(tf.string)),
        "domain must be an integer",
      ),
    ],
  )
  def test_anything_else_is_refused(
    self, data_type, element_spec, complaint, refusal
  ):
    told = refusal(sequences.check, element_spec, data_type)
    assert told.startswith(f"client_data: {complaint}")

  def test_scaled_pixels_are_refused(self, refusal):
    # The model scales them itself; 0 to 1 would become 0.
    images = mlp.build((4, 4, 1), num_classes=3, width=2, input_dtype=np.uint8)
    assert "x must be uint8 of shape" in refusal(
      sequences.check,
      (spec(tf.float32, 4, 4, 1), spec(tf.int32)),
      local_training.data_type(images),
    )


def collect(dataset, data_type, run_seed=0, min_domains=1):
  elements = sequences.check(dataset.element_spec, data_type)
  return sequences.collection(elements, data_type, run_seed, min_domains)(
    dataset
  )


def draw(size):
  generator = np.random.default_rng(size)
  return (
    generator.normal(size=(size, 2)).astype(np.float32),
    generator.integers(0, 3, size),
  )


class TestCollection:
  @pytest.mark.slow
  @pytest.mark.parametrize("size", [0, 1, 7])
  def test_pipelines_of_the_same_examples_give_the_same(self, data_type, size):
    x, y = draw(size)
    plain = tf.data.Dataset.from_tensor_slices((x, y))
    expected = collect(plain, data_type)
    assert_array_equal(expected.x, x)
    assert_array_equal(expected.y, y)
    assert expected.x.dtype == np.float32 and expected.y.dtype == np.int32
    assert expected.domain_sizes.tolist() == [size]
    assert expected.client_id == 0
    for other in (
      plain.batch(3),
      plain.batch(1).prefetch(2),
      plain.map(lambda x, y: {"y": tf.cast(y, tf.uint8), "x": x}),
      plain.map(lambda x, y: (tf.cast(x, tf.float64), y)).batch(100),
    ):
      for found, wanted in zip(
        collect(other, data_type), expected, strict=True
      ):
        assert found.dtype == wanted.dtype
        assert_array_equal(found, wanted)

  @pytest.mark.slow
  def test_domains_are_sorted_and_the_order_within_is_kept(self, data_type):
    x, y = draw(6)
    domain = np.array([5, 2, 5, 2, 9, 5])
    found = collect(
      tf.data.Dataset.from_tensor_slices((x, y, domain)).batch(4), data_type
    )
    order = [1, 3, 0, 2, 5, 4]
    assert_array_equal(found.x, x[order])
    assert_array_equal(found.y, y[order])
    assert found.domain_sizes.tolist() == [2, 3, 1]

  @pytest.mark.slow
  def test_too_few_domains_are_an_error(self, data_type):
    def pipeline(domains):
      x, y = draw(len(domains))
      return tf.data.Dataset.from_tensor_slices((x, y, np.int32(domains)))

    found = collect(pipeline([1, 0, 1]), data_type, min_domains=2)
    assert found.domain_sizes.tolist() == [1, 2]
    # A client without examples has nothing to go through.
    found = collect(pipeline([]), data_type, min_domains=2)
    assert found.domain_sizes.tolist() == [0, 0]
    with pytest.raises(Exception, match="needs examples of 2 domains or more"):
      collect(pipeline([1, 1, 1]), data_type, min_domains=2)


class TestSeed:
  @pytest.fixture(scope="class")
  def seed_of(self, compile_in_graph):
    functions = {
      run_seed: compile_in_graph(
        lambda x, y, run_seed=run_seed: sequences.seed_of(x, y, run_seed),
        tf.TensorSpec([None, 2], tf.float32),
        tf.TensorSpec([None], tf.int32),
      )
      for run_seed in (0, 1)
    }
    return lambda x, y, run_seed=0: tuple(functions[run_seed](x, y))

  def test_it_is_a_function_of_the_examples_and_the_run(self, seed_of):
    x, y = draw(5)
    y = y.astype(np.int32)
    changed = y.copy()
    changed[4] += 1
    moved = x.copy()
    moved[4, 1] = np.nextafter(moved[4, 1], np.float32(9))
    order = [1, 0, 2, 3, 4]
    seeds = [
      seed_of(x, y),
      seed_of(x, y, 1),
      seed_of(x, changed),
      seed_of(moved, y),
      seed_of(x[order], y[order]),
      seed_of(x[:4], y[:4]),
      # Equal examples, of other numbers.
      *(seed_of(0 * x[:size], 0 * y[:size]) for size in range(4)),
    ]
    assert len(set(seeds)) == len(seeds)
    assert seed_of(x.copy(), y.copy()) == seeds[0]
