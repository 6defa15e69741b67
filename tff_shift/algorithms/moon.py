"""MOON: embeddings stay near the server model's, away from the last local.

Model-Contrastive Federated Learning (Li, He, Song; CVPR 2021,
arXiv:2103.16257), Algorithm 1.

A client minimises, from the server's weights, the mean over its examples of

    cross-entropy - mu log(e^(s_g / tau) / (e^(s_g / tau) + e^(s_p / tau)))

where s_g and s_p are the cosines between the embedding of the example by the
trained model and by two fixed ones: the received model, and the model that the
client trained in its last round. The server averages updates, as in FedAvg;
with mu = 0 it is FedAvg, bit for bit.

What leaves a client: its model update, and the mean training loss, including
the contrastive term. The backbone of the client's last model stays.

Written from the steps of the authors' program.

Choices:
  * In its first round a client has no last model and uses the received one: the
    term is mu log 2, and the round is FedAvg's, bit for bit. The program leaves
    the term out.
  * The embedding is the input of the head. The program adds a projection of two
    layers before its classifier, which is a part of its model.
  * The fixed models are in evaluation mode.
  * Clients and server predict with the server model.
"""

import dataclasses
from typing import Any

import tensorflow as tf

from tff_shift.algorithms import fed_avg
from tff_shift.learning import algorithm
from tff_shift.learning import hyperparameters
from tff_shift.learning import local_training
from tff_shift.learning import randomness
from tff_shift.learning import safe_norms
from tff_shift.models import modes
from tff_shift.models import split_model

SCENARIOS = ("evolving", "guidance", "dynamic_personalization")
RUNNING_STATISTICS = algorithm.TWO_MODELS


@dataclasses.dataclass(frozen=True)
class HParams(hyperparameters.LocalHParams):
  """Hyper-parameters of MOON."""

  mu: float = hyperparameters.hparam(
    5.0,
    "Weight mu of the contrastive term. 0: FedAvg. The authors choose among"
    " 0.1, 1, 5 and 10, and use 5 for CIFAR-10.",
    minimum=0,
    published=True,
  )
  temperature: float = hyperparameters.hparam(
    0.5,
    "tau: the cosines are divided by it. Small: only examples that are nearer"
    " to the last model count. The authors use 0.5.",
    minimum=0,
    exclusive_minimum=True,
    published=True,
  )


def _directions(embeddings) -> tf.Tensor:
  """Scales embeddings [batch, size] to length 1, except for zeros."""
  return embeddings / safe_norms.length(embeddings, axis=1)[:, tf.newaxis]


def contrastive_loss(
  embeddings, received, last, temperature: float
) -> tf.Tensor:
  """Returns the mean contrastive term of a batch, without mu.

  Args:
    embeddings: By the trained model, [batch, size].
    received: By the received model, [batch, size].
    last: By the client's last model, [batch, size].
    temperature: tau.

  Returns:
    A float32 scalar; log 2 without a gradient if `received` is `last`.
  """
  trained = _directions(embeddings)
  # One product: equal directions give a gradient of exactly 0.
  difference = _directions(last) - _directions(received)
  cosines = tf.reduce_sum(trained * difference, axis=1)
  return tf.reduce_mean(tf.math.softplus(cosines / temperature))


def build(
  model: split_model.SplitModel, hparams: HParams
) -> algorithm.AlgorithmSpec:
  """Builds the spec of MOON; see `algorithm.AlgorithmSpec`.

  A client's state is the backbone of its last model.
  """

  @local_training.allows_padding
  def train_client(weights, last, data, round_num):
    # Training changes the running statistics of the scope.
    received_statistics = modes.moving_statistics() | {}

    def embed_by_received(x) -> Any:
      with modes.evaluation():
        if not received_statistics:
          return model.embed(weights.backbone, x)
        with modes.with_statistics(received_statistics, are_fixed=True):
          return model.embed(weights.backbone, x)

    def embed_by_last(x) -> Any:
      with modes.evaluation(), modes.of_model("personal"):
        return model.embed(last, x)

    def loss(current, batch):
      embeddings = model.embed(current.backbone, batch.x)
      logits = model.classify(current.head, embeddings)
      value = local_training.cross_entropy(logits, batch.y)
      if not hparams.mu:
        return value
      return value + hparams.mu * contrastive_loss(
        embeddings,
        embed_by_received(batch.x),
        embed_by_last(batch.x),
        hparams.temperature,
      )

    num_steps = local_training.num_local_steps(hparams, data, round_num)
    result = local_training.train_on_batches(
      loss,
      weights,
      data,
      num_steps * local_training.num_domains(data),
      randomness.fold(data.seed, randomness.Purpose.TRAIN, round_num),
      hparams,
      round_num=round_num,
    )
    modes.keep_as("personal")
    return algorithm.ClientResult(
      update=tf.nest.map_structure(tf.subtract, result.weights, weights),
      client_state=result.weights.backbone,
      loss=result.loss,
    )

  return fed_avg.build(model, hparams)._replace(
    initial_client_state=lambda seed, weights: weights.backbone,
    train_client=train_client,
  )
