"""FedCCFA: classifiers averaged by class, among clients whose classes agree.

Classifier Clustering and Feature Alignment for Federated Learning under
Distributed Concept Drift (Chen, Xue, Wang, Liu, Huang; NeurIPS 2024); a
baseline of Fed-ADE: Adaptive Learning Rate for Federated Post-adaptation under
Distribution Shift (Park, Joe, Kim, Im, Kwon; 2026), Table 1.

A client keeps a classifier, the last layer. In a round, on the received
backbone f, it

  1. trains a copy of the classifier that all clients start with, which the
     server holds, on equally many examples of each class, min(5, the rarest
     class), for comparison alone;
  2. trains its classifier, and then f under it, with

         CE + k CE(cos(f(x), P_c) / tau over the classes c),   k = H / gamma,

     the second from round `alignment_start` on; P_c are the anchors that it
     received, H is the entropy of its shares of classes;
  3. takes the mean embedding of each class on its new backbone.

The server averages the backbones by number of examples. For each class it joins
clients by the rows of the classifiers of step 1 (`classifier_groups`); in a
group the rows of the classifiers of step 2, and the mean embeddings, are
averaged. In a second phase every client receives its classifier and its
anchors.

What leaves a client: the change of the backbone, its number of unlabelled
examples, and in the open both classifiers, which classes it has and the mean
embedding of each; the mean risk. The server holds them until the next round,
and sends its table to all clients of that round, of which each reads its row.

Equations and numbers are those of the authors' program
(github.com/wenwenwenwenti/FedCCFA). Decisions:
  * Labels. The method has those of the drifting data; a stream has none:
    `stream_labels`. Fed-ADE does not say. With `risk`, all but step 1 weights
    classes by the estimate, whose entropy is H.
  * The classifiers of step 1 start from one and the same, as in the program:
    from their own (`compared_start=own`) they also differ by what their clients
    had learned before, and clients of one concept are told apart.
  * Step 2 starts from the client's own classifier, or the common one. In the
    program a client's first one goes on from step 1, for it has none yet.
  * Fewer than three clients of a round cannot be compared (the program divides
    by zero): each keeps its row and its own mean embedding.
  * A class that a client lacks counts neither in H (the program takes 0 log 0)
    nor in the mean of embeddings (the program divides by all). A client without
    an anchor of a class is not aligned to it; without any, not at all.
  * Plain gradient descent, as for the methods beside it; the program has
    momentum 0.9 and weight decay 1e-5.
"""

import dataclasses
from typing import Any
from typing import NamedTuple

import tensorflow as tf

from tff_shift.learning import algorithm
from tff_shift.learning import evaluation
from tff_shift.learning import hyperparameters
from tff_shift.learning import local_training
from tff_shift.learning import randomness
from tff_shift.learning.aggregators import factories
from tff_shift.models import split_model
from tff_shift.techniques import adaptation
from tff_shift.techniques import class_alignment
from tff_shift.techniques import classifier_groups
from tff_shift.techniques import stream_labels

SCENARIOS = ("online_adaptation",)

RUNNING_STATISTICS = algorithm.FIXED

AGGREGATION_REQUIREMENTS = factories.AggregationRequirements(
  per_client_values="the server compares the classifiers of single clients"
)


@dataclasses.dataclass(frozen=True)
class HParams(
  classifier_groups.GroupHParams,
  class_alignment.ClassHParams,
  stream_labels.StreamLabelsHParams,
  hyperparameters.LocalHParams,
):
  """Hyper-parameters of FedCCFA."""

  local_epochs: int = hyperparameters.hparam(
    5,
    "Passes over what the client learns from in the update of the backbone,"
    " rounded up to whole batches; 0: local_steps counts.",
    minimum=0,
  )
  head_epochs: int = hyperparameters.hparam(
    1, "The same in the update of the classifier.", minimum=1
  )
  learning_rate: float = hyperparameters.hparam(
    0.01,
    "The learning rate of the backbone.",
    minimum=0,
    exclusive_minimum=True,
  )
  compared_start: str = hyperparameters.hparam(
    "common",
    "Which classifier is trained for comparison: common, the one that all"
    " clients start with (the program); own, the client's.",
    choices=("common", "own"),
  )
  head_rate_factor: float = hyperparameters.hparam(
    10.0,
    "The learning rate of classifiers, as a multiple of the backbone's.",
    minimum=0,
    exclusive_minimum=True,
  )
  client_weighting: str = hyperparameters.hparam(
    "num_examples",
    "Weight of a client in the mean of the backbones: num_examples, the number"
    " of unlabelled examples, or uniform.",
    choices=("uniform", "num_examples"),
  )


class Weights(NamedTuple):
  """What the server holds.

  Attributes:
    backbone: The weights of the backbone.
    head: The classifier that all clients start with.
    table: What clients of the last round receive, a `classifier_groups.Table`.
  """

  backbone: Any
  head: Any
  table: Any


