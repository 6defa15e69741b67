"""ConFREE: FedRep whose server takes conflicts out of the clients' updates.

ConFREE: Conflict-free Client Update Aggregation for Personalized Federated
Learning (Zheng et al.; AAAI 2025), with FedRep as its host: clients train their
head, then the backbone, and keep the head. A baseline of Beyond Aggregation:
Guiding Clients in Heterogeneous Federated Learning (FedDRM), Table 1.

The server works on each layer (a weight tensor) by itself. With u_1, ..., u_n
the clients' changes of it, the columns of U:

    u_i' starts as u_i; for each other j in a random order
         u_i' <- u_i' - min(<u_i', u_j>, 0) / |u_j|^2 u_j             (PCGrad)
    g_0  the guide: the mean of the u_i';
    w    = argmin over the simplex of <U w, g_0> + alpha |g_0| |U w|;
    g    = (g_0 + alpha |g_0| U w / |U w|) / (1 + alpha^2)            (CAGrad)

and adds g to the layer. Two updates are in conflict if their inner product is
negative. g is a linear combination of the u_i: its coefficients are computed
from G, the matrix of all inner products. PCGrad is Gradient Surgery for
Multi-Task Learning (Yu, Kumar, Gupta, Levine, Hausman, Finn; NeurIPS 2020),
CAGrad is Conflict-Averse Gradient Descent for Multi-task Learning (Liu, Liu,
Jin, Stone, Liu; NeurIPS 2021).

What leaves a client: the change of the backbone, in the open, its number of
examples if that counts, random numbers, and the training loss. The head does
not.

Written from the steps as the authors' program takes them. Decisions:
  * A projection divides by |u_j|^2, as PCGrad's does. The program's does not,
    and takes out nearly nothing of small changes.
  * The order in which a change is held against the others is drawn by its
    client, once a round, for all layers.
  * The program's mean is without weights (`client_weighting=uniform`). Weights
    count where g_0 takes its mean.
  * What an aggregator and the server's momentum do, they do to the mean; what
    is added to it is g less the mean of the changes as they were sent.
  * alpha is not in the paper's text at hand: 0.5 is CAGrad's.

With `variant=program` it is what the FedDRM paper's program calls ConFREE. It
works on the whole backbone at once, takes the others as they were sent, and
adds the mean of

    u_i' = u_i - sum over j != i of min(<u_i, u_j>, 0) / |u_j|^2 u_j

without CAGrad.
"""

import dataclasses
from typing import Any
from typing import NamedTuple

import tensorflow as tf

from tff_shift.algorithms import fed_rep
from tff_shift.learning import algorithm
from tff_shift.learning import hyperparameters
from tff_shift.learning import randomness
from tff_shift.learning.aggregators import client_slots
from tff_shift.learning.aggregators import factories
from tff_shift.models import guided_model
from tff_shift.techniques import simplex_programs

SCENARIOS = ("guidance",)

RUNNING_STATISTICS = algorithm.ONE_MODEL

AGGREGATION_REQUIREMENTS = factories.AggregationRequirements(
  no_clipping="its server compares the changes as they are, and clipping or"
  " zeroing would change their mean alone",
  per_client_values="its server compares each client's update with every"
  " other's",
  no_server_optimizer="its server adds a combination of the clients' updates"
  " beside their mean",
)

# |U w| is searched for between this fraction of the longest update and its
# whole length, in at most _NUM_STEPS steps, up to a relative error.
_SHORTEST = 1e-4
_NUM_STEPS = 24
_TOLERANCE = 1e-5


@dataclasses.dataclass(frozen=True)
class HParams(fed_rep.HParams):
  """Hyper-parameters of ConFREE; `local_steps` train the backbone."""

  variant: str = hyperparameters.variant_hparam()
  conflict_aversion: float = hyperparameters.hparam(
    0.5,
    "alpha: how far the step may be from the guide, relative to its length"
    " (published); at 0 it is the guide.",
    minimum=0,
  )


class Sent(NamedTuple):
  """A row of what the server compares.

  Attributes:
    update: The change of the backbone.
    weight: What it counts in the mean, a float32 scalar.
    order_keys: [num_clients] float32; the order of these numbers is that in
      which the change is held against the others.
  """

  update: Any
  weight: Any
  order_keys: Any


def _inner_products(rows) -> tf.Tensor:
  """Computes G of one tensor of all clients, [n, n] float64."""
  flat = tf.reshape(rows, [rows.shape[0], -1])
  return tf.cast(tf.matmul(flat, flat, transpose_b=True), tf.float64)


