"""Fed3DA: a hypernetwork generates a model for each data distribution.

Fed-3DA: A Dynamic and Personalized Federated Learning Framework (Wang, Sun, Wo,
Liu; ICASSP 2023, https://ieeexplore.ieee.org/document/10096221), Algorithms 1
and 2.

A vector r represents the distribution of a client's data in a period, and the
server's hypernetwork h computes the weights of a target network from it, theta
= h(r; phi). In training a client starts from theta, trains it to theta~ and
updates phi; the server averages phi. In deployment there is no training: a
client whose data have drifted sends its new r and receives h(r; phi) as its
target network.

The paper prints phi <- phi - alpha * (theta - theta~) * L (Algorithm 2, line
6), where theta does not have the shape of phi. Line 5 prints L for the gradient
of L, so line 6 is read in the same way, as the rule of pFedHN, which Section
2.3 describes in words:

    phi <- phi + alpha * (dh/dphi)^T (theta~ - theta)

In the paper the server computes theta from an r that the client sends in every
round of training. Here the client, which receives phi in any case, computes it,
and sends r only in deployment.

What leaves a client: in training the update of the hypernetwork's weights, and
the mean training loss; in deployment r, when its data have drifted. The trained
target network stays.

Choices:
  * The appendix of the paper is a link that is dead: this follows the paper
    alone, and pFedHN.
  * In deployment the target network is as the hypernetwork computes it, not as
    the client trained it.
"""

import dataclasses

import numpy as np
import tensorflow_federated as tff

from tff_shift.algorithms import p_fed_hn
from tff_shift.algorithms.parts import hypernetwork
from tff_shift.learning import algorithm
from tff_shift.learning import evaluation
from tff_shift.learning import hyperparameters
from tff_shift.learning import periods
from tff_shift.learning.aggregators import factories
from tff_shift.models import split_model

SCENARIOS = ("dynamic_personalization",)

RUNNING_STATISTICS = algorithm.FIXED

AGGREGATION_REQUIREMENTS = factories.AggregationRequirements(
  plaintext_sums="in deployment a client sends the vector r of its data"
  " (Section 2.3)",
)


@dataclasses.dataclass(frozen=True)
class HParams(hypernetwork.MetaHParams):
  """Hyper-parameters of Fed-3DA; `local_epochs` is its LE."""

  representation_size: int = hyperparameters.hparam(
    32, "Length of the vector r that represents a period's data.", minimum=1
  )


def build(
  model: split_model.SplitModel, hparams: HParams
) -> algorithm.AlgorithmSpec:
  """Builds the spec of Fed-3DA; see `algorithm.AlgorithmSpec`.

  Clients train on a `periods.PeriodData`. A client's state is the target
  network in use, as received and not as trained, since only the former comes
  from the shared hypernetwork. A request is an r, [representation_size]
  float32. The server has no model to predict with.
  """
  network = hypernetwork.Hypernetwork(
    model,
    hparams.representation_size,
    hparams.hidden_width,
    hparams.num_hidden,
  )

  def train_client(phi, weights_in_use, data, round_num):
    del weights_in_use  # Each round has its own data, and therefore its own r.
    result = p_fed_hn.train_work_network(
      network, hparams, phi, data.representation, data, round_num
    )
    return algorithm.ClientResult(result.update, result.weights, result.loss)

  return algorithm.AlgorithmSpec(
    initial_weights=network.initial_weights,
    initial_client_state=lambda seed, weights: model.initial_weights(seed),
    train_client=train_client,
    predict_as_client=lambda _, weights, data, examples: evaluation.predict(
      model, weights, examples.x
    ),
    answer_request=network,
    request_type=tff.TensorType(np.float32, (hparams.representation_size,)),
    examples_type=periods.data_type(model, hparams.representation_size),
  )