class ClientState(NamedTuple):
  """A client's state.

  Attributes:
    head: Its classifier, the weights of the last layer.
    anchors: P_c, [num_classes, embedding_size] float32; zeros for a class
      without one.
    loss: The mean loss of its last update of the backbone, a float32 scalar.
  """

  head: Any
  anchors: Any
  loss: Any


def build(
  model: split_model.SplitModel, hparams: HParams
) -> algorithm.AlgorithmSpec:
  """The functions of FedCCFA; see `algorithm.AlgorithmSpec`.

  The initial weights of the model are the pre-trained ones. A client's state is
  a `ClientState`. A `client_id` is below `num_slots`.
  """
  model = split_model.with_head(model, "last_layer")
  sizes = model.num_classes, model.embedding_size

  def train_client(weights, state, data, round_num):
    backbone = weights.backbone
    own = split_model.SplitWeights(backbone, state.head)
    predict = lambda x: evaluation.predict(model, own, x)  # noqa: E731
    lesson = stream_labels.lesson(model, hparams, own, data, predict)
    seed = randomness.fold(data.seed, randomness.Purpose.TRAIN, round_num)
    # Classifiers are trained on a backbone that stays as it is.
    embedded = lesson.examples._replace(
      x=adaptation.embed(model, backbone, lesson.examples.x)
    )

    def train_head(start, examples, epochs, class_weights, number):
      return local_training.train_on_batches(
        lambda head, batch: adaptation.risk(
          model.classify(head, batch.x), batch.y, class_weights
        ),
        start,
        examples,
        epochs * local_training.epoch_steps(examples, hparams.batch_size),
        randomness.fold(seed, number),
        hparams,
        learning_rate=hparams.head_rate_factor
        * local_training.scheduled_rate(hparams, round_num),
      ).weights

    balanced = class_alignment.balanced_examples(
      embedded,
      hparams.balanced_examples,
      model.num_classes,
      randomness.fold(seed, 0),
    )
    alike = tf.ones([model.num_classes])
    compared = train_head(
      weights.head if hparams.compared_start == "common" else state.head,
      balanced,
      hparams.balanced_epochs,
      alike,
      1,
    )
    head = train_head(
      state.head, embedded, hparams.head_epochs, lesson.class_weights, 2
    )
    k = class_alignment.alignment_weight(hparams, lesson.classes, round_num)

    def backbone_loss(current, batch):
      embeddings = model.embed(current, batch.x)
      logits = model.classify(head, embeddings)
      of_classes = adaptation.risk(logits, batch.y, lesson.class_weights)
      return of_classes + k * class_alignment.alignment_loss(
        hparams, state.anchors, embeddings, batch.y, lesson.class_weights
      )

    result = local_training.train_on_batches(
      backbone_loss,
      backbone,
      lesson.examples,
      local_training.num_local_steps(hparams, lesson.examples, round_num),
      randomness.fold(seed, 3),
      hparams,
      round_num=round_num,
    )
    embeddings = adaptation.embed(model, result.weights, lesson.examples.x)
    sent = classifier_groups.sent(
      compared, head, embeddings, lesson.examples.y, model.num_classes
    )
    return algorithm.ClientResult(
      update=tf.nest.map_structure(tf.subtract, result.weights, backbone),
      client_state=state._replace(head=head, loss=result.loss),
      loss=result.loss,
      plaintext_sum=classifier_groups.place(hparams, sent, data.client_id),
    )

  def update_server(weights, mean_update, slots, round_num):
    return weights._replace(
      backbone=tf.nest.map_structure(tf.add, weights.backbone, mean_update),
      table=classifier_groups.write_table(
        hparams, weights.table, slots, round_num
      ),
    )

  def initial_weights(seed):
    backbone, head = model.initial_weights(seed)
    table = classifier_groups.empty_table(hparams, head, *sizes)
    return Weights(backbone, head, table)

  def personalize_client(weights, state, data, round_num):
    merged, is_there = classifier_groups.read_table(
      weights.table, data.client_id, round_num
    )
    received = state._replace(
      head=classifier_groups.head_of(merged.rows, model.embedding_size),
      anchors=merged.anchors,
    )
    return algorithm.PersonalResult(
      tf.nest.map_structure(
        lambda new, old: tf.where(is_there, new, old), received, state
      ),
      state.loss,
    )

  return algorithm.AlgorithmSpec(
    initial_weights=initial_weights,
    initial_client_state=lambda seed, weights: ClientState(
      weights.head, tf.zeros(sizes), tf.constant(0.0)
    ),
    train_client=train_client,
    update_server=update_server,
    personalize_client=personalize_client,
    predict_as_client=lambda weights, state, data, examples: evaluation.predict(
      model,
      split_model.SplitWeights(weights.backbone, state.head),
      examples.x,
    ),
    examples_type=adaptation.data_type(model),
    num_examples=adaptation.num_stream_examples,
    fixed_weights=("head",),
    max_clients=hparams.num_slots,
  )
