"""ConFREE: FedRep whose server removes conflicts between clients' updates.

ConFREE: Conflict-free Client Update Aggregation for Personalized Federated
Learning (Zheng, Hu, Yang, Zheng, Xu, Wang; AAAI 2025,
doi:10.1609/aaai.v39i21.34449), on top of FedRep: clients train their head, then
the backbone, and keep the head. A baseline of Beyond Aggregation: Guiding
Clients in Heterogeneous Federated Learning (FedDRM), Table 1.

The server processes each layer (a weight tensor) separately. With u_1, ..., u_n
the clients' updates of the layer, the columns of U:

    u_i' starts as u_i; for each other j in a random order
         u_i' <- u_i' - min(<u_i', u_j>, 0) / |u_j|^2 u_j             (PCGrad)
    g_0  = the mean of the u_i', the guide;
    w    = argmin over the simplex of <U w, g_0> + alpha |g_0| |U w|;
    g    = (g_0 + alpha |g_0| U w / |U w|) / (1 + alpha^2)            (CAGrad)

and adds g to the layer. Two updates conflict if their inner product is
negative. g is a linear combination of the u_i: its coefficients are computed
from G, the matrix of all inner products. PCGrad is Gradient Surgery for
Multi-Task Learning (Yu, Kumar, Gupta, Levine, Hausman, Finn; NeurIPS 2020),
CAGrad is Conflict-Averse Gradient Descent for Multi-task Learning (Liu, Liu,
Jin, Stone, Liu; NeurIPS 2021).

What leaves a client: the update of the backbone in plaintext, the number of
examples if it is the client's weight, random numbers, and the training loss.
The head stays.

Written from the steps of the authors' program.

`variant=program` is the ConFREE of the FedDRM paper's program. It processes the
whole backbone at once, projects onto the updates as sent, and adds the mean of

    u_i' = u_i - sum over j != i of min(<u_i, u_j>, 0) / |u_j|^2 u_j

without CAGrad.

Choices:
  * Compare rows of the FedDRM paper's tables with `variant=program`.
  * The authors' program does not divide a projection by the squared length;
    here it is divided, as in PCGrad. Each client draws the order in which its
    update is projected against the others, once per round, for all layers.
  * The published mean is unweighted; clients are weighted as everywhere in
    guidance (`client_weighting=num_examples`).
  * The available text does not give alpha: 0.5, CAGrad's (`conflict_aversion`).
  * Aggregator and server momentum apply to the mean update; the server then
    adds the combined update minus the mean of the updates as sent.
  * If updates can cancel each other, the norm of their combination is at least
    1e-4 of the longest update's.
  * All clients start with the initial head of the run's seed, see
    `learning.algorithm`.
"""

import dataclasses
from typing import Any
from typing import NamedTuple

import tensorflow as tf

from tff_shift._util import draws
from tff_shift.algorithms import fed_rep
from tff_shift.algorithms.parts import simplex_programs
from tff_shift.learning import algorithm
from tff_shift.learning import hyperparameters
from tff_shift.learning import randomness
from tff_shift.learning.aggregators import client_slots
from tff_shift.learning.aggregators import factories
from tff_shift.models import split_model

SCENARIOS = ("guidance",)

RUNNING_STATISTICS = algorithm.ONE_MODEL

AGGREGATION_REQUIREMENTS = factories.AggregationRequirements(
  no_clipping="its server compares the unclipped updates, and clipping or"
  " zeroing would affect only their mean",
  per_client_values="its server compares each client's update with every other"
  " client's",
  no_server_optimizer="its server adds a combination of the clients' updates"
  " beside their mean",
)

# The search for |U w| starts between this fraction of the longest update's norm
# and the norm, and ends after _NUM_STEPS steps or at this relative error.
_SHORTEST = 1e-4
_NUM_STEPS = 24
_TOLERANCE = 1e-5


