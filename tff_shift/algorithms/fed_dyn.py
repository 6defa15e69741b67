"""FedDyn: a dynamic regulariser aligns the clients' optima with the server's.

Federated Learning Based on Dynamic Regularization (Acar, Zhao, Matas Navarro,
Mattina, Whatmough, Saligrama; ICLR 2021, arXiv:2111.04263), Algorithm 1.

Client k keeps g_k, and minimises, starting at the server weights w and
inexactly,

    F_k(u) - <g_k, u> + alpha / 2 |u - w|^2;    g_k <- g_k - alpha (u_k - w)

The server keeps h. Of N clients, the cohort P took part:

    h <- h - alpha / N sum_P (u_k - w);    w <- mean_P u_k - h / alpha

The file has the equivalent form of the authors' program: L_k = -g_k / alpha is
the sum of the client's updates, and S = -h / alpha the server's,

    client:  grad F_k(u) + alpha (u - w + L_k);    L_k <- L_k + (u_k - w)
    server:  S <- S + |P| / N mean_P (u_k - w)
             w <- w + mean_P (u_k - w) + S

All start at 0. S is thus the mean of L_k over all clients. A client's first
round is FedProx's with mu = alpha, bit for bit. The method is not FedAvg for
small alpha, since the server adds S; at alpha = 0 clients would never correct
it, and 0 is refused.

What leaves a client: its model update, and the mean training loss with the
quadratic term. L_k stays. S is known to the server only.

Written from the steps of the authors' program.

Choices:
  * Clients and server predict with w. The curves of the authors' program are
    those of the mean of all clients' last models, which needs them at the
    server. w moves farther than this mean: twice as far in the first round.
  * alpha is the same for all clients. The program divides it by a client's
    relative number of examples.
  * Weight decay is part of F_k, as in the program. The local solver is
    FedAvg's; the program clips gradients to a norm of 10, which is not
    included.
  * Weights by number of examples are refused: S would not stay the mean of L_k.
  * N counts clients that never train. They slow S, and change no fixed point.
"""

import dataclasses

import tensorflow as tf

from tff_shift.algorithms import fed_avg
from tff_shift.algorithms import fed_prox
from tff_shift.algorithms.parts import gradient_corrections
from tff_shift.learning import algorithm
from tff_shift.learning import hyperparameters
from tff_shift.learning import local_training
from tff_shift.learning.aggregators import factories
from tff_shift.models import split_model

SCENARIOS = ("evolving", "guidance", "dynamic_personalization")
RUNNING_STATISTICS = algorithm.ONE_MODEL

AGGREGATION_REQUIREMENTS = factories.AggregationRequirements(
  no_clipping="the server's sum of updates would no longer be that of the"
  " clients, whose own updates are not clipped",
  no_server_optimizer="the server adds a sum of all rounds beside the mean",
)


@dataclasses.dataclass(frozen=True)
class HParams(hyperparameters.LocalHParams):
  """Hyper-parameters of FedDyn."""

  alpha: float = hyperparameters.hparam(
    0.01,
    "Weight of the dynamic regulariser. Large: small, cautious updates; plain"
    " gradient steps diverge if alpha times the learning rate exceeds 2. Small:"
    " clients correct the server's sum slowly, and it overshoots. The authors"
    " use 0.01 for CIFAR-10.",
    minimum=0,
    exclusive_minimum=True,
  )

  def check_together(self) -> None:
    """Refuses weights with which S is not the mean of the clients' sums."""
    super().check_together()
    gradient_corrections.check_equal_clients(
      "fed_dyn", self, "the server's sum of updates"
    )


def build(
  model: split_model.SplitModel, hparams: HParams, num_clients: int
) -> algorithm.AlgorithmSpec:
  """Builds the spec of FedDyn; see `algorithm.AlgorithmSpec`.

  A client's state is L_k, the server's memory is S, both `SplitWeights`.

  Args:
    model: The model.
    hparams: The hyper-parameters.
    num_clients: N, the number of all clients.
  """

  @local_training.allows_padding
  def train_client(weights, summed, data, round_num):
    result = fed_avg.train_client(
      model,
      hparams,
      weights,
      data,
      round_num,
      penalty=fed_prox.proximal_term(hparams.alpha, weights),
      differentiate=gradient_corrections.add(
        tf.nest.map_structure(lambda own: hparams.alpha * own, summed)
      ),
    )
    return result._replace(
      client_state=tf.nest.map_structure(tf.add, summed, result.update)
    )

  def update_server(weights, mean_update, plaintext_sum, info):
    del plaintext_sum
    fraction = info.num_counted / num_clients
    memory = tf.nest.map_structure(
      lambda s, mean: s + fraction * mean, info.memory, mean_update
    )
    weights = tf.nest.map_structure(
      lambda w, mean, s: w + mean + s, weights, mean_update, memory
    )
    return weights, memory

  return fed_avg.build(model, hparams)._replace(
    initial_client_state=lambda seed, weights: tf.nest.map_structure(
      tf.zeros_like, weights
    ),
    initial_memory=lambda seed: tf.nest.map_structure(
      tf.zeros_like, model.initial_weights(seed)
    ),
    train_client=train_client,
    update_server=update_server,
  )
