import functools

import numpy as np
import pytest
from numpy.testing import assert_array_equal
from tensorflow_datasets.image_classification import cifar10_corrupted

from tff_shift.data import datasets
from tff_shift.data.images import corruptions

NAMES = corruptions.names()
# What draws nothing is a function of the image alone.
WITHOUT_DRAWS = {
  "defocus_blur",
  "zoom_blur",
  "brightness",
  "contrast",
  "pixelate",
  "jpeg_compression",
  "gaussian_blur",
  "saturate",
}


@pytest.fixture(scope="session")
def load(photographs):
  """Returns `load(kind)`: digits are two or three of every class."""
  images = {
    "digits": datasets.load("digits").x[:24],
    "photographs": photographs,
  }
  return images.__getitem__


@pytest.fixture(scope="session")
def all_severities(load):
  """Returns `all_severities(name, kind)`: clean, and severities 1 to 5.

  It gives `[6, N, height, width, channels]`.
  """

  @functools.cache
  def corrupted(name, kind):
    images = load(kind)
    seeds = np.arange(len(images))
    return np.stack(
      [corruptions.corrupt(images, name, level, seeds) for level in range(6)]
    )

  return corrupted


KINDS = pytest.mark.parametrize("kind", ["digits", "photographs"])
EVERY = pytest.mark.parametrize("name", NAMES)


class TestEveryCorruption:
  def test_names_are_those_of_the_published_data(self):
    assert (
      *cifar10_corrupted.BENCHMARK_CORRUPTIONS,
      *cifar10_corrupted.EXTRA_CORRUPTIONS,
    ) == NAMES

  def test_severity_0_is_a_copy(self, photographs):
    clean = corruptions.corrupt(photographs, "fog", 0, np.arange(12))
    assert_array_equal(clean, photographs)
    assert not np.shares_memory(clean, photographs)

  @EVERY
  @KINDS
  def test_every_image_changes(self, name, kind, all_severities):
    clean, *corrupted = all_severities(name, kind)
    for images in corrupted:
      assert images.dtype == np.uint8
      assert images.shape == clean.shape
      assert np.all(np.any(images != clean, axis=(1, 2, 3)))

  @EVERY
  @KINDS
  def test_example_is_the_same_in_any_batch(
    self, name, kind, load, all_severities
  ):
    images = load(kind)
    for severity in (2, 5):
      batch = all_severities(name, kind)[severity]
      backwards = corruptions.corrupt(
        images[::-1], name, severity, np.arange(len(images))[::-1]
      )
      assert_array_equal(backwards[::-1], batch)
      for index in (0, 7):
        alone = corruptions.corrupt(
          images[index : index + 1], name, severity, [index]
        )
        assert_array_equal(alone[0], batch[index])

  @EVERY
  def test_seed_matters_where_something_is_drawn(self, name, photographs):
    images = np.repeat(photographs[:1], 2, axis=0)
    first, second = corruptions.corrupt(images, name, 4, np.array([1, 2]))
    assert np.array_equal(first, second) == (name in WITHOUT_DRAWS)

  @EVERY
  @pytest.mark.parametrize("shape", [(2, 8, 8, 1), (2, 40, 64, 3)])
  def test_other_sizes_keep_their_shape_and_change(self, name, shape):
    images = np.random.default_rng(3).integers(0, 256, shape, dtype=np.uint8)
    result = corruptions.corrupt(images, name, np.int64(5), [4, 5])
    assert result.shape == shape
    assert np.all(np.any(result != images, axis=(1, 2, 3)))


@pytest.mark.parametrize(
  "change, message",
  [
    ({"images": np.zeros((2, 8, 8, 3))}, "images must be uint8, got float64"),
    ({"images": np.zeros((2, 8, 8), np.uint8)}, "images must be [N, "),
    ({"images": np.zeros((2, 8, 8, 2), np.uint8)}, "images must be [N, "),
    ({"images": np.zeros((2, 8, 7, 3), np.uint8)}, "images must be [N, "),
    ({"name": "rain"}, "corruption must be one of gaussian_noise, "),
    ({"severity": 6}, "severity must be an integer from 0 to 5, got 6"),
    ({"severity": -1}, "severity must be an integer from 0 to 5, got -1"),
    ({"severity": 2.5}, "severity must be an integer from 0 to 5, got 2.5"),
    (
      {"seeds": [1, 2, 3]},
      "seeds must be one integer for each of 2 images, got shape [3]",
    ),
    ({"seeds": [1, -2]}, "seed must be a non-negative integer, got -2"),
  ],
)
def test_bad_argument_is_refused(change, message, refusal):
  arguments = {
    "images": np.zeros((2, 8, 8, 3), np.uint8),
    "name": "fog",
    "severity": 2,
    "seeds": [1, 2],
  }
  told = refusal(corruptions.corrupt, **{**arguments, **change})
  assert told.startswith(message)
