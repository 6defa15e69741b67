"""The federated intrinsics, evaluated in this process."""

import concurrent.futures
import itertools
import types
from collections.abc import Callable
from collections.abc import Mapping
from collections.abc import Sequence

import tensorflow as tf
import tensorflow_federated as tff

from tff_shift.execution.in_process import programs
from tff_shift.execution.in_process import values


class ClientError(RuntimeError):
  """A client's work failed; the message names the client's position."""


class FederatedEvaluator(programs.Evaluator):
  """Evaluates one call of a computation.

  A value at SERVER, or one that all clients share, is a bare value; any other
  value at CLIENTS is a list with an entry per client.
  """

  def __init__(
    self,
    cache: programs.ProgramCache,
    server_device: str,
    client_devices: Sequence[str],
    num_clients: int,
    client_pool: concurrent.futures.Executor | None,
  ):
    """Prepares for one call.

    Args:
      cache: The programs of the computation.
      server_device: The full name of the device of the server's work.
      client_devices: The full names of the clients' devices, assigned in turn.
      num_clients: The number of clients in this call.
      client_pool: Runs clients concurrently; None to run them one by one.
    """
    self._cache = cache
    self._server_device = server_device
    self._client_devices = list(
      itertools.islice(itertools.cycle(client_devices), num_clients)
    )
    self._client_pool = client_pool

  def run(
    self,
    function: tff.framework.ComputationBuildingBlock,
    argument: values.Value,
    result_type: tff.Type,
  ) -> values.Value:
    """Evaluates the computation.

    Args:
      function: The computation's building block.
      argument: Its argument, or None if it takes none.
      result_type: The type of its result.

    Returns:
      The result.
    """
    result = self.call(self.evaluate(function, {}), argument)
    return self._spread(result, result_type)

  def call_compiled(
    self, function: tff.framework.CompiledComputation, argument: values.Value
  ) -> values.Value:
    """Runs a block outside of any intrinsic, as the server's work."""
    return self._call_at_server(programs.Closure(function, {}), argument)

  def call_intrinsic(
    self, function: tff.framework.Intrinsic, argument: values.Value
  ) -> values.Value:
    """Applies one of `INTRINSICS`."""
    return INTRINSICS[function.uri](
      self, argument, function.type_signature.parameter
    )

  def _call_at_server(
    self, function: programs.Closure, argument: values.Value
  ) -> values.Value:
    return self._cache.call(function, argument, self._server_device)

  def _call_at_clients(
    self, function: programs.Closure, arguments: Sequence[values.Value]
  ) -> list[values.Value]:
    """Applies a function to each client's value."""

    def run_client(index: int) -> values.Value:
      try:
        return self._cache.call(
          function, arguments[index], self._client_devices[index]
        )
      except Exception as error:
        raise ClientError(
          f"client {index} of {len(arguments)} failed: {error}"
        ) from error

    clients = range(len(arguments))
    if self._client_pool is None:
      return list(map(run_client, clients))
    return list(self._client_pool.map(run_client, clients))

  def _as_list(
    self, value: values.Value, type_spec: tff.Type
  ) -> list[values.Value]:
    """Returns each client's part of a structure of values at CLIENTS."""
    if isinstance(value, list):
      return value
    if not isinstance(type_spec, tff.StructType):
      # The type is not sufficient: a value that all clients share may be passed
      # where values can differ between clients.
      return self._replicate(value)
    columns = [
      self._as_list(part, element)
      for part, element in zip(
        value, values.element_types(type_spec), strict=True
      )
    ]
    if not columns:
      return [()] * len(self._client_devices)
    return list(zip(*columns, strict=True))

  def _replicate(self, value: values.Value) -> list[values.Value]:
    """Copies a shared value for each client, once per device."""
    copies = {self._server_device: value}
    for device in set(self._client_devices) - set(copies):
      with tf.device(device):
        copies[device] = tf.nest.map_structure(_copy, value)
    return [copies[device] for device in self._client_devices]

  def _spread(self, value: values.Value, type_spec: tff.Type) -> values.Value:
    """Makes a list of a value that clients share where values may differ."""
    if isinstance(type_spec, tff.StructType):
      return tuple(
        self._spread(part, element)
        for part, element in zip(
          value, values.element_types(type_spec), strict=True
        )
      )
    if values.is_clients_list_type(type_spec):
      return self._as_list(value, type_spec)
    return value

  def _identity(self, argument, parameter_type):
    del parameter_type
    return argument

  def _apply(self, argument, parameter_type):
    del parameter_type
    function, value = argument
    return self._call_at_server(function, value)

  def _eval_at_server(self, argument, parameter_type):
    del parameter_type
    return self._call_at_server(argument, None)

  def _eval_at_clients(self, argument, parameter_type):
    del parameter_type
    return self._call_at_clients(argument, [None] * len(self._client_devices))

  def _map(self, argument, parameter_type):
    function, value = argument
    return self._call_at_clients(
      function, self._as_list(value, parameter_type[1])
    )

  def _aggregate(self, argument, parameter_type):
    # All clients are in this process, so nothing is left to merge.
    value, total, accumulate, _, report = argument
    for part in self._as_list(value, parameter_type[0]):
      total = self._call_at_server(accumulate, (total, part))
    return self._call_at_server(report, total)

  def _select(self, argument, parameter_type):
    keys, limit, state, select = argument
    limit = int(limit.numpy())
    element_type = parameter_type[3].result
    elements = {}  # By key: many clients request the same.

    def select_element(key: int) -> values.Value:
      if not 0 <= key < limit:
        raise ValueError(
          f"a key of federated_select must be 0 or more and below {limit}; "
          f"got {key}"
        )
      if key not in elements:
        elements[key] = self._call_at_server(
          select, (state, tf.constant(key, tf.int32))
        )
      return elements[key]

    return [
      values.variant_from_elements(
        list(map(select_element, client_keys.numpy().tolist())), element_type
      )
      for client_keys in self._as_list(keys, parameter_type[0])
    ]


def _copy(tensor: tf.Tensor) -> tf.Tensor:
  """Copies a tensor to the device in scope."""
  # A data set cannot be copied; it stays on the host.
  return tensor if tensor.dtype == tf.variant else tf.identity(tensor)


# The intrinsics in the output of TFF's native compiler, by name.
INTRINSICS: Mapping[str, Callable[..., values.Value]] = types.MappingProxyType(
  {
    "federated_aggregate": FederatedEvaluator._aggregate,
    "federated_apply": FederatedEvaluator._apply,
    "federated_broadcast": FederatedEvaluator._identity,
    "federated_eval_at_clients": FederatedEvaluator._eval_at_clients,
    "federated_eval_at_server": FederatedEvaluator._eval_at_server,
    "federated_map": FederatedEvaluator._map,
    "federated_map_all_equal": FederatedEvaluator._apply,
    "federated_select": FederatedEvaluator._select,
    "federated_value_at_clients": FederatedEvaluator._identity,
    "federated_value_at_server": FederatedEvaluator._identity,
    "federated_zip_at_clients": FederatedEvaluator._as_list,
    "federated_zip_at_server": FederatedEvaluator._identity,
  }
)
