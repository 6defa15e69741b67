"""FedIIR: gradients of the classifier are drawn to their mean over clients.

Out-of-Distribution Generalization of Federated Learning via Implicit Invariant
Relationships (Guo, Guo, Cao, Wu, Chang; ICML 2023, openreview:JC05k0E2EM).

A classifier that is best for all clients at once has the same gradient, zero,
in all of them. Before a round trains, each client of the cohort sends the
gradient of its loss F_i with respect to the head h of the received model, over
all its examples. The server keeps a moving average of their mean,

    g <- delta g + (1 - delta) mean_i grad_h F_i,

and sends it. Clients then minimise on each batch

    cross-entropy + gamma sum over the tensors of h of |grad_h cross-entropy -
    g|^2

from the received model, also through the gradient in it. The server adds the
mean update. With gamma = 0 it is FedAvg, bit for bit.

What leaves a client: the gradient of its loss with respect to the head, before
the round trains; its model update; and the mean training losses, of all
examples and with the penalty.

Choices, and differences from the authors' program
(github.com/YamingGuo98/FedIIR):
  * The average starts at 0 without a correction, as in the program: with delta
    = 0.95, the first g is 0.05 times the mean.
  * F_i is the mean over all examples of all domains. The program takes the mean
    over batches.
  * The weights of clients in both means are those of `client_weighting`. The
    program's are uniform, as is the default.
  * Weight decay is no part of a gradient that is compared.
"""

import dataclasses
from typing import Any
from typing import NamedTuple

import tensorflow as tf

from tff_shift.algorithms import fed_avg
from tff_shift.algorithms.parts import gradient_corrections
from tff_shift.learning import algorithm
from tff_shift.learning import hyperparameters
from tff_shift.learning import local_training
from tff_shift.learning import randomness
from tff_shift.learning.aggregators import factories
from tff_shift.models import split_model

SCENARIOS = ("evolving", "guidance", "dynamic_personalization")
RUNNING_STATISTICS = algorithm.ONE_MODEL

AGGREGATION_REQUIREMENTS = factories.AggregationRequirements(
  surveys="clients report the gradient of the head before they train"
)


@dataclasses.dataclass(frozen=True)
class HParams(hyperparameters.LocalHParams):
  """Hyper-parameters of FedIIR."""

  alignment: float = hyperparameters.hparam(
    0.01,
    "gamma: weight of the squared distance of a batch's gradient of the head"
    " from the clients' mean. 0: fed_avg. The authors use 0.01 on rotated MNIST"
    " and 0.0005 to 0.005 on photographs.",
    minimum=0,
  )
  average_decay: float = hyperparameters.hparam(
    0.95,
    "delta: what is kept of the average gradient in a round. 0: it is the"
    " round's mean gradient. The authors use 0.95.",
    minimum=0,
    maximum=1,
  )
  head: str = hyperparameters.hparam(
    "last_layer",
    "The head whose gradients are compared: last_layer, the last linear layer;"
    " classifier, the model's whole head.",
    choices=split_model.HEADS,
  )


class Shared(NamedTuple):
  """What the server sends.

  Attributes:
    model: The model's weights, `SplitWeights`.
    gradient: g, in the structure of the head.
  """

  model: Any
  gradient: Any


def squared_distance(one, other) -> tf.Tensor:
  """Returns the sum over tensors of squared differences, a float32 scalar."""
  return tf.add_n(
    [
      tf.reduce_sum(tf.math.squared_difference(a, b))
      for a, b in zip(one, other, strict=True)
    ]
  )


def build(
  model: split_model.SplitModel, hparams: HParams
) -> algorithm.AlgorithmSpec:
  """Builds the spec of FedIIR; see `algorithm.AlgorithmSpec`."""
  model = split_model.with_head(model, hparams.head)
  plain = fed_avg.build(model, hparams)

  def initial_weights(seed):
    weights = model.initial_weights(seed)
    return Shared(weights, tf.nest.map_structure(tf.zeros_like, weights.head))

  @local_training.allows_padding
  def survey_client(shared, state, data, round_num):
    found = gradient_corrections.gradient_of_all(
      lambda head, x: model.classify(
        head, model.embed(shared.model.backbone, x)
      ),
      hparams,
      shared.model.head,
      data,
      round_num,
    )
    return algorithm.ClientResult(found.gradient, state, found.loss)

  def update_average(shared, mean_gradient, plaintext_sum, info):
    del plaintext_sum, info
    kept = hparams.average_decay
    return shared._replace(
      gradient=tf.nest.map_structure(
        lambda g, mean: kept * g + (1 - kept) * mean,
        shared.gradient,
        mean_gradient,
      )
    )

  @local_training.allows_padding
  def train_client(shared, state, data, round_num):
    def loss(weights, batch):
      embeddings = model.embed(weights.backbone, batch.x)
      with tf.GradientTape(watch_accessed_variables=False) as tape:
        tape.watch(weights.head)
        value = local_training.cross_entropy(
          model.classify(weights.head, embeddings), batch.y
        )
      if not hparams.alignment:
        return value
      gradient = tape.gradient(value, weights.head)
      return value + hparams.alignment * squared_distance(
        gradient, shared.gradient
      )

    num_steps = local_training.num_local_steps(hparams, data, round_num)
    result = local_training.train_on_batches(
      loss,
      shared.model,
      data,
      num_steps * local_training.num_domains(data),
      randomness.fold(data.seed, randomness.Purpose.TRAIN, round_num),
      hparams,
      round_num=round_num,
    )
    return algorithm.ClientResult(
      update=tf.nest.map_structure(tf.subtract, result.weights, shared.model),
      client_state=state,
      loss=result.loss,
    )

  def update_server(shared, mean_update, plaintext_sum, info):
    del plaintext_sum
    return shared._replace(model=info.step(shared.model, mean_update))

  return plain._replace(
    initial_weights=initial_weights,
    surveys=(algorithm.Survey(survey_client, update_average),),
    train_client=train_client,
    update_server=update_server,
    predict_as_client=local_training.allows_padding(
      lambda shared, state, data, examples: (
        plain.predict_as_client(shared.model, state, data, examples)
      )
    ),
    predict_as_server=lambda shared, summary, examples: (
      plain.predict_as_server(shared.model, summary, examples)
    ),
  )
