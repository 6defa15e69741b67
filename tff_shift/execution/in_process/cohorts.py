"""A whole computation as one TensorFlow function, with a loop over clients.

For small clients, Python overhead between TensorFlow calls costs more than
training. If possible, a computation is therefore traced once, for any number of
clients: the values of all clients are packed into one tensor per leaf, a loop
takes each client's part, does its work and adds to the aggregates, and the
server's work is before and after the loop. TensorFlow runs several iterations
concurrently as far as dependencies allow. Only the aggregates are sequential,
so that they add up in the order of the clients, with the same bits for any
number of threads.

An aggregate that depends on another one takes a further loop, in which clients'
values are computed again. So a value that was drawn without a seed would be
drawn again: such computations run client by client.

Other computations run client by client, see `federated`: data sets, strings,
variables, clients on several devices, and clients with so much data that the
overhead of a call is negligible.
"""

from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tff_shift._util import wrapped_functions
from tff_shift.execution import compilation
from tff_shift.execution.in_process import lazy
from tff_shift.execution.in_process import packing
from tff_shift.execution.in_process import programs
from tff_shift.execution.in_process import values

_INTRINSICS = frozenset(
  {
    "federated_aggregate",
    "federated_apply",
    "federated_broadcast",
    "federated_eval_at_clients",
    "federated_eval_at_server",
    "federated_map",
    "federated_map_all_equal",
    "federated_value_at_clients",
    "federated_value_at_server",
    "federated_zip_at_clients",
    "federated_zip_at_server",
  }
)


def is_possible(function: tff.framework.ComputationBuildingBlock) -> bool:
  """Returns whether a computation can become one function.

  Args:
    function: The computation's building block, prepared for this process.
  """
  if not isinstance(function, tff.framework.Lambda):
    return False
  signature = function.type_signature
  if signature.parameter is None or not (
    _is_dense(signature.parameter, _is_packable)
    and _is_dense(signature.result, _is_stackable)
  ):
    return False
  has_clients = any(
    values.is_clients_list_type(each) for each in _walk(signature.parameter)
  )
  return has_clients and all(
    _is_fit(block) for block in compilation.walk(function)
  )


def _is_fit(block: tff.framework.ComputationBuildingBlock) -> bool:
  if isinstance(block, tff.framework.Intrinsic):
    return block.uri in _INTRINSICS
  if isinstance(block, tff.framework.CompiledComputation):
    return not programs.has_resources(block)
  return True


def _walk(type_spec: tff.Type) -> Iterator[tff.Type]:
  """Yields a type and the types in it, except inside of a placement."""
  yield type_spec
  if isinstance(type_spec, tff.StructType):
    for element in values.element_types(type_spec):
      yield from _walk(element)


def _is_dense(
  type_spec: tff.Type, is_table: Callable[[tf.TensorSpec], bool]
) -> bool:
  """Returns whether a value consists of tensors; clients' are uniform."""
  if isinstance(type_spec, tff.FederatedType):
    at_clients = values.is_clients_list_type(type_spec)
    try:
      specs = values.leaf_specs(type_spec.member)
    except TypeError:
      return False
    return all(
      spec.dtype.is_numpy_compatible
      and spec.dtype not in (tf.string, tf.variant)
      and (not at_clients or is_table(spec))
      for spec in specs
    )
  if isinstance(type_spec, tff.StructType):
    return all(
      _is_dense(element, is_table)
      for element in values.element_types(type_spec)
    )
  return isinstance(type_spec, tff.TensorType) and (
    values.tensor_dtype(type_spec) != tf.string
  )


def _is_packable(spec: tf.TensorSpec) -> bool:
  """Returns whether only the first axis may differ between clients."""
  return spec.shape.rank is not None and None not in spec.shape.as_list()[1:]


def _is_stackable(spec: tf.TensorSpec) -> bool:
  return spec.shape.is_fully_defined()


class RepeatedDrawsError(Exception):
  """A value without a seed would be drawn in each of several loops."""


