"""LG-FedAvg: personal representations, and a shared head.

Think Locally, Act Globally: Federated Learning with Local and Global
Representations (Liang, Liu, Ziyin, Allen, Auerbach, Brent, Salakhutdinov,
Morency; 2020, arXiv:2001.01523), Algorithm 1.

In a round a client takes the server's head and its own representation, the
layers before it, and trains both together. The server averages the head alone:
few weights are sent, and representations fit the client's data. `fed_per` has
the parts the other way round.

What leaves a client: the update of the head, and the mean training loss. The
representation stays.

Choices:
  * The shared head is the last linear layer; `head=classifier` shares the
    model's whole head.
  * All clients start with the initial representation of the run's seed. The
    paper continues FedAvg's model in its experiments with images:
    `--weights_file` gives all clients a trained model.
  * The loss is the cross-entropy of the whole model. The paper's further losses
    of the representation (self-supervised, adversarial for fairness) are left
    out.
  * A client that never trained predicts with the initial representation. The
    paper averages the predictions of all clients' models for new devices, for
    which models would have to leave their clients.
  * Clients have equal weights, as in all methods here; the paper weights them
    by their numbers of examples (`client_weighting=num_examples`).
"""

import dataclasses

from tff_shift.algorithms import fed_per
from tff_shift.learning import algorithm
from tff_shift.learning import hyperparameters
from tff_shift.models import split_model

SCENARIOS = ("evolving", "guidance")

RUNNING_STATISTICS = algorithm.OWN_MODEL


@dataclasses.dataclass(frozen=True)
class HParams(hyperparameters.LocalHParams):
  """Hyper-parameters of LG-FedAvg."""

  head: str = hyperparameters.hparam(
    "last_layer",
    "What is shared: last_layer, only the last linear layer; classifier, the"
    " model's whole head.",
    choices=split_model.HEADS,
  )


def build(
  model: split_model.SplitModel, hparams: HParams
) -> algorithm.AlgorithmSpec:
  """Builds the spec of LG-FedAvg; see `algorithm.AlgorithmSpec`.

  A client's state is its representation; the server has no model to predict
  with.
  """
  return fed_per.share(model, hparams, "head")
