"""FedProxFT: FedProx, then every client fine-tunes the global model.

Federated Optimization in Heterogeneous Networks (Li, Sahu, Zaheer, Sanjabi,
Talwalkar, Smith; MLSys 2020, arXiv:1812.06127), Algorithm 2, for the rounds. A
baseline of Beyond Aggregation: Guiding Clients in Heterogeneous Federated
Learning, Table 1.

In a round a client minimises, as in `fed_prox`,

    F_k(w) + mu / 2 |w - w^t|^2

from the server weights w^t. It predicts with a model fine-tuned from the
current server weights, as in `fed_avg_ft` and without the proximal term. With
mu = 0 it is FedAvgFT, bit for bit.

What leaves a client: its model update, and the mean training loss, including
the proximal term. The fine-tuned model stays.

The default mu is from the FedDRM authors' program. In ten steps at a rate of
0.01 with momentum 0.9 it reduces a client's movement by less than half a
percent: there the method is practically FedAvgFT.

Choices:
  * Fine-tuning is by plain steps, as in FedAvgFT: no proximal term. mu is 0.01,
    as in the program.
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
  """Hyper-parameters of FedProxFT: FedAvgFT's, and mu."""

  mu: float = hyperparameters.hparam(
    0.01,
    "Weight mu of the proximal term in the rounds. 0: FedAvgFT; plain gradient"
    " steps diverge if mu times the learning rate exceeds 2.",
    minimum=0,
    published=True,
  )


def build(
  model: split_model.SplitModel, hparams: HParams
) -> algorithm.AlgorithmSpec:
  """Builds the spec of FedProxFT; see `algorithm.AlgorithmSpec`."""
  return fed_prox.with_proximal_term(
    fed_avg_ft.build(model, hparams), model, hparams, hparams.mu
  )
