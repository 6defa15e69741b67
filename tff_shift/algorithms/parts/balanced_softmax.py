"""Balanced softmax: cross-entropy corrected for a client's class counts.

Balanced Meta-Softmax for Long-Tailed Visual Recognition (Ren, Yu, Sheng, Ma,
Zhao, Yi, Li; NeurIPS 2020). In training the logits z become

    z_c + gamma * log n_c,

where n_c is the number of the client's examples of class c. The probability of
class c is then proportional to n_c^gamma exp(z_c); an absent class has weight
0. Predictions use z. The model therefore need not learn the class counts.
"""

from typing import Any

import tensorflow as tf

from tff_shift.learning import hyperparameters

# Replaces log 0. Finite, because the gradient of a softmax at minus infinity is
# NaN. It never reaches a loss: a client's labels are of classes that it has.
_MASKED = -1e9


def gamma_hparam() -> Any:
  """Declares the hyper-parameter `gamma`."""
  return hyperparameters.hparam(
    1.0,
    "Exponent of the class counts in the balanced softmax; 0: plain"
    " cross-entropy.",
    minimum=0,
  )


def class_counts_hparam(default: str = "observed") -> Any:
  """Declares the hyper-parameter `class_counts`."""
  return hyperparameters.hparam(
    default,
    "Class counts of the balanced softmax: observed, as published, where a"
    " class that the client lacks has weight 0; at_least_one, where such a"
    " class counts as one example; add_one, one extra example of every class,"
    " as in the program of the FedTHE paper.",
    choices=("observed", "at_least_one", "add_one"),
  )


def shift(
  y, num_classes: int, gamma: float, class_counts: str = "observed"
) -> tf.Tensor:
  """Computes the shift of the logits in training.

  Args:
    y: The classes of all of a client's examples, [num_examples] int32.
    num_classes: The number of classes.
    gamma: The exponent of the class counts, see `gamma_hparam`.
    class_counts: How to count classes, see `class_counts_hparam`.

  Returns:
    gamma * log(n_c) minus its maximum, [num_classes] float32. Exactly zero if
    all classes are equally frequent, if gamma is 0, and for a client without
    examples; -1e9 where n_c is 0.
  """
  counts = tf.reduce_sum(tf.one_hot(y, num_classes), axis=0)
  if class_counts == "add_one":
    counts += 1.0
  logarithms = tf.math.log(tf.maximum(counts, 1.0))
  shifts = gamma * (logarithms - tf.reduce_max(logarithms))
  if class_counts != "observed" or not gamma:
    return shifts
  is_absent = tf.equal(counts, 0.0) & (tf.size(y) > 0)
  return tf.where(is_absent, _MASKED, shifts)
