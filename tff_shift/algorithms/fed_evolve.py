"""FedEvolve: learns how a domain turns into the next one.

Federated Learning under Evolving Distribution Shifts (Tan, Xie, Zheng, Yener,
Lee, Payani, Latapie, Zhang; 2025, openreview:ITTAlVyRCj), Section 4.1,
Algorithms 1 and 3.

There are two representations: phi maps a domain to the expected next one, psi
maps a domain to itself. A client steps through its pairs of consecutive domains
(m, m + 1): the class means of phi over a batch of domain m are prototypes (eq.
3), and psi of a batch of domain m + 1 is pulled to the prototype of its class
(eq. 4). The gradient flows through the prototypes into phi. The unseen domain
is classified by the distance of its psi to the prototypes of the last source
domain. There is no classifier.

What leaves a client: the update of phi and psi and the mean training loss; for
the server's evaluation, the sum of phi over the last source domain by class,
and the class counts. With an aggregator that hides clients' values, the server
does not receive these sums, and predicts nothing.

The server holds no data, so its prototypes are the mean over clients weighted
by class counts.

Choices:
  * phi and psi have separate initial weights.
  * In the figure of accuracy per domain, domain m is predicted with the
    prototypes of domain m - 1, the first domain with its own.
  * A class without a prototype is never predicted. Its examples count as wrong
    and are excluded from the measured loss, because any substitute for the
    missing distance would outweigh all other terms. Without remaining examples
    the loss is NaN.
  * If a client lacks domains, the previous domain is the last earlier one that
    it has. It learns if it has at least two domains. Without any domain it has
    no prototypes, and predicts nothing.
  * Distances and the classes of the softmax: see `prototypes`.
"""

import dataclasses
from typing import Any
from typing import NamedTuple

import tensorflow as tf

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

RUNNING_STATISTICS = algorithm.Kept(server=("phi", "psi"))


class Weights(NamedTuple):
  """The two representations, each the weights of a backbone."""

  phi: Any
  psi: Any


# A step goes from one source domain to the next.
MIN_SOURCE_DOMAINS = 2


@dataclasses.dataclass(frozen=True)
class HParams(hyperparameters.LocalHParams):
  """Hyper-parameters of FedEvolve."""

  distance: str = prototypes.distance_hparam()
  softmax_classes: str = prototypes.softmax_classes_hparam()


def initial_weights(model: split_model.SplitModel, seed) -> Weights:
  """Draws both representations; seed is int32 [2]."""
  return Weights(
    phi=model.initial_backbone(seed),
    psi=model.initial_backbone(randomness.fold(seed, 2)),
  )


def transition_loss(
  model: split_model.SplitModel,
  distance: str,
  weights: Weights,
  earlier: local_training.Batch,
  later: local_training.Batch,
  classes=None,
) -> tf.Tensor:
  """Computes eq. 4 for a batch of a domain and one of the next.

  Args:
    model: The model; its backbone is used.
    distance: One of `prototypes.DISTANCES`.
    weights: phi and psi.
    earlier: The batch of domain m, for the prototypes of eq. 3.
    later: The batch of domain m + 1.
    classes: The classes of the softmax, see `prototypes.alignment_loss`.

  Returns:
    The loss, a float32 scalar.
  """
  sums = prototypes.class_sums(
    model.embed(weights.phi, earlier.x), earlier.y, model.num_classes
  )
  means = prototypes.class_means(sums)
  with modes.of_model("psi"):
    embeddings = model.embed(weights.psi, later.x)
  return prototypes.alignment_loss(
    embeddings, later.y, means, distance, classes
  )


def train_client(
  model: split_model.SplitModel,
  hparams: HParams,
  weights: Weights,
  data: client_dataset.ClientDataset,
  round_num,
) -> algorithm.ClientResult:
  """Trains one client, Algorithm 3, lines 5 to 21.

  Args:
    model: The model.
    hparams: Hyper-parameters.
    weights: The server's phi and psi.
    data: The client's data. It learns the step from each of its domains to the
      next; with fewer than two it does not train.
    round_num: The round, an int32 scalar.

  Returns:
    The update of the weights; there is no personal state.
  """
  data = local_training.without_empty_domains(data)
  seed = randomness.fold(data.seed, randomness.Purpose.TRAIN, round_num)
  num_pairs = tf.size(data.domain_sizes) - 1
  num_steps = local_training.num_local_steps(hparams, data, round_num)
  earlier, later = (
    local_training.domain_batches(
      data, num_steps, hparams.batch_size, randomness.fold(seed, which)
    )
    for which in (0, 1)
  )

  classes = prototypes.softmax_classes(
    hparams.softmax_classes, data, model.num_classes
  )

  def loss_fn(current, step, carry):
    visit, domain = step // num_pairs, step % num_pairs
    loss = transition_loss(
      model,
      hparams.distance,
      current,
      earlier(domain, visit),
      later(domain + 1, visit),
      classes(domain + 1),
    )
    return loss, carry

  result = local_training.train(
    loss_fn,
    weights,
    num_steps * num_pairs,
    hparams,
    seed=seed,
    round_num=round_num,
  )
  return algorithm.ClientResult(
    update=tf.nest.map_structure(tf.subtract, result.weights, weights),
    client_state=(),
    loss=result.loss,
    has_trained=num_pairs > 0,
  )


