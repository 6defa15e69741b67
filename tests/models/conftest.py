"""What the tests of the models share: a NumPy reference."""

import types

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
def reference():
  """Returns NumPy versions of the layers, and random weights by name."""
  return types.SimpleNamespace(
    convolve=_convolve,
    normalize=_normalize,
    random_weights=_random_weights,
    relu=lambda x: np.maximum(x, 0),
  )
