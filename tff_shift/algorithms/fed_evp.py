"""FedEvp: learns a representation that is invariant under the evolution.

Federated Learning under Evolving Distribution Shifts (Tan, Xie, Zheng, Yener,
Lee, Payani, Latapie, Zhang; 2025, openreview:ITTAlVyRCj), Section 4.2,
Algorithms 2 and 4.

There is one representation phi and one classifier w. A client steps through its
domains in order and keeps a running prototype of each class (eq. 5). The batch
of a domain is pulled to the prototypes (eq. 6) while the classifier is trained
on it (eq. 7). Before a client predicts, it personalises the classifier and the
last layer of phi, in one more epoch on its own data.

What leaves a client: the update of phi and w and the mean training loss. The
prototypes and the personalised weights stay.

Choices:
  * Text and Algorithm 4 disagree whether the prototype includes the batch that
    is aligned to it. `prototype=current` follows the algorithm, `previous` the
    text; both have 41 % after 8 rounds of digits (two seeds).
  * No gradient flows through the part of the prototypes from earlier domains,
    which was computed with earlier weights. It flows through the part of the
    current batch.
  * "The classical cross-entropy loss" of the classifier is over all classes.
  * A class that is first seen after the first domain starts at its mean; eq. 5
    as printed would average it with zeros. A class that a domain lacks keeps
    its prototype.
  * The last layer of phi is the last one with weights, including its
    normalisation; `personalization=none, classifier, all` for the rows of Table
    8.
  * The personal epoch minimises the cross-entropy with the optimizer and rate
    of training (`personalization_epochs`).
  * Distances and the classes of the softmax: see `prototypes`.
"""

import dataclasses

import tensorflow as tf

from tff_shift.algorithms import fed_avg_ft
from tff_shift.algorithms.parts import prototypes
from tff_shift.data import client_dataset
from tff_shift.learning import algorithm
from tff_shift.learning import evaluation
from tff_shift.learning import hyperparameters
from tff_shift.learning import local_training
from tff_shift.learning import randomness
from tff_shift.models import modes
from tff_shift.models import split_model

SCENARIOS = ("evolving",)

RUNNING_STATISTICS = algorithm.ONE_MODEL

# A step goes from one source domain to the next.
MIN_SOURCE_DOMAINS = 2


@dataclasses.dataclass(frozen=True)
class HParams(hyperparameters.LocalHParams):
  """Hyper-parameters of FedEvp."""

  distance: str = prototypes.distance_hparam()
  softmax_classes: str = prototypes.softmax_classes_hparam()
  prototype: str = hyperparameters.hparam(
    "current",
    "Prototype for alignment of a batch: current (Algorithm 4, includes the"
    " batch) or previous (the text, does not).",
    choices=("current", "previous"),
  )
  personalization: str = hyperparameters.hparam(
    "default",
    "What a client personalises (Table 8): default (classifier and last layer"
    " of phi), none, classifier, all.",
    choices=("default", "none", "classifier", "all"),
  )
  personalization_epochs: int = hyperparameters.hparam(
    1,
    "Epochs of personalisation on the client's data; 0: none.",
    minimum=0,
  )


def update_prototypes(
  running: prototypes.Prototypes, batch: prototypes.Prototypes, domain
) -> prototypes.Prototypes:
  """Computes eq. 5: C_m = (m - 1)/m C_{m-1} + 1/m (mean of the batch).

  Args:
    running: C_{m-1}, with `present` for the classes seen so far.
    batch: The class means of the batch of domain m.
    domain: m - 1, an int32 scalar: the domains are numbered from 0.

  Returns:
    C_m. A class that the batch lacks keeps its value; a new class takes the
    batch's.
  """
  share = 1.0 / tf.cast(domain + 1, tf.float32)
  share = tf.where(running.present, share, 1.0)
  share = tf.where(batch.present, share, 0.0)[:, tf.newaxis]
  return prototypes.Prototypes(
    (1.0 - share) * running.mean + share * batch.mean,
    running.present | batch.present,
  )


