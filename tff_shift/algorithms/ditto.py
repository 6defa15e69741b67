"""Ditto: a personal model that is regularised towards the global one.

Ditto: Fair and Robust Federated Learning Through Personalization (Li, Hu,
Beirami, Smith; ICML 2021, arXiv:2012.04221), Algorithm 1.

The global model w is FedAvg's. In addition, a client k takes steps on its own
v_k, with the w^t that it has received,

    v_k <- v_k - eta (grad F_k(v_k) + lambda (v_k - w^t))

and predicts with v_k. With lambda = 0 clients learn alone; for large lambda v_k
is the global model.

What leaves a client: the update of its copy of w, and the mean training loss of
this copy. v_k stays.

Written from the steps of the authors' public program.

Choices:
  * lambda is 1; the paper chooses it by validation, and Appendix D of the
    FedEvolve paper has 0.1 (`ditto_lambda`).
  * v starts as the first model that the client receives, and takes a step for
    each step of w, on the same batch. It has no weight decay, and is pulled
    towards the received model, not towards the new mean.
  * In guidance each of the two models takes 10 steps; the FedDRM authors'
    program takes 5 and 5 (`local_steps=5`).
"""

import dataclasses

import tensorflow as tf

from tff_shift.algorithms import fed_avg
from tff_shift.algorithms import fed_prox
from tff_shift.learning import algorithm
from tff_shift.learning import evaluation
from tff_shift.learning import hyperparameters
from tff_shift.learning import local_training
from tff_shift.models import modes
from tff_shift.models import split_model

SCENARIOS = ("evolving", "guidance")

RUNNING_STATISTICS = algorithm.TWO_MODELS


@dataclasses.dataclass(frozen=True)
class HParams(hyperparameters.LocalHParams):
  """Hyper-parameters of Ditto."""

  ditto_lambda: float = hyperparameters.hparam(
    1.0,
    "lambda: how strongly the personal model is pulled towards the global one."
    " 0: local training; plain gradient steps diverge if lambda times the"
    " learning rate exceeds 2. The authors choose among 0.1, 1 and 2, the"
    " FedEvolve paper uses 0.1.",
    minimum=0,
  )


def build(
  model: split_model.SplitModel, hparams: HParams
) -> algorithm.AlgorithmSpec:
  """Builds the spec of Ditto; see `algorithm.AlgorithmSpec`.

  A client's state is its personal model.
  """
  personal_hparams = dataclasses.replace(hparams, weight_decay=0.0)

  @local_training.allows_padding
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

  @local_training.allows_padding
  def predict_as_client(weights, personal, data, examples):
    del weights, data
    with modes.of_model("personal"):
      return evaluation.predict(model, personal, examples.x)

  return fed_avg.build(model, hparams)._replace(
    initial_client_state=lambda seed, weights: weights,
    train_client=train_client,
    predict_as_client=predict_as_client,
  )
