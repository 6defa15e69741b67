"""Adaptation to a stream with a domain classifier, shared by UDA and UNIDA.

Unsupervised Domain Adaptation by Backpropagation (Ganin, Lempitsky; ICML 2015).
A client has labelled examples, the source, and its stream, the target. A domain
classifier d learns to distinguish their embeddings: it minimises the domain
loss L. The backbone learns to classify the source and to fool d: it minimises
CE - lambda L. Nothing is shared; each client has its own weights.

Choices:
  * Fed-ADE has "a fixed learning rate" without its value: 0.01, the base rate
    of the program of UNIDA's authors. Plain gradient descent, as for other
    methods; the program has momentum 0.9, weight decay and decreasing rates
    (`momentum`, `weight_decay`).
  * A stream has no progress p of training: time step over `domain_ramp`, at
    most 1. lambda increases with it as published. Model and domain classifiers
    are kept from step to step.
  * Domain classifiers have 1 (UDA) and 2 (UNIDA) hidden layers of 100 units
    (`domain_width`), no dropout. UNIDA's program has 1024 units; each client
    keeps two such classifiers. Its bottleneck of 256 units is left out, because
    the model is pre-trained without it.
  * Each step has a batch of the source and one of the stream, of the same size.
    The source is not weighted by label estimates: the methods have none.
"""

import dataclasses
import itertools
from collections.abc import Callable
from typing import Any
from typing import NamedTuple

import tensorflow as tf

from tff_shift._util import draws
from tff_shift.algorithms.parts import adaptation
from tff_shift.learning import algorithm
from tff_shift.learning import evaluation
from tff_shift.learning import hyperparameters
from tff_shift.learning import local_training
from tff_shift.learning import randomness
from tff_shift.models import split_model

# The steepness of lambda's schedule in Section 4 of the paper.
_STEEPNESS = 10.0


@dataclasses.dataclass(frozen=True)
class AdversarialHParams(hyperparameters.LocalHParams):
  """Hyper-parameters of local training with a domain classifier."""

  local_epochs: int = hyperparameters.hparam(
    4,
    "Epochs over the client's labelled examples per time step, rounded up to"
    " whole batches; each batch is paired with a batch of the stream. 0: use"
    " local_steps.",
    minimum=0,
    published=True,
  )
  learning_rate: float = hyperparameters.hparam(
    0.01,
    "The clients' learning rate.",
    minimum=0,
    exclusive_minimum=True,
    published=True,
  )
  domain_weight: float = hyperparameters.hparam(
    1.0,
    "Largest lambda: weight of the reversed gradient of the domain loss in the"
    " backbone. 0: the backbone learns from labelled examples only.",
    minimum=0,
  )
  domain_ramp: int = hyperparameters.hparam(
    20,
    "Number of time steps in which lambda rises to its largest value, as 2 / (1"
    " + exp(-10 p)) - 1 of the elapsed fraction p; 0: constant lambda.",
    minimum=0,
  )
  domain_width: int = hyperparameters.hparam(
    100, "Units of a hidden layer of a domain classifier.", minimum=1
  )


class ClientState(NamedTuple):
  """A client's state.

  Attributes:
    weights: The `SplitWeights` of its model.
    classifiers: The weights of each domain classifier.
  """

  weights: Any
  classifiers: Any


class Seen(NamedTuple):
  """A model's outputs for a batch.

  Attributes:
    embeddings: [batch, embedding_size] float32.
    logits: [batch, num_classes] float32.
  """

  embeddings: Any
  logits: Any


def reversal_strength(hparams: AdversarialHParams, timestep) -> tf.Tensor:
  """Returns lambda at a time step, a float32 scalar."""
  if not hparams.domain_ramp:
    return tf.constant(hparams.domain_weight)
  passed = tf.cast(timestep, tf.float32) / hparams.domain_ramp
  passed = tf.minimum(passed, 1.0)
  return hparams.domain_weight * (
    2.0 / (1.0 + tf.exp(-_STEEPNESS * passed)) - 1.0
  )


def initial_classifier(
  seed, embedding_size: int, width: int, num_hidden: int
) -> tuple[tf.Tensor, ...]:
  """Draws a domain classifier: hidden ReLU layers and one logit.

  Args:
    seed: An int32 tensor of shape [2].
    embedding_size: The length of an embedding.
    width: Units of a hidden layer.
    num_hidden: The number of hidden layers.

  Returns:
    Kernel and bias of each layer, float32; kernels are uniform (Glorot).
  """
  sizes = [embedding_size, *[width] * num_hidden, 1]
  weights = []
  for layer, (size, units) in enumerate(itertools.pairwise(sizes)):
    bound = (6.0 / (size + units)) ** 0.5
    kernel = draws.uniform(
      [size, units], randomness.fold(seed, layer), -bound, bound
    )
    weights += [kernel, tf.zeros([units])]
  return tuple(weights)


