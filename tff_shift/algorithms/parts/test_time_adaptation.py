"""Test-time adaptation: example by example, without labels.

The history that a method carries from example to example is reset at every
domain, and the order of the examples is a pure function of a seed. A client's
predictions for a domain therefore do not depend on labels, on other domains or
on other clients.

Choices:
  * Examples come one by one, in a random order that the client's seed fixes.
    State is reset at each domain, so that a domain's accuracy does not depend
    on the domains that are evaluated.
  * Steps are in evaluation mode (`seed=None`): they adapt a deployed model to a
    query, and with dropout the answer would depend on a draw. So are teachers,
    prototypes and embeddings that are computed before the loop. Fine-tuning is
    training.
"""

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tff_shift._util import draws
from tff_shift.learning import evaluation
from tff_shift.learning import hyperparameters
from tff_shift.learning import local_training
from tff_shift.learning import randomness
from tff_shift.models import modes


def entropy(log_probabilities) -> tf.Tensor:
  """Computes the entropy of distributions along the last axis.

  Args:
    log_probabilities: [..., num_classes] float32, finite.

  Returns:
    [...] float32, in nats.
  """
  return -tf.reduce_sum(tf.exp(log_probabilities) * log_probabilities, axis=-1)


def marginal_entropy(logits) -> tf.Tensor:
  """Computes the entropy of the mean of several predictions for one example.

  MEMO: Test Time Robustness via Adaptation and Augmentation (Zhang, Levine,
  Finn; NeurIPS 2022). It is the entropy of the mean softmax over the
  augmentations, not the mean of the entropies. The mean is computed in log
  space,

      log pbar = logsumexp_i(log softmax(logits_i)) - log(num_augmentations),

  which stays finite if a probability is too small for a float32.

  Args:
    logits: [num_augmentations, num_classes] float32.

  Returns:
    A float32 scalar, in nats.
  """
  num_augmentations = tf.cast(tf.shape(logits)[0], tf.float32)
  log_mean = tf.reduce_logsumexp(
    tf.nn.log_softmax(logits), axis=0
  ) - tf.math.log(num_augmentations)
  return entropy(log_mean)


def descend_marginal_entropy(
  predict: Callable[[Any, tf.Tensor], tf.Tensor],
  weights: Any,
  augment: Callable[[Any], tf.Tensor],
  num_steps,
  hparams: hyperparameters.LocalHParams,
) -> Any:
  """Adapts weights to one example, as in MEMO.

  Args:
    predict: `(weights, x) -> logits` [num_augmentations, num_classes] float32.
    weights: The initial weights, a nested structure of float32 tensors.
    augment: `(step) -> x`, augmentations of the example, with the number of the
      step from 0, an int32 scalar.
    num_steps: The number of gradient steps, an int32 scalar.
    hparams: Optimizer and learning rate.

  Returns:
    The adapted weights.
  """

  def loss_fn(current, step, carry):
    return marginal_entropy(predict(current, augment(step))), carry

  return local_training.train(
    loss_fn, weights, num_steps, hparams, seed=None
  ).weights


def _order(size, domain, seed) -> tf.Tensor:
  """Returns the order of the examples of a domain, [size] int32."""
  if seed is None:
    return tf.range(size)
  return draws.orders(size, size, randomness.fold(seed, domain))


def adapt_each(
  x: Any,
  initial: Any,
  adapt_and_predict: Callable[[Any, Any, Any, Any], tuple[tf.Tensor, Any]],
  *,
  domain_sizes,
  width: int,
  seed: Any = None,
) -> tf.Tensor:
  """Adapts to the examples one after the other, and predicts each.

  Args:
    x: The examples, a nested structure of tensors with a first axis of
      num_examples, sorted by domain.
    initial: The history before the first example of a domain, a nested
      structure of tensors; () if examples are independent.
    adapt_and_predict: `(history, example, domain, place) -> (prediction [width]
      float32, history)`. `example` is a row of `x`, `domain` the index of its
      domain and `place` its position in the domain in `x` (not in the random
      order), int32 scalars. The history contains the examples before it.
    domain_sizes: The number of examples of each domain, [num_domains] int32.
    width: The length of a prediction.
    seed: Determines a random order of each domain, int32 [2]. None: examples
      keep their order.

  Returns:
    The predictions in the order of `x`, [num_examples, width] float32.
  """
  initial = tf.nest.map_structure(tf.convert_to_tensor, initial)

  def predict_domain(domain, rows):
    size = tf.shape(rows)[0]
    order = _order(size, domain, seed)

    def take(number, history, outputs):
      place = order[number]
      example = tf.nest.map_structure(lambda each: each[rows[place]], x)
      prediction, history = adapt_and_predict(history, example, domain, place)
      return number + 1, history, outputs.write(place, prediction)

    _, _, outputs = tf.while_loop(
      lambda number, *_: number < size,
      take,
      (
        tf.constant(0),
        initial,
        tf.TensorArray(tf.float32, size=size, element_shape=[width]),
      ),
      # Sequential, because each step holds an adapted copy of the model.
      parallel_iterations=1,
    )
    return outputs.stack()

  num_examples = tf.shape(tf.nest.flatten(x)[0])[0]
  return evaluation.predict_by_domain(
    predict_domain, tf.range(num_examples), domain_sizes, width
  )


def in_full_batches(
  function: Callable[[Any], tf.Tensor], x: Any, batch_size: int, *, width: int
) -> tf.Tensor:
  """Applies a function to many examples, in batches of a fixed size.

  State that is optimised for each example needs a static shape, as optimizers
  require. The last batch is padded with zeros.

  Args:
    function: `batch -> [batch_size, width] float32`, example by example.
    x: The examples, a nested structure of tensors with a first axis of
      num_examples.
    batch_size: The number of examples in a batch.
    width: The length of a row of `function`.

  Returns:
    A float32 tensor of shape [num_examples, width].

  Raises:
    ValueError: Where models normalise by the batch, see `modes.by_batch`.
  """
  if modes.normalizes_by_batch():
    raise ValueError("padding would change what models normalise by")
  num_examples = tf.shape(tf.nest.flatten(x)[0])[0]
  num_batches = -(-num_examples // batch_size)

  def cut(each):
    filling = tf.zeros(
      [num_batches * batch_size - num_examples, *each.shape[1:]], each.dtype
    )
    return tf.reshape(
      tf.concat([each, filling], axis=0), [-1, batch_size, *each.shape[1:]]
    )

  outputs = tf.map_fn(
    function,
    tf.nest.map_structure(cut, x),
    fn_output_signature=tf.TensorSpec([batch_size, width], tf.float32),
    parallel_iterations=1,
  )
  return tf.reshape(outputs, [-1, width])[:num_examples]
