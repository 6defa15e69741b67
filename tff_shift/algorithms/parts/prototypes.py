"""Class prototypes, and classification by distance to them.

Sources: Prototypical Networks for Few-shot Learning (Snell, Swersky, Zemel;
NeurIPS 2017); Federated Learning under Evolving Distribution Shifts, eq. 3, 4
and 6.

Choices:
  * `distance=l2` is not squared: "we employ Euclidean distance". `squared_l2`
    is the distance of prototypical networks, from which eq. 4 comes, and learns
    faster (results/evolving.md); `cosine` is that of Table 14.
  * The paper sums the softmax of eq. 4 and 6 over the classes of the client's
    domain; its Algorithm 1 mentions episodic batches. `softmax_classes=batch`
    sums over the classes in the batch and learns faster (results/evolving.md).
    Only classes with a prototype count; examples of other classes are left out,
    and the mean is over the remaining examples (Algorithms 3 and 4 divide by
    the batch size).
"""

from collections.abc import Callable
from typing import Any
from typing import NamedTuple

import tensorflow as tf

from tff_shift.data import client_dataset
from tff_shift.learning import hyperparameters
from tff_shift.learning import local_training
from tff_shift.learning import safe_norms

# Removes a class from a softmax in training. Finite, because the gradient of a
# softmax at minus infinity is NaN. It never affects a reported number: the loss
# excludes examples of such a class.
_MASKED = -1e9

DISTANCES = ("l2", "squared_l2", "cosine")
SOFTMAX_CLASSES = ("domain", "batch")


def distance_hparam() -> Any:
  """Declares the hyper-parameter `distance`."""
  return hyperparameters.hparam(
    "l2",
    "Distance d to a prototype: l2 (Euclidean) or cosine, both in Table 14, or"
    " squared_l2 (as in prototypical networks).",
    choices=DISTANCES,
  )


def softmax_classes_hparam() -> Any:
  """Declares the hyper-parameter `softmax_classes`."""
  return hyperparameters.hparam(
    "batch",
    "Classes in the softmax of eq. 4 and 6, among those with a prototype:"
    " domain, the client's classes in the domain (as printed), or batch, the"
    " classes in the batch.",
    choices=SOFTMAX_CLASSES,
  )


class ClassSums(NamedTuple):
  """Sums of embeddings by class, which can be added over batches and clients.

  Attributes:
    total: The sum of the embeddings of each class, [num_classes, size] float32.
    count: The number of examples of each class, [num_classes] float32.
  """

  total: tf.Tensor
  count: tf.Tensor


class Prototypes(NamedTuple):
  """The mean embedding of each class.

  Attributes:
    mean: [num_classes, size] float32; zero for a class without examples.
    present: Whether a class has an example, [num_classes] bool.
  """

  mean: tf.Tensor
  present: tf.Tensor


def class_sums(embeddings, y, num_classes: int) -> ClassSums:
  """Sums the embeddings of each class.

  Args:
    embeddings: [batch, size] float32.
    y: The classes, [batch] int32.
    num_classes: The number of classes.
  """
  # A matrix product, because a segment sum has no fixed order of addition on a
  # GPU.
  membership = tf.one_hot(y, num_classes)  # [batch, num_classes]
  return ClassSums(
    tf.matmul(membership, embeddings, transpose_a=True),
    tf.reduce_sum(membership, axis=0),
  )


def class_means(sums: ClassSums) -> Prototypes:
  """Computes prototypes, eq. 3: the mean embedding of each class."""
  return Prototypes(
    tf.math.divide_no_nan(sums.total, sums.count[:, tf.newaxis]),
    sums.count > 0,
  )


