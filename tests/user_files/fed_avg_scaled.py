"""FedAvgScaled: FedAvg whose server takes longer or shorter steps.

Adaptive Federated Optimization (Reddi, Charles, Zaheer, Garrett, Rush, Konečný,
Kumar, McMahan; ICLR 2021), Algorithm 1 with plain gradient descent at the
server: the mean of the clients' changes is multiplied by a rate.

What leaves a client: the change of all weights, and the mean training loss.
"""

import dataclasses

import tensorflow as tf

from tff_shift.algorithms import fed_avg
from tff_shift.learning import hyperparameters

SCENARIOS = ("evolving", "guidance", "dynamic_personalization")


@dataclasses.dataclass(frozen=True)
class HParams(hyperparameters.LocalHParams):
  """FedAvg's, and the server's rate."""

  server_rate: float = hyperparameters.hparam(
    1.0,
    "What the mean change is multiplied by; 1 is FedAvg.",
    minimum=0,
    exclusive_minimum=True,
  )


def work(model, hparams):
  """The functions of FedAvg, and another step of the server."""

  def update_server(weights, mean_update, contribution, round_num):
    del contribution, round_num
    return tf.nest.map_structure(
      lambda w, change: w + hparams.server_rate * change, weights, mean_update
    )

  return fed_avg.work(model, hparams)._replace(update_server=update_server)
