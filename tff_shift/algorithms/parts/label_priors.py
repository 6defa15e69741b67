"""Correction of predictions for another label distribution.

A model that was trained with the label distribution pi and predicts p has under
the distribution q the predictions p q / pi, normalised over classes (Saerens,
Latinne, Decaestecker; Neural Computation 2002).
"""

import tensorflow as tf

# Lower bound that keeps log probabilities of never estimated classes finite.
_SMALLEST_SHARE = 1e-6


def correct(logits, classes, prior) -> tf.Tensor:
  """Corrects logits for another label distribution.

  Args:
    logits: [batch, num_classes] float32.
    classes: q, [num_classes] float32; probabilities below 1e-6 count as 1e-6.
    prior: pi, [num_classes] float32 or a number, positive.

  Returns:
    The logits plus log(q / pi).
  """
  return logits + tf.math.log(tf.maximum(classes, _SMALLEST_SHARE) / prior)
