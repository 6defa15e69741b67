"""Queries to a federation: any number, to the best client or to all.

Choices:
  * Ties of a majority vote go to the lowest class, as `torch.mode` on a CPU.
"""

from collections.abc import Sequence
from typing import Any
from typing import NamedTuple

import numpy as np

from tff_shift._util import arguments
from tff_shift.data import examples
from tff_shift.learning import algorithm as algorithm_lib
from tff_shift.learning import guidance
from tff_shift.simulation.engine import checks
from tff_shift.simulation.engine import client_data


class Routing(NamedTuple):
  """The routes of queries.

  Attributes:
    routes: The best client for each query, [num_queries] int32.
    probabilities: The probability of each client, [num_queries, num_clients]
      float32.
  """

  routes: np.ndarray
  probabilities: np.ndarray


class Answers(NamedTuple):
  """The answers of clients.

  Attributes:
    classes: The predicted labels, [num_queries] int32.
    routes: The clients that predicted them, [num_queries] int32.
  """

  classes: np.ndarray
  routes: np.ndarray


def check_algorithm(algorithm: algorithm_lib.FederatedAlgorithm) -> None:
  """Raises a ValueError if it was built without `num_queries`."""
  if algorithm.guidance is None:
    raise ValueError(
      f"{algorithm.name} was built without num_queries, the number of queries"
      " that it answers at a time"
    )


class Federation:
  """A server and its clients, which answer queries in fixed-size batches."""

  def __init__(
    self,
    algorithm: algorithm_lib.FederatedAlgorithm,
    server_state: Any,
    client_states: Sequence[Any],
    data: Sequence[Any],
  ):
    """Takes over the states of a run, and prepares clients for all queries.

    Args:
      algorithm: An algorithm that was built with `num_queries`.
      server_state: The server's state.
      client_states: The clients' states, in the order of their ids.
      data: The clients' training data, in the same order.

    Raises:
      ValueError: If the algorithm was built without `num_queries`, a state or
        data of a client are missing, or data do not match the algorithm.
    """
    checks.algorithm(algorithm)
    check_algorithm(algorithm)
    arguments.sequence(
      "client_states", client_states, arguments.sequence("data", data)
    )
    self._guidance = algorithm.guidance
    self._name = algorithm.name
    self._server_state = server_state
    self._validator = client_data.ClientDataValidator(algorithm)
    self._data = [
      self._validator.training(each, client, allow_empty=True)
      for client, each in enumerate(data)
    ]
    self._prepared = list(client_states)
    if algorithm.guidance.prepare is not None:
      self._prepared = algorithm.guidance.prepare(
        server_state, self._prepared, self._data
      )

  @property
  def can_guide(self) -> bool:
    """Whether the server can rank the clients for a query."""
    return self._guidance.guide is not None

  def guide(self, queries: np.ndarray, *, corrected: bool = True) -> Routing:
    """Chooses the best client for each query.

    Args:
      queries: [num_queries, ...], any number of them.
      corrected: Whether the probabilities are corrected for the clients'
        fractions of the training examples, see `guidance.route`.

    Returns:
      The routes and the probabilities.

    Raises:
      ValueError: If the algorithm has no guide, or the queries do not match its
        model.
    """
    if not self.can_guide:
      raise ValueError(f"{self._name} has no guide; use a vote instead")
    prefix = "" if corrected else "uncorrected_"
    names = f"{prefix}routes", f"{prefix}probabilities"

    def guide_batch(x):
      routing = self._guidance.guide(self._server_state, self._data, x)
      return tuple(np.asarray(routing[name]) for name in names)

    return Routing(*self._in_batches(guide_batch, queries))

  def answer(
    self, queries: np.ndarray, routes: np.ndarray | None = None
  ) -> Answers:
    """Predicts each query with one client's own model.

    Args:
      queries: [num_queries, ...], any number of them.
      routes: The client for each, [num_queries] integers. None: the guide's.

    Returns:
      Classes and routes. The class is `guidance.NO_CLIENT` if a route is not a
      client's id.

    Raises:
      ValueError: If there are no routes and the algorithm has no guide, if the
        number of routes differs from the number of queries, or the queries do
        not match the model.
    """
    queries = self._validator.queries(queries)
    if routes is None:
      routes = self.guide(queries).routes
    elif not np.size(routes):
      routes = np.zeros(np.shape(routes), np.int32)
    routes = examples.checked_array(
      routes,
      "routes, one for each query",
      shape=(len(queries),),
      dtype=np.int32,
    )

    def answer_batch(x, routes_of_batch):
      classes = self._guidance.answer(
        self._server_state,
        self._prepared,
        self._data,
        x,
        routes_of_batch,
      )
      return (np.asarray(classes),)

    (classes,) = self._in_batches(answer_batch, queries, routes)
    return Answers(classes, routes)

  def vote(self, queries: np.ndarray) -> np.ndarray:
    """Predicts each query by a majority vote of the clients.

    Clients without training examples have no vote.

    Args:
      queries: [num_queries, ...], any number of them.

    Returns:
      The classes, [num_queries] int32, see `guidance.winners`.

    Raises:
      ValueError: If the queries do not match the model.
    """
    voters = [place for place, each in enumerate(self._data) if len(each.y)]
    prepared, data = (
      [every[place] for place in voters]
      for every in (self._prepared, self._data)
    )

    def vote_batch(x):
      classes = self._guidance.vote(self._server_state, prepared, data, x)
      return (np.asarray(classes),)

    return self._in_batches(vote_batch, queries)[0]

  def _in_batches(self, process, queries, routes=None):
    """Processes queries in padded batches, and removes the padding.

    Without queries, one batch determines the shapes of the empty result.
    """
    queries = self._validator.queries(queries)
    size = self._guidance.num_queries
    results = []
    for start in range(0, max(len(queries), 1), size):
      batch = [_fill(queries[start : start + size], size, 0)]
      if routes is not None:
        part = routes[start : start + size]
        batch.append(_fill(part, size, guidance.NO_CLIENT))
      kept = len(queries[start : start + size])
      results.append([values[:kept] for values in process(*batch)])
    return tuple(np.concatenate(parts) for parts in zip(*results, strict=True))


def _fill(values: np.ndarray, size: int, filling: int) -> np.ndarray:
  """Pads an array to a length with one value."""
  width = [(0, size - len(values))] + [(0, 0)] * (values.ndim - 1)
  return np.pad(values, width, constant_values=filling)
