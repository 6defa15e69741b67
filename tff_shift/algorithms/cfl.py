"""CFL: domains are learned one by one, with approximated past losses.

Towards Federated Learning on Time-Evolving Heterogeneous Data (Guo, Lin, Tang;
2021, arXiv:2112.13246): Continual Federated Learning, not the clustered one. A
baseline of Federated Learning under Evolving Distribution Shifts, Table 1.

In the rounds of domain m a client has only the examples of this domain. The
objective is the sum of its losses f_0, ..., f_m. For past losses it keeps an
expansion about the weights w_d at their end,

    T_d(w) = f_d(w_d) + <g_d, w - w_d> + 1/2 <F_d (w - w_d), w - w_d>,

    (f_m(w) + beta sum_d T_d(w)) / (1 + beta number of d),

with g_d the gradient and F_d the diagonal of the Fisher information, the mean
over the domain's examples of the squared gradients. The server adds the mean
update, as in FedAvg.

What leaves a client: its model update, and the mean training loss. The
expansions stay.

The abstract gives the objective; the paper approximates past losses in several
ways, of which this is the one by regularisation. There is no public program,
and the FedEvolve paper does not specify its version. The sums
over d are quadratic: for any number of domains, a client keeps two numbers per
weight.

Choices:
  * The Fisher information is empirical, at the weights that a client receives
    when it first takes part in a later domain, on the examples that it has kept
    until then. Domains in which it never took part are not kept (`past_weight`,
    `curvature`).
  * All domains have the same weight, and the sum is divided by their number.
  * Linear terms are left out by default (`linear_term`): with them the
    objective decreased without bound (-39 after 28 rounds on 8 domains of
    circle), because the diagonal curvature compensates them in each weight
    separately, but not in all together.
"""

import dataclasses
from typing import Any
from typing import NamedTuple

import tensorflow as tf

from tff_shift.algorithms.parts import continual_tasks
from tff_shift.algorithms.parts import fisher_information
from tff_shift.data import client_dataset
from tff_shift.learning import algorithm
from tff_shift.learning import evaluation
from tff_shift.learning import hyperparameters
from tff_shift.learning import local_training
from tff_shift.learning import randomness
from tff_shift.models import split_model

SCENARIOS = ("evolving",)

RUNNING_STATISTICS = algorithm.ONE_MODEL


@dataclasses.dataclass(frozen=True)
class HParams(hyperparameters.LocalHParams):
  """Hyper-parameters of CFL."""

  task_rounds: int = continual_tasks.task_rounds_hparam()
  past_weight: float = hyperparameters.hparam(
    1.0,
    "beta: weight of a past domain relative to the current one; 0: no past.",
    minimum=0,
  )
  curvature: float = hyperparameters.hparam(
    1.0,
    "Factor of the Fisher information; above 1 pulls the weights more strongly"
    " to the old ones, 0 not at all.",
    minimum=0,
  )
  linear_term: bool = hyperparameters.hparam(
    False,
    "Whether expansions have their linear term; without it the old weights"
    " are taken as a minimum of the old loss.",
  )


class Past(NamedTuple):
  """A client's state: the sum of T_d(w), as a quadratic function of w.

  Attributes:
    curvature: The sum of F_d, like the weights.
    slope: The sum of g_d - F_d w_d, like the weights.
    offset: The sum of the constant terms, a float32 scalar.
    count: The number of domains in the sum, a float32 scalar.
    domain: The domain in which the client last took part, an int32 scalar; -1
      if none.
  """

  curvature: Any
  slope: Any
  offset: Any
  count: Any
  domain: Any


def _inner(one, other) -> tf.Tensor:
  """Returns the inner product of two structures of tensors."""
  pairs = zip(tf.nest.flatten(one), tf.nest.flatten(other), strict=True)
  return tf.add_n([tf.reduce_sum(a * b) for a, b in pairs])


