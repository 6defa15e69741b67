"""Clients' data as TFF's own pipelines give them: a `tf.data` of examples.

Elsewhere in this package a client's data are arrays, and batches are drawn
inside of the computation. Here a sequence becomes such arrays, inside of the
graph: all of its examples, in their order. They are in memory at once, as any
client's arrays are; there is no other bound on how many they may be than that
of int32, 2**31 - 1.
"""

from collections.abc import Mapping
from typing import Any
from typing import NamedTuple

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tff_shift.learning import local_training
from tff_shift.learning import randomness

# What an element may have, in order; the last one may be missing.
_NAMES = ("x", "y", "domain")

# Sizes are int32.
_MAX_EXAMPLES = np.iinfo(np.int32).max


class Elements(NamedTuple):
  """The elements of a sequence, checked.

  Attributes:
    type_signature: The type of an element.
    are_batches: Whether an element is a batch, and not one example.
    has_domains: Whether an element says the domain of an example.
  """

  type_signature: tff.Type
  are_batches: bool
  has_domains: bool


def examples(data_type: tff.StructType) -> tuple[tf.TensorSpec, tf.TensorSpec]:
  """Returns the elements `(x, y)`, an example each, of a type of client data.

  Args:
    data_type: The type of a `local_training.ClientData`.

  Returns:
    The specifications of x and y.
  """
  return (
    tf.TensorSpec(data_type.x.shape[1:], data_type.x.dtype),
    tf.TensorSpec([], tf.int32),
  )


def check(element_spec: Any, data_type: tff.StructType) -> Elements:
  """Checks what elements are made of.

  Args:
    element_spec: What `tf.data.Dataset.element_spec` or
      `tff.simulation.datasets.ClientData.element_type_structure` gives: `(x,
      y)` or `(x, y, domain)`, or a mapping with these names, of single examples
      or of batches of any size.
    data_type: The type of the `local_training.ClientData` that they become.

  Returns:
    The elements.

  Raises:
    ValueError: If elements cannot become such data; the message is one line.
  """
  try:
    fields = _fields(element_spec)
    is_known = all(
      isinstance(each, tf.TensorSpec) and each.shape.rank is not None
      for each in fields.values()
    )
  except ValueError:
    is_known = False
  if not is_known:
    raise ValueError(
      "client_data: elements must be (x, y) or (x, y, domain), tensors of known"
      f" rank, or a mapping with these names; got {_in_one_line(element_spec)}"
    )
  x, shape = fields["x"], data_type.x.shape[1:]
  are_batches = x.shape.rank == len(shape) + 1
  wanted = [None, *shape] if are_batches else list(shape)
  dtype = tf.as_dtype(data_type.x.dtype)
  can_be_cast = x.dtype.is_floating and dtype.is_floating
  if not x.shape.is_compatible_with(wanted) or not (
    x.dtype == dtype or can_be_cast
  ):
    raise ValueError(
      f"client_data: x must be {dtype.name} of shape {list(shape)}, or batches"
      f" of such examples, as the model takes them; got {_in_one_line(x)}"
    )
  for name, spec in fields.items():
    if name != "x" and not (
      spec.dtype.is_integer and spec.shape.rank == are_batches
    ):
      raise ValueError(
        f"client_data: {name} must be an integer for each example, got"
        f" {_in_one_line(spec)} beside x {_in_one_line(x)}"
      )
  return Elements(
    tff.types.tensorflow_to_type(element_spec), are_batches, "domain" in fields
  )