@dataclasses.dataclass(frozen=True)
class HParams(fed_rep.HParams):
  """Hyper-parameters of ConFREE; `local_steps` train the backbone."""

  variant: str = hyperparameters.variant_hparam(hyperparameters.FED_DRM_PROGRAM)
  conflict_aversion: float = hyperparameters.hparam(
    0.5,
    "alpha: maximum distance of the step from the guide, relative to the"
    " guide's norm (published); 0: the step is the guide.",
    minimum=0,
  )


class Sent(NamedTuple):
  """The values of a client that the server compares.

  Attributes:
    update: The update of the backbone.
    weight: The client's weight in the mean, a float32 scalar.
    order_keys: [num_clients] float32, random sort keys: the order in which the
      update is projected against the other clients' updates.
  """

  update: Any
  weight: Any
  order_keys: Any


def projected_mean(products, fractions, orders) -> tf.Tensor:
  """Computes the guide g_0 (PCGrad).

  Args:
    products: G of each layer, [num_layers, n, n] float64; zeros for a client
      that has sent nothing.
    fractions: The clients' weights in the mean, [n] float64, with sum 1.
    orders: The order of the j for each i, [n, n] int32, a permutation of the
      clients in each row.

  Returns:
    The coefficients of the u_j in the mean of the u_i', [num_layers, n]
    float64. Without conflicts they equal the fractions.
  """
  num_clients = products.shape[-1]
  lengths = tf.linalg.diag_part(products)
  identity = tf.eye(num_clients, dtype=tf.float64)
  # Row i has the coefficients of u_i'.
  kept = tf.broadcast_to(identity, tf.shape(products))
  for place in range(num_clients):
    others = tf.one_hot(orders[:, place], num_clients, dtype=tf.float64)
    others *= 1 - identity  # Not with itself.
    against = tf.reduce_sum(kept * tf.matmul(others, products), axis=2)
    against = tf.math.divide_no_nan(
      tf.minimum(against, 0), tf.linalg.matvec(others, lengths)
    )
    kept -= against[:, :, tf.newaxis] * others
  return tf.linalg.matvec(kept, fractions, transpose_a=True)


def avert_conflicts(products, guide, allowed, alpha: float) -> tf.Tensor:
  """Turns the guide towards the update that it helps least (CAGrad).

  |U w| is the minimum of (|U w|^2 / t + t) / 2 over t > 0. For a given t this
  leaves a quadratic program. The |U w| of its solution grows with t, but more
  slowly: the fixed point lies between t and this |U w|.

  Args:
    products: G of each layer, [num_layers, n, n] float64; zeros for a client
      that has sent nothing.
    guide: The coefficients of g_0, [num_layers, n] float64.
    allowed: Which clients have sent an update, [n] bool.
    alpha: The largest distance of (1 + alpha^2) g from g_0, relative to the
      length of g_0; above 0.

  Returns:
    The coefficients of g, [num_layers, n] float64.
  """
  allowed = tf.broadcast_to(allowed, tf.shape(guide))
  slope = tf.linalg.matvec(products, guide)

  def length(coefficients):
    squares = tf.reduce_sum(
      coefficients * tf.linalg.matvec(products, coefficients), axis=1
    )
    return tf.sqrt(tf.maximum(squares, 0))

  radius = alpha * length(guide)

  def solve(t):
    return simplex_programs.minimize_quadratic(
      products,
      tf.math.divide_no_nan(t, radius)[:, tf.newaxis] * slope,
      allowed,
    )

  def narrow(step, low, high):
    middle = tf.sqrt(low * high)
    found = length(solve(middle))
    is_above = found > middle
    return (
      step + 1,
      tf.where(is_above, tf.minimum(found, high), low),
      tf.where(is_above, high, tf.maximum(found, low)),
    )

  longest = tf.sqrt(tf.reduce_max(tf.linalg.diag_part(products), axis=1))
  _, low, high = tf.while_loop(
    lambda step, low, high: (
      (step < _NUM_STEPS) & tf.reduce_any(high > (1 + _TOLERANCE) * low)
    ),
    narrow,
    (tf.constant(0), _SHORTEST * longest, longest),
    parallel_iterations=1,
  )
  t = tf.sqrt(low * high)
  solution = solve(t)
  # If the updates can cancel, U w is nearly 0 and its direction is undefined.
  turn = tf.math.divide_no_nan(radius, tf.maximum(length(solution), t))
  return (guide + turn[:, tf.newaxis] * solution) / (1 + alpha**2)