def expand(
  past: Past, weights: Any, loss: Any, gradient: Any, curvature: Any
) -> Past:
  """Adds T_d to the sum.

  Args:
    past: The sum so far.
    weights: w_d, a structure of float32 tensors.
    loss: f_d(w_d), a float32 scalar.
    gradient: g_d, like the weights.
    curvature: F_d, like the weights.

  Returns:
    The sum with one more domain.
  """
  pull = tf.nest.map_structure(tf.multiply, curvature, weights)
  return past._replace(
    curvature=tf.nest.map_structure(tf.add, past.curvature, curvature),
    slope=tf.nest.map_structure(
      lambda s, g, p: s + g - p, past.slope, gradient, pull
    ),
    offset=past.offset
    + loss
    - _inner(gradient, weights)
    + _inner(pull, weights) / 2.0,
    count=past.count + 1.0,
  )


def past_loss(past: Past, weights: Any) -> tf.Tensor:
  """Computes the sum of T_d(w), a float32 scalar."""
  bent = tf.nest.map_structure(
    lambda c, s, w: c * w / 2.0 + s, past.curvature, past.slope, weights
  )
  return past.offset + _inner(bent, weights)


def train_client(
  model: split_model.SplitModel,
  hparams: HParams,
  weights: split_model.SplitWeights,
  past: Past,
  data: client_dataset.ClientDataset,
  round_num,
) -> algorithm.ClientResult:
  """Expands a completed domain, and trains on the current one.

  Args:
    model: The model.
    hparams: Hyper-parameters.
    weights: The server's weights.
    past: The client's state.
    data: The client's data of all domains.
    round_num: The round, an int32 scalar.

  Returns:
    The update of the weights, and the new state.
  """
  domain = continual_tasks.current_domain(
    hparams.task_rounds, round_num, tf.size(data.domain_sizes)
  )
  current = continual_tasks.of_domain(data, domain)
  last = continual_tasks.of_domain(data, tf.maximum(past.domain, 0))

  def add_last():
    loss, gradient, fisher = fisher_information.differentiate(
      model, weights, last
    )
    fisher = tf.nest.map_structure(lambda f: hparams.curvature * f, fisher)
    if not hparams.linear_term:
      gradient = tf.nest.map_structure(tf.zeros_like, gradient)
    return expand(past, weights, loss, gradient, fisher)

  is_over = (past.domain >= 0) & (past.domain < domain) & (tf.size(last.y) > 0)
  past = tf.cond(is_over, add_last, lambda: past)
  seed = randomness.fold(data.seed, randomness.Purpose.TRAIN, round_num)
  num_steps = continual_tasks.num_steps(hparams, data, current, round_num)
  beta = hparams.past_weight

  def loss(now, batch):
    of_batch = local_training.cross_entropy(
      model.predict(now, batch.x), batch.y
    )
    return (of_batch + beta * past_loss(past, now)) / (1.0 + beta * past.count)

  result = local_training.train_on_batches(
    loss, weights, current, num_steps, seed, hparams, round_num=round_num
  )
  return algorithm.ClientResult(
    update=tf.nest.map_structure(tf.subtract, result.weights, weights),
    client_state=past._replace(domain=domain),
    loss=result.loss,
    has_trained=tf.size(current.y) > 0,
  )


def build(
  model: split_model.SplitModel, hparams: HParams
) -> algorithm.AlgorithmSpec:
  """Builds the spec of CFL; see `algorithm.AlgorithmSpec`."""

  def initial_client_state(seed, weights):
    zeros = tf.nest.map_structure(tf.zeros_like, weights)
    return Past(
      zeros, zeros, tf.constant(0.0), tf.constant(0.0), tf.constant(-1)
    )

  return algorithm.AlgorithmSpec(
    initial_weights=model.initial_weights,
    initial_client_state=initial_client_state,
    train_client=lambda weights, past, data, round_num: train_client(
      model, hparams, weights, past, data, round_num
    ),
    predict_as_client=lambda weights, past, data, examples: evaluation.predict(
      model, weights, examples.x
    ),
    predict_as_server=lambda weights, summary, examples: evaluation.predict(
      model, weights, examples.x
    ),
  )
