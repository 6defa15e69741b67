"""Client data as TFF's own pipelines provide them: a `tf.data` of examples.

Elsewhere in this package a client's data are arrays, and batches are drawn
inside of the computation. Here the graph converts a sequence to such arrays:
all of its examples, in order. They are in memory at once, as any client's
arrays are. The only other limit on their number is int32, 2**31 - 1.

Choices:
  * Clients have no id: a client's seed is the run's seed with a 64-bit
    fingerprint (FarmHash) of its x and of its y folded in. Two clients with the
    same examples in the same order draw the same values.
"""

from collections.abc import Mapping
from typing import Any
from typing import NamedTuple

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tff_shift.data import client_dataset
from tff_shift.learning import randomness

# The parts of an element, in order; the last one is optional.
_NAMES = ("x", "y", "domain")

# Sizes are int32.
_MAX_EXAMPLES = np.iinfo(np.int32).max


class Elements(NamedTuple):
  """The validated elements of a sequence.

  Attributes:
    type_signature: The type of an element.
    are_batches: Whether an element is a batch instead of one example.
    has_domains: Whether elements contain domains.
  """

  type_signature: tff.Type
  are_batches: bool
  has_domains: bool


def examples(data_type: tff.StructType) -> tuple[tf.TensorSpec, tf.TensorSpec]:
  """Returns the single-example elements `(x, y)` for a type of client data.

  Args:
    data_type: The type of a `ClientDataset`.

  Returns:
    The specifications of x and y.
  """
  return (
    tf.TensorSpec(data_type.x.shape[1:], data_type.x.dtype),
    tf.TensorSpec([], tf.int32),
  )


def check(element_spec: Any, data_type: tff.StructType) -> Elements:
  """Validates the elements of a sequence.

  Args:
    element_spec: The result of `tf.data.Dataset.element_spec` or
      `tff.simulation.datasets.ClientData.element_type_structure`: `(x, y)` or
      `(x, y, domain)`, or a mapping with these names, of single examples or of
      batches of any size.
    data_type: The type of the `ClientDataset` to build from them.

  Returns:
    The elements.

  Raises:
    ValueError: If elements cannot be converted to such data; one line.
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
      f" of such examples, the inputs of the model; got {_in_one_line(x)}"
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
  """Builds the conversion of a client's sequence to arrays.

  Args:
    elements: The elements.
    data_type: The type of the `ClientDataset`.
    run_seed: The run's seed.
    min_domains: A client with examples of fewer domains is an error.

  Returns:
    `(elements*) -> ClientDataset`. Examples are sorted by domain, in ascending
    order, and keep the sequence's order within a domain; domains without
    examples are dropped. The seed is `seed_of`; the client id is 0.
  """
  x_shape, x_dtype = data_type.x.shape, data_type.x.dtype

  def as_arrays(*parts):
    fields = _fields(parts[0] if len(parts) == 1 else parts)
    y = tf.cast(fields["y"], tf.int32)
    # Without domains, all examples have the same one.
    domain = tf.cast(fields.get("domain", tf.zeros_like(y)), tf.int32)
    return tf.cast(fields["x"], x_dtype), y, domain

  @tff.tensorflow.computation(tff.SequenceType(elements.type_signature))
  def collect(sequence):
    # Unbatch to single examples, then make one batch of all of them, or none.
    sequence = sequence.map(as_arrays)
    if elements.are_batches:
      sequence = sequence.unbatch()
    nothing = (
      tf.zeros([0, *x_shape[1:]], x_dtype),
      tf.zeros([0], tf.int32),
      tf.zeros([0], tf.int32),
    )
    # `take`, because TensorFlow fuses a function and the next batch into one
    # operation, which iterates up to the batch size.
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
    return client_dataset.ClientDataset(
      x, y, sizes, tf.shape(y)[0], seed_of(x, y, run_seed), tf.constant(0)
    )

  return collect


def seed_of(x, y, run_seed: int) -> tf.Tensor:
  """Derives a client's seed from its examples, since it has no id.

  Two clients with the same examples in the same order draw the same values, and
  also learn the same. The algorithm folds in the round, as always.

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
  """Returns the checked sizes of a client's domains; zeros without any."""
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
    ValueError: If it has other parts.
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
  """Formats a specification of tensors without their names."""
  if isinstance(spec, tf.TensorSpec):
    shape = "?" if spec.shape.rank is None else spec.shape.as_list()
    return f"{spec.dtype.name} {shape}"
  if isinstance(spec, Mapping):
    parts = (f"{name}: {_in_one_line(each)}" for name, each in spec.items())
    return f"{{{', '.join(parts)}}}"
  if isinstance(spec, tuple | list):
    return f"({', '.join(map(_in_one_line, spec))})"
  return " ".join(str(spec).split())
