"""The predictions of clients with their own models, outside a simulation."""

from typing import Any
from typing import NamedTuple

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tff_shift.learning import algorithm as algorithm_lib
from tff_shift.learning import frozen_weights
from tff_shift.serving import export


class Predictions(NamedTuple):
  """The predictions for a batch.

  Attributes:
    classes: The predicted labels, [n] int32.
    probabilities: [n, num_classes] float32.
  """

  classes: np.ndarray
  probabilities: np.ndarray


class OwnModels:
  """Predicts as clients do; its functions are traced once."""

  def __init__(
    self,
    algorithm: algorithm_lib.FederatedAlgorithm,
    server_type: tff.FederatedType | None = None,
  ):
    """Builds what prepares a client's state, if the algorithm has it.

    Args:
      algorithm: The algorithm.
      server_type: The type of `server` in `predict`, at SERVER. None: that of
        the server's whole state.
    """
    self._algorithm = algorithm
    self._prepare = export.preparation(algorithm, server_type)
    self._function = tf.function(self._logits, reduce_retracing=True)

  def predict(
    self, server: Any, client_state: Any, data: Any, x: np.ndarray
  ) -> Predictions:
    """Predicts with a client's own model.

    Args:
      server: The server's state, or another tuple with its weights.
      client_state: The client's state.
      data: The client's data.
      x: Valid examples, [n, ...].

    Returns:
      The predictions.
    """
    shared = server.weights
    if frozen_weights.has_any(self._algorithm.model):
      shared = frozen_weights.Shared(shared, self._algorithm.model.frozen)
    if self._prepare is not None:
      (client_state,) = self._prepare(server, [client_state], [data])
    given = tf.nest.map_structure(
      tf.convert_to_tensor, (shared, client_state, data, x)
    )
    probabilities = tf.nn.softmax(self._function(*given)).numpy()
    return Predictions(
      probabilities.argmax(axis=1).astype(np.int32), probabilities
    )

  def _logits(self, shared, personal, data, x):
    return self._algorithm.spec.predict_as_client(
      shared, personal, data, export.to_predict(x, 0)
    )
