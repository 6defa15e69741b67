"""Augmentations: what is drawn, and what becomes of an image."""

import numpy as np
import pytest
import tensorflow as tf
from numpy.testing import assert_allclose

from tests.fixtures import refusals
from tests.fixtures import trees
from tff_shift.algorithms.parts import augmentations
from tff_shift.algorithms.parts import image_operations
from tff_shift.models.networks import mlp

Operation = image_operations.Operation
SEED = tf.constant([3, 4])


def make_image(*shape):
  return np.random.default_rng(1).integers(0, 256, shape).astype(np.uint8)


def augment(x, seed=SEED, count=5, **options):
  return augmentations.augment(tf.constant(x), seed, count, **options).numpy()


@pytest.fixture(scope="module")
def chains():
  return trees.map(
    np.asarray, augmentations.draw_chains(SEED, 3000, 28, 40, 10.0, crop=2)
  )


def test_draws_chains_have_one_to_three_operations_alike(chains):
  has_ended = chains.operations == Operation.NONE
  depths = 3 - has_ended.sum(axis=2)
  assert np.array_equal(has_ended, np.sort(has_ended, axis=2))
  assert_allclose(
    np.bincount(depths.ravel()) / depths.size,
    [0, 1 / 3, 1 / 3, 1 / 3],
    atol=0.02,
  )
  drawn = chains.operations[~has_ended]
  assert_allclose(np.bincount(drawn) / drawn.size, np.full(9, 1 / 9), atol=0.01)


def test_draws_are_uniform(chains):
  # Dirichlet(1, 1, 1): mean 1/3, variance 1/18; a coordinate is above 1/2
  # with probability 1/4.
  assert_allclose(chains.weights.sum(axis=1), 1, rtol=1e-5)
  assert_allclose(chains.weights.mean(axis=0), 1 / 3, atol=0.02)
  assert_allclose(chains.weights.var(axis=0), 1 / 18, atol=0.005)
  assert_allclose(np.mean(chains.weights > 0.5), 0.25, atol=0.02)
  shares, _ = np.histogram(chains.share, bins=4, range=(0, 1))
  assert_allclose(shares / 3000, 0.25, atol=0.03)
  for shift in chains.shift.T:
    found = np.bincount(shift + 2)
    assert_allclose(found / 3000, np.full(5, 0.2), atol=0.03)
  assert_allclose(chains.is_flipped.mean(), 0.5, atol=0.03)


@pytest.mark.parametrize(
  "operation, smallest, largest",
  [
    (Operation.AUTOCONTRAST, 0, 0),
    (Operation.EQUALIZE, 0, 0),
    (Operation.POSTERIZE, 1, 4),
    (Operation.SOLARIZE, 1, 254),
    (Operation.ROTATE, -29, 29),
    (Operation.SHEAR_X, -0.3, 0.3),
    (Operation.SHEAR_Y, -0.3, 0.3),
    # A third of 40, and of 28.
    (Operation.TRANSLATE_X, -13, 13),
    (Operation.TRANSLATE_Y, -9, 9),
  ],
)
def test_draws_limits_of_the_highest_level(
  chains, operation, smallest, largest
):
  amounts = chains.amounts[chains.operations == operation]
  assert smallest <= amounts.min() and amounts.max() <= largest
  assert_allclose(
    [amounts.min(), amounts.max()], [smallest, largest], rtol=0.02, atol=0.5
  )


def test_draws_digits_at_the_strength_of_memo():
  chains = augmentations.draw_chains(SEED, 1000, 28, 28, 1.0)
  operations, amounts = chains.operations.numpy(), chains.amounts.numpy()
  found = {
    each: set(amounts[operations == each].tolist()) for each in Operation
  }
  assert found[Operation.ROTATE] == {-2, -1, 0, 1, 2}
  assert found[Operation.POSTERIZE] == {4}
  assert found[Operation.TRANSLATE_X] == found[Operation.TRANSLATE_Y] == {0}
  assert min(found[Operation.SOLARIZE]) >= 231
  assert max(found[Operation.SHEAR_X]) <= 0.03
  assert not np.any(chains.shift)


@pytest.mark.slow
@pytest.mark.parametrize(
  "shape, strength", [((28, 28, 1), 1.0), ((9, 14, 3), 10.0)], ids=str
)
def test_augment_is_the_mixture_of_its_chains(monkeypatch, shape, strength):
  x, drawn = make_image(*shape), []
  draw = augmentations.draw_chains

  def draw_and_keep(*arguments):
    drawn.append(draw(*arguments))
    return drawn[-1]

  monkeypatch.setattr(augmentations, "draw_chains", draw_and_keep)
  found = augment(x, count=8, strength=strength)
  assert found.shape == (8, *shape) and found.dtype == np.uint8
  (chains,) = trees.map(np.asarray, drawn)
  for i, one in enumerate(found):
    mixed = chains.share[i] * x
    for chain in range(3):
      pixels = x[np.newaxis].astype(np.int32)
      for operation, amount in zip(
        chains.operations[i, chain], chains.amounts[i, chain], strict=True
      ):
        pixels = image_operations.transform(
          tf.constant(pixels), tf.constant([operation]), tf.constant([amount])
        ).numpy()
      mixed = (
        mixed + (1 - chains.share[i]) * chains.weights[i, chain] * pixels[0]
      )
    assert_allclose(one, mixed, atol=0.501)


@pytest.mark.slow
def test_augment_pixels_from_outside_are_mid_grey():
  # No operation of strength 1 changes an image that is 128 everywhere.
  for shape in ((28, 28, 1), (32, 32, 3)):
    x = np.full(shape, 128, np.uint8)
    assert np.all(augment(x, count=16) == 128)
    assert np.any(augment(x, count=16, fill=0) < 128)


def test_augment_draws_are_a_function_of_seed_and_image():
  x = make_image(8, 8, 1)
  again, other_seed = augment(x), augment(x, tf.constant([3, 5]))
  np.testing.assert_array_equal(augment(x), again)
  assert np.any(other_seed != again)
  assert len({each.tobytes() for each in again}) == 5
  # One pixel that hardly differs gives all others other values.
  x[0, 0] ^= 1
  assert np.mean(augment(x) != again) > 0.5


@pytest.mark.parametrize("flip, crop", [(0, 0), (1, 0), (0, 1), (1, 1)])
def test_augment_chains_start_from_flips_and_crops(monkeypatch, flip, crop):
  # The chains do nothing.
  monkeypatch.setattr(image_operations, "transform", lambda pixels, *_: pixels)
  x = make_image(5, 7, 3)
  expected = set()
  padded = np.pad(x, [(crop, crop), (crop, crop), (0, 0)])
  for top in range(2 * crop + 1):
    for left in range(2 * crop + 1):
      window = padded[top : top + 5, left : left + 7]
      expected.add(window.tobytes())
      if flip:
        expected.add(window[:, ::-1].tobytes())
  found = augment(x, count=200, flip=bool(flip), crop=crop)
  assert {each.tobytes() for each in found} == expected


@pytest.mark.parametrize(
  "shape, dtype",
  [((4, 4, 1), tf.float32), ((4, 4, 2), tf.uint8), ((16,), tf.uint8)],
)
def test_what_is_no_image_is_refused_in_one_line(shape, dtype):
  with refusals.refused(f"^test: .* need images.*{dtype.name}"):
    augmentations.check_images("test", mlp.build(shape, input_dtype=dtype))
