"""FedSAMFT: sharpness-aware rounds, then every client fine-tunes the model.

Generalized Federated Learning via Sharpness Aware Minimization (Qu, Li, Duan,
Liu, Tang, Lu; ICML 2022, arXiv:2206.02618), and Improving Generalization in
Federated Learning by Seeking Flat Minima (Caldarola, Caputo, Ciccone; ECCV
2022, arXiv:2203.11834). A baseline of Beyond Aggregation: Guiding Clients in
Heterogeneous Federated Learning (Table 1 there).

A local step minimises the loss in a neighbourhood of the weights. On one batch
B it takes two gradients,

    g = grad F_k(w; B)
    e = rho g / (|g| + 1e-12)
    w <- w - eta (grad F_k(w + e; B) + weight_decay w)

with the Euclidean norm over all weights together. The server adds the mean
update, as in FedAvg. A client predicts with a model fine-tuned by plain steps,
as in `fed_avg_ft`. With rho = 0 it is FedAvgFT, bit for bit.

What leaves a client: its model update, and the mean training loss. The
fine-tuned model stays.

Written from the steps of public programs.

Choices:
  * Fine-tuning has no second gradient. rho is 0.05, as in the FedDRM authors'
    program.
  * As many steps as FedAvg, of two gradients each. Decay is applied at the
    weights, not on the way to the neighbouring point; the reported loss is the
    loss at the weights. Running statistics are updated at the first point only.
"""

import dataclasses

from tff_shift.algorithms import fed_avg
from tff_shift.algorithms import fed_avg_ft
from tff_shift.algorithms.parts import sharpness
from tff_shift.learning import algorithm
from tff_shift.learning import hyperparameters
from tff_shift.learning import local_training
from tff_shift.models import split_model

SCENARIOS = ("evolving", "guidance")
RUNNING_STATISTICS = algorithm.ONE_MODEL


@dataclasses.dataclass(frozen=True)
class HParams(fed_avg_ft.HParams):
  """Hyper-parameters of FedSAMFT: FedAvgFT's, and rho."""

  rho: float = hyperparameters.hparam(
    0.05,
    "rho: distance from the weights, along the gradient, at which a step's"
    " gradient is taken. 0: FedAvgFT at twice the cost; too large: the loss"
    " there is unrelated to the loss at the weights, and nothing is learned.",
    minimum=0,
  )


def build(
  model: split_model.SplitModel, hparams: HParams
) -> algorithm.AlgorithmSpec:
  """Builds the spec of FedSAMFT; see `algorithm.AlgorithmSpec`."""
  return fed_avg_ft.build(model, hparams)._replace(
    train_client=local_training.allows_padding(
      lambda weights, _, data, round_num: fed_avg.train_client(
        model,
        hparams,
        weights,
        data,
        round_num,
        differentiate=sharpness.sharpness_aware(hparams.rho),
      )
    )
  )
