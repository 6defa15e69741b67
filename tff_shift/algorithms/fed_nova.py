"""FedNova: the server averages updates per step, not per round.

Tackling the Objective Inconsistency Problem in Heterogeneous Federated
Optimization (Wang, Liu, Liang, Joshi, Poor; NeurIPS 2020, arXiv:2007.07481),
Algorithm 1.

Clients that take more steps pull FedAvg's model towards their own optimum. Here
client i sends the mean of its steps, and the server multiplies the mean over
clients, with weights p_i, by the mean number of steps:

    d_i = (y_i - x) / |a_i|
    x <- x + (sum_i p_i |a_i|) (sum_i p_i d_i)

a_i has the factor of each gradient in y_i - x = -eta sum_j a_ij g_ij, and |a_i|
is their sum. For plain steps it is the number of steps tau. For momentum rho it
is (tau - rho (1 - rho^tau) / (1 - rho)) / (1 - rho), and for a proximal term
with mu (1 - (1 - eta mu)^tau) / (eta mu).

If all clients take equally many steps, the method is FedAvg up to rounding, and
bit for bit if |a| is a power of two. Clients differ in their steps with
`local_epochs`, `straggler_ratio` and different numbers of domains.

What leaves a client: its model update divided by |a|, the number |a|, and the
mean training loss, including the proximal term.

Written from the equations as generally quoted.

Choices:
  * |a| is computed by the steps' own recursion, so that momentum and a proximal
    term can be combined. It is the sum of a_ij, which is the paper's norm
    unless eta mu is above 1, or momentum overshoots: with constant gradients
    d_i is always -eta times the gradient.
  * Weight decay is part of the gradient.
  * Adaptive optimizers are refused: their steps are not linear in gradients.
  * Server momentum, an option of the paper, is not included.
"""

import dataclasses
from typing import Any
from typing import NamedTuple

import tensorflow as tf

from tff_shift.algorithms import fed_avg
from tff_shift.algorithms import fed_prox
from tff_shift.learning import algorithm
from tff_shift.learning import hyperparameters
from tff_shift.learning import local_training
from tff_shift.learning.aggregators import factories
from tff_shift.models import split_model

SCENARIOS = ("evolving", "guidance", "dynamic_personalization")
RUNNING_STATISTICS = algorithm.ONE_MODEL

AGGREGATION_REQUIREMENTS = factories.AggregationRequirements(
  no_clipping="a norm would cover the update and the number of steps together",
  no_server_optimizer="the server multiplies the mean update by the mean number"
  " of steps",
)


@dataclasses.dataclass(frozen=True)
class HParams(hyperparameters.LocalHParams):
  """Hyper-parameters of FedNova."""

  mu: float = hyperparameters.hparam(
    0.0,
    "Weight mu of FedProx's proximal term. 0: none; plain gradient steps"
    " diverge if mu times the learning rate exceeds 2.",
    minimum=0,
  )

  def check_together(self) -> None:
    """Refuses steps that are not linear in the gradients."""
    super().check_together()
    if self.optimizer != "sgd":
      raise ValueError(
        f"optimizer={self.optimizer} is not allowed for fed_nova: its steps"
        " have no fixed number of gradients; it must be sgd"
      )
    if self.personal_norm == "all":
      raise ValueError(
        "personal_norm=all is not allowed for fed_nova: personal scales and"
        " shifts would be divided by the number of steps; it must be none or"
        " statistics"
      )


class Update(NamedTuple):
  """What a client sends.

  Attributes:
    direction: d_i, in the structure of the weights.
    num_steps: |a_i|, a float32 scalar.
  """

  direction: Any
  num_steps: Any


def sum_of_factors(hparams: HParams, num_steps, round_num) -> tf.Tensor:
  """Returns |a|: the steps' way for gradients of 1, over the learning rate.

  Args:
    hparams: Momentum, mu and the learning rate.
    num_steps: The number of gradient steps, an int32 scalar.
    round_num: The round, an int32 scalar.

  Returns:
    A float32 scalar; `num_steps` for plain gradient steps, and 0 for none.
  """
  pull = hparams.mu * local_training.scheduled_rate(hparams, round_num)

  def take_step(step, velocity, way):
    velocity = hparams.momentum * velocity + 1.0 - pull * way
    return step + 1, velocity, way + velocity

  _, _, way = tf.while_loop(
    lambda step, *_: step < num_steps,
    take_step,
    (tf.constant(0), tf.constant(0.0), tf.constant(0.0)),
  )
  return way


def build(
  model: split_model.SplitModel, hparams: HParams
) -> algorithm.AlgorithmSpec:
  """Builds the spec of FedNova; see `algorithm.AlgorithmSpec`."""

  @local_training.allows_padding
  def train_client(weights, _, data, round_num):
    result = fed_avg.train_client(
      model,
      hparams,
      weights,
      data,
      round_num,
      penalty=fed_prox.proximal_term(hparams.mu, weights)
      if hparams.mu
      else None,
    )
    num_steps = local_training.num_local_steps(
      hparams, data, round_num
    ) * local_training.num_domains(data)
    factors = sum_of_factors(hparams, num_steps, round_num)
    # A client without examples takes no step, and its result does not count.
    divisor = tf.where(num_steps > 0, factors, 1.0)
    return result._replace(
      update=Update(
        tf.nest.map_structure(lambda moved: moved / divisor, result.update),
        factors,
      )
    )

  def update_server(weights, mean_update, plaintext_sum, info):
    del plaintext_sum, info
    return tf.nest.map_structure(
      lambda w, mean: w + mean_update.num_steps * mean,
      weights,
      mean_update.direction,
    )

  return fed_avg.build(model, hparams)._replace(
    train_client=train_client, update_server=update_server
  )
