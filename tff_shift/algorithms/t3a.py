"""T3A: a classifier of prototypes that test examples adjust.

Test-Time Classifier Adjustment Module for Model-Agnostic Domain Generalization
(Iwasawa, Matsuo; NeurIPS 2021, openreview:e_yvNqkJKAW), on top of FedAvg and
fine-tuning as in Table 1 of Federated Learning under Evolving Distribution
Shifts: only the clients' predictions differ.

Each class c has supports S_c, normalised features with an entropy each.
Initially they are the rows of the last layer, each under the class and with the
entropy of the layer's prediction for it. For the feature z of a test example:

  1. z is added to the supports of the class that the last layer predicts, with
     the entropy of this prediction; each class keeps the M of lowest entropy.
  2. The logit of class c is z p_c, where p_c is the normalised sum of S_c.

What leaves a client: its model update, and the mean training loss. The
fine-tuned model and the supports stay.

Choices:
  * M = 50; the program's M = -1 (keep all), which drops one support of each
    class, is here M equal to the number of examples (`num_supports`).
  * Rows of the last layer are supports of the class that the layer predicts for
    them, as in the authors' program. A class without supports has the logit 0.
    A bias of the last layer is used in step 1 only.
  * Examples come one by one; the program adds a whole batch and then predicts
    it.
  * The server model is not adjusted: in the FedEvolve paper's tables T3A's
    server equals FedAvgFT's to the digit.
"""

import dataclasses
from typing import Any
from typing import NamedTuple

import tensorflow as tf

from tff_shift.algorithms import fed_avg_ft
from tff_shift.algorithms.parts import test_time_adaptation
from tff_shift.learning import algorithm
from tff_shift.learning import evaluation
from tff_shift.learning import hyperparameters
from tff_shift.learning import randomness
from tff_shift.models import split_model

SCENARIOS = ("evolving",)
RUNNING_STATISTICS = algorithm.ONE_MODEL


@dataclasses.dataclass(frozen=True)
class HParams(fed_avg_ft.HParams):
  """Hyper-parameters of T3A, beside those of FedAvgFT."""

  num_supports: int = hyperparameters.hparam(
    50,
    "Maximum number of supports of a class (M), those of lowest entropy; as"
    " many as a domain has examples: all are kept.",
    minimum=1,
  )


class Supports(NamedTuple):
  """The supports of each class.

  Attributes:
    directions: [num_classes, M, size] float32, of length 1; zeros for missing
      supports.
    entropies: [num_classes, M] float32; infinite for missing supports.
  """

  directions: Any
  entropies: Any


class Example(NamedTuple):
  """A row of the last layer or a test example, with its prediction."""

  feature: Any  # [size] float32
  label: Any  # int32 scalar: the class that the last layer predicts
  entropy: Any  # float32 scalar


def _direction(vectors) -> tf.Tensor:
  """Normalises vectors along the last axis; 0 stays 0."""
  return tf.math.l2_normalize(vectors, axis=-1, epsilon=1e-24)


def _judge(
  model: split_model.SplitModel, head: Any, features: tf.Tensor
) -> Example:
  """Returns features [n, size] with the last layer's prediction for each."""
  log_probabilities = tf.nn.log_softmax(model.classify(head, features))
  return Example(
    features,
    tf.argmax(log_probabilities, axis=1, output_type=tf.int32),
    test_time_adaptation.entropy(log_probabilities),
  )


def add_support(supports: Supports, example: Example) -> Supports:
  """Adds an example to the supports of its class, if it is among the best.

  Returns:
    The supports; the example replaces the support of largest entropy if its
    entropy is smaller.
  """
  of_class = supports.entropies[example.label]
  worst = tf.argmax(of_class, output_type=tf.int32)
  place = [[example.label, worst]]

  def replace():
    return Supports(
      tf.tensor_scatter_nd_update(
        supports.directions, place, [_direction(example.feature)]
      ),
      tf.tensor_scatter_nd_update(supports.entropies, place, [example.entropy]),
    )

  return tf.cond(example.entropy < of_class[worst], replace, lambda: supports)


def first_supports(
  model: split_model.SplitModel, head: Any, num_supports: int
) -> Supports:
  """Makes supports from the rows of the last layer.

  Args:
    model: A model whose head is its last linear layer.
    head: The weights of the head.
    num_supports: M.

  Returns:
    The supports, one for each class in all.
  """
  size, num_classes = model.embedding_size, model.num_classes
  # The rows of any linear function, regardless of the form of its weights.
  rows = tf.transpose(
    model.classify(head, tf.eye(size))
    - model.classify(head, tf.zeros([1, size]))
  )
  return tf.foldl(
    add_support,
    _judge(model, head, rows),
    Supports(
      tf.zeros([num_classes, num_supports, size]),
      tf.fill([num_classes, num_supports], float("inf")),
    ),
    parallel_iterations=1,
  )


def predict(
  model: split_model.SplitModel,
  hparams: HParams,
  weights: split_model.SplitWeights,
  x,
  domain_sizes,
  seed,
) -> tf.Tensor:
  """Predicts examples one after the other, with the supports of earlier ones.

  Args:
    model: A model whose head is its last linear layer.
    hparams: Hyper-parameters.
    weights: The weights, which do not change.
    x: The examples, [num_examples, ...], sorted by domain.
    domain_sizes: The number of examples of each domain, [num_domains] int32.
    seed: Determines the order of the examples, int32 [2].

  Returns:
    The logits, [num_examples, num_classes] float32.
  """
  features = evaluation.predict_in_batches(
    lambda batch: model.embed(weights.backbone, batch), x, model.embedding_size
  )

  def adjust_and_predict(supports, example, domain, place):
    del domain, place
    supports = add_support(supports, example)
    prototypes = _direction(tf.reduce_sum(supports.directions, axis=1))
    return tf.linalg.matvec(prototypes, example.feature), supports

  return test_time_adaptation.adapt_each(
    _judge(model, weights.head, features),
    first_supports(model, weights.head, hparams.num_supports),
    adjust_and_predict,
    domain_sizes=domain_sizes,
    width=model.num_classes,
    seed=seed,
  )


def build(
  model: split_model.SplitModel, hparams: HParams
) -> algorithm.AlgorithmSpec:
  """Builds the spec of T3A, which trains like FedAvgFT."""
  model = split_model.with_head(model, "last_layer")

  def predict_as_client(_, fine_tuned, data, examples):
    seed = randomness.fold(data.seed, randomness.Purpose.TEST_TIME)
    return predict(
      model, hparams, fine_tuned, examples.x, examples.domain_sizes, seed
    )

  return fed_avg_ft.build(model, hparams)._replace(
    predict_as_client=predict_as_client
  )
