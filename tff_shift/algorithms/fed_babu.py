"""FedBABU: a backbone that is trained under a head that never is.

FedBABU: Toward Enhanced Representation for Federated Image Classification (Oh,
Kim, Yun; ICLR 2022), Algorithm 1. A baseline of Beyond Aggregation: Guiding
Clients in Heterogeneous Federated Learning, Table 1.

All clients have one and the same random head. In a round they train the
backbone under it, which the server averages ("body aggregation, body update").
Only before it predicts does a client move a head: it fine-tunes the model on
its own training data, as in `fed_avg_ft`. The server predicts with the backbone
under the random head.

What leaves a client: the change of the backbone, and the mean training loss.
The fine-tuned model does not.

Written from the steps as public programs take them. What is chosen here:
  * The head is the last linear layer, drawn as the model's with the run's seed.
    The server holds it and sends it with the backbone, as programs do.
  * It has no part in weight decay, which would shrink it to 0; in the authors'
    program its learning rate is 0, which comes to the same.
  * Clients fine-tune the whole model, as in the paper's tables and as public
    programs do unless they are told otherwise. The program of the FedDRM
    authors moves the head alone: `fine_tune_part=head`.
"""

import dataclasses

import tensorflow as tf

from tff_shift.algorithms import fed_avg
from tff_shift.algorithms import fed_avg_ft
from tff_shift.learning import algorithm
from tff_shift.learning import hyperparameters
from tff_shift.models import split_model

SCENARIOS = ("evolving", "guidance")

RUNNING_STATISTICS = algorithm.ONE_MODEL

# As the paper calls the parts, and as the model does.
_PARTS = {"full": "full", "head": "head", "body": "backbone"}


@dataclasses.dataclass(frozen=True)
class HParams(fed_avg_ft.HParams):
  """Hyper-parameters of FedBABU: those of FedAvgFT, and what is trained."""

  fine_tune_part: str = hyperparameters.hparam(
    "full",
    "What clients fine-tune: full, all weights; head, which no round has"
    " trained (the program of the FedDRM authors); body, the backbone.",
    choices=tuple(_PARTS),
  )
  head: str = hyperparameters.hparam(
    "last_layer",
    "What is not trained in rounds: last_layer, the last linear layer alone;"
    " classifier, all of the model's head.",
    choices=split_model.HEADS,
  )


def build(
  model: split_model.SplitModel, hparams: HParams
) -> algorithm.AlgorithmSpec:
  """The functions of FedBABU; see `algorithm.AlgorithmSpec`.

  The server's weights are the backbone and the head that nobody trains.
  """
  model = split_model.with_head(model, hparams.head)

  def train_client(weights, _, data, round_num):
    result = fed_avg.train_client(
      model,
      hparams,
      weights,
      data,
      round_num,
      trainable=model.weights_of("backbone"),
    )
    return result._replace(update=result.update.backbone)

  def update_server(weights, mean_update, plaintext_sum, round_num):
    del plaintext_sum, round_num
    return weights._replace(
      backbone=tf.nest.map_structure(tf.add, weights.backbone, mean_update)
    )

  def prepare_client(weights, _, data, round_num):
    return fed_avg_ft.prepare_client(
      model,
      hparams,
      weights,
      data,
      round_num,
      trainable=model.weights_of(_PARTS[hparams.fine_tune_part]),
    )

  return fed_avg_ft.build(model, hparams)._replace(
    train_client=train_client,
    update_server=update_server,
    prepare_client=prepare_client,
    fixed_weights=("head",),
  )
