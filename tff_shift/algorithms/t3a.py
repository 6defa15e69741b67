"""T3A: a classifier of prototypes that test examples adjust.

Test-Time Classifier Adjustment Module for Model-Agnostic Domain Generalization
(Iwasawa, Matsuo; NeurIPS 2021), on top of FedAvg and fine-tuning as in Table 1
of Federated Learning under Evolving Distribution Shifts: nothing is different
but how a client predicts.

Each class c has supports S_c, features without their lengths, with an entropy
each. At first they are the rows of the last layer, each under the class and
with the entropy that the layer gives it. For the feature z of a test example:

  1. z joins the supports of the class that the last layer gives it, with the
     entropy of that prediction; of each class the M of lowest entropy stay.
  2. The logit of class c is z p_c, with p_c the sum of S_c over its length.

What leaves a client: the change of all weights, and the mean training loss.
Neither the fine-tuned model nor the supports do.

Decisions:
  * Examples come one after the other, in a random order that is fixed by the
    client's seed; every domain starts with the rows of the last layer alone.
  * A row that its own layer gives another class is a support of that class, as
    in the authors' program. A class without supports has the logit 0.
  * A bias of the last layer counts in step 1 alone.
  * The server predicts without adjustment.
"""

import dataclasses
from typing import Any
from typing import NamedTuple

import tensorflow as tf

from tff_shift.algorithms import fed_avg_ft
from tff_shift.learning import algorithm
from tff_shift.learning import evaluation
from tff_shift.learning import hyperparameters
from tff_shift.learning import randomness
from tff_shift.models import split_model
from tff_shift.techniques import test_time_adaptation

SCENARIOS = ("evolving",)
RUNNING_STATISTICS = algorithm.ONE_MODEL


@dataclasses.dataclass(frozen=True)
class HParams(fed_avg_ft.HParams):
  """Hyper-parameters of T3A, besides those of FedAvgFT."""

  num_supports: int = hyperparameters.hparam(
    50,
    "The supports that a class keeps at most (M), those of lowest entropy; as"
    " many as a domain has examples keep all.",
    minimum=1,
  )


class Supports(NamedTuple):
  """The supports of each class.

  Attributes:
    directions: [num_classes, M, size] float32, of length 1; zeros where there
      is none.
    entropies: [num_classes, M] float32; infinite where there is none.
  """

  directions: Any
  entropies: Any


class Example(NamedTuple):
  """What is known of a row of the last layer or of a test example."""

  feature: Any  # [size] float32
  label: Any  # int32 scalar: the class that the last layer gives it
  entropy: Any  # float32 scalar


def _direction(vectors) -> tf.Tensor:
  """Returns vectors of the last axis over their lengths; 0 stays 0."""
  return tf.math.l2_normalize(vectors, axis=-1, epsilon=1e-24)


def _judge(
  model: split_model.SplitModel, head: Any, features: tf.Tensor
) -> Example:
  """Returns features [n, size] with what the last layer says of each."""
  log_probabilities = tf.nn.log_softmax(model.classify(head, features))
  return Example(
    features,
    tf.argmax(log_probabilities, axis=1, output_type=tf.int32),
    test_time_adaptation.entropy(log_probabilities),
  )


def add_support(supports: Supports, example: Example) -> Supports:
  """Adds an example to the supports of its class, if it is among the best.

  Args:
    supports: The supports.
    example: The example.

  Returns:
    The supports, where the one of the largest entropy has made room for an
    example of smaller entropy.
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
  """Makes supports of the rows of the last layer.

  Args:
    model: A model whose head is its last linear layer.
    head: The weights of the head.
    num_supports: M.

  Returns:
    The supports, one for each class in all.
  """
  size, num_classes = model.embedding_size, model.num_classes
  # Those of any linear function, whichever weights it has.
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
  """Predicts examples one after the other, with the supports of those before.

  Args:
    model: A model whose head is its last linear layer.
    hparams: Hyper-parameters.
    weights: The weights; they stay as they are.
    x: The examples, [num_examples, ...], domain by domain.
    domain_sizes: How many belong to each domain, [num_domains] int32.
    seed: Fixes the order in which they come, int32 [2].

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
  """Returns the functions of T3A, which trains as FedAvgFT does."""
  model = split_model.with_head(model, "last_layer")

  def predict_as_client(_, fine_tuned, data, examples):
    seed = randomness.fold(data.seed, randomness.Purpose.TEST_TIME)
    return predict(
      model, hparams, fine_tuned, examples.x, examples.domain_sizes, seed
    )

  return fed_avg_ft.build(model, hparams)._replace(
    predict_as_client=predict_as_client
  )