def pairwise_projected_mean(products, fractions) -> tf.Tensor:
  """Computes the mean of the u_i' of `variant=program`.

  Args:
    products: G, [..., n, n] float64; zeros for a client that has sent nothing.
    fractions: The clients' weights in the mean, [n] float64, with sum 1.

  Returns:
    The coefficients of the u_j in the mean of the u_i', [..., n] float64.
    Without conflicts they equal the fractions.
  """
  lengths = tf.linalg.diag_part(products)
  # The product of an update with itself is not negative: j = i adds nothing.
  against = tf.linalg.matvec(tf.minimum(products, 0), fractions)
  return fractions - tf.math.divide_no_nan(against, lengths)


def coefficients(
  hparams: HParams, sent: Sent, present: Any
) -> tuple[tf.Tensor, tf.Tensor]:
  """Computes the coefficients of the clients' updates in the server's step.

  Args:
    hparams: Hyper-parameters.
    sent: The values of all clients, with a first axis of num_clients.
    present: [num_clients] float32, 1 for clients that have sent their values, 0
      for the others.

  Returns:
    The coefficients of the updates in the step, [num_layers, num_clients]
    float64, or one row for all layers; and their coefficients in the mean,
    [num_clients] float64.
  """
  weight = tf.cast(sent.weight, tf.float64)
  fractions = weight / tf.reduce_sum(weight)
  products = tf.stack(list(map(client_slots.inner_products, sent.update)))
  if hparams.variant == "program":
    whole = tf.reduce_sum(products, axis=0, keepdims=True)
    return pairwise_projected_mean(whole, fractions), fractions
  orders = tf.argsort(sent.order_keys, axis=1)
  guide = projected_mean(products, fractions, orders)
  if not hparams.conflict_aversion:
    return guide, fractions
  return avert_conflicts(
    products, guide, present > 0, hparams.conflict_aversion
  ), fractions


def build(
  model: split_model.SplitModel, hparams: HParams, num_clients: int
) -> algorithm.AlgorithmSpec:
  """Builds the spec of ConFREE; see `algorithm.AlgorithmSpec`.

  A client's state is its head; the server has no model to predict with. A
  `client_id` must be below `num_clients`.
  """
  host = fed_rep.build(model, hparams)

  def train_client(backbone, head, data, round_num):
    result = host.train_client(backbone, head, data, round_num)
    size = tf.size(data.y)
    weight = size if hparams.client_weighting == "num_examples" else 1
    # FedRep folds 0 and 1 into this seed.
    seed = randomness.fold(data.seed, randomness.Purpose.TRAIN, round_num, 2)
    sent = Sent(
      result.update,
      tf.cast(weight, tf.float32),
      draws.uniform([num_clients], seed),
    )
    return result._replace(
      plaintext_sum=client_slots.place(sent, client_slots.own_row(data))
    )

  def update_server(backbone, mean_update, slots, info):
    del info  # Not the mean update alone is added.
    sent, present = slots
    taken, fractions = coefficients(hparams, sent, present)
    # Zeros without conflicts: the mean is then added, bit for bit.
    beside_mean = tf.cast(taken - fractions, tf.float32)
    beside_mean = tf.broadcast_to(beside_mean, [len(backbone), num_clients])
    return tuple(
      w + mean + tf.tensordot(beside_mean[layer], rows, 1)
      for layer, (w, mean, rows) in enumerate(
        zip(backbone, mean_update, sent.update, strict=True)
      )
    )

  return host._replace(
    train_client=train_client,
    update_server=update_server,
    max_clients=num_clients,
  )
