"""Operations on images: against Pillow's."""

import numpy as np
import pytest
import tensorflow as tf
from numpy.testing import assert_array_equal
from PIL import Image
from PIL import ImageOps

from tff_shift.algorithms.parts import image_operations

Operation = image_operations.Operation

# Neither square nor of one channel, and a digit's.
SHAPES = [(13, 17, 3), (28, 28, 1)]


def make_images(shape):
  """Returns images whose values are few, many, close together or all one."""
  generator = np.random.default_rng(0)
  ramp = np.arange(np.prod(shape)).reshape(shape)
  bright = generator.integers(0, 4, shape) == 0
  return np.stack(
    [
      generator.integers(0, 256, shape),
      generator.integers(90, 130, shape),
      # Mostly dark, as digits are.
      bright * generator.integers(0, 256, shape),
      np.where(bright, 255, 0),
      np.where(bright, 3, 2),
      ramp % 256,
      np.full(shape, 7),
      np.zeros(shape, int),
    ]
  ).astype(np.uint8)


def by_pillow(images, function):
  return np.stack(
    [
      np.asarray(function(Image.fromarray(np.squeeze(each)))).reshape(
        each.shape
      )
      for each in images
    ]
  )


def transform(images, operation, amount=0.0, **options):
  n = len(images)
  return image_operations.transform(
    tf.constant(images.astype(np.int32)),
    tf.fill([n], int(operation)),
    tf.fill([n], float(amount)),
    **options,
  ).numpy()


def grey(image, fill):
  """A color of one value in all channels, as Pillow takes it."""
  return (fill,) * len(image.getbands())


def move(image, fill, *matrix):
  return image.transform(
    image.size,
    Image.Transform.AFFINE,
    matrix,
    Image.Resampling.BILINEAR,
    fillcolor=grey(image, fill),
  )


@pytest.fixture(params=SHAPES, ids=str)
def images(request):
  return make_images(request.param)


@pytest.mark.parametrize(
  "operation, amount, function",
  [
    (Operation.AUTOCONTRAST, 0, ImageOps.autocontrast),
    (Operation.EQUALIZE, 0, ImageOps.equalize),
    *(
      (Operation.POSTERIZE, b, lambda x, b=b: ImageOps.posterize(x, b))
      for b in (1, 3, 4, 8)
    ),
    *(
      (Operation.SOLARIZE, t, lambda x, t=t: ImageOps.solarize(x, t))
      for t in (0, 1, 128, 231, 256)
    ),
  ],
)
def test_tables_give_the_pixels_of_pillow(images, operation, amount, function):
  assert_array_equal(
    transform(images, operation, amount), by_pillow(images, function)
  )


def test_tables_no_bit_is_black(images):
  assert not np.any(transform(images, Operation.POSTERIZE, 0))


@pytest.mark.parametrize(
  "operation, amount, function",
  [
    *(
      (
        Operation.ROTATE,
        a,
        lambda x, fill, a=a: x.rotate(
          a, Image.Resampling.BILINEAR, fillcolor=grey(x, fill)
        ),
      )
      for a in (1, -2, 17, -30)
    ),
    *(
      (Operation.SHEAR_X, s, lambda x, f, s=s: move(x, f, 1, s, 0, 0, 1, 0))
      for s in (0.3, -0.013)
    ),
    *(
      (Operation.SHEAR_Y, s, lambda x, f, s=s: move(x, f, 1, 0, 0, s, 1, 0))
      for s in (0.3, -0.013)
    ),
  ],
)
@pytest.mark.parametrize(
  "options, fill", [({}, 128), ({"fill": 0}, 0)], ids=str
)
def test_maps_are_within_1_of_pillow(
  images, operation, amount, function, options, fill
):
  found = transform(images, operation, amount, **options)
  expected = by_pillow(images, lambda x: function(x, fill)).astype(int)
  assert np.max(np.abs(found - expected)) <= 1
  # Those of which float32 rounds a whole number to just below it.
  assert np.mean(found != expected) < 0.01
  assert np.any(found != images)


@pytest.mark.parametrize("pixels", [4, -4, 0])
def test_maps_translation_gives_the_pixels_of_pillow(images, pixels):
  for operation, matrix in (
    (Operation.TRANSLATE_X, (1, 0, pixels, 0, 1, 0)),
    (Operation.TRANSLATE_Y, (1, 0, 0, 0, 1, pixels)),
  ):
    assert_array_equal(
      transform(images, operation, pixels),
      by_pillow(images, lambda x, m=matrix: move(x, 128, *m)),
    )


def test_together_none_changes_nothing(images):
  assert_array_equal(transform(images, Operation.NONE, 5.0), images)


def test_together_each_image_has_its_own(images):
  operations = np.array(sorted(Operation), np.int32)
  amounts = np.float32([3, 0, 0, 2, 100, 20, 0.2, -0.1, 3, -2])
  image = images[:1]
  together = image_operations.transform(
    tf.constant(image.repeat(len(operations), axis=0).astype(np.int32)),
    tf.constant(operations),
    tf.constant(amounts),
  )
  for found, *of_one in zip(together, operations, amounts, strict=True):
    assert_array_equal(found, transform(image, *of_one)[0])
