"""IFCA: several server models, of which a client trains the best for its data.

An Efficient Framework for Clustered Federated Learning (Ghosh, Chung, Yin,
Ramchandran; NeurIPS 2020, arXiv:2006.04088), Algorithm 1.

The server has K models w_1, ..., w_K and sends all of them. Client i computes
its loss F_i with each, chooses

    k_i = argmin over k of F_i(w_k),

the first of equal ones, and trains w_{k_i}. The server adds to each model the
mean update of the clients that have chosen it; a model that nobody has chosen
stays as it is. A client predicts with the model that it chooses from the
current ones, again by the loss on its own training data. With K = 1 it is
FedAvg, bit for bit; with one local step it is the paper's gradient averaging.

What leaves a client: its update of the chosen model, in a table with zeros for
the other models, the number of this model, and the mean training loss. The
losses of the other models stay.

What it finds depends on the first models. Models that are drawn at random
differ little in their losses, so that often all clients choose the same one,
or group by the classes that they have (label shift) instead of by concepts.
From models that are near the concepts, it finds the concepts.
`server_state.memory` is the fraction of the last cohort in each cluster, which
only the server has.

Choices, and differences from the authors' program
(github.com/jichan3751/ifca):
  * The first models are drawn once, from different seeds. The program draws
    them again until each is chosen by 35 % (K = 2) or 10 % (K = 4) of the
    clients. That needs a round of choices of all clients before training.
  * F_i is computed over all training examples of all domains.
  * The program's test clients choose by their labelled test data. Here no label
    of the predicted data is used.
  * Layers that all models share are not included.
"""

import dataclasses

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
  """Hyper-parameters of IFCA."""

  num_models: int = model_stack.num_models_hparam(2)


def build(
  model: split_model.SplitModel, hparams: HParams
) -> algorithm.AlgorithmSpec:
  """Builds the spec of IFCA; see `algorithm.AlgorithmSpec`.

  The server weights are those of the model with a first axis of num_models. The
  server's memory is the fraction of the last cohort that has chosen each model,
  [num_models] float32. The server has no model of its own to predict with.
  """
  num_models = hparams.num_models
  model_stack.check_starts("ifca", model, num_models)

  def choose(models, data):
    """Returns k_i."""
    return model_stack.smallest(model_stack.mean_losses(model, models, data))

  def train_client(models, _, data, round_num):
    chosen = choose(models, data)
    result = fed_avg.train_client(
      model,
      hparams,
      model_stack.take(models, chosen),
      data,
      round_num,
    )
    return result._replace(
      update=model_stack.update_of_one(result.update, chosen, num_models)
    )

  def update_server(models, mean_update, plaintext_sum, info):
    del plaintext_sum, info
    return model_stack.add_means(models, mean_update), mean_update.members

  def prepare_client(models, _, data, round_num):
    del round_num
    return model_stack.take(models, choose(models, data))

  return algorithm.AlgorithmSpec(
    initial_weights=lambda seed: model_stack.initial_models(
      model, num_models, seed
    ),
    initial_memory=lambda seed: tf.zeros([num_models]),
    train_client=train_client,
    update_server=update_server,
    prepare_client=prepare_client,
    predict_as_client=lambda _, weights, data, examples: evaluation.predict(
      model, weights, examples.x
    ),
  )