class _Builder(programs.Evaluator):
  """Evaluates a computation to lazy values, and then to tensors."""

  def __init__(
    self,
    cache: programs.ProgramCache,
    device: str,
    num_clients: tf.Tensor,
    num_parallel: int,
  ):
    self._graph = programs.GraphEvaluator(cache, device)
    self._num_clients = num_clients
    self._num_parallel = num_parallel
    self._loops = []
    self._num_loops = 0
    self._has_draws = False

  def call_compiled(self, function, argument):
    return self._at_server(programs.Closure(function, {}), argument)

  def call_intrinsic(self, function, argument):
    parameter = function.type_signature.parameter
    match function.uri:
      case "federated_apply" | "federated_map_all_equal":
        return self._at_server(*argument)
      case "federated_eval_at_server":
        return self._at_server(argument, None)
      case "federated_eval_at_clients":
        return self._at_clients(argument, None)
      case "federated_map":
        return self._at_clients(argument[0], lazy.as_client_value(argument[1]))
      case "federated_zip_at_clients":
        return lazy.as_client_value(argument)
      case "federated_aggregate":
        total_type = packing.member_of(parameter[1])
        return self._aggregate(*(*argument, total_type))
    return argument

  def _call(self, closure, argument):
    """Adds the work of a function to the current graph."""
    environment = {
      name: lazy.force(value) for name, value in lazy.captured(closure).items()
    }
    return self._graph.call(
      programs.Closure(closure.function, environment), argument
    )

  def _at_server(self, closure, argument):
    return lazy.Lazy(
      lambda: self._call(closure, lazy.force(argument)), closure, argument
    )

  def _at_clients(self, closure, argument):
    self._has_draws = self._has_draws or programs.has_draws(closure)
    if argument is None:
      return lazy.ClientValue(lambda known: self._call(closure, None), closure)
    return lazy.ClientValue(
      lambda known: self._call(closure, argument.of_client(known)),
      closure,
      argument,
    )

  def _aggregate(self, value, zero, accumulate, merge, report, total_type):
    del merge  # All clients are in this process.
    aggregate = lazy.Aggregate(
      lazy.as_client_value(value), zero, accumulate, total_type
    )
    self._loops.append(aggregate)
    return lazy.Lazy(
      lambda: self._call(report, self._total(aggregate)), aggregate, report
    )

  def collect(self, value: Any, type_spec: tff.Type) -> lazy.Collection:
    """Registers clients' values to be returned."""
    collection = lazy.Collection(lazy.as_client_value(value), type_spec)
    self._loops.append(collection)
    return collection

  def _total(self, aggregate):
    while aggregate.total is None:
      self.run_loop()
    return aggregate.total

  def run_loop(self) -> bool:
    """Runs a loop for everything that is ready; returns whether any was."""
    ready = [
      each
      for each in self._loops
      if all(other.total is not None for other in each.waits_for)
    ]
    if not ready:
      return False
    self._loops = [each for each in self._loops if each not in ready]
    self._num_loops += 1
    if self._has_draws and self._num_loops > 1:
      raise RepeatedDrawsError()
    aggregates = [each for each in ready if isinstance(each, lazy.Aggregate)]
    collections = [each for each in ready if isinstance(each, lazy.Collection)]
    # In the outer graph, not in the loop's.
    seen = set()
    for each in ready:
      lazy.force_inputs(each.part, seen)
      if isinstance(each, lazy.Aggregate):
        lazy.force_inputs(each.accumulate, seen)
    totals = [
      [
        programs.with_declared_shape(tf.convert_to_tensor(leaf), spec)
        for leaf, spec in zip(
          values.flatten(lazy.force(each.zero)),
          values.leaf_specs(each.type_spec),
          strict=True,
        )
      ]
      for each in aggregates
    ]
    lists = [
      [
        tf.TensorArray(
          spec.dtype,
          size=self._num_clients,
          element_shape=spec.shape,
          infer_shape=False,
        )
        for spec in values.leaf_specs(each.type_spec)
      ]
      for each in collections
    ]

    def body(index, totals, lists):
      known = {lazy.INDEX: index}
      new_totals = []
      for each, total in zip(aggregates, totals, strict=True):
        argument = (
          values.unflatten(iter(total), each.type_spec),
          _kept_apart(each.part.of_client(known)),
        )
        found = values.flatten(self._call(each.accumulate, argument))
        new_totals.append(
          [
            tf.ensure_shape(leaf, old.shape)
            for leaf, old in zip(found, total, strict=True)
          ]
        )
      new_lists = [
        [
          array.write(index, leaf)
          for array, leaf in zip(
            arrays, values.flatten(each.part.of_client(known)), strict=True
          )
        ]
        for each, arrays in zip(collections, lists, strict=True)
      ]
      return index + 1, new_totals, new_lists

    _, totals, lists = tf.while_loop(
      lambda index, *_: index < self._num_clients,
      body,
      (tf.constant(0), totals, lists),
      parallel_iterations=self._num_parallel,
    )
    for each, total in zip(aggregates, totals, strict=True):
      each.total = values.unflatten(iter(total), each.type_spec)
    for each, arrays in zip(collections, lists, strict=True):
      each.stacked = [array.stack() for array in arrays]
    return True


