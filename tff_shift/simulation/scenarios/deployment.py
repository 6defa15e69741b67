"""The clients of a federation in use: they predict, and ask for other models.

Nobody trains here. See `dynamic` for the scenario.
"""

from collections.abc import Callable
from collections.abc import Sequence

import numpy as np

from tff_shift.data import examples as examples_lib
from tff_shift.learning import algorithm as algorithm_lib
from tff_shift.learning import evaluation
from tff_shift.simulation.engine import client_data
from tff_shift.simulation.engine import rounds

# The examples of a period, [n, ...], to r.
Represent = Callable[[np.ndarray], np.ndarray]


def check_domains(
  algorithm: algorithm_lib.FederatedAlgorithm, num_clients: int
) -> None:
  """Refuses an algorithm that was not built with a domain for each client."""
  to_predict = algorithm.evaluate_clients.type_signature.parameter[3].member
  (found,) = to_predict.domain_sizes.shape
  if found != num_clients:
    raise ValueError(
      f"num_evaluation_domains of {algorithm.name} must be {num_clients}, the"
      f" number of clients, got {found}"
    )


class Clients:
  """The clients of a federation in use, each with a model of its own."""

  def __init__(self, running: rounds.Rounds, represent: Represent | None):
    """Takes over the states after training.

    Args:
      running: The rounds, of an algorithm that was built with
        `num_evaluation_domains` as many as there are clients; they stay as they
        are.
      represent: Examples to r. None where the algorithm takes none.

    Raises:
      ValueError: If the algorithm was built otherwise.
    """
    algorithm = running.algorithm
    # A list of its own: what is put there changes no state.
    self._states = running.client_states
    check_domains(algorithm, len(self._states))
    self._running = running
    self._door = client_data.ClientDataValidator(algorithm)
    self._represent = represent

  def measure(
    self, examples: Sequence[examples_lib.Examples]
  ) -> dict[str, np.ndarray]:
    """Lets each client predict its own examples with its own model.

    Args:
      examples: The examples of each client, at least one of each.

    Returns:
      The metrics of `evaluation.METRICS` of each client, [num_clients] float64
      each.

    Raises:
      ValueError: If examples are not what the algorithm takes.
    """
    examples = [
      self._door.examples(each, client) for client, each in enumerate(examples)
    ]
    # Metrics come as means over clients, for each domain: a domain of which one
    # client alone has examples gives that of the client.
    sizes = np.diag([len(each.y) for each in examples])
    means = self._running.algorithm.evaluate_clients(
      self._running.server_state,
      self._states,
      self._running.data,
      [
        client_data.to_predict(each.x, each.y, sizes[client], client)
        for client, each in enumerate(examples)
      ],
    )
    # Percent are made in float32, so that a share such as 0.7 gives 70.
    found = evaluation.report(means, np.asarray)
    return {name: each.astype(np.float64) for name, each in found.items()}

  def request(
    self, examples: Sequence[examples_lib.Examples], wanted: np.ndarray
  ) -> np.ndarray:
    """Lets clients ask for another model, with the r of what they have met.

    Args:
      examples: The examples of each client.
      wanted: Who would ask, [num_clients] bool.

    Returns:
      Who was answered, [num_clients] bool: nobody where the algorithm has no
      answer, and else who asked.

    Raises:
      ValueError: If examples are not what the algorithm takes.
    """
    algorithm = self._running.algorithm
    if algorithm.request is None:
      return np.zeros(len(examples), bool)
    for client in np.flatnonzero(wanted):
      own = self._door.examples(examples[client], client)
      self._states[client] = algorithm.request(
        self._running.server_state, self._represent(own.x)
      )
    return np.array(wanted)
