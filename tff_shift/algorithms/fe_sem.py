"""FeSEM: several centres in the space of weights, of which a client has one.

Multi-center Federated Learning: Clients Clustering for Better Personalization
(Xie, Long, Shen, Zhou, Wang, Jiang, Zhang; World Wide Web Journal 2023,
arXiv:2005.01026), Algorithm 1. A baseline of Feroma and FLUX.

The server has K centres w_1, ..., w_K, and client i its last trained model W_i.
In a round, client i goes to the nearest centre and trains from it,

    k_i = argmin over k of |W_i - w_k|^2
    W_i = local training from w_{k_i},

and a centre becomes the mean of the models of its clients,

    w_k = mean of the W_i with k_i = k,

as in k-means with the W_i for points. A centre without clients stays as it is.
A client predicts with the nearest of the current centres. With K = 1 it is
FedAvg, bit for bit.

What leaves a client: W_i less its centre, in a table with zeros for the other
centres, the number of its centre, and the mean training loss. The W_i that a
client keeps for its next choice, and the losses by which it chooses its first
centre, stay.

Distances are over all weights, so that large layers dominate them. Centres that
are drawn at random are far apart compared to the way of local training. Clients
then rarely change their centre: the first choice decides, and it is IFCA's.
`server_state.memory` is the fraction of the last cohort in each cluster, which
only the server has.

Choices, and differences between public programs:
  * The choice is made by the client, from the received centres, so that the
    server need not know the W_i. In the order of the paper's steps, the centres
    move between a client's choice and its training; here between its training
    and its next choice.
  * A client that has not trained yet chooses the centre with the smallest loss
    on its training data, as in the program of FedRC
    (github.com/LINs-lab/FedRC), whose FeSEM is the one in the tables of Feroma
    and FLUX.
  * Distances are squared and Euclidean, over all weights. The authors' program
    (github.com/mingxuts/multi-center-fed-learning) clusters one chosen tensor
    every few rounds; FedRC's adds the norms of the tensors without squares.
  * The first centres are drawn from different seeds.
"""

import dataclasses
from typing import Any
from typing import NamedTuple

import tensorflow as tf

from tff_shift.algorithms import fed_avg
from tff_shift.algorithms.parts import model_stack
from tff_shift.learning import algorithm
from tff_shift.learning import evaluation
from tff_shift.learning import hyperparameters
from tff_shift.models import split_model

SCENARIOS = ("evolving", "guidance", "dynamic_personalization")

AGGREGATION_REQUIREMENTS = model_stack.AGGREGATION_REQUIREMENTS


@dataclasses.dataclass(frozen=True)
class HParams(hyperparameters.LocalHParams):
  """Hyper-parameters of FeSEM."""

  num_models: int = model_stack.num_models_hparam(2)


class ClientState(NamedTuple):
  """A client's state.

  Attributes:
    weights: Its last trained model W_i; before the first training, centre 0.
    has_trained: Whether it has trained, a bool scalar.
  """

  weights: Any
  has_trained: Any


def squared_distances(weights, centres) -> tf.Tensor:
  """Computes the squared distance of a model from each centre.

  Args:
    weights: A nested structure of float32 tensors.
    centres: Like `weights`, with a first axis of num_models.

  Returns:
    [num_models] float32, over all tensors.
  """
  squares = tf.nest.map_structure(
    lambda w, all_w: tf.reduce_sum(
      tf.reshape(tf.math.squared_difference(w, all_w), [all_w.shape[0], -1]),
      axis=1,
    ),
    weights,
    centres,
  )
  return tf.add_n(tf.nest.flatten(squares))


def build(
  model: split_model.SplitModel, hparams: HParams
) -> algorithm.AlgorithmSpec:
  """Builds the spec of FeSEM; see `algorithm.AlgorithmSpec`.

  The server weights are the centres, those of the model with a first axis of
  num_models. The server's memory is the fraction of the last cohort at each
  centre, [num_models] float32. The server has no model of its own to predict
  with.
  """
  num_models = hparams.num_models
  model_stack.check_starts("fe_sem", model, num_models)

  def choose(centres, state, data):
    """Returns k_i."""
    return tf.cond(
      state.has_trained,
      lambda: model_stack.smallest(squared_distances(state.weights, centres)),
      lambda: model_stack.smallest(
        model_stack.mean_losses(model, centres, data)
      ),
    )

  def train_client(centres, state, data, round_num):
    chosen = choose(centres, state, data)
    start = model_stack.take(centres, chosen)
    result = fed_avg.train_client(model, hparams, start, data, round_num)
    return result._replace(
      update=model_stack.update_of_one(result.update, chosen, num_models),
      client_state=ClientState(
        tf.nest.map_structure(tf.add, start, result.update), tf.constant(True)
      ),
    )

  def update_server(centres, mean_update, plaintext_sum, info):
    del plaintext_sum, info
    return model_stack.add_means(centres, mean_update), mean_update.members

  def prepare_client(centres, state, data, round_num):
    del round_num
    return model_stack.take(centres, choose(centres, state, data))

  return algorithm.AlgorithmSpec(
    initial_weights=lambda seed: model_stack.initial_models(
      model, num_models, seed
    ),
    initial_memory=lambda seed: tf.zeros([num_models]),
    initial_client_state=lambda seed, centres: ClientState(
      model_stack.take(centres, 0), tf.constant(False)
    ),
    train_client=train_client,
    update_server=update_server,
    prepare_client=prepare_client,
    predict_as_client=lambda _, weights, data, examples: evaluation.predict(
      model, weights, examples.x
    ),
  )
