"""FedBABU: a backbone that is trained with a head that is never trained.

FedBABU: Toward Enhanced Representation for Federated Image Classification (Oh,
Kim, Yun; ICLR 2022, arXiv:2106.06042), Algorithm 1. A baseline of Beyond
Aggregation: Guiding Clients in Heterogeneous Federated Learning, Table 1.

All clients have the same random head. In a round they train the backbone with
it, which the server averages ("body aggregation, body update"). A client
changes a head only before it predicts: it fine-tunes the model on its own
training data, as in `fed_avg_ft`. The server predicts with the backbone and the
random head.

What leaves a client: the update of the backbone, and the mean training loss.
The fine-tuned model stays.

Written from the steps of public programs.

Choices:
  * The paper tries to fine-tune body, head and both; the FedDRM authors'
    program updates only the head, for 2,000 steps. Here both, as in the paper's
    tables, for as many steps as FedAvgFT and at its rates
    (`fine_tune_part=head`).
  * The random head is the model's initial head of the run's seed, as in the
    authors' program; the server holds it and predicts with it. It is not
    trained and does not decay. `head=classifier` moves the cut;
    `--weights_file` gives one head to all seeds.
"""

import dataclasses

from tff_shift.algorithms import fed_avg
from tff_shift.algorithms import fed_avg_ft
from tff_shift.learning import algorithm
from tff_shift.learning import hyperparameters
from tff_shift.learning import local_training
from tff_shift.models import split_model

SCENARIOS = ("evolving", "guidance")

RUNNING_STATISTICS = algorithm.ONE_MODEL

# The parts' names in the paper, and in the model.
_PARTS = {"full": "full", "head": "head", "body": "backbone"}


@dataclasses.dataclass(frozen=True)
class HParams(fed_avg_ft.HParams):
  """Hyper-parameters of FedBABU: FedAvgFT's, and the trained parts."""

  fine_tune_part: str = hyperparameters.hparam(
    "full",
    "What clients fine-tune: full, all weights; head, which rounds do not"
    " train (the program of the FedDRM authors); body, the backbone.",
    choices=tuple(_PARTS),
  )
  head: str = hyperparameters.hparam(
    "last_layer",
    "What rounds do not train: last_layer, only the last linear layer;"
    " classifier, the model's whole head.",
    choices=split_model.HEADS,
  )


def build(
  model: split_model.SplitModel, hparams: HParams
) -> algorithm.AlgorithmSpec:
  """Builds the spec of FedBABU; see `algorithm.AlgorithmSpec`.

  The server's weights are the backbone and the head that is never trained.
  """
  model = split_model.with_head(model, hparams.head)

  @local_training.allows_padding
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

  def update_server(weights, mean_update, plaintext_sum, info):
    del plaintext_sum
    return weights._replace(backbone=info.step(weights.backbone, mean_update))

  @local_training.allows_padding
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