def domain_sums(
  model: split_model.SplitModel, phi, data: client_dataset.ClientDataset, domain
) -> prototypes.ClassSums:
  """Sums phi over all examples of one domain, by class."""
  end = tf.reduce_sum(data.domain_sizes[: domain + 1])
  start = end - data.domain_sizes[domain]
  embeddings = evaluation.predict_in_batches(
    lambda x: model.embed(phi, x), data.x[start:end], model.embedding_size
  )
  return prototypes.class_sums(embeddings, data.y[start:end], model.num_classes)


def _predict(model, distance, weights, prototypes_of, examples):
  """Predicts each domain of the examples from its own prototypes."""
  with modes.of_model("psi"):
    embeddings = evaluation.predict_in_batches(
      lambda x: model.embed(weights.psi, x), examples.x, model.embedding_size
    )
  return evaluation.predict_by_domain(
    lambda domain, part: prototypes.logits(
      part, prototypes_of(domain), distance, evaluation.NO_LOGIT
    ),
    embeddings,
    examples.domain_sizes,
    model.num_classes,
  )


def predict_as_client(
  model: split_model.SplitModel,
  distance: str,
  weights: Weights,
  prepared: prototypes.Prototypes,
  examples: client_dataset.ClientDataset,
) -> tf.Tensor:
  """Predicts each domain from the client's prototypes of the domain before.

  Args:
    model: The model.
    distance: One of `prototypes.DISTANCES`.
    weights: phi and psi.
    prepared: The prototypes of the client's domains, with a first axis.
    examples: The evaluation data; domains are numbered as in the training data,
      and later domains are predicted from the last one.

  Returns:
    Logits [num_examples, num_classes].
  """

  def prototypes_of(domain):
    before = tf.clip_by_value(domain - 1, 0, tf.shape(prepared.mean)[0] - 1)
    return tf.nest.map_structure(lambda each: each[before], prepared)

  return _predict(model, distance, weights, prototypes_of, examples)


def _last_held(domain_sizes) -> tf.Tensor:
  """Returns for each domain the last one up to it that has examples.

  Args:
    domain_sizes: [num_domains] int32.

  Returns:
    [num_domains] int32. If no earlier domain has examples, the first one that
    has; 0 if none has.
  """
  held = local_training.held_first(domain_sizes)
  num_before = tf.cumsum(tf.cast(domain_sizes > 0, tf.int32))
  return tf.gather(held, tf.maximum(num_before - 1, 0))


def build(
  model: split_model.SplitModel, hparams: HParams
) -> algorithm.AlgorithmSpec:
  """Builds the spec of FedEvolve, which uses the model's backbone twice."""

  def prepare_client(weights, _, data, round_num):
    del round_num
    return tf.map_fn(
      lambda domain: prototypes.class_means(
        domain_sums(model, weights.phi, data, domain)
      ),
      _last_held(data.domain_sizes),
      fn_output_signature=prototypes.Prototypes(tf.float32, tf.bool),
      parallel_iterations=1,
    )

  def summarize_client(weights, data):
    last = tf.size(data.domain_sizes) - 1
    return domain_sums(model, weights.phi, data, last)

  def predict_as_server(weights, summed, examples):
    means = prototypes.class_means(summed)
    return _predict(model, hparams.distance, weights, lambda _: means, examples)

  return algorithm.AlgorithmSpec(
    initial_weights=lambda seed: initial_weights(model, seed),
    train_client=lambda weights, _, data, round_num: train_client(
      model, hparams, weights, data, round_num
    ),
    prepare_client=prepare_client,
    predict_as_client=lambda weights, prepared, _, examples: predict_as_client(
      model, hparams.distance, weights, prepared, examples
    ),
    can_predict=lambda data: tf.size(data.y) > 0,
    summarize_client=summarize_client,
    predict_as_server=predict_as_server,
    normalizers=Weights(*[model.normalizers.backbone] * 2),
  )
