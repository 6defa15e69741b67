"""Cross-entropy that does not learn which classes a client has more of.

Balanced Meta-Softmax for Long-Tailed Visual Recognition (Ren, Yu, Sheng, Ma,
Zhao, Yi, Li; NeurIPS 2020). In training the logits z become

    z_c + gamma * log n_c,

with n_c the number of the client's examples of class c; predictions are of z.
What the class counts explain, the model need not learn.
"""

from typing import Any

import tensorflow as tf

from tff_shift.learning import hyperparameters


def gamma_hparam() -> Any:
  """Declares the hyper-parameter `gamma`."""
  return hyperparameters.hparam(
    1.0,
    "Exponent of the class counts in the balanced softmax; 0 is the plain"
    " cross-entropy.",
    minimum=0,
  )


def shift(y, num_classes: int, gamma: float) -> tf.Tensor:
  """Computes what is added to logits in training.

  Args:
    y: The classes of all of a client's examples, [num_examples] int32.
    num_classes: The number of classes.
    gamma: See `gamma_hparam`.

  Returns:
    gamma * log(max(n_c, 1)) less its maximum, [num_classes] float32: zeros, to
    the bit, where all classes are equally frequent. A class that the client
    lacks counts as one example, for the logarithm of 0 is not finite.
  """
  counts = tf.reduce_sum(tf.one_hot(y, num_classes), axis=0)
  logarithms = tf.math.log(tf.maximum(counts, 1.0))
  return gamma * (logarithms - tf.reduce_max(logarithms))
