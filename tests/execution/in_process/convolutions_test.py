"""Convolutions of a batch of clients, beside the loop over clients."""

import dataclasses

import hypothesis
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import strategies

from tff_shift.execution.in_process import convolutions
from tff_shift.execution.in_process import vectorization

# Of a difference, relative to the largest value.
TOLERANCES = {"float32": 2e-6, "float64": 1e-12}
CLIENTS = 3


def in_a_batch(function, *stacked):
  """Returns the results of clients, and what ran client by client."""

  # The executor does not know the number of clients.
  @tf.function(
    input_signature=[
      tf.TensorSpec([None, *each.shape[1:]], each.dtype) for each in stacked
    ]
  )
  def run(*stacked):
    return vectorization.map_clients(
      lambda i: function(*(tf.gather(each, i) for each in stacked)),
      tf.shape(stacked[0])[0],
    )

  with vectorization.Notes() as notes:
    found = run(*stacked)
  return found, notes.looped


def check(function, *stacked, reference=None, looped=()):
  """Compares a batch with a loop."""
  found, notes = in_a_batch(function, *stacked)
  assert notes == set(looped)
  reference = tf.function(reference or function)
  each = [reference(*values) for values in zip(*stacked, strict=True)]
  for one, other in zip(found, zip(*each, strict=True), strict=True):
    other = np.stack(other)
    assert one.shape == other.shape and one.dtype == other.dtype
    difference = np.max(np.abs(one - other))
    tolerance = TOLERANCES.get(one.dtype.name, 0)
    assert difference <= tolerance * max(1, np.max(np.abs(other)))


def derived(function):
  """Returns a function of a result, its gradients and theirs."""

  def compute(*values):
    values = list(map(tf.convert_to_tensor, values))
    with tf.GradientTape() as second:
      second.watch(values)
      with tf.GradientTape() as tape:
        tape.watch(values)
        found = function(*values)
        loss = tf.reduce_sum(tf.sin(found))
      gradients = tape.gradient(loss, values)
      norm = sum(tf.reduce_sum(each**2) for each in gradients)
    return [found, *gradients, *second.gradient(norm, values)]

  return compute


def draw(*sizes, dtype="float32"):
  generator = np.random.default_rng(sizes)
  return generator.normal(size=(CLIENTS, *sizes)).astype(dtype)


@dataclasses.dataclass(frozen=True)
class Geometry:
  kernel: tuple[int, ...]
  strides: tuple[int, ...] = (1, 1, 1)
  dilations: tuple[int, ...] = (1, 1, 1)
  padding: object = "SAME"

  @property
  def rank(self):
    return len(self.kernel)

  def convolve(self, images, kernel):
    convolve = tf.nn.conv2d if self.rank == 2 else tf.nn.conv3d
    return convolve(
      images,
      kernel,
      [1, *self.strides[: self.rank], 1],
      self.padding,
      dilations=[1, *self.dilations[: self.rank], 1],
    )

  def plainly(self, images, kernel):
    """As `convolve`, with what the CPU has for every type.

    That is without dilations in gradients, and without explicit padding of
    dilated kernels.
    """
    places = [
      [i * dilation for i in range(size)]
      for size, dilation in zip(self.kernel, self.dilations)
    ]
    sizes = [each[-1] + 1 for each in places] + kernel.shape[-2:]
    places = np.stack(np.meshgrid(*places, indexing="ij"), -1)
    kernel = tf.scatter_nd(places, kernel, sizes)
    padding = self.padding
    if not isinstance(padding, str):
      images, padding = tf.pad(images, padding), "VALID"
    return Geometry(kernel.shape[:-2], self.strides, padding=padding).convolve(
      images, kernel
    )


def pairs(low, high):
  return strategies.tuples(*[strategies.integers(low, high)] * 2)


