"""Keras layers of fixed settings, for the networks of this package.

Keras's defaults depend on the user's `keras.json` and global policy. These
layers do not: they compute in float32, and channels are the last axis. Each
attribute is the class of this name in `tf.keras.layers`.
"""

import functools
import inspect
from collections.abc import Callable
from typing import Any

import tensorflow as tf


def __getattr__(name: str) -> Callable[..., Any]:
  layer = getattr(tf.keras.layers, name)
  settings = {"dtype": "float32"}
  if "data_format" in inspect.signature(layer).parameters:
    settings["data_format"] = "channels_last"
  return functools.partial(layer, **settings)