def domain_logits(classifier: tuple[tf.Tensor, ...], embeddings) -> tf.Tensor:
  """Returns the logits that embeddings are from the source, [batch]."""
  *hidden, (kernel, bias) = zip(classifier[::2], classifier[1::2], strict=True)
  for layer_kernel, layer_bias in hidden:
    embeddings = tf.nn.relu(embeddings @ layer_kernel + layer_bias)
  return (embeddings @ kernel + bias)[:, 0]


def domain_loss(
  classifier: tuple[tf.Tensor, ...],
  source,
  target,
  source_weights=1.0,
  target_weights=1.0,
) -> tf.Tensor:
  """Computes L: the cross-entropy of source (1) against target (0).

  Args:
    classifier: The weights of a domain classifier.
    source: Embeddings of labelled examples, [batch, embedding_size].
    target: Embeddings of examples of the stream, [batch, embedding_size].
    source_weights: Weights of the source examples, [batch].
    target_weights: Weights of the target examples, [batch].

  Returns:
    The mean over the source plus the mean over the target, a scalar.
  """
  of_source = tf.nn.softplus(-domain_logits(classifier, source))
  of_target = tf.nn.softplus(domain_logits(classifier, target))
  return tf.reduce_mean(source_weights * of_source) + tf.reduce_mean(
    target_weights * of_target
  )


def reversed_loss(
  classifier: tuple[tf.Tensor, ...], source, target, strength, *weights
) -> tf.Tensor:
  """Computes L with its gradient reversed for the embeddings.

  Args:
    classifier: The weights of a domain classifier.
    source: Embeddings of labelled examples, [batch, embedding_size].
    target: Embeddings of examples of the stream, [batch, embedding_size].
    strength: Lambda, a scalar.
    *weights: The weights of the examples, see `domain_loss`.

  Returns:
    L, a scalar. Its gradient is the gradient of L for the classifier, and
    -lambda times the gradient of L for the embeddings.
  """
  stop = tf.stop_gradient
  followed = domain_loss(classifier, stop(source), stop(target), *weights)
  opposed = domain_loss(
    tf.nest.map_structure(stop, classifier), source, target, *weights
  )
  return followed + strength * (stop(opposed) - opposed)


def build(
  model: split_model.SplitModel,
  hparams: AdversarialHParams,
  *,
  hidden_layers: tuple[int, ...],
  loss: Callable[[Any, Seen, Seen, Any], tf.Tensor],
  predict: Callable[[ClientState, Any], tf.Tensor] | None = None,
) -> algorithm.AlgorithmSpec:
  """Builds the spec of an algorithm with domain classifiers.

  Args:
    model: The model; its initial weights are the pre-trained ones.
    hparams: Local training and the classifiers.
    hidden_layers: The number of hidden layers of each classifier.
    loss: `(classifiers, source, target, strength) -> a float32 scalar` that is
      added to the cross-entropy of a batch of the source.
    predict: `(client_state, x) -> logits`. None: predicts with the model.

  Returns:
    The spec. A client's state is a `ClientState`; nothing is shared.
  """

  def initial_client_state(seed, nothing):
    del nothing
    own = randomness.fold(seed, randomness.Purpose.INITIALIZE)
    return ClientState(
      model.initial_weights(seed),
      tuple(
        initial_classifier(
          randomness.fold(own, number),
          model.embedding_size,
          hparams.domain_width,
          num_hidden,
        )
        for number, num_hidden in enumerate(hidden_layers)
      ),
    )

  def see(weights, x):
    embeddings = model.embed(weights.backbone, x)
    return Seen(embeddings, model.classify(weights.head, embeddings))

  def train_client(nothing, state, data, round_num):
    del nothing
    seed = randomness.fold(data.seed, randomness.Purpose.TRAIN, round_num)
    num_steps = local_training.num_local_steps(
      hparams, data.labelled, round_num
    )
    # No training without a target.
    num_steps *= tf.minimum(adaptation.num_stream_examples(data), 1)
    source_batches, target_batches = (
      local_training.pooled_batches(
        examples, num_steps, hparams.batch_size, randomness.fold(seed, number)
      )
      for number, examples in enumerate((data.labelled, data.unlabelled))
    )
    strength = reversal_strength(hparams, data.timestep)

    def loss_fn(current, step, carry):
      batch = source_batches(step)
      source, target = (
        see(current.weights, x) for x in (batch.x, target_batches(step).x)
      )
      of_classes = local_training.cross_entropy(source.logits, batch.y)
      of_domains = loss(current.classifiers, source, target, strength)
      return of_classes + of_domains, carry

    trained = local_training.train(
      loss_fn, state, num_steps, hparams, seed=seed, round_num=round_num
    )
    return algorithm.ClientResult(
      update=(), client_state=trained.weights, loss=trained.loss
    )

  def predict_as_client(nothing, state, data, examples):
    del nothing, data
    if predict is not None:
      return predict(state, examples.x)
    return evaluation.predict(model, state.weights, examples.x)

  return algorithm.AlgorithmSpec(
    initial_weights=lambda seed: (),
    initial_client_state=initial_client_state,
    train_client=train_client,
    predict_as_client=predict_as_client,
    examples_type=adaptation.data_type(model),
    num_examples=adaptation.num_stream_examples,
  )
