"""What all tests share: a context for TFF computations, and plain graphs."""

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


def _compile_in_graph(function, *specs) -> Callable[..., Any]:
  with tf.Graph().as_default() as graph:
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
  """Returns `run(function, *arguments)`, which compiles and runs once."""

  def run(function, *arguments):
    specs = tf.nest.map_structure(
      lambda value: tf.TensorSpec(np.shape(value), np.asarray(value).dtype),
      arguments,
    )
    return _compile_in_graph(function, *specs)(*arguments)

  return run