def train_client(
  model: split_model.SplitModel,
  hparams: HParams,
  weights: split_model.SplitWeights,
  data: client_dataset.ClientDataset,
  round_num,
) -> algorithm.ClientResult:
  """Trains one client, Algorithm 4, lines 5 to 25.

  Args:
    model: The model.
    hparams: Hyper-parameters.
    weights: The server's phi (backbone) and w (head).
    data: The client's data. It steps from each of its domains to the next; with
      fewer than two it does not train.
    round_num: The round, an int32 scalar.

  Returns:
    The update of the weights; there is no personal state.
  """
  data = local_training.without_empty_domains(data)
  seed = randomness.fold(data.seed, randomness.Purpose.TRAIN, round_num)
  num_steps = local_training.num_local_steps(hparams, data, round_num)
  # The first domain of an iteration only starts the prototypes: it has no
  # gradient step (Algorithm 4, line 17).
  steps_per_iteration = tf.size(data.domain_sizes) - 1

  batches = local_training.domain_batches(
    data, num_steps, hparams.batch_size, seed
  )

  classes = prototypes.softmax_classes(
    hparams.softmax_classes, data, model.num_classes
  )

  def embed_batch(current, domain, visit):
    batch = batches(domain, visit)
    embeddings = model.embed(current.backbone, batch.x)
    means = prototypes.class_means(
      prototypes.class_sums(embeddings, batch.y, model.num_classes)
    )
    return embeddings, batch.y, means

  def loss_fn(current, step, running):
    visit = step // steps_per_iteration
    domain = 1 + step % steps_per_iteration

    def start():
      _, _, means = embed_batch(current, 0, visit)
      return means

    # Outside of the branch, which TensorFlow would otherwise differentiate.
    running = tf.nest.map_structure(
      tf.stop_gradient,
      modes.cond(tf.equal(domain, 1), start, lambda: running),
    )
    embeddings, y, means = embed_batch(current, domain, visit)
    updated = update_prototypes(running, means, domain)
    target = updated if hparams.prototype == "current" else running
    loss = prototypes.alignment_loss(
      embeddings, y, target, hparams.distance, classes(domain)
    ) + local_training.cross_entropy(
      model.classify(current.head, embeddings), y
    )
    return loss, tf.nest.map_structure(tf.stop_gradient, updated)

  result = local_training.train(
    loss_fn,
    weights,
    num_steps * steps_per_iteration,
    hparams,
    seed=seed,
    carry=prototypes.Prototypes(
      tf.zeros([model.num_classes, model.embedding_size]),
      tf.zeros([model.num_classes], tf.bool),
    ),
    round_num=round_num,
  )
  return algorithm.ClientResult(
    update=tf.nest.map_structure(tf.subtract, result.weights, weights),
    client_state=(),
    loss=result.loss,
    has_trained=steps_per_iteration > 0,
  )


def personal_weights(
  model: split_model.SplitModel, personalization: str
) -> split_model.SplitWeights:
  """Returns which weights a client personalises.

  Args:
    model: The model.
    personalization: One of the choices of `HParams.personalization`.

  Returns:
    `SplitWeights` of Python bools.
  """
  num_backbone = len(model.backbone.names)
  backbone = {
    "none": (False,) * num_backbone,
    "classifier": (False,) * num_backbone,
    "default": model.last_backbone_layer(),
    "all": (True,) * num_backbone,
  }[personalization]
  head = (personalization != "none",) * len(model.head.names)
  return split_model.SplitWeights(backbone, head)


def build(
  model: split_model.SplitModel, hparams: HParams
) -> algorithm.AlgorithmSpec:
  """Builds the spec of FedEvp; see `algorithm.AlgorithmSpec`."""

  def prepare_client(weights, _, data, round_num):
    del round_num  # Uses the rate of training.
    if hparams.personalization == "none":
      return weights
    return fed_avg_ft.fine_tune(
      model,
      hparams,
      hparams.personalization_epochs
      * local_training.epoch_steps(data, hparams.batch_size),
      weights,
      data,
      trainable=personal_weights(model, hparams.personalization),
    )

  return algorithm.AlgorithmSpec(
    initial_weights=model.initial_weights,
    train_client=lambda weights, _, data, round_num: train_client(
      model, hparams, weights, data, round_num
    ),
    prepare_client=prepare_client,
    predict_as_client=lambda _, personal, data, examples: evaluation.predict(
      model, personal, examples.x
    ),
    predict_as_server=lambda weights, _, examples: evaluation.predict(
      model, weights, examples.x
    ),
  )
