"""Convolutions of a batch of clients, beside the loop over clients."""

import dataclasses

import hypothesis
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import strategies

from tff_shift.execution.in_process import convolutions

CLIENTS = 3


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
      for size, dilation in zip(self.kernel, self.dilations, strict=False)
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
  if is_grouped and not convolutions.is_grouped("/device:CPU:0", tf.float32):
    pytest.skip("a CPU has gradients of groups with oneDNN only")
  monkeypatch.setattr(convolutions, "is_grouped", lambda *_: is_grouped)
  return request.param


@pytest.fixture
def check_derived(check_batch):
  """Returns a function that compares one of two operands with a loop.

  Clients have both operands, or only the images or the kernels of their own.
  """

  def check(function, images, kernels, own="both", reference=None):
    def of_client(convolve):
      if own == "images":
        return lambda images: convolve(images, kernels[0])
      if own == "kernels":
        return lambda kernel: convolve(images[0], kernel)
      return convolve

    stacked = {"images": [images], "kernels": [kernels]}
    check_batch(
      of_client(derived(function)),
      *stacked.get(own, [images, kernels]),
      reference=of_client(derived(reference or function)),
    )

  return check


@pytest.fixture
def check_convolution(check_derived):
  """Returns a function that compares a convolution with a loop."""
  return lambda geometry, *values: check_derived(
    geometry.convolve, *values, reference=geometry.plainly
  )


class TestConvolutions:
  @hypothesis.given(
    geometry=geometries,
    own=strategies.sampled_from(["both", "images", "kernels"]),
  )
  # Each example is traced, which would take long to make smaller.
  @hypothesis.settings(
    max_examples=10,
    derandomize=True,
    phases=[hypothesis.Phase.generate],
    suppress_health_check=list(hypothesis.HealthCheck),
  )
  @pytest.mark.slow
  def test_two_dimensions(self, form, check_convolution, geometry, own):
    if own == "images":
      # TensorFlow's own converter, and not every CPU has these gradients.
      geometry = dataclasses.replace(geometry, dilations=(1, 1))
    check_convolution(
      geometry, draw(2, 7, 8, 2), draw(*geometry.kernel, 2, 3), own
    )

  @pytest.mark.slow
  @pytest.mark.parametrize(
    "geometry",
    [
      Geometry((2, 3, 2), (2, 1, 2)),
      # TensorFlow mistakes the shape if dilations differ.
      Geometry((3, 2, 1), (1, 2, 1), (2, 2, 2), "VALID"),
    ],
  )
  @pytest.mark.parametrize("own", ["both", "images", "kernels"])
  def test_three_dimensions(self, form, check_convolution, geometry, own):
    if own == "images":
      geometry = dataclasses.replace(geometry, dilations=(1, 1, 1))
    check_convolution(
      geometry, draw(1, 5, 6, 3, 2), draw(*geometry.kernel, 2, 3), own
    )

  @pytest.mark.slow
  @pytest.mark.parametrize("rank", [2, 3])
  def test_transposed(self, form, check_batch, rank):
    sizes = [5, 4, 3][:rank]

    def convolve(images, kernel):
      return tf.nn.conv_transpose(
        images, kernel, [2, *(2 * each for each in sizes), 3], 2
      )

    check_batch(
      derived(convolve), draw(2, *sizes, 2), draw(*[3, 2, 3][:rank], 3, 2)
    )

  def test_patches_of_double_precision(self, monkeypatch, check_convolution):
    monkeypatch.setattr(convolutions, "is_grouped", lambda *_: False)
    check_convolution(
      Geometry((3, 2), (2, 1), (1, 2)),
      draw(2, 7, 8, 2, dtype="float64"),
      draw(3, 2, 2, 3, dtype="float64"),
    )

  def test_groups_of_the_model_itself(self, form, check_batch):
    convolve = Geometry((3, 3), (2, 1)).convolve
    images, kernels = draw(2, 5, 6, 4), draw(3, 3, 2, 6)
    if form == "groups":
      check_batch(derived(convolve), images, kernels)
    else:
      check_batch(
        lambda *values: [convolve(*values)], images, kernels, looped={"Conv2D"}
      )

  @pytest.mark.parametrize(
    ("device", "dtype", "has_onednn", "machine", "expected"),
    [
      ("/device:GPU:0", "float64", False, "x86_64", True),
      ("/device:CPU:0", "float32", True, "x86_64", True),
      ("/device:CPU:0", "float64", True, "x86_64", False),
      ("/device:CPU:0", "float32", False, "x86_64", False),
      ("/device:CPU:0", "float32", True, "aarch64", False),
    ],
  )
  def test_form(
    self, monkeypatch, device, dtype, has_onednn, machine, expected
  ):
    monkeypatch.setattr(
      convolutions._port, "IsMklEnabled", lambda: has_onednn, raising=True
    )
    monkeypatch.setattr(convolutions.platform, "machine", lambda: machine)
    assert convolutions.is_grouped(device, tf.as_dtype(dtype)) == expected


class TestDepthwise:
  @pytest.mark.parametrize("own", ["both", "images", "kernels"])
  @pytest.mark.parametrize("padding", ["SAME", "VALID"])
  def test_an_operand_may_be_shared(self, check_derived, own, padding):
    def convolve(images, kernel):
      return tf.nn.depthwise_conv2d(images, kernel, [1, 1, 1, 1], padding)

    check_derived(convolve, draw(2, 5, 6, 3), draw(3, 2, 3, 2), own)


class TestBatchNormalisation:
  @pytest.mark.parametrize("is_training", [False, True])
  @pytest.mark.parametrize("own", ["both", "images", "kernels"])
  def test_scale_and_statistics_of_a_client(
    self, check_derived, is_training, own
  ):
    def normalise(images, scale):
      return tf.raw_ops.FusedBatchNormV3(
        x=images,
        scale=scale,
        offset=2 * scale,
        mean=scale + 0.5,
        variance=scale**2 + 0.5,
        is_training=is_training,
      ).y

    check_derived(normalise, draw(6, 5, 5, 3), draw(3), own)


class TestPooling:
  @pytest.mark.parametrize("pool", [tf.nn.max_pool, tf.nn.avg_pool])
  @pytest.mark.parametrize("rank", [2, 3])
  def test_windows_overlap(self, check_batch, pool, rank):
    images = draw(2, *[5, 6, 4][:rank], 2)
    check_batch(derived(lambda images: pool(images, 3, 2, "SAME")), images)
