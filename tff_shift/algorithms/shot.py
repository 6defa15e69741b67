"""SHOT: adapts the features to a fixed classifier, without source data.

Do We Really Need to Access the Source Data? Source Hypothesis Transfer for
Unsupervised Domain Adaptation (Liang, Hu, Feng; ICML 2020, arXiv:2002.08546),
Section 3.

The classifier, the last layer, stays as it was trained. Each client adapts its
own backbone to its stream by information maximisation and pseudo-labels. With
p the predictions for a batch and m their mean, it minimises

    mean H(p) - diversity H(m) + beta CE(p, pseudo-label)

(the paper's L_ent, L_div and, with beta, L_SHOT): predictions are to be certain
and diverse. Before the steps, each example of the batch gets a pseudo-label. f
is its feature with a 1 appended, of unit length, and the centroid of class k

    c_k = sum p_k f / sum p_k.

A pseudo-label is the class of the nearest centroid by cosine. Centroids and
labels are computed once more with these labels as p.

Published reading: a batch is predicted after the adaptation to it
(scored=after), as the paper predicts the target set that it has adapted to.
With batch normalisation it is normalised by its own moments, in the steps and
in the prediction, and predicted as one.

What leaves a client: the mean loss. Backbone and pseudo-labels stay.

Choices:
  * The paper takes 15 epochs over the target set, in batches of 64. In a stream
    the target set is a time step: by default one step on all its examples, as
    in the program of ATP (Bao, Wei, Wang, He; NeurIPS 2023), which has SHOT
    without pseudo-labels (beta = 0) as a baseline. Backbone and momentum are
    kept from time step to time step.
  * H(m) pulls to equal numbers of the classes. Under label shift this is wrong;
    diversity=0 leaves it out.
  * Classes that no example is predicted as have no pseudo-labels, as in the
    authors' program, nor have classes that lose all examples in the first pass.
  * Rate, momentum and weight decay are the program's for the backbone. It has
    Nesterov's momentum, a larger rate for a layer of its own before the
    classifier, and trains the source with label smoothing 0.1.
  * Dropout is off in steps, and regularizers do not count.
"""

import dataclasses
from typing import Any
from typing import NamedTuple

import tensorflow as tf

from tff_shift.algorithms.parts import adaptation
from tff_shift.algorithms.parts import stream_steps
from tff_shift.algorithms.parts import test_time_adaptation
from tff_shift.learning import algorithm
from tff_shift.learning import hyperparameters
from tff_shift.learning import local_training
from tff_shift.learning.aggregators import factories
from tff_shift.models import split_model

SCENARIOS = ("online_adaptation",)

RUNNING_STATISTICS = algorithm.FIXED

AGGREGATION_REQUIREMENTS = factories.AggregationRequirements(
  no_aggregation="each client adapts its own model"
)


@dataclasses.dataclass(frozen=True)
class HParams(adaptation.ScoredAfterHParams, stream_steps.StreamHParams):
  """Hyper-parameters of SHOT."""

  momentum: float = hyperparameters.hparam(
    0.9,
    "Momentum of sgd; 0: plain gradient descent.",
    minimum=0,
    maximum=1,
    published=True,
  )
  weight_decay: float = hyperparameters.hparam(
    1e-3,
    "Weight decay: added to the gradient as weight_decay * weight; 0: none.",
    minimum=0,
    published=True,
  )
  diversity: float = hyperparameters.hparam(
    1.0,
    "Weight of the entropy of the mean prediction; 0: predictions need not be"
    " diverse.",
    minimum=0,
  )
  pseudo_label_weight: float = hyperparameters.hparam(
    0.3,
    "beta: weight of the cross-entropy to pseudo-labels; 0: information"
    " maximisation alone (SHOT-IM).",
    minimum=0,
  )


class ClientState(NamedTuple):
  """A client's state.

  Attributes:
    backbone: The weights of all layers but the last.
    moments: What the optimizer remembers, see
      `local_training.initial_moments`.
  """

  backbone: Any
  moments: Any


