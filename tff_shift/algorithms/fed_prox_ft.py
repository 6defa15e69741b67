"""FedProxFT: FedProx, then every client fine-tunes the global model.

Federated Optimization in Heterogeneous Networks (Li, Sahu, Zaheer, Sanjabi,
Talwalkar, Smith; MLSys 2020), Algorithm 2, for the rounds. A baseline of Beyond
Aggregation: Guiding Clients in Heterogeneous Federated Learning, Table 1.

In a round a client minimises, as in `fed_prox`,

    F_k(w) + mu / 2 |w - w^t|^2

from the server's weights w^t. It predicts with the model that it fine-tuned
from those of the moment, as in `fed_avg_ft` and without the proximal term. With
mu = 0 it is FedAvgFT, bit for bit.

What leaves a client: the change of all weights, and the mean training loss,
proximal term included. The fine-tuned model does not.

The default mu is that of the FedDRM authors' program. In ten steps at a rate of
0.01 with momentum 0.9 it takes back less than half a percent of the way that a
client goes: there the method is FedAvgFT but for a trace.
"""

import dataclasses

from tff_shift.algorithms import fed_avg_ft
from tff_shift.algorithms import fed_prox
from tff_shift.learning import algorithm
from tff_shift.learning import hyperparameters
from tff_shift.models import split_model

SCENARIOS = ("evolving", "guidance")
RUNNING_STATISTICS = algorithm.ONE_MODEL


@dataclasses.dataclass(frozen=True)
class HParams(fed_avg_ft.HParams):
  """Hyper-parameters of FedProxFT: those of FedAvgFT, and mu."""

  mu: float = hyperparameters.hparam(
    0.01,
    "Weight of the proximal term in the rounds: 0 is FedAvgFT; so large that"
    " mu times the learning rate passes 2, and plain gradient steps diverge.",
    minimum=0,
  )


def build(
  model: split_model.SplitModel, hparams: HParams
) -> algorithm.AlgorithmSpec:
  """The functions of FedProxFT; see `algorithm.AlgorithmSpec`."""
  return fed_avg_ft.build(model, hparams)._replace(
    train_client=fed_prox.build(model, hparams).train_client
  )