def collection(
  elements: Elements,
  data_type: tff.StructType,
  run_seed: int,
  min_domains: int,
) -> tff.Computation:
  """Builds what makes arrays of a client's sequence.

  Args:
    elements: The elements.
    data_type: The type of the `local_training.ClientData`.
    run_seed: The run's seed.
    min_domains: A client with examples of fewer domains is an error.

  Returns:
    `(elements*) -> ClientData`. Examples go domain by domain, in ascending
    order, and in the sequence's order within each; a domain that the client has
    no example of does not count. The seed is `seed_of`; the number of the
    client is 0.
  """
  x_shape, x_dtype = data_type.x.shape, data_type.x.dtype

  def as_arrays(*parts):
    fields = _fields(parts[0] if len(parts) == 1 else parts)
    y = tf.cast(fields["y"], tf.int32)
    # Without domains all is one.
    domain = tf.cast(fields.get("domain", tf.zeros_like(y)), tf.int32)
    return tf.cast(fields["x"], x_dtype), y, domain

  @tff.tensorflow.computation(tff.SequenceType(elements.type_signature))
  def collect(sequence):
    # One example each, whatever the sizes of batches are; then one batch of
    # all, or none at all.
    sequence = sequence.map(as_arrays)
    if elements.are_batches:
      sequence = sequence.unbatch()
    nothing = (
      tf.zeros([0, *x_shape[1:]], x_dtype),
      tf.zeros([0], tf.int32),
      tf.zeros([0], tf.int32),
    )
    # `take`, because TensorFlow makes one operation of a function and the batch
    # that follows on it, which goes on to the end of the batch's size.
    everything = sequence.take(_MAX_EXAMPLES).batch(_MAX_EXAMPLES)
    x, y, domain = everything.reduce(nothing, lambda _, batch: batch)
    x, y = tf.ensure_shape(x, x_shape), tf.ensure_shape(y, [None])
    if elements.has_domains:
      order = tf.argsort(domain, stable=True)
      x, y = tf.gather(x, order), tf.gather(y, order)
      sizes = tf.unique_with_counts(tf.gather(domain, order)).count
      sizes = _at_least(min_domains, sizes)
    else:
      sizes = tf.shape(y)
    return local_training.ClientData(
      x, y, sizes, seed_of(x, y, run_seed), tf.constant(0)
    )

  return collect


def seed_of(x, y, run_seed: int) -> tf.Tensor:
  """Derives a client's seed from its examples, for it has no number.

  Two clients with the same examples in the same order draw the same; then they
  also learn the same. The round is folded in by the algorithm, as always.

  Args:
    x: The examples, [num_examples, ...].
    y: The classes, [num_examples] int32.
    run_seed: The run's seed.

  Returns:
    An int32 tensor of shape [2].
  """
  seed = tf.constant(randomness.derive(run_seed, randomness.Purpose.SEQUENCE))
  for values in (x, y):
    words = tf.fingerprint(tf.reshape(values, [1, -1]))
    words = tf.bitcast(tf.reshape(words, [2, 4]), tf.int32)
    seed = randomness.fold(seed, words[0], words[1])
  return seed


def _at_least(min_domains: int, sizes) -> tf.Tensor:
  """Returns the sizes of a client's domains, checked; zeros if it has none."""
  has_none = tf.equal(tf.size(sizes), 0)
  enough = tf.debugging.Assert(
    has_none | (tf.size(sizes) >= min_domains),
    [f"a client needs examples of {min_domains} domains or more, got", sizes],
  )
  with tf.control_dependencies([enough]):
    return tf.cond(
      has_none, lambda: tf.zeros([min_domains], tf.int32), lambda: sizes
    )


def _fields(element) -> dict[str, Any]:
  """Returns the parts of an element by name.

  Raises:
    ValueError: If it has others than it should.
  """
  if isinstance(element, Mapping):
    found = {name: element[name] for name in _NAMES if name in element}
    is_right = len(found) == len(element)
  elif isinstance(element, tuple | list):
    found = dict(zip(_NAMES, element, strict=False))
    is_right = len(found) == len(element)
  else:
    found, is_right = {}, False
  if not is_right or not {"x", "y"} <= found.keys():
    raise ValueError("not (x, y) or (x, y, domain)")
  return found


def _in_one_line(spec) -> str:
  """Writes a specification of tensors without their names."""
  if isinstance(spec, tf.TensorSpec):
    shape = "?" if spec.shape.rank is None else spec.shape.as_list()
    return f"{spec.dtype.name} {shape}"
  if isinstance(spec, Mapping):
    parts = (f"{name}: {_in_one_line(each)}" for name, each in spec.items())
    return f"{{{', '.join(parts)}}}"
  if isinstance(spec, tuple | list):
    return f"({', '.join(map(_in_one_line, spec))})"
  return " ".join(str(spec).split())
