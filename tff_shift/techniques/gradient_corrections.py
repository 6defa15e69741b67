"""Constants that clients add to each gradient, and the mean that they need.

SCAFFOLD and FedDyn correct the drift of clients by a sum that the server keeps
of all clients' states. It stays this sum only if every client counts equally.
"""

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tff_shift.learning import hyperparameters
from tff_shift.learning import local_training


def add(
  correction: Any,
) -> Callable[
  [Callable[[Any], local_training.Gradient], Any], local_training.Gradient
]:
  """Makes `differentiate` of `local_training.train`.

  The loss that is reported stays the loss without the correction.

  Args:
    correction: The constant, in the structure of the trained weights.

  Returns:
    A function that adds the correction to the gradient.
  """
  constants = tf.nest.flatten(correction)

  def differentiate(gradient_at, trained):
    found = gradient_at(trained)
    return found._replace(
      gradients=tuple(map(tf.add, found.gradients, constants))
    )

  return differentiate


def check_equal_clients(
  name: str, hparams: hyperparameters.LocalWorkHParams, kept: str
) -> None:
  """Refuses what breaks the server's sum over clients' states.

  Args:
    name: The algorithm's name.
    hparams: Its hyper-parameters.
    kept: What the server keeps, for the message.

  Raises:
    ValueError: One line that names the hyper-parameter.
  """
  if hparams.client_weighting != "uniform":
    raise ValueError(
      f"client_weighting={hparams.client_weighting} is not allowed for {name}:"
      f" {kept} is a sum over clients that count equally; it must be uniform"
    )
  if hparams.personal_norm == "all":
    raise ValueError(
      f"personal_norm=all is not allowed for {name}: {kept} would correct"
      " personal scales and shifts too; it must be none or statistics"
    )
