"""Your own algorithm: one file, compared with the others in every table.

FedAvg with a server learning rate: Adaptive Federated Optimization (Reddi,
Charles, Zaheer, Garrett, Rush, Konečný, Kumar, McMahan; ICLR 2021), Algorithm 1
with plain gradient descent at the server.

    python -m examples.own_algorithm
    python -m tff_shift.testing examples/own_algorithm.py
    python -m experiments.evolving --import=examples/own_algorithm.py \
        --algorithm=fed_avg,own_algorithm --server_rate=0.5,1,2

What leaves a client: its model update, and the mean training loss.
"""

import dataclasses

import tensorflow as tf

from tff_shift.algorithms import fed_avg
from tff_shift.learning import hyperparameters

SCENARIOS = ("evolving", "guidance", "dynamic_personalization")


@dataclasses.dataclass(frozen=True)
class HParams(hyperparameters.LocalHParams):
  """Hyper-parameters of FedAvg, and the server's learning rate."""

  server_rate: float = hyperparameters.hparam(
    1.0,
    "The server's learning rate, a factor of the mean update; 1: FedAvg.",
    minimum=0,
    exclusive_minimum=True,
  )


def build(model, hparams):
  """Builds the spec of FedAvg with another server step."""

  def update_server(weights, mean_update, plaintext_sum, info):
    del plaintext_sum, info
    return tf.nest.map_structure(
      lambda w, update: w + hparams.server_rate * update, weights, mean_update
    )

  return fed_avg.build(model, hparams)._replace(update_server=update_server)


# The server learning rates that the table compares.
RATES = (0.5, 1.0, 1.5)


def main() -> None:
  """Prints the accuracy on the unseen domain for each of `RATES`."""
  import numpy as np

  from tff_shift import algorithms
  from tff_shift import execution
  from tff_shift import models
  from tff_shift.data.shifts import evolving as evolving_data
  from tff_shift.scenarios.evolving import simulation as evolving

  module = algorithms.load(__file__)
  dataset = evolving_data.load_evolving("circle", num_domains=6, seed=0)
  clients = evolving_data.assemble_clients(dataset, num_clients=4, seed=0)
  model = models.build(
    "mlp", input_shape=(2,), num_classes=2, input_dtype=np.float32
  )
  with execution.use("auto"):
    for rate in RATES:
      algorithm = algorithms.build(
        module,
        model,
        module.HParams(learning_rate=0.03, server_rate=rate),
        num_evaluation_domains=len(dataset.domains),
      )
      result = evolving.run(algorithm, clients, num_rounds=10, run_seed=0)
      accuracy = result.final.server["accuracy"]
      print(f"server_rate {rate}: {accuracy:.1f} % on the unseen domain")


if __name__ == "__main__":
  main()
