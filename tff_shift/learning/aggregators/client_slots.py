"""What each client sends, side by side at the server.

Some methods compare clients one with another, or make something for each of
them: FedPAC and FedCCFA combine heads, ConFREE looks for updates in conflict.
TFF has sums, and no collection of clients' values. So a client puts its value
into its own row of a table of zeros, and the sum of the tables is the table of
all clients:

    contribution=client_slots.place(value, data.client_id, num_clients)

The server sees every single row. An algorithm that does so says why in
`factories.AggregationRequirements.per_client`, and is refused where updates are
hidden or compressed. A table has num_clients rows, however few take part in a
round.
"""

from typing import Any
from typing import NamedTuple

import tensorflow as tf

from tff_shift.learning import local_training


class Slots(NamedTuple):
  """Values of clients by their ids.

  Attributes:
    values: The structure of a value, each tensor with a first axis of
      num_clients; zeros for clients that have sent nothing.
    present: Whether a client has sent its value, [num_clients] float32: 1 or 0.
  """

  values: Any
  present: Any


def place(value: Any, client_id, num_clients: int) -> Slots:
  """Puts a client's value into its row.

  Args:
    value: A nested structure of numeric tensors of fixed shapes.
    client_id: The client, an int32 scalar from 0 to num_clients - 1. A client
      of another id finds no row, and its value is lost.
    num_clients: The number of rows.

  Returns:
    `Slots` in which all other rows are zeros. The sum over different clients
    holds the value of each of them, bit for bit.
  """
  row = tf.one_hot(client_id, num_clients, True, False)

  def spread(tensor):
    tensor = tf.convert_to_tensor(tensor)
    mask = tf.reshape(row, [num_clients] + [1] * tensor.shape.rank)
    # Not a product: zero times infinity is not a number.
    return tf.where(mask, tensor, tf.zeros([], tensor.dtype))

  return Slots(tf.nest.map_structure(spread, value), tf.cast(row, tf.float32))


def own_row(data: local_training.ClientData) -> tf.Tensor:
  """Returns a client's id for `place`: one without examples has no row."""
  return tf.where(tf.size(data.y) > 0, data.client_id, -1)


def row_of(slots: Slots, client_id, default: Any) -> Any:
  """Reads a client's row again.

  Args:
    slots: What `place` gives, added up over clients.
    client_id: The client, an int32 scalar from 0 to num_clients - 1.
    default: A value, for a client that has sent none.

  Returns:
    The client's value, in the structure of `default`.
  """
  is_present = tf.gather(slots.present, client_id) > 0
  return tf.nest.map_structure(
    lambda table, other: tf.where(
      is_present, tf.gather(table, client_id), other
    ),
    slots.values,
    default,
  )