geometries = strategies.builds(
  Geometry,
  kernel=pairs(1, 3),
  strides=pairs(1, 2),
  dilations=pairs(1, 2),
  padding=strategies.sampled_from(["SAME", "VALID"])
  | strategies.tuples(pairs(0, 2), pairs(0, 2)).map(
    lambda borders: [(0, 0), *borders, (0, 0)]
  ),
)


@pytest.fixture(params=["groups", "patches"])
def form(request, monkeypatch):
  is_grouped = request.param == "groups"
  monkeypatch.setattr(convolutions, "is_grouped", lambda *_: is_grouped)
  return request.param


def check_convolution(geometry, images, kernels, own="both"):
  """Compares a convolution of which one or both operands are a client's."""

  def of_client(convolve):
    if own == "images":
      return lambda images: convolve(images, kernels[0])
    if own == "kernels":
      return lambda kernel: convolve(images[0], kernel)
    return convolve

  stacked = {"images": [images], "kernels": [kernels]}
  check(
    of_client(derived(geometry.convolve)),
    *stacked.get(own, [images, kernels]),
    reference=of_client(derived(geometry.plainly)),
  )


class TestConvolutions:
  @hypothesis.given(
    geometry=geometries,
    own=strategies.sampled_from(["both", "images", "kernels"]),
  )
  # Each example is traced, which would take long to make smaller.
  @hypothesis.settings(
    max_examples=10,
    phases=[hypothesis.Phase.generate],
    suppress_health_check=list(hypothesis.HealthCheck),
  )
  def test_two_dimensions(self, form, geometry, own):
    # TensorFlow's own, which a CPU does not have.
    hypothesis.assume(
      own != "images"
      or isinstance(geometry.padding, str)
      or geometry.dilations == (1, 1)
    )
    check_convolution(
      geometry, draw(2, 7, 8, 2), draw(*geometry.kernel, 2, 3), own
    )

  @pytest.mark.parametrize(
    "geometry",
    [
      Geometry((2, 3, 2), (2, 1, 2)),
      # TensorFlow mistakes the shape of other dilations.
      Geometry((3, 2, 1), (1, 2, 1), (2, 2, 2), "VALID"),
    ],
  )
  @pytest.mark.parametrize("own", ["both", "images", "kernels"])
  def test_three_dimensions(self, form, geometry, own):
    if own == "images":
      geometry = dataclasses.replace(geometry, dilations=(1, 1, 1))
    check_convolution(
      geometry, draw(2, 5, 6, 4, 2), draw(*geometry.kernel, 2, 3), own
    )

  @pytest.mark.parametrize("own", ["both", "images", "kernels"])
  @pytest.mark.parametrize("rank", [2, 3])
  def test_transposed(self, form, own, rank):
    sizes = [5, 4, 3][:rank]
    kernels, images = draw(*[3, 2, 3][:rank], 3, 2), draw(2, *sizes, 2)

    def convolve(images, kernel):
      return tf.nn.conv_transpose(
        images, kernel, [2, *(2 * each for each in sizes), 3], 2
      )

    function = derived(convolve)
    if own == "both":
      check(function, images, kernels)
    elif own == "images":
      check(lambda images: function(images, kernels[0]), images)
    else:
      check(lambda kernel: function(images[0], kernel), kernels)

  def test_groups_of_the_model_itself(self, monkeypatch):
    monkeypatch.setattr(convolutions, "is_grouped", lambda *_: True)
    geometry = Geometry((3, 3), (2, 1))
    check(
      derived(geometry.convolve), draw(2, 5, 6, 4), draw(3, 3, 2, 6)
    )

  def test_patches_of_double_precision(self):
    geometry = Geometry((3, 2), (2, 1), (1, 2))
    check_convolution(
      geometry,
      draw(2, 7, 8, 2, dtype="float64"),
      draw(3, 2, 2, 3, dtype="float64"),
    )

  def test_channels_first_run_client_by_client(self):
    def convolve(images, kernel):
      return [
        tf.nn.conv2d(images, kernel, 1, "SAME", "NCHW")
      ]
    found, looped = in_a_batch
