"""FedProx: FedAvg with a proximal term towards the received model.

Federated Optimization in Heterogeneous Networks (Li, Sahu, Zaheer, Sanjabi,
Talwalkar, Smith; MLSys 2020, arXiv:1812.06127), Algorithm 2.

A client minimises, starting at the server weights w^t and inexactly,

    h_k(w; w^t) = F_k(w) + mu / 2 |w - w^t|^2                        (eq. 2)

The server adds the mean update, as in FedAvg; with mu = 0 it is FedAvg, bit for
bit. The clients with less work, for which the method is also designed, are
those of `straggler_ratio`.

What leaves a client: its model update, and the mean training loss, including
the proximal term.

Written from the algorithm as generally quoted.

Choices:
  * mu is 1; the paper chooses it by validation. Its rule that changes mu with
    the loss is not included.
  * The local solver is FedAvg's: as many steps, with its optimizer.
  * Clients are sampled uniformly, and the mean uses `client_weighting`; the
    paper samples by fractions of the examples and takes the plain mean.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tff_shift.algorithms import fed_avg
from tff_shift.learning import algorithm
from tff_shift.learning import hyperparameters
from tff_shift.learning import local_training
from tff_shift.models import split_model

SCENARIOS = ("evolving", "guidance")
RUNNING_STATISTICS = algorithm.ONE_MODEL


@dataclasses.dataclass(frozen=True)
class HParams(hyperparameters.LocalHParams):
  """Hyper-parameters of FedProx."""

  mu: float = hyperparameters.hparam(
    1.0,
    "Weight mu of the proximal term. 0: FedAvg; plain gradient steps diverge if"
    " mu times the learning rate exceeds 2. Best on the paper's five data sets:"
    " 1 (three of them), 0.01, 0.001.",
    minimum=0,
    published=True,
  )


def proximal_term(
  factor: float, center: split_model.SplitWeights
) -> Callable[[Any], tf.Tensor]:
  """Makes a proximal penalty.

  Args:
    factor: The factor of half the squared distance.
    center: The weights to stay close to.

  Returns:
    `(weights) -> factor / 2 * |weights - center|^2`, a float32 scalar, with the
    Euclidean norm over all weights.
  """

  def penalty(weights):
    squares = tf.nest.map_structure(
      lambda w, c: tf.reduce_sum(tf.square(w - c)), weights, center
    )
    return factor / 2.0 * tf.add_n(tf.nest.flatten(squares))

  return penalty


def with_proximal_term(
  spec: algorithm.AlgorithmSpec,
  model: split_model.SplitModel,
  hparams: hyperparameters.LocalHParams,
  mu: float,
) -> algorithm.AlgorithmSpec:
  """Returns the spec of an algorithm whose clients train as FedProx's do."""

  @local_training.allows_padding
  def train_client(weights, _, data, round_num):
    return fed_avg.train_client(
      model,
      hparams,
      weights,
      data,
      round_num,
      penalty=proximal_term(mu, weights),
    )

  return spec._replace(train_client=train_client)


def build(
  model: split_model.SplitModel, hparams: HParams
) -> algorithm.AlgorithmSpec:
  """Builds the spec of FedProx; see `algorithm.AlgorithmSpec`."""
  return with_proximal_term(
    fed_avg.build(model, hparams), model, hparams, hparams.mu
  )
