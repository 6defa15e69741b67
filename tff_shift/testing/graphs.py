"""A context for TFF, and plain graphs beside it, as fixtures."""

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


# All that TensorFlow does to a graph but for leaving out what no result needs:
# what Keras leaves in the graph of a recurrent layer cannot be computed.
_OPTIMISERS = (
  "arithmetic_optimization",
  "constant_folding",
  "dependency_optimization",
  "function_optimization",
  "layout_optimizer",
  "loop_optimization",
  "remapping",
  "shape_optimization",
)


@contextlib.contextmanager
def _functions_as_they_are():
  """Functions that a graph calls are not optimised, if called in here first.

  They do not heed what the session says of it.
  """
  options = tf.config.optimizer.get_experimental_options()
  before = {name: options.get(name, True) for name in _OPTIMISERS}
  tf.config.optimizer.set_experimental_options(dict.fromkeys(before, False))
  try:
    yield
  finally:
    tf.config.optimizer.set_experimental_options(before)


def _compile_in_graph(function, *specs) -> Callable[..., Any]:
  with tf.Graph().as_default() as graph, _functions_as_they_are():
    inputs = [
      tf.compat.v1.placeholder(spec.dtype, spec.shape)
      for spec in tf.nest.flatten(specs)
    ]
    outputs = function(*tf.nest.pack_sequence_as(specs, inputs))
    flat = [tf.convert_to_tensor(each) for each in tf.nest.flatten(outputs)]
  config = tf.compat.v1.ConfigProto()
  # The graphs of tests are small: to optimise them takes longer than to run.
  config.graph_options.rewrite_options.disable_meta_optimizer = True
  session = tf.compat.v1.Session(graph=graph, config=config)

  def run(*arguments):
    values = session.run(
      flat, dict(zip(inputs, tf.nest.flatten(arguments), strict=True))
    )
    return tf.nest.pack_sequence_as(outputs, values)

  return run


@pytest.fixture(scope="session")
def compile_in_graph():
  """Returns `compile(function, *specs)`, which gives a function of arrays.

  The function runs in a plain TensorFlow graph, without TFF: what becomes part
  of a TFF computation behaves there as it does alone. Arguments and results
  are nested structures.
  """
  return _compile_in_graph


@pytest.fixture(scope="session")
def run_in_graph():
  """Returns `run(function, *arguments)`, which compiles and runs once.

  What was compiled last is kept: the same function of arguments of the same
  types runs again.
  """
  compile_or_reuse = functools.lru_cache(maxsize=16)(_compile_in_graph)

  def run(function, *arguments):
    specs = tf.nest.map_structure(
      lambda value: tf.TensorSpec(np.shape(value), np.asarray(value).dtype),
      arguments,
    )
    try:
      hash((function, specs))
    except TypeError:
      # Some structures cannot be looked up: dictionaries, for one.
      return _compile_in_graph(function, *specs)(*arguments)
    return compile_or_reuse(function, *specs)(*arguments)

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

  A call is the tuple of the arguments; sizes may differ from call to call. It
  gives the list of the results.
  """

  def run(function, calls):
    specs = tf.nest.map_structure(_common_spec, *calls)
    compiled = _compile_in_graph(function, *specs)
    return [compiled(*arguments) for arguments in calls]

  return run
