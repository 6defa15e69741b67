"""What an algorithm needs of memory at least, known before it runs."""

import dataclasses
import math
from collections.abc import Sequence

import tensorflow as tf
import tensorflow_federated as tff

from tff_shift import memory
from tff_shift.learning import hyperparameters
from tff_shift.models import split_model

# A larger number of anything makes what is kept large, see `asks_for_much`.
_MUCH = 1000


def check_batch(
  model: split_model.SplitModel, hparams: hyperparameters.HParams
) -> None:
  """Refuses a batch that does not fit in memory.

  Args:
    model: The model; it takes examples as float32.
    hparams: Hyper-parameters. Without a batch size, all is right.

  Raises:
    ValueError: In one line, if it does not.
  """
  size = getattr(hparams, "batch_size", 0)
  check_copies("batch_size", size, model.input_shape)


def check_copies(hparam: str, number: int, shape: Sequence[int]) -> None:
  """Refuses more arrays at the same time than fit in memory.

  Args:
    hparam: The hyper-parameter that says how many.
    number: Its value.
    shape: The shape of one, float32.

  Raises:
    ValueError: In one line, if they do not.
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
    what: Whose state it is.
    state: Its type.
    hparams: What may have made it large.

  Raises:
    ValueError: In one line, if it does not.
  """
  memory.check(num_bytes(state), f"{name}{_large(hparams)}, {what}")


def num_bytes(value: tff.Type) -> int:
  """Returns how much a value takes at least: dimensions not known are 0."""
  return sum(
    math.prod(size or 0 for size in spec.shape) * spec.dtype.size
    for spec in tf.nest.flatten(tff.types.type_to_tf_tensor_specs(value))
    if spec.shape.rank is not None
  )


def asks_for_much(hparams: hyperparameters.HParams) -> bool:
  """Whether a number is so large that a state may not fit in memory."""
  return bool(_large(hparams))


def _large(hparams: hyperparameters.HParams) -> str:
  """Tells of the numbers that are large."""
  values = dataclasses.asdict(hparams).items()
  large = [
    f"{name}={value}"
    for name, value in values
    if isinstance(value, int) and value > _MUCH
  ]
  return f" with {', '.join(large)}" if large else ""
