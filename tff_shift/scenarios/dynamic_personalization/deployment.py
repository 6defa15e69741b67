"""The clients of a deployed federation, which predict and request new models.

Deployed clients do not train. `dynamic_personalization` has the scenario.
"""

from collections.abc import Callable
from collections.abc import Sequence

import numpy as np

from tff_shift.data import examples as examples_lib
from tff_shift.learning import algorithm as algorithm_lib
from tff_shift.learning import evaluation
from tff_shift.simulation.engine import client_data
from tff_shift.simulation.engine import rounds

# Maps the examples of a period, [n, ...], to r.
Represent = Callable[[np.ndarray], np.ndarray]


def check_domains(
  algorithm: algorithm_lib.FederatedAlgorithm, num_clients: int
) -> None:
  """Refuses an algorithm that was not built with one domain per client.

  Raises:
    ValueError: If so, or if it has metrics whose sums its aggregator hides.
  """
  to_predict = algorithm.evaluate_clients.type_signature.parameter[3].member
  (found,) = to_predict.domain_sizes.shape
  if found != num_clients:
    raise ValueError(
      f"num_evaluation_domains of {algorithm.name} must be {num_clients}, the"
      f" number of clients, got {found}"
    )
  if algorithm.metrics.metrics and algorithm.hides_clients:
    raise ValueError(
      f"metrics={','.join(algorithm.metrics.metrics)} is not allowed with an"
      " aggregator that hides clients: with a domain per client, the server"
      " would see the sums of each client"
    )


class Clients:
  """The clients of a deployed federation, each with its own model.

  Attributes:
    tables: The tables of counts of the latest `measure`, see
      `evaluation.tables`, summed over clients.
  """

  def __init__(self, running: rounds.Rounds, represent: Represent | None):
    """Takes over the states after training.

    Args:
      running: The rounds, of an algorithm whose `num_evaluation_domains` is the
        number of clients; they are not changed.
      represent: Maps examples to r. None: the algorithm takes none.

    Raises:
      ValueError: If the algorithm has another number of evaluation domains.
    """
    algorithm = running.algorithm
    # A copy: changes to this list change no state.
    self._states = running.client_states
    check_domains(algorithm, len(self._states))
    self._running = running
    self._validator = client_data.ClientDataValidator(algorithm)
    self._represent = represent
    self.tables = {}

  def measure(
    self, examples: Sequence[examples_lib.Examples]
  ) -> dict[str, np.ndarray]:
    """Evaluates each client's own model on its own examples.

    Args:
      examples: The examples of each client, at least one of a client.

    Returns:
      The metrics of `evaluation.METRICS`, and those that the algorithm was
      built with, of each client, [num_clients] float64 each; NaN for clients
      without examples.

    Raises:
      ValueError: If examples do not match the algorithm.
    """
    examples = [
      self._validator.examples(each, client)
      for client, each in enumerate(examples)
    ]
    # Metrics are means over clients for each domain: with one domain per client
    # they are the client's.
    sizes = np.diag([len(each.y) for each in examples])
    present = [client for client, each in enumerate(examples) if len(each.y)]
    means = self._running.algorithm.evaluate_clients(
      self._running.server_state,
      [self._states[client] for client in present],
      [self._running.data[client] for client in present],
      [
        client_data.to_predict(*examples[client], sizes[client], client)
        for client in present
      ],
    )
    # Percentages are computed in float32, so that 0.7 gives exactly 70.
    metrics = self._running.algorithm.metrics
    self.tables = evaluation.tables(means, metrics, domains=slice(None))
    found = evaluation.report(means, np.asarray, metrics)
    return {name: each.astype(np.float64) for name, each in found.items()}

  def request(
    self, examples: Sequence[examples_lib.Examples], wanted: np.ndarray
  ) -> np.ndarray:
    """Lets clients request a new model with the r of their latest examples.

    Args:
      examples: The examples of each client.
      wanted: The clients that request one, [num_clients] bool.

    Returns:
      The clients that were answered, [num_clients] bool: `wanted`, or none if
      the algorithm does not answer requests.

    Raises:
      ValueError: If examples do not match the algorithm.
    """
    algorithm = self._running.algorithm
    if algorithm.request is None:
      return np.zeros(len(examples), bool)
    for client in np.flatnonzero(wanted).tolist():
      own = self._validator.examples(examples[client], client)
      self._states[client] = algorithm.request(
        self._running.server_state, self._represent(own.x)
      )
    return np.array(wanted)
