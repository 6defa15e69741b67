"""What the tests of the models share: a NumPy reference."""

import functools

import numpy as np
import pytest
import tensorflow as tf


def _convolve(x, kernel, strides=1):
  border = kernel.shape[0] // 2
  x = np.pad(x, ((0, 0), (border, border), (border, border), (0, 0)))
  windows = np.lib.stride_tricks.sliding_window_view(
    x, kernel.shape[:2], axis=(1, 2)
  )[:, ::strides, ::strides]  # [batch, y, x, channels, kernel y, kernel x]
  return np.einsum("byxcij,ijcd->byxd", windows, kernel, optimize=True)


def _normalize(x, groups, gamma, beta, epsilon=1e-5):
  grouped = x.reshape(*x.shape[:3], groups, -1)
  centred = grouped - grouped.mean((1, 2, 4), keepdims=True)
  variance = (centred**2).mean((1, 2, 4), keepdims=True)
  return (centred / np.sqrt(variance + epsilon)).reshape(x.shape) * gamma + beta


class Reference:
  """NumPy's layers with random weights of a model, by the names of layers."""

  def __init__(self, run, model, seed=1, groups=1, epsilon=1e-5):
    self._run, self._model = run, model
    self.values = _random_weights(model, seed)
    self.weights = tf.nest.map_structure(self.values.get, model.weight_names())
    self.groups, self.epsilon = groups, epsilon

  def embed(self, x):
    """The embeddings by the model itself; `predict` likewise."""
    return self._run(lambda x: self._model.embed(self.weights.backbone, x), x)

  def predict(self, x):
    return self._run(lambda x: self._model.predict(self.weights, x), x)

  def weight(self, name, part="backbone"):
    return self.values[f"{part}/{name}"]

  def linear(self, x, name, part="backbone"):
    kernel = self.weight(f"{name}/kernel", part)
    return x @ kernel + self.values.get(f"{part}/{name}/bias", 0)

  def convolution(self, x, name, strides=1):
    x = _convolve(x, self.weight(f"{name}_convolution/kernel"), strides)
    return x + self.values.get(f"backbone/{name}_convolution/bias", 0)

  def normalization(self, x, name, groups=None):
    gamma, beta = (
      self.weight(f"{name}_normalization/{kind}") for kind in ("gamma", "beta")
    )
    groups = groups or self.groups
    return _normalize(x, groups, gamma, beta, self.epsilon)

  def layer(self, x, name, strides=1, groups=None):
    """A convolution and its normalisation."""
    return self.normalization(self.convolution(x, name, strides), name, groups)

  def relu(self, x):
    return np.maximum(x, 0)


def _random_weights(model, seed):
  # None of them at a value that hides it, as a scale of one would.
  generator = np.random.default_rng(seed)
  weights = {}
  for prefix, part in (("backbone", model.backbone), ("head", model.head)):
    for name, shape in zip(part.names, part.shapes, strict=True):
      value = generator.normal(size=shape)
      if name.endswith("kernel"):
        value *= np.sqrt(2 / np.prod(shape[:-1]))
      elif name.endswith("gamma"):
        value = generator.uniform(0.5, 1.5, shape)
      weights[f"{prefix}/{name}"] = value.astype(np.float32)
  return weights


@pytest.fixture(scope="session")
def by_name():
  """Returns `by_name(model, weights)`, a dictionary."""
  return lambda model, weights: dict(
    zip(
      tf.nest.flatten(model.weight_names()),
      tf.nest.flatten(weights),
      strict=True,
    )
  )


@pytest.fixture(scope="session")
def reference(run_in_graph):
  """Returns `reference(model, **options)`, a `Reference`.

  `reference.convolve` and `reference.normalize` are of arrays alone.
  """
  reference = functools.partial(Reference, run_in_graph)
  reference.convolve, reference.normalize = _convolve, _normalize
  return reference
