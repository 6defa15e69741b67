"""FedAS: clients align the received backbone; Fisher information weights them.

FedAS: Bridging Inconsistency in Personalized Federated Learning (Yang, Huang,
Ye; CVPR 2024, https://cvpr.thecvf.com/virtual/2024/poster/31300). A baseline of
Beyond Aggregation: Guiding Clients in Heterogeneous Federated Learning
(FedDRM), Table 1.

A client keeps its head and the backbone theta_i from the end of its last round.
In a round it

  1. aligns the received backbone theta: with P_i[k] the mean feature of its
     examples of class k under theta_i, it takes gradient steps on

         sum over the classes k of a batch of the mean over
             its examples of k and features of (f(x; theta) - P_i[k])^2

  2. trains all weights from there, with its own head;
  3. computes the trace of its Fisher information with the trained weights,

         t_i = sum over batches of |gradient of the batch's mean NLL|^2.

The server's new backbone is the mean of the trained ones with weights
t_i / sum t. A client predicts with its last trained model.

What leaves a client: the update of the backbone relative to the received one,
t_i, and the mean training loss. Head and theta_i stay.

Written from the steps of the authors' program.

`variant=program` is the FedAS of the FedDRM paper's program: a fifth of the
steps align, with the optimizer and rate of the others, each example with its
own features: mean of (f(x; theta) - f(x; theta_i))^2, where f are the features
of the trunk that a guide shares, if there is one. Clients are weighted by
`client_weighting`, and predict with the new backbone without alignment and
their head (`predict_with=received`).

Choices:
  * Compare rows of the FedDRM paper's tables with `variant=program`.
  * In the authors' program all clients align the same object in turn. Here each
    client aligns the model that the server sent; in its first round there is
    nothing to align to. Alignment takes plain gradient steps with a rate of its
    own, one epoch, on batches of `batch_size` (16 in the program), on top of
    the 10 steps that all methods take (`alignment_steps`,
    `alignment_learning_rate`).
  * A client predicts with its last trained model, whose Fisher information
    weights it in the mean: the authors' program evaluates before it sends the
    new backbone. A client that was not sampled recently therefore predicts with
    an older model, in every scenario (`predict_with=aligned, received`;
    results/guidance.md).
  * A client that never trained predicts with the current server backbone and
    the first head, the initial head of the run's seed, as in all methods here;
    in the authors' program with the initial model, which no round has changed.
  * t_i is over one pass of full batches, over all weights including the head:
    clients with more examples have larger traces. `secure` is refused: its sums
    round weights to 1/4096, and traces may be below that.
"""

import contextlib
import dataclasses

import tensorflow as tf

from tff_shift.algorithms.parts import adaptation
from tff_shift.algorithms.parts import fisher_information
from tff_shift.algorithms.parts import prototypes
from tff_shift.learning import algorithm
from tff_shift.learning import evaluation
from tff_shift.learning import hyperparameters
from tff_shift.learning import local_training
from tff_shift.learning import randomness
from tff_shift.learning.aggregators import factories
from tff_shift.models import guided_model
from tff_shift.models import modes
from tff_shift.models import split_model

SCENARIOS = ("evolving", "guidance")

RUNNING_STATISTICS = algorithm.TWO_MODELS

_REASON = (
  "its clients are weighted by the traces of their Fisher information, which"
  " are of any size: dp ignores weights, and secure sums round them to 1/4096"
)
AGGREGATION_REQUIREMENTS = factories.AggregationRequirements(
  plaintext_sums=_REASON, own_weights=_REASON
)


@dataclasses.dataclass(frozen=True)
class HParams(hyperparameters.LocalHParams):
  """Hyper-parameters of FedAS; `local_steps` train all weights."""

  variant: str = hyperparameters.variant_hparam(hyperparameters.FED_DRM_PROGRAM)
  alignment_steps: int = hyperparameters.hparam(
    0,
    "Local iterations of alignment, before local_steps. 0: one epoch over the"
    " examples (published), a quarter of local_steps (program).",
    minimum=0,
  )
  alignment_learning_rate: float = hyperparameters.hparam(
    0.01,
    "Learning rate of alignment (published); at very small values the received"
    " backbone is trained without alignment.",
    minimum=0,
    exclusive_minimum=True,
  )
  predict_with: str = hyperparameters.switch_hparam(
    "The model that a client predicts with: trained, its last trained model;"
    " received, the server's backbone and its own head; aligned, these after"
    " the steps of alignment",
    published="trained",
    program="received",
    others=("aligned",),
  )
  client_weighting: str = hyperparameters.hparam(
    "uniform",
    "A client's weight in the server's mean (program): uniform, or"
    " num_examples. Published: its Fisher information.",
    choices=("uniform", "num_examples"),
  )
  head: str = hyperparameters.hparam(
    "last_layer",
    "What is personal: last_layer, only the last linear layer; classifier, the"
    " model's whole head.",
    choices=split_model.HEADS,
  )


