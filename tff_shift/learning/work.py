"""The gradient steps of a client in a round, from the functions of a client.

The functions are traced, and only the numbers of steps are computed: no client
trains. What is counted are the gradients of `local_training.train`, the only
training loop of the package.
"""

from collections.abc import Sequence
from typing import Any

import tensorflow as tf
import tensorflow_federated as tff

from tff_shift.learning import algorithm as algorithm_lib
from tff_shift.learning import frozen_weights
from tff_shift.learning import local_training


def gradients_of_round(
  algorithm: algorithm_lib.FederatedAlgorithm,
  data: Sequence[Any],
  round_num: int = 0,
) -> float | None:
  """Returns the gradients that a client computes in a round.

  Adaptations that start an evaluation, such as fine-tuning, are not parts of a
  round.

  Args:
    algorithm: The algorithm.
    data: The data of clients, in the dtypes of the algorithm.
    round_num: The round, from 0.

  Returns:
    The mean over the clients. None if the number depends on more than the
    clients' data, such as on a loss, or if there are no clients.
  """
  if not data:
    return None
  spec = algorithm.spec
  if not algorithm.phases:
    return 0.0
  signature = algorithm.phases[0].type_signature.parameter
  server_type, client_type, examples_type = (each.member for each in signature)
  is_frozen = frozen_weights.has_any(algorithm.model)
  state_type = server_type.state if is_frozen else server_type
  specs = tff.types.type_to_tf_tensor_specs(examples_type)
  flat_specs = tf.nest.flatten(specs)

  @tf.function(
    input_signature=[flat_specs, tf.TensorSpec([], tf.int32)],
    # As in TFF; it warns about functions whose source it cannot parse.
    autograph=False,
  )
  def count(flat_data, round_num):
    client_data = tf.nest.pack_sequence_as(data[0], flat_data)
    # Weights and states do not decide how many steps a client takes.
    weights = _zeros(state_type.weights)
    if is_frozen:
      weights = frozen_weights.Shared(weights, _zeros(server_type.frozen))
    arguments = weights, _zeros(client_type), client_data, round_num
    with local_training.count_steps() as found:
      for survey in spec.surveys:
        survey.survey_client(*arguments)
      if spec.train_client is not None:
        spec.train_client(*arguments)
      if spec.personalize_client is not None:
        spec.personalize_client(*arguments)
    if not found.is_complete:
      return tf.constant(-1)
    return tf.add_n([tf.constant(0), *found.gradients])

  # Traced here: a call that traces counts as one of many, and TensorFlow warns.
  traced = count.get_concrete_function()
  numbers = [
    int(traced(tf.nest.flatten(each), tf.constant(round_num))) for each in data
  ]
  return None if numbers[0] < 0 else sum(numbers) / len(numbers)


def _zeros(value: tff.Type) -> Any:
  """Returns zeros in the Python containers of a type; unknown sizes are 0."""
  if isinstance(value, tff.TensorType):
    return tf.zeros([size or 0 for size in value.shape], value.dtype)
  parts = [_zeros(each) for each in value]
  container = value.python_container
  if hasattr(container, "_fields"):
    return container(*parts)
  if issubclass(container, dict):
    names = tff.structure.name_list(value)
    return container(zip(names, parts, strict=True))
  return container(parts)
