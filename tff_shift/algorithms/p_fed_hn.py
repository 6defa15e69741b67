"""PFedHN: a hypernetwork generates each client's model from its embedding.

Personalized Federated Learning using Hypernetworks (Shamsian, Navon, Fetaya,
Chechik; ICML 2021, arXiv:2103.04628), Algorithm 1.

The model of client i is theta_i = h(v_i; phi). The client trains it to
theta_i~. The update delta_i = theta_i~ - theta_i replaces the negative gradient
of its loss with respect to theta_i:

    phi <- phi + alpha * (dh/dphi)^T delta_i, the mean over clients
    v_i <- v_i + alpha_v * (dh/dv)^T delta_i

pFedHN keeps the embeddings v_i and h at the server, which sends theta_i and
receives delta_i. Here the client receives phi, computes both products itself,
and keeps v_i: the gradients are the same, the server sees neither a client's
embedding nor its model, and more data are sent. The authors' program takes one
client per round, with momentum, weight decay and clipped gradients of phi; here
it is the plain mean over the cohort.

What leaves a client: the update of the hypernetwork's weights, and the mean
training loss. The embedding stays.

Choices:
  * v has length 3 and is drawn from N(0, 1) (`embedding_size`,
    `embedding_learning_rate`). The authors' steps are `participation` of one
    client, `server_momentum=0.9` and `rounds=5000`.
"""

import dataclasses
from typing import Any
from typing import NamedTuple

from tff_shift._util import draws
from tff_shift.algorithms import fed_avg
from tff_shift.algorithms.parts import hypernetwork
from tff_shift.data import client_dataset
from tff_shift.learning import algorithm
from tff_shift.learning import evaluation
from tff_shift.learning import hyperparameters
from tff_shift.learning import local_training
from tff_shift.learning import randomness
from tff_shift.models import split_model

SCENARIOS = ("dynamic_personalization",)

RUNNING_STATISTICS = algorithm.FIXED


@dataclasses.dataclass(frozen=True)
class HParams(hypernetwork.MetaHParams):
  """Hyper-parameters of pFedHN."""

  embedding_size: int = hyperparameters.hparam(
    3,
    "Length of a client's embedding; the authors use 1 plus a quarter of the"
    " number of clients, rounded down, which is 3 for ten clients.",
    minimum=1,
  )
  embedding_learning_rate: float = hyperparameters.hparam(
    0.01,
    "Learning rate of the embeddings; the authors use the hypernetwork's. 0:"
    " embeddings keep their initial values.",
    minimum=0,
  )


class MetaTraining(NamedTuple):
  """The result of a client's training, for the hypernetwork.

  Attributes:
    weights: theta = h(vector; phi), the target network before training, a
      `SplitWeights`.
    update: The update of phi, alpha * (dh/dphi)^T (theta~ - theta).
    direction: (dh/dvector)^T (theta~ - theta), in the shape of the vector.
    loss: The mean training loss, a float32 scalar.
  """

  weights: Any
  update: Any
  direction: Any
  loss: Any


def train_work_network(
  network: hypernetwork.Hypernetwork,
  hparams: hypernetwork.MetaHParams,
  phi: hypernetwork.MetaWeights,
  vector,
  data: client_dataset.ClientDataset,
  round_num,
) -> MetaTraining:
  """Trains a client's target network, and computes the hypernetwork's update.

  Args:
    network: The hypernetwork.
    hparams: Local training and the hypernetwork's learning rate.
    phi: The hypernetwork's weights.
    vector: The hypernetwork's input, [input_size].
    data: The client's data.
    round_num: The round, an int32 scalar.

  Returns:
    A `MetaTraining`.
  """
  weights, pull_back = network.with_pull_back(phi, vector)
  trained = fed_avg.train_client(
    network.model, hparams, weights, data, round_num
  )
  update, direction = pull_back(trained.update, hparams.meta_learning_rate)
  return MetaTraining(weights, update, direction, trained.loss)


def build(
  model: split_model.SplitModel, hparams: HParams
) -> algorithm.AlgorithmSpec:
  """Builds the spec of pFedHN; see `algorithm.AlgorithmSpec`.

  A client's state is its embedding, [embedding_size] float32, drawn from a
  standard normal distribution; the server has no model to predict with.
  """
  network = hypernetwork.Hypernetwork(
    model, hparams.embedding_size, hparams.hidden_width, hparams.num_hidden
  )

  def initial_embedding(seed, weights):
    del weights
    return draws.normal(
      [hparams.embedding_size],
      randomness.fold(seed, randomness.Purpose.INITIALIZE),
    )

  @local_training.allows_padding
  def train_client(phi, embedding, data, round_num):
    result = train_work_network(
      network, hparams, phi, embedding, data, round_num
    )
    return algorithm.ClientResult(
      update=result.update,
      client_state=(
        embedding + hparams.embedding_learning_rate * result.direction
      ),
      loss=result.loss,
    )

  return algorithm.AlgorithmSpec(
    initial_weights=network.initial_weights,
    initial_client_state=initial_embedding,
    train_client=train_client,
    predict_as_client=local_training.allows_padding(
      lambda phi, embedding, _, examples: evaluation.predict(
        model, network(phi, embedding), examples.x
      )
    ),
  )
