"""What a function of one client says of all clients that run in one batch.

A loop that all clients of a batch leave at the same step, and shapes, must not
depend on a value that differs between them. Outside of a batch, these functions
return their argument.
"""

from typing import Any

import tensorflow as tf

# Mark the operations, which are identities.
EQUAL = "equal for the clients of a batch"
LARGEST = "at least this for the clients of a batch"
_IDENTITY = "PreventGradient"


def equal(value: Any) -> tf.Tensor:
  """Declares that a value is equal for clients of different sizes.

  Args:
    value: A tensor. In a batch it is checked.

  Returns:
    The value, without gradient.
  """
  return tf.raw_ops.PreventGradient(input=value, message=EQUAL)


def largest(value: Any) -> tf.Tensor:
  """Declares that a value may be larger, such as a number of draws.

  Args:
    value: A scalar.

  Returns:
    In a batch the largest value of all clients, without gradient.
  """
  return tf.raw_ops.PreventGradient(input=value, message=LARGEST)


def is_declared(operation: tf.Operation) -> bool:
  """Returns whether an operation is a declaration of this module."""
  return operation.type == _IDENTITY and operation.get_attr(
    "message"
  ).decode() in (EQUAL, LARGEST)
