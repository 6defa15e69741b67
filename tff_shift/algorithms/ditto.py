"""Ditto: a personal model that is pulled towards the global one.

Ditto: Fair and Robust Federated Learning Through Personalization (Li, Hu,
Beirami, Smith; ICML 2021), Algorithm 1.

The global model w is FedAvg's. Beside it a client k takes, from its own v_k and
with the w^t that it has received, steps

    v_k <- v_k - eta (grad F_k(v_k) + lambda (v_k - w^t))

and predicts with v_k. With lambda = 0 clients learn alone, for large lambda v_k
is the global model.

What leaves a client: the change of all weights of its copy of w, and the mean
training loss of that copy. v_k does not.

Written from the steps as the authors' public program takes them. What is chosen
here:
  * v_k starts as the model that the client receives first; a client that never
    took part predicts with the server's model.
  * As many steps on v_k as on w, on the same batches, by the same optimizer at
    the same rate.
  * v_k has no weight decay, which would pull it towards 0 where the method
    pulls it towards w^t.
"""

import dataclasses

import tensorflow as tf

from tff_shift.algorithms import fed_avg
from tff_shift.algorithms import fed_prox
from tff_shift.learning import algorithm
from tff_shift.learning import evaluation
from tff_shift.learning import hyperparameters
from tff_shift.models import modes
from tff_shift.models import split_model

SCENARIOS = ("evolving", "guidance")

RUNNING_STATISTICS = algorithm.TWO_MODELS


@dataclasses.dataclass(frozen=True)
class HParams(hyperparameters.LocalHParams):
  """Hyper-parameters of Ditto."""

  ditto_lambda: float = hyperparameters.hparam(
    1.0,
    "How strongly the personal model is pulled towards the global one: 0 is"
    " local training; so large that it passes 2 when multiplied by the"
    " learning rate, and plain gradient steps diverge. The authors choose"
    " among 0.1, 1 and 2, the FedEvolve paper takes 0.1.",
    minimum=0,
  )


def build(
  model: split_model.SplitModel, hparams: HParams
) -> algorithm.AlgorithmSpec:
  """The functions of Ditto; see `algorithm.AlgorithmSpec`.

  A client's state is its personal model.
  """
  personal_hparams = dataclasses.replace(hparams, weight_decay=0.0)

  def train_client(weights, personal, data, round_num):
    shared = fed_avg.train_client(model, hparams, weights, data, round_num)
    with modes.of_model("personal"):
      own = fed_avg.train_client(
        model,
        personal_hparams,
        personal,
        data,
        round_num,
        penalty=fed_prox.proximal_term(hparams.ditto_lambda, weights),
      )
    return shared._replace(
      client_state=tf.nest.map_structure(tf.add, personal, own.update)
    )

  def predict_as_client(weights, personal, data, examples):
    del weights, data
    with modes.of_model("personal"):
      return evaluation.predict(model, personal, examples.x)

  return fed_avg.build(model, hparams)._replace(
    initial_client_state=lambda seed, weights: weights,
    train_client=train_client,
    predict_as_client=predict_as_client,
  )