def _kept_apart(value: values.Value) -> values.Value:
  """Prevents TensorFlow from merging a client's sum with the aggregate's.

  It would change the order of summation compared to separate calls, and thereby
  the last bits.
  """
  if isinstance(value, tuple):
    return tuple(map(_kept_apart, value))
  return tf.ensure_shape(value, value.shape)


class CohortProgram:
  """A computation, traced for one device and any number of clients."""

  def __init__(
    self,
    function: tff.framework.Lambda,
    cache: programs.ProgramCache,
    device: str,
    num_parallel: int,
  ):
    """Traces the computation.

    Args:
      function: The computation's building block, for which `is_possible` holds.
      cache: The programs of the computation.
      device: The full name of the device of server and clients.
      num_parallel: The number of clients that TensorFlow may run concurrently.

    Raises:
      RepeatedDrawsError: If it must run client by client.
    """
    self._device = device
    self._parameter_type = function.type_signature.parameter
    self._result_type = function.type_signature.result
    signature = [tf.TensorSpec([], tf.int32)]
    for type_spec in _placed(self._parameter_type):
      signature += packing.packed_specs(type_spec)

    def trace(num_clients, *inputs):
      builder = _Builder(cache, device, num_clients, num_parallel)
      leaves = iter(inputs)
      argument = _argument(self._parameter_type, leaves)
      result = builder.call(programs.Closure(function, {}), argument)
      results = _collect(result, self._result_type, builder)
      while builder.run_loop():
        pass
      return [
        tensor
        for each in results
        for tensor in (
          each.stacked
          if isinstance(each, lazy.Collection)
          else values.flatten(lazy.force(each))
        )
      ]

    self._function = wrapped_functions.wrap(trace, signature)

  def __call__(self, num_clients: int, packed: Sequence[np.ndarray]) -> Any:
    """Runs the computation.

    Args:
      num_clients: The number of clients.
      packed: The result of `packing.Packer`.

    Returns:
      The result in the form for `values.to_python`, of NumPy values.
    """
    with tf.device(self._device):
      results = self._function(
        tf.constant(num_clients), *map(packing.to_tensor, packed)
      )
    leaves = iter([tensor.numpy() for tensor in results])
    return packing.unpack(leaves, self._result_type, num_clients)


def _placed(type_spec: tff.Type) -> Iterator[tff.Type]:
  """Yields the parts of a type that have a placement, or are bare tensors."""
  if isinstance(type_spec, tff.StructType):
    for element in values.element_types(type_spec):
      yield from _placed(element)
  else:
    yield type_spec


def _argument(type_spec: tff.Type, leaves: Iterator[tf.Tensor]) -> Any:
  """Arranges the tensors of `packing.Packer` as the computation's argument."""
  if isinstance(type_spec, tff.StructType):
    return tuple(
      _argument(element, leaves) for element in values.element_types(type_spec)
    )
  if not values.is_clients_list_type(type_spec):
    return values.unflatten(leaves, packing.member_of(type_spec))
  parts = []
  for spec in values.leaf_specs(type_spec.member):
    table = next(leaves)
    if spec.shape.rank and spec.shape[0] is None:
      parts.append((table, next(leaves), spec.shape))
    else:
      parts.append((table, None, spec.shape))

  def of_client(known):
    index = known[lazy.INDEX]
    found = []
    for table, ends, shape in parts:
      if ends is None:
        found.append(table[index])
      else:
        rows = table[ends[index] : ends[index + 1]]
        found.append(tf.ensure_shape(rows, shape))
    return values.unflatten(iter(found), type_spec.member)

  return lazy.ClientValue(of_client)


def _collect(value: Any, type_spec: tff.Type, builder: _Builder) -> list[Any]:
  """Returns the parts of a result; clients' values as collections."""
  if isinstance(type_spec, tff.StructType):
    parts = lazy.elements(value, len(type_spec))
    return [
      each
      for part, element in zip(
        parts, values.element_types(type_spec), strict=True
      )
      for each in _collect(part, element, builder)
    ]
  if values.is_clients_list_type(type_spec):
    return [builder.collect(value, type_spec.member)]
  return [value]
