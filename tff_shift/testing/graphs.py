"""A context for TFF, and plain TensorFlow functions, as fixtures."""

import contextlib
import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tff_shift.execution.in_process import in_process_context


@pytest.fixture(scope="session")
def context():
  """Runs TFF computations in this process; one context for all tests."""
  with in_process_context() as installed:
    yield installed


@contextlib.contextmanager
def _functions_as_they_are():
  """Disables the optimisation of functions called inside.

  Functions of tests are small: optimising them takes longer than running them.
  """
  before = tf.config.optimizer.get_experimental_options()
  tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": True})
  try:
    yield
  finally:
    tf.config.optimizer.set_experimental_options(
      {"disable_meta_optimizer": False, **before}
    )


def _compile_in_graph(function, *specs) -> Callable[..., Any]:
  structures = []

  def flat(*inputs):
    outputs = function(*tf.nest.pack_sequence_as(specs, inputs))
    structures.append(tf.nest.map_structure(lambda _: None, outputs))
    return [tf.convert_to_tensor(each) for each in tf.nest.flatten(outputs)]

  with _functions_as_they_are():
    compiled = tf.function(flat, autograph=False).get_concrete_function(
      *(
        tf.TensorSpec(spec.shape, spec.dtype) for spec in tf.nest.flatten(specs)
      )
    )

  def run(*arguments):
    inputs = [
      tf.constant(value, spec.dtype)
      for value, spec in zip(
        tf.nest.flatten(arguments), tf.nest.flatten(specs), strict=True
      )
    ]
    with _functions_as_they_are():
      values = compiled(*inputs)
    return tf.nest.pack_sequence_as(
      structures[0], [value.numpy() for value in values]
    )

  return run


@pytest.fixture(scope="session")
def compile_in_graph():
  """Returns `compile(function, *specs)`, which gives a function of arrays.

  The function becomes a TensorFlow function, without TFF: functions that are
  parts of TFF computations behave there as they do alone. Arguments and results
  are nested structures.
  """
  return _compile_in_graph


_compile_or_reuse = functools.lru_cache(maxsize=16)(_compile_in_graph)


def forget() -> None:
  """Drops the functions that `run_in_graph` caches."""
  _compile_or_reuse.cache_clear()


@pytest.fixture(scope="session")
def run_in_graph():
  """Returns `run(function, *arguments)`, which compiles and runs.

  Compiled functions are cached until `forget`: the same function of arguments
  of the same types runs again.
  """

  def run(function, *arguments):
    specs = tf.nest.map_structure(
      lambda value: tf.TensorSpec(np.shape(value), np.asarray(value).dtype),
      arguments,
    )
    try:
      hash((function, specs))
    except TypeError:
      # Some structures cannot be hashed, for example dictionaries.
      return _compile_in_graph(function, *specs)(*arguments)
    return _compile_or_reuse(function, *specs)(*arguments)

  return run


def _common_spec(*values):
  shapes = [np.shape(value) for value in values]
  return tf.TensorSpec(
    [
      sizes[0] if len(set(sizes)) == 1 else None
      for sizes in zip(*shapes, strict=True)
    ],
    np.asarray(values[0]).dtype,
  )


@pytest.fixture(scope="session")
def run_for_each():
  """Returns `run(function, calls)`, which compiles once, for all calls.

  A call is the tuple of the arguments; sizes may differ between calls. It
  returns the list of the results.
  """

  def run(function, calls):
    specs = tf.nest.map_structure(_common_spec, *calls)
    compiled = _compile_in_graph(function, *specs)
    return [compiled(*arguments) for arguments in calls]

  return run
