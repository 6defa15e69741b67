"""Lower bounds of an algorithm's memory, checked before it runs."""

import dataclasses
import math
from collections.abc import Sequence

import tensorflow as tf
import tensorflow_federated as tff

from tff_shift._util import memory
from tff_shift.learning import hyperparameters
from tff_shift.models import split_model

# Integers above this may make a state too large, see `asks_for_much`.
_MUCH = 1000


def check_batch(
  model: split_model.SplitModel, hparams: hyperparameters.HParams
) -> None:
  """Refuses a batch that does not fit in memory.

  Args:
    model: The model; it takes examples as float32.
    hparams: Hyper-parameters. Without a `batch_size`, the check passes.

  Raises:
    ValueError: If it does not fit; one line.
  """
  size = getattr(hparams, "batch_size", 0)
  check_copies("batch_size", size, model.input_shape)


def check_copies(hparam: str, number: int, shape: Sequence[int]) -> None:
  """Refuses more simultaneous arrays than fit in memory.

  Args:
    hparam: The hyper-parameter that sets the number.
    number: Its value.
    shape: The shape of one array, float32.

  Raises:
    ValueError: If they do not fit; one line.
  """
  memory.check(
    number * math.prod(shape) * tf.float32.size,
    f"{hparam}={number} of shape {list(shape)}",
  )


def check_state(
  name: str, what: str, state: tff.Type, hparams: hyperparameters.HParams
) -> None:
  """Refuses a state that does not fit in memory.

  Args:
    name: The algorithm.
    what: The name of the state, for the message.
    state: Its type.
    hparams: The hyper-parameters; large values are named in the message.

  Raises:
    ValueError: If it does not fit; one line.
  """
  memory.check(num_bytes(state), f"{name}{_large(hparams)}, {what}")


def num_bytes(value: tff.Type) -> int:
  """Returns a lower bound of a value's size; unknown dimensions are 0."""
  return sum(
    math.prod(size or 0 for size in spec.shape) * spec.dtype.size
    for spec in tf.nest.flatten(tff.types.type_to_tf_tensor_specs(value))
    if spec.shape.rank is not None
  )


def asks_for_much(hparams: hyperparameters.HParams) -> bool:
  """Returns whether a number is so large that a state may not fit in memory."""
  return bool(_large(hparams))


def _large(hparams: hyperparameters.HParams) -> str:
  """Lists the large numbers, for a message."""
  values = dataclasses.asdict(hparams).items()
  large = [
    f"{name}={value}"
    for name, value in values
    if isinstance(value, int) and value > _MUCH
  ]
  return f" with {', '.join(large)}" if large else ""
