"""Learning class by class: balanced examples, and features near their anchors.

Classifier Clustering and Feature Alignment for Federated Learning under
Distributed Concept Drift (Chen, Xue, Wang, Liu, Huang; NeurIPS 2024), whose
equations stand in `algorithms/fed_ccfa.py`.
"""

import dataclasses

import tensorflow as tf

from tff_shift.learning import hyperparameters
from tff_shift.learning import local_training
from tff_shift.techniques import adaptation
from tff_shift.techniques import prototypes


@dataclasses.dataclass(frozen=True)
class ClassHParams(hyperparameters.HParams):
  """How a client learns of classes that are balanced, and of anchors."""

  balanced_epochs: int = hyperparameters.hparam(
    5,
    "Passes over the balanced examples on which the classifiers are trained"
    " that are compared.",
    minimum=1,
  )
  balanced_examples: int = hyperparameters.hparam(
    5, "The most of these examples that a class has.", minimum=1
  )
  entropy_divisor: float = hyperparameters.hparam(
    20.0, "gamma; 0: features are not aligned.", minimum=0
  )
  alignment_start: int = hyperparameters.hparam(
    20, "Rounds before features are aligned.", minimum=0
  )
  temperature: float = hyperparameters.hparam(
    0.1,
    "tau, which divides the cosines of features and anchors.",
    minimum=0,
    exclusive_minimum=True,
  )


def balanced_examples(
  data: local_training.ClientData, most: int, num_classes: int, seed
) -> local_training.ClientData:
  """Draws equally many examples of each class that there is.

  Args:
    data: The examples.
    most: The most of a class; fewer if the rarest class has fewer.
    num_classes: The number of classes.
    seed: An int32 tensor of shape [2].

  Returns:
    The examples, in a random order.
  """
  order = tf.argsort(tf.random.stateless_uniform(tf.shape(data.y), seed))
  membership = tf.one_hot(tf.gather(data.y, order), num_classes, dtype=tf.int32)
  counts = tf.reduce_sum(membership, axis=0)
  rarest = tf.reduce_min(tf.where(counts > 0, counts, most))
  # How many of its class come up to an example, itself included.
  places = tf.reduce_sum(tf.cumsum(membership) * membership, axis=1)
  chosen = tf.boolean_mask(order, places <= tf.minimum(rarest, most))
  return data._replace(x=tf.gather(data.x, chosen), y=tf.gather(data.y, chosen))


def alignment_weight(hparams: ClassHParams, classes, round_num) -> tf.Tensor:
  """Computes k of a round, from the shares of the classes [num_classes]."""
  if not hparams.entropy_divisor:
    return tf.constant(0.0)
  entropy = -tf.reduce_sum(tf.math.xlogy(classes, classes))
  has_begun = tf.cast(round_num >= hparams.alignment_start, tf.float32)
  return has_begun * entropy / hparams.entropy_divisor


def alignment_loss(
  hparams: ClassHParams, anchors, embeddings, y, class_weights
) -> tf.Tensor:
  """Computes the loss of features that are far from their anchors.

  Args:
    hparams: The temperature.
    anchors: P_c, [num_classes, size] float32; zeros for a class without one.
    embeddings: [batch, size] float32.
    y: The classes, [batch] int32.
    class_weights: What an example of each class counts, [num_classes].

  Returns:
    A float32 scalar. Classes without an anchor do not count.
  """
  present = tf.reduce_any(tf.not_equal(anchors, 0.0), axis=1)
  # Less 1, which is nothing to a softmax.
  cosines = prototypes.logits(
    embeddings, prototypes.Prototypes(anchors, present), "cosine"
  )
  return adaptation.risk(
    cosines / hparams.temperature,
    y,
    class_weights * tf.cast(present, tf.float32),
  )