def prototype_loss(features, y, means) -> tf.Tensor:
  """Computes the loss of alignment on a batch.

  Args:
    features: [batch, size] float32.
    y: The classes, [batch] int32.
    means: P_i, [num_classes, size] float32.

  Returns:
    A float32 scalar: each class of the batch has weight 1, for any number of
    examples.
  """
  membership = tf.one_hot(y, means.shape[0])
  class_sizes = tf.reduce_sum(membership, axis=0)
  distances = tf.reduce_mean(
    tf.math.squared_difference(features, tf.gather(means, y)), axis=1
  )
  return tf.reduce_sum(distances / tf.gather(class_sizes, y))


def _differ(one, other) -> tf.Tensor:
  """Returns whether any number of two structures differs."""
  return tf.reduce_any(
    [tf.reduce_any(tf.not_equal(a, b)) for a, b in zip(one, other, strict=True)]
  )


def build(
  model: split_model.SplitModel, hparams: HParams
) -> algorithm.AlgorithmSpec:
  """Builds the spec of FedAS; see `algorithm.AlgorithmSpec`.

  A client's state is its last backbone and head, `SplitWeights`; the server has
  no model to predict with.
  """
  model = split_model.with_head(model, hparams.head)
  is_published = hparams.variant == "published"
  predict_with = hyperparameters.switch(hparams, "predict_with")
  aligning = hparams
  if is_published:
    aligning = dataclasses.replace(
      hparams, optimizer="sgd", momentum=0.0, weight_decay=0.0
    )
  shared_features = model.embed
  if isinstance(model, guided_model.GuidedModel):
    shared_features = model.features

  def num_alignment_steps(data):
    num_domains = local_training.num_domains(data)
    if hparams.alignment_steps:
      return hparams.alignment_steps * num_domains
    if is_published:
      return local_training.epoch_steps(data, hparams.batch_size)
    return max(1, hparams.local_steps // 4) * num_domains

  def align(backbone, last_backbone, data, round_num, seed):
    """Returns the received backbone after step 1."""
    if is_published:
      with modes.of_model("personal"):
        features = adaptation.embed(model, last_backbone, data.x)
      means = prototypes.class_means(
        prototypes.class_sums(features, data.y, model.num_classes)
      ).mean

    def loss(current, batch):
      if is_published:
        return prototype_loss(model.embed(current, batch.x), batch.y, means)
      features = shared_features(current, batch.x)
      with modes.of_model("personal"), modes.apart():
        target = shared_features(last_backbone, batch.x)
      return tf.reduce_mean(tf.math.squared_difference(features, target))

    # A client without examples has no batches.
    can_align = _differ(backbone, last_backbone) & (tf.size(data.y) > 0)
    return local_training.train_on_batches(
      loss,
      backbone,
      data,
      num_alignment_steps(data) * tf.cast(can_align, tf.int32),
      seed,
      aligning,
      learning_rate=hparams.alignment_learning_rate if is_published else None,
      round_num=round_num,
    ).weights

  def weight_of(weights, data, seed):
    """Returns a client's weight in the mean."""
    if is_published:
      steps = local_training.epoch_steps(data, hparams.batch_size)
      batches = local_training.pooled_batches(
        data, steps, hparams.batch_size, seed
      )
      return fisher_information.trace(model.predict, weights, batches, steps)
    if hparams.client_weighting == "uniform":
      return tf.constant(1.0)
    return tf.cast(tf.size(data.y), tf.float32)

  def train_client(backbone, last, data, round_num):
    seed = randomness.fold(data.seed, randomness.Purpose.TRAIN, round_num)
    alignment_seed, training_seed, trace_seed = (
      randomness.fold(seed, part) for part in range(3)
    )
    aligned = align(backbone, last.backbone, data, round_num, alignment_seed)
    steps = local_training.num_local_steps(hparams, data, round_num)
    trained = local_training.train_on_pool(
      model.predict,
      split_model.SplitWeights(aligned, last.head),
      data,
      steps * local_training.num_domains(data),
      training_seed,
      hparams,
      round_num=round_num,
    )
    modes.keep_as("personal")
    return algorithm.ClientResult(
      update=tf.nest.map_structure(
        tf.subtract, trained.weights.backbone, backbone
      ),
      client_state=trained.weights,
      loss=trained.loss,
      weight=weight_of(trained.weights, data, trace_seed),
    )

  def prepare_client(backbone, last, data, round_num):
    if predict_with == "aligned":
      seed = randomness.fold(
        data.seed, randomness.Purpose.PERSONALIZE, round_num
      )
      backbone = align(backbone, last.backbone, data, round_num, seed)
    return split_model.SplitWeights(backbone, last.head)

  def predict_as_client(_, weights, data, examples):
    del data
    own = predict_with == "trained"
    with modes.of_model("personal") if own else contextlib.nullcontext():
      return evaluation.predict(model, weights, examples.x)

  return algorithm.AlgorithmSpec(
    initial_weights=model.initial_backbone,
    initial_client_state=lambda seed, backbone: split_model.SplitWeights(
      backbone, model.initial_head(seed)
    ),
    starts_alike=True,
    train_client=train_client,
    prepare_client=None if predict_with == "trained" else prepare_client,
    predict_as_client=predict_as_client,
  )