def information_loss(logits, diversity: float) -> tf.Tensor:
  """Computes mean H(p) - diversity H(m) of logits [n, num_classes]."""
  entropies = test_time_adaptation.entropy(tf.nn.log_softmax(logits))
  loss = tf.reduce_mean(entropies)
  if not diversity:
    return loss
  return loss - diversity * test_time_adaptation.marginal_entropy(logits)


def centroids(features, probabilities) -> tf.Tensor:
  """Computes c_k, zeros for a class without probability.

  Args:
    features: f, [n, size] float32.
    probabilities: p, [n, num_classes] float32.

  Returns:
    [num_classes, size] float32.
  """
  totals = tf.reduce_sum(probabilities, axis=0)
  sums = tf.matmul(probabilities, features, transpose_a=True)
  return tf.math.divide_no_nan(sums, totals[:, tf.newaxis])


def pseudo_labels(embeddings, logits) -> tf.Tensor:
  """Returns the class of the nearest centroid for each example.

  Args:
    embeddings: [n, size] float32.
    logits: [n, num_classes] float32; the number of classes is static.

  Returns:
    [n] int32.
  """
  num_classes = logits.shape[1]
  ones = tf.ones([tf.shape(embeddings)[0], 1])
  features = tf.math.l2_normalize(tf.concat([embeddings, ones], 1), axis=1)

  def counts(labels):
    return tf.reduce_sum(tf.one_hot(labels, num_classes), axis=0)

  def nearest(probabilities, has_examples):
    directions = tf.math.l2_normalize(
      centroids(features, probabilities), axis=1
    )
    cosines = tf.matmul(features, directions, transpose_b=True)
    return tf.argmax(
      tf.where(has_examples, cosines, -2.0), axis=1, output_type=tf.int32
    )

  predicted = tf.argmax(logits, axis=1, output_type=tf.int32)
  labels = nearest(tf.nn.softmax(logits), counts(predicted) > 0)
  return nearest(tf.one_hot(labels, num_classes), counts(labels) > 0)


def build(
  model: split_model.SplitModel, hparams: HParams
) -> algorithm.AlgorithmSpec:
  """Builds the spec of SHOT; see `algorithm.AlgorithmSpec`.

  The initial weights of the model are the pre-trained ones. A client's state is
  a `ClientState`; nothing is shared.
  """
  model = split_model.with_head(model, "last_layer")

  def initial_client_state(seed, nothing):
    del nothing
    backbone = model.initial_backbone(seed)
    return ClientState(
      backbone, local_training.initial_moments(backbone, hparams.training)
    )

  def train_client(nothing, state, data, round_num):
    del nothing, round_num
    head = model.initial_head(data.seed)

    def predict(backbone):
      """Returns embeddings and logits of the batch."""
      with stream_steps.normalizing(model, hparams):
        embeddings = model.embed(backbone, data.stream_x)
        return embeddings, model.classify(head, embeddings)

    beta = hparams.pseudo_label_weight
    labels = pseudo_labels(*predict(state.backbone)) if beta else None

    def loss_fn(backbone):
      _, logits = predict(backbone)
      loss = information_loss(logits, hparams.diversity)
      if beta:
        loss += beta * local_training.cross_entropy(logits, labels)
      return loss

    trained = stream_steps.descend(
      loss_fn, state.backbone, state.moments, data, hparams
    )
    return algorithm.ClientResult(
      update=(),
      client_state=ClientState(trained.weights, trained.moments),
      loss=trained.loss,
    )

  def predict_as_client(nothing, state, data, examples):
    del nothing
    weights = split_model.SplitWeights(
      state.backbone, model.initial_head(data.seed)
    )
    return stream_steps.predict(model, hparams, weights, examples)

  return algorithm.AlgorithmSpec(
    initial_weights=lambda seed: (),
    initial_client_state=initial_client_state,
    train_client=train_client,
    predict_as_client=predict_as_client,
    predicts_batches=stream_steps.normalizes_by_batch(model, hparams),
    examples_type=adaptation.data_type(model),
    num_examples=adaptation.num_stream_examples,
  )
