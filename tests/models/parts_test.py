"""Tests of pure functions of weights: draws, composition, frozen weights."""

import numpy as np
import pytest
import tensorflow as tf

from tests.fixtures.arrays import assert_equal
from tests.fixtures.refusals import refused
from tff_shift._util import draws
from tff_shift.models import parts
from tff_shift.models.keras import keras_parts

layers = tf.keras.layers
SEED = np.array([1, 2], np.int32)


def linear_part(name, stream=parts.HEAD):
  """x A C, of the weight A [2, 2] and the frozen C [2, 2]."""
  return parts.Part(
    function=lambda weights, x, frozen: x @ weights[0] @ frozen[0]["fixed"],
    names=(f"{name}/kernel",),
    initializers=(lambda shape, seed: tf.random.stateless_normal(shape, seed),),
    shapes=((2, 2),),
    paths=parts.paths(stream, 1),
    frozen=({"fixed": np.float32([[1, 2], [0, 3]])},),
  )


class TestInitialWeights:
  def test_seed_of_a_weight_is_the_models_with_its_path_folded_in(
    self, run_in_graph
  ):
    part = keras_parts.make_part(
      tf.keras.Sequential(
        [layers.InputLayer((3,)), layers.Dense(4), layers.Dense(5)]
      ),
      parts.HEAD,
      start=6,
    )
    weights = run_in_graph(part.initial_weights, SEED)

    # Kernel, bias, kernel: the second kernel is at position 2 + 6.
    assert part.paths == ((1, 6), (1, 7), (1, 8), (1, 9))
    number = draws.integer(draws.fold_in(draws.fold_in(SEED, 1), 8))
    expected = tf.keras.initializers.GlorotUniform(int(number))((4, 5))
    assert_equal(weights[2], expected)
    assert_equal(weights[1], np.zeros(4))


class TestCompose:
  def test_functions_weights_and_frozen_weights_follow_each_other(self):
    first, second = linear_part("first"), linear_part("second")
    second = second.with_frozen(({"fixed": np.float32([[2, 0], [1, 1]])},))
    both = parts.compose(first, second)
    weights = (np.float32([[1, 1], [0, 1]]), np.float32([[0, 1], [1, 0]]))
    x = np.float32([[1, -1]])

    # [1, -1] -> [1, 0] -> [1, 2] -> [2, 1] -> [5, 1].
    assert_equal(both(weights, x), [[5, 1]])
    assert both.names == ("first/kernel", "second/kernel")
    assert both.num_parameters == 8

  def test_weights_start_as_in_the_parts(self, run_in_graph):
    first, second = linear_part("first"), linear_part("second", parts.BACKBONE)
    both = parts.compose(first, second)
    drawn, *apart = run_in_graph(
      lambda seed: tuple(
        part.initial_weights(seed) for part in (both, first, second)
      ),
      SEED,
    )
    assert_equal(drawn[0], apart[0][0])
    assert_equal(drawn[1], apart[1][0])
    assert not np.any(drawn[0] == drawn[1])

  @pytest.mark.parametrize("identity_first", [True, False])
  def test_identity_changes_nothing(self, identity_first):
    part = linear_part("only")
    pair = (part, parts.identity())
    both = parts.compose(*(pair[::-1] if identity_first else pair))
    x, weights = np.float32([[1, -1]]), (np.float32([[1, 1], [0, 1]]),)
    assert_equal(both(weights, x), part(weights, x))
    assert both.paths == part.paths
    assert both.frozen == part.frozen

  def test_equal_names_are_refused(self):
    with refused("both have a weight 'one/kernel'"):
      parts.compose(linear_part("one"), linear_part("one"))


def test_part_with_other_frozen_weights_uses_them():
  part = linear_part("only").with_frozen(({"fixed": np.eye(2) * 7},))
  result = part((np.eye(2),), np.float64([[1, 2]]))
  assert_equal(result, [[7, 14]])
