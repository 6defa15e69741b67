"""The values of individual clients, side by side at the server.

Some methods compare clients with each other, or compute a value for each of
them: FedPAC and FedCCFA combine heads, ConFREE looks for conflicting updates.
TFF provides sums over clients, but no way to collect their values. A client
therefore puts its value into its own row of a table of zeros, and the sum of
the tables is the table of all clients:

    plaintext_sum=client_slots.place(value, data.client_id, num_clients)

The server sees every row. An algorithm that uses this must give the reason in
`factories.AggregationRequirements.per_client_values`, and is refused with
aggregators that hide or compress updates. A table has num_clients rows,
regardless of the cohort size.
"""

from typing import Any
from typing import NamedTuple

import tensorflow as tf

from tff_shift.data import client_dataset


class Slots(NamedTuple):
  """Values of clients by their ids.

  Attributes:
    values: The structure of a value, each tensor with a first axis of
      num_clients; zeros for clients that have sent nothing.
    present: Whether a client has sent a value, [num_clients] float32: 1 or 0.
  """

  values: Any
  present: Any


def place(value: Any, client_id, num_clients: int) -> Slots:
  """Puts a client's value into its row.

  Args:
    value: A nested structure of numeric tensors of fixed shapes.
    client_id: The client, an int32 scalar from 0 to num_clients - 1. Values of
      other ids are lost.
    num_clients: The number of rows.

  Returns:
    `Slots` with zeros in all other rows. The sum over different clients
    contains each value bit for bit.
  """
  row = tf.one_hot(client_id, num_clients, True, False)

  def spread(tensor):
    tensor = tf.convert_to_tensor(tensor)
    mask = tf.reshape(row, [num_clients] + [1] * tensor.shape.rank)
    # Not a product: 0 * inf is NaN.
    return tf.where(mask, tensor, tf.zeros([], tensor.dtype))

  return Slots(tf.nest.map_structure(spread, value), tf.cast(row, tf.float32))


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
