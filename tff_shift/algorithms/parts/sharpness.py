"""Gradients at the worst nearby weights.

Sharpness-Aware Minimization for Efficiently Improving Generalization (Foret,
Kleiner, Mobahi, Neyshabur; ICLR 2021).
"""

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tff_shift.learning import local_training

# Avoids a division by zero for zero gradients.
_SMALLEST_NORM = 1e-12


def sharpness_aware(
  rho: float,
) -> Callable[
  [Callable[[Any], local_training.Gradient], Any], local_training.Gradient
]:
  """Makes steps use the gradient at the worst nearby weights.

  Args:
    rho: Their distance.

  Returns:
    The argument `differentiate` of `local_training.train`. Its loss is that at
    the weights, its carry that of the nearby weights.
  """

  def differentiate(gradient_at, trained):
    first = gradient_at(trained)
    norm = tf.linalg.global_norm(first.gradients)
    scale = rho / (norm + _SMALLEST_NORM)
    moved = tuple(
      w + scale * g for w, g in zip(trained, first.gradients, strict=True)
    )
    return gradient_at(moved)._replace(loss=first.loss)

  return differentiate