def projected_mean(products, shares, orders) -> tf.Tensor:
  """Computes the guide g_0 (PCGrad).

  Args:
    products: G of each layer, [num_layers, n, n] float64; zeros for a client
      that has sent nothing.
    shares: The weights of the clients in the mean, [n] float64, of sum 1.
    orders: The order of the j for each i, [n, n] int32, a permutation of the
      clients in each row.

  Returns:
    The coefficients of the u_j in the mean of the u_i', [num_layers, n]
    float64. Without conflicts they are the shares.
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
  return tf.linalg.matvec(kept, shares, transpose_a=True)


def avert_conflicts(products, guide, allowed, alpha: float) -> tf.Tensor:
  """Turns the guide towards the update that it helps least (CAGrad).

  |U w| is the least value of (|U w|^2 / t + t) / 2 over t > 0. For a given t a
  quadratic program is left, and the |U w| of its solution grows with t, but
  slower: the t that it is equal to lies between it and any other t.

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
  # Where the updates can cancel each other, U w has no direction to speak of.
  turn = tf.math.divide_no_nan(radius, tf.maximum(length(solution), t))
  return (guide + turn[:, tf.newaxis] * solution) / (1 + alpha**2)


def pairwise_projected_mean(products, shares) -> tf.Tensor:
  """Computes the mean of the u_i' of `variant=program`.

  Args:
    products: G, [..., n, n] float64; zeros for a client that has sent nothing.
    shares: The weights of the clients in the mean, [n] float64, of sum 1.

  Returns:
    The coefficients of the u_j in the mean of the u_i', [..., n] float64.
    Without conflicts they are the shares.
  """
  lengths = tf.linalg.diag_part(products)
  # The product of an update with itself is not negative: j = i adds nothing.
  against = tf.linalg.matvec(tf.minimum(products, 0), shares)
  return shares - tf.math.divide_no_nan(against, lengths)


def coefficients(
  hparams: HParams, sent: Sent, present: Any
) -> tuple[tf.Tensor, tf.Tensor]:
  """Finds how much of each client's change is taken.

  Args:
    hparams: Hyper-parameters.
    sent: The rows of all clients.
    present: [num_clients] float32, 1 for who has sent its row, 0 for others.

  Returns:
    The coefficients of the changes, [num_layers, num_clients] float64, or of
    one row for all layers; and those of their mean, [num_clients] float64.
  """
  weight = tf.cast(sent.weight, tf.float64)
  shares = weight / tf.reduce_sum(weight)
  products = tf.stack([_inner_products(rows) for rows in sent.update])
  if hparams.variant == "program":
    whole = tf.reduce_sum(products, axis=0, keepdims=True)
    return pairwise_projected_mean(whole, shares), shares
  orders = tf.argsort(sent.order_keys, axis=1)
  guide = projected_mean(products, shares, orders)
  if not hparams.conflict_aversion:
    return guide, shares
  return avert_conflicts(
    products, guide, present > 0, hparams.conflict_aversion
  ), shares


def build(
  model: guided_model.GuidedModel, hparams: HParams
) -> algorithm.AlgorithmSpec:
  """The functions of ConFREE; see `algorithm.AlgorithmSpec`.

  A `client_id` is below the model's number of clients. A client's state is its
  head; the server has no model to predict with.

  Raises:
    ValueError: If the model does not know the number of clients.
  """
  guided_model.require(model, "con_free")
  host = fed_rep.build(model, hparams)
  num_clients = model.num_clients

  def train_client(backbone, head, data, round_num):
    result = host.train_client(backbone, head, data, round_num)
    size = tf.size(data.y)
    weight = size if hparams.client_weighting == "num_examples" else 1
    # The host folds 0 and 1 into it.
    seed = randomness.fold(data.seed, randomness.Purpose.TRAIN, round_num, 2)
    sent = Sent(
      result.update,
      tf.cast(weight, tf.float32),
      tf.random.stateless_uniform([num_clients], seed),
    )
    return result._replace(
      plaintext_sum=client_slots.place(
        sent, client_slots.own_row(data), num_clients
      )
    )

  def update_server(backbone, mean_update, slots, info):
    del info  # Not the mean update alone is added.
    sent, present = slots
    taken, shares = coefficients(hparams, sent, present)
    # Zeros where nothing is in conflict: then the mean is added, bit for bit.
    beside_mean = tf.cast(taken - shares, tf.float32)
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
