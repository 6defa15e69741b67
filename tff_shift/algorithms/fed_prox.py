"""FedProx: FedAvg whose clients stay near the model that they received.

Federated Optimization in Heterogeneous Networks (Li, Sahu, Zaheer, Sanjabi,
Talwalkar, Smith; MLSys 2020), Algorithm 2.

A client minimises, from the server's weights w^t and inexactly,

    h_k(w; w^t) = F_k(w) + mu / 2 |w - w^t|^2                        (eq. 2)

The server adds the mean change, as in FedAvg; with mu = 0 it is FedAvg, bit for
bit. Clients that do less work than others, which the method is also for, are
those of `straggler_ratio`.

What leaves a client: the change of all weights, and the mean training loss,
proximal term included.

Written from the algorithm as it is generally quoted. What is chosen here:
  * The local solver is that of FedAvg: as many steps, with its optimizer.
  * The paper draws clients by their share of the examples and takes the plain
    mean; here they are drawn alike, and the mean is that of `client_weighting`.
  * mu is one number for the whole run. The paper's rule that raises it when the
    loss rises, and lowers it when it falls, is not part of this.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tff_shift.algorithms import fed_avg
from tff_shift.learning import algorithm
from tff_shift.learning import hyperparameters
from tff_shift.models import split_model

SCENARIOS = ("evolving", "guidance")
RUNNING_STATISTICS = algorithm.ONE_MODEL


@dataclasses.dataclass(frozen=True)
class HParams(hyperparameters.LocalHParams):
  """Hyper-parameters of FedProx."""

  mu: float = hyperparameters.hparam(
    1.0,
    "Weight of the proximal term: 0 is FedAvg; so large that mu times the"
    " learning rate passes 2, and plain gradient steps diverge. The best of"
    " the paper's five data sets: 1 (three of them), 0.01, 0.001.",
    minimum=0,
  )


def proximal_term(
  factor: float, center: split_model.SplitWeights
) -> Callable[[Any], tf.Tensor]:
  """Makes a penalty that holds weights near others.

  Args:
    factor: What half the squared distance is multiplied by.
    center: The weights to stay near to.

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


def build(
  model: split_model.SplitModel, hparams: HParams
) -> algorithm.AlgorithmSpec:
  """The functions of FedProx; see `algorithm.AlgorithmSpec`."""

  def train_client(weights, _, data, round_num):
    return fed_avg.train_client(
      model,
      hparams,
      weights,
      data,
      round_num,
      penalty=proximal_term(hparams.mu, weights),
    )

  return fed_avg.build(model, hparams)._replace(train_client=train_client)
