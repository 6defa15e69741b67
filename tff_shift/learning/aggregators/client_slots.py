"""The values of individual clients, side by side at the server.

Some methods compare clients with each other, or compute a value for each of
them: FedPAC and FedCCFA combine heads, ConFREE looks for conflicting updates.
TFF provides sums over clients, but no way to collect their values. A client
therefore names the row of its value, and the sum is a table with a row for each
client, `Slots`:

    plaintext_sum=client_slots.place(value, data.client_id)

The server sees every row. An algorithm that uses this must give the reason in
`factories.AggregationRequirements.per_client_values`, and is refused with
aggregators that hide or compress updates. A table has num_clients rows,
regardless of the cohort size.

Choices:
  * TFF 0.87 cannot collect the clients' values, but it can aggregate by any
    function. Accumulation adds a value to its row of a table of zeros in place
    (`TensorStridedSliceUpdate`; `tf.tensor_scatter_nd_add` copies the table for
    each client). On TFF's C++ executor each step still copies the table.
"""

from typing import Any
from typing import NamedTuple

import tensorflow as tf
import tensorflow_federated as tff
import tree

from tff_shift.data import client_dataset


class Row(NamedTuple):
  """A client's value, with its row of the table.

  Attributes:
    value: A nested structure of numeric tensors of fixed shapes.
    number: The row, counted from 1, an int32 scalar. 0: none, so that zeros in
      place of what a client sends are no row.
  """

  value: Any
  number: Any


class Slots(NamedTuple):
  """Values of clients by their ids.

  Attributes:
    values: The structure of a value, each tensor with a first axis of
      num_clients; zeros for clients that have sent nothing.
    present: Whether a client has sent a value, [num_clients] float32: 1 or 0.
  """

  values: Any
  present: Any


def place(value: Any, client_id) -> Row:
  """Assigns a client's value to its row.

  Args:
    value: A nested structure of numeric tensors of fixed shapes.
    client_id: The client, an int32 scalar from 0 to num_clients - 1. Values of
      other ids are lost.

  Returns:
    The row: what the client sends.
  """
  return Row(value, client_id + 1)


def empty(value: Any, num_clients: int) -> Slots:
  """Returns a table to which no client has sent anything.

  Args:
    value: A value of a client, or a structure of the specs of its tensors.
    num_clients: The number of rows.
  """
  return Slots(
    tf.nest.map_structure(
      lambda each: tf.zeros([num_clients, *each.shape], each.dtype), value
    ),
    tf.zeros([num_clients]),
  )


def add(table: Slots, row: Row) -> Slots:
  """Adds a value to its row; to a row of zeros bit for bit."""
  number = tf.convert_to_tensor(row.number) - 1
  exists = (number >= 0) & (number < table.present.shape[0])
  first = tf.where(exists, number, 0)

  def put(rows, value):
    value = tf.convert_to_tensor(value)
    # Not a product: 0 * inf is NaN.
    value = tf.where(exists, value, tf.zeros([], value.dtype))
    # Written in place if nothing else needs the old table: the sum over clients
    # takes the time of its rows. `tf.tensor_scatter_nd_add` copies the table.
    return tf.raw_ops.TensorStridedSliceUpdate(
      input=rows,
      begin=[first],
      end=[first + 1],
      strides=[1],
      value=rows[first : first + 1] + value,
    )

  return Slots(
    tf.nest.map_structure(put, table.values, row.value),
    put(table.present, 1.0),
  )


def total(values: Any, num_clients: int) -> Any:
  """Sums clients' values outside of TFF, as `federated_sum` does.

  Args:
    values: The values of the clients in order, at least one.
    num_clients: The number of rows.
  """
  found = _zeros(values[0], num_clients)
  for each in values:
    found = _accumulate(found, each)
  return found


def sum_type(value_type: tff.Type, num_clients: int | None) -> tff.Type:
  """Returns the type of the sum of clients' values.

  Args:
    value_type: The type of a client's value, in which any part may be a `Row`.
    num_clients: The number of rows. None: there may be no `Row`.

  Returns:
    The same type, with `Slots` in the place of each `Row`.

  Raises:
    TypeError: If there is a `Row`, and the number of clients is not known.
  """
  specs = _specs(value_type)
  if not has_rows(specs):
    return value_type
  if num_clients is None:
    raise TypeError(
      "a plaintext_sum with a row for each client needs num_clients"
    )
  return tff.tensorflow.computation(
    lambda: _zeros(specs, num_clients)
  ).type_signature.result


def federated_sum(value: tff.Value, num_clients: int | None) -> tff.Value:
  """Sums clients' values at the server, see `sum_type`."""
  value_type = value.type_signature.member
  total_type = sum_type(value_type, num_clients)
  if total_type is value_type:
    return tff.federated_sum(value)

  @tff.tensorflow.computation
  def zero():
    return _zeros(_specs(value_type), num_clients)

  @tff.tensorflow.computation(total_type, value_type)
  def accumulate(so_far, part):
    return _accumulate(so_far, part)

  @tff.tensorflow.computation(total_type, total_type)
  def merge(one, other):
    return tf.nest.map_structure(tf.add, one, other)

  @tff.tensorflow.computation(total_type)
  def report(summed):
    return summed

  return tff.federated_aggregate(value, zero(), accumulate, merge, report)


def _specs(value_type: tff.Type) -> Any:
  return tff.types.structure_from_tensor_type_tree(
    lambda each: tf.TensorSpec(each.shape, each.dtype), value_type
  )


def _rows_as_leaves(values: Any) -> Any:
  """Returns the structure with a 0 in the place of each row."""
  return tree.traverse(
    lambda part: 0 if isinstance(part, Row) else None, values
  )


def has_rows(values: Any) -> bool:
  """Returns whether any part of a structure is a `Row`."""
  found = []
  tree.traverse(lambda part: found.append(isinstance(part, Row)), values)
  return any(found)


def _zeros(values: Any, num_clients: int) -> Any:
  """Returns the sum of no values of this structure."""
  return tree.map_structure_up_to(
    _rows_as_leaves(values),
    lambda part: empty(part.value, num_clients)
    if isinstance(part, Row)
    else tf.zeros(part.shape, part.dtype),
    values,
  )


def _accumulate(so_far: Any, value: Any) -> Any:
  return tree.map_structure_up_to(
    _rows_as_leaves(value),
    lambda summed, part: add(summed, part)
    if isinstance(part, Row)
    else summed + part,
    so_far,
    value,
  )


def own_row(data: client_dataset.ClientDataset) -> tf.Tensor:
  """Returns a client's id for `place`; -1 (no row) without examples."""
  return tf.where(tf.size(data.y) > 0, data.client_id, -1)


def inner_products(rows) -> tf.Tensor:
  """Computes the inner products of the clients' values of one tensor.

  Args:
    rows: [num_clients, ...] float32.

  Returns:
    [num_clients, num_clients] float64.
  """
  flat = tf.reshape(rows, [rows.shape[0], -1])
  return tf.cast(tf.matmul(flat, flat, transpose_b=True), tf.float64)