def distances(embeddings, means, distance: str) -> tf.Tensor:
  """Computes the distance d of each embedding to each prototype.

  Args:
    embeddings: [batch, size] float32.
    means: [num_classes, size] float32.
    distance: `l2`, the Euclidean distance; `squared_l2`, its square, as Snell
      et al. recommend; or `cosine`, 1 minus the cosine of the angle.

  Returns:
    [batch, num_classes] float32; not negative, except for rounding in cosine.
    `l2` is at least 1e-6; smaller distances have gradient 0.

  Raises:
    ValueError: If the name of the distance is unknown.
  """
  if distance in ("l2", "squared_l2"):
    # Not the expanded square, which cancels if an embedding is close to a
    # prototype. Copies of both, because it is slow to broadcast in three axes.
    num_means = means.shape[0] or tf.shape(means)[0]
    squares = tf.reduce_sum(
      tf.math.squared_difference(
        tf.repeat(embeddings, num_means, axis=0),
        tf.tile(means, [tf.shape(embeddings)[0], 1]),
      ),
      axis=-1,
    )
    squares = tf.reshape(squares, [-1, num_means])
    if distance == "squared_l2":
      return squares
    return safe_norms.root(squares)
  if distance == "cosine":
    return 1.0 - tf.matmul(
      tf.math.l2_normalize(embeddings, axis=1, epsilon=1e-12),
      tf.math.l2_normalize(means, axis=1, epsilon=1e-12),
      transpose_b=True,
    )
  raise ValueError(
    f"no distance {distance!r}; there are {', '.join(DISTANCES)}"
  )


def logits(
  embeddings,
  prototypes: Prototypes,
  distance: str,
  without_prototype: float = _MASKED,
) -> tf.Tensor:
  """Computes minus the distances; classes without prototype are masked out.

  Args:
    embeddings: [batch, size] float32.
    prototypes: The prototypes.
    distance: One of `DISTANCES`.
    without_prototype: The logit of a class without prototype. The default is
      for gradients; predictions use `evaluation.NO_LOGIT`.

  Returns:
    [batch, num_classes] float32.
  """
  negative = -distances(embeddings, prototypes.mean, distance)
  return tf.where(prototypes.present, negative, without_prototype)


def softmax_classes(
  kind: str, data: client_dataset.ClientDataset, num_classes: int
) -> Callable[[Any], tf.Tensor | None]:
  """Returns the argument `classes` of `alignment_loss` for each domain.

  Args:
    kind: One of `SOFTMAX_CLASSES`.
    data: The client's data.
    num_classes: The number of classes.

  Returns:
    `(domain) -> classes`: the client's classes in the domain, an int32 scalar,
    as [num_classes] bool; None for the classes of the batch.
  """
  if kind == "batch":
    return lambda domain: None
  places = tf.stack([local_training.domain_of_example(data), data.y], axis=1)
  counts = tf.scatter_nd(
    places,
    tf.ones_like(data.y),
    tf.stack([tf.size(data.domain_sizes), num_classes]),
  )
  has_class = tf.ensure_shape(counts > 0, [None, num_classes])
  return lambda domain: has_class[domain]


def alignment_loss(
  embeddings, y, prototypes: Prototypes, distance: str, classes=None
) -> tf.Tensor:
  """Computes the loss of eq. 4 and 6 on a batch.

  -log softmax(-d(embedding, C)) at the true class. The softmax is over the
  given classes that have a prototype. Examples of a class without a prototype
  are ignored; the loss is 0 if no others remain.

  Args:
    embeddings: [batch, size] float32.
    y: The classes, [batch] int32.
    prototypes: The prototypes.
    distance: One of `DISTANCES`.
    classes: [num_classes] bool, including those of the batch. None: only those
      of the batch.

  Returns:
    The mean over the remaining examples, a float32 scalar.
  """
  if classes is None:
    num_classes = prototypes.present.shape[0]
    classes = tf.reduce_any(tf.one_hot(y, num_classes, True, False), axis=0)
  known = prototypes.present & classes
  counts = tf.cast(tf.gather(known, y), tf.float32)
  losses = tf.nn.sparse_softmax_cross_entropy_with_logits(
    labels=y,
    logits=logits(embeddings, prototypes._replace(present=known), distance),
  )
  return tf.math.divide_no_nan(
    tf.reduce_sum(losses * counts), tf.reduce_sum(counts)
  )
