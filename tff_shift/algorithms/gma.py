"""GMA: the server takes smaller steps where clients disagree on the sign.

Gradient Masked Averaging for Federated Learning (Tenison, Sreeramadas,
Mugunthan, Oyallon, Rish, Belilovsky; TMLR 2023, arXiv:2201.11986), a method of
Table 1 of Federated Learning under Evolving Distribution Shifts.

Clients train as in FedAvg. With D_k the update of client k, p_k its weight in
the mean and K the number of clients of the round that have examples, the server
computes for each model weight

    A = |(1 / K) sum_k sign(D_k)|      the agreement
    m = 1 if A >= tau, else A          the mask
    w <- w + m sum_k p_k D_k

With tau = 0 it is FedAvg, bit for bit. Votes are unweighted, regardless of the
sizes of the clients: for sizes 8, 1, 1 and updates 1, -1, -1 the mean is 0.6
and A is 1/3, so at tau = 0.4 the step is 0.2. With
`vote_weighting=client_weighting` p_k replaces 1 / K; the step is then 0.6.

What leaves a client: its model update, its signs, the weight of its vote, and
the mean training loss.

Written from the equations as generally quoted and from public programs
(declearn).

Choices:
  * tau is 0.4; Appendix D of the FedEvolve paper has 0.1
    (`agreement_threshold`). At that tau little is left of GMA: with 20 clients,
    only ties of 10 to 10 are masked.
  * The sign of 0 is 0. Signs are a plaintext sum: no aggregator hides them. If
    updates are clipped or zeroed, clients vote with the original ones.
  * The server's learning rate is 1; a server optimizer steps along the masked
    mean.
"""

import dataclasses
from typing import Any
from typing import NamedTuple

import tensorflow as tf

from tff_shift.algorithms import fed_avg
from tff_shift.learning import algorithm
from tff_shift.learning import hyperparameters
from tff_shift.learning import local_training
from tff_shift.learning.aggregators import factories
from tff_shift.models import split_model

SCENARIOS = ("evolving", "guidance")
RUNNING_STATISTICS = algorithm.ONE_MODEL

AGGREGATION_REQUIREMENTS = factories.AggregationRequirements(
  plaintext_sums="its mask is made of the sums of the signs of clients'"
  " updates, which are plaintext sums"
)


@dataclasses.dataclass(frozen=True)
class HParams(hyperparameters.LocalHParams):
  """Hyper-parameters of GMA."""

  agreement_threshold: float = hyperparameters.hparam(
    0.4,
    "Agreement (tau) from which a weight moves by the whole mean. 0: FedAvg; 1:"
    " all steps without full agreement are reduced. Public programs use 0.4,"
    " the FedEvolve paper 0.1.",
    minimum=0,
    maximum=1,
  )
  vote_weighting: str = hyperparameters.hparam(
    "uniform",
    "A client's weight in the agreement: uniform, one vote per client, as"
    " published; client_weighting, its weight in the server's mean.",
    choices=("uniform", "client_weighting"),
  )


class Votes(NamedTuple):
  """The plaintext sums over clients.

  Attributes:
    signs: The signs of a client's updates times the weight of its vote, in the
      structure of the model's weights, float32.
    weight: The weight of its vote, a float32 scalar: 0 without examples.
  """

  signs: Any
  weight: Any


def mask(signs, weight, threshold: float) -> tf.Tensor:
  """Computes the mask of one tensor.

  Args:
    signs: The sum of the clients' weighted signs, float32 of any shape. Weights
      are whole numbers: sums and quotients are exact enough that a value equal
      to the threshold reaches it, for any order of clients.
    weight: The sum of the weights of their votes, above 0, a float32 scalar.
    threshold: tau.

  Returns:
    Numbers from 0 to 1, of the shape of `signs`.
  """
  agreement = tf.abs(signs) / weight
  return tf.where(agreement >= threshold, 1.0, agreement)


def build(
  model: split_model.SplitModel, hparams: HParams
) -> algorithm.AlgorithmSpec:
  """Builds the spec of GMA; see `algorithm.AlgorithmSpec`."""

  @local_training.allows_padding
  def train_client(weights, _, data, round_num):
    result = fed_avg.train_client(model, hparams, weights, data, round_num)
    # As in the template's mean; clients without examples have no vote.
    weight = data.num_examples
    if "uniform" in (hparams.vote_weighting, hparams.client_weighting):
      weight = tf.minimum(weight, 1)
    weight = tf.cast(weight, tf.float32)
    signs = tf.nest.map_structure(
      lambda change: weight * tf.sign(change), result.update
    )
    return result._replace(plaintext_sum=Votes(signs, weight))

  def update_server(weights, mean_update, votes, info):
    masked = tf.nest.map_structure(
      lambda mean, signs: (
        mask(signs, votes.weight, hparams.agreement_threshold) * mean
      ),
      mean_update,
      votes.signs,
    )
    return info.step(weights, masked)

  return fed_avg.build(model, hparams)._replace(
    train_client=train_client, update_server=update_server
  )
