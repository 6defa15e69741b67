"""The label distribution of unlabelled data, by expectation maximisation.

Adjusting the Outputs of a Classifier to New a Priori Probabilities: A Simple
Procedure (Saerens, Latinne, Decaestecker; Neural Computation 2002).

A classifier that was trained with the label distribution pi predicts p_i for
example i. Under the label distribution q its predictions would be

    p'_i ~ p_i q / pi,

normalised over classes, and q is the mean of p'_i. Both are repeated in turn,
from q = pi. This maximises the likelihood of q, if p_i are calibrated.

A batch whose predictions all favour the same class drives q to a vertex of the
simplex, where the other classes have probability 0 for ever. A small number of
passes avoids this.
"""

import tensorflow as tf


def estimate(logits, prior, num_passes) -> tf.Tensor:
  """Estimates the label distribution of a batch.

  Args:
    logits: [batch, num_classes] float32.
    prior: pi, [num_classes] float32, positive.
    num_passes: The number of passes, an int32 scalar; 0: q = pi, 1: the mean
      softmax.

  Returns:
    q, [num_classes] float32; the prior for an empty batch.
  """
  num_examples = tf.cast(tf.shape(logits)[0], tf.float32)
  log_prior = tf.math.log(prior)

  def improve(number, classes):
    # A class of probability 0 keeps it.
    corrected = tf.nn.softmax(logits + tf.math.log(classes) - log_prior)
    return number + 1, tf.reduce_sum(corrected, axis=0) / num_examples

  _, classes = tf.while_loop(
    lambda number, _: number < num_passes,
    improve,
    (tf.constant(0), tf.convert_to_tensor(prior)),
    parallel_iterations=1,
  )
  return tf.where(num_examples > 0, classes, prior)
