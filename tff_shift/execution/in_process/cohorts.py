"""A whole computation as one TensorFlow function, for all of its clients.

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

In batches, the loop is over blocks of clients of equal shapes, and an operation
runs once for all clients of a block (`vectorization`). Aggregates that only add
are added as a whole; what others accumulate is kept for a loop over clients.

Other computations run client by client, see `federated`: data sets, strings,
variables, clients on several devices, and clients with so much data that the
overhead of a call is negligible.

Choices:
  * One trace serves all cohort sizes, where a graph with a call per client
    would be traced for each size. Results have the bits of client-by-client
    execution. More than 1 MiB per client or 1 GiB in total would be copied once
    more, and is not packed, nor are results that stay tensors. After an error
    the computation is repeated client by client: the message names the client.
"""

import collections
import functools
from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tff_shift._util import wrapped_functions
from tff_shift.execution import compilation
from tff_shift.execution.in_process import blocks as blocks_lib
from tff_shift.execution.in_process import lazy
from tff_shift.execution.in_process import packing
from tff_shift.execution.in_process import programs
from tff_shift.execution.in_process import values
from tff_shift.execution.in_process import vectorization
from tff_shift.execution.in_process import xla

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


def problem(function: tff.framework.ComputationBuildingBlock) -> str | None:
  """Returns why a computation with clients cannot become one function.

  Args:
    function: The computation's building block, prepared for this process.

  Returns:
    None if it can; "" if it has no clients.
  """
  parameter = function.type_signature.parameter
  if not isinstance(function, tff.framework.Lambda) or parameter is None:
    return ""
  if not any(values.is_clients_list_type(each) for each in _walk(parameter)):
    return ""
  if not _is_dense(parameter, _is_packable):
    return "its arguments are not all tensors with one axis of open size"
  if not _is_dense(function.type_signature.result, _is_stackable):
    return "its results at clients are not all tensors of fixed shapes"
  for block in compilation.walk(function):
    if isinstance(block, tff.framework.Intrinsic):
      if block.uri not in _INTRINSICS:
        return f"it has the intrinsic {block.uri}"
    elif isinstance(
      block, tff.framework.CompiledComputation
    ) and programs.has_resources(block):
      return "it has variables, tables or data sets"
  return None


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

  def __str__(self):
    return "it draws without a seed, and has aggregates of aggregates"


class _Builder(programs.Evaluator):
  """Evaluates a computation to lazy values, and then to tensors."""

  def __init__(
    self,
    cache: programs.ProgramCache,
    device: str,
    num_clients: tf.Tensor,
    num_parallel: int,
    client_devices: Sequence[str],
    blocks: blocks_lib.Blocks | None,
    is_compiled: bool,
  ):
    # Those of clients.
    self.arguments: list[_Argument] = []
    self._is_compiled = is_compiled
    # That of compiled batches, as of `vectorization.num_bytes`.
    self.num_bytes = collections.Counter[int]()
    self._graph = programs.GraphEvaluator(cache, device)
    # Of the clients, in batches.
    self._graphs = {
      each: programs.GraphEvaluator(cache, each) for each in client_devices
    }
    self._blocks = blocks
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
    if self._blocks is not None:
      sums = list(filter(self._is_sum, aggregates))
      aggregates = [each for each in aggregates if each not in sums]
      self._batch(self._blocks, sums, aggregates, collections)
      collections = []
    if aggregates or collections:
      self._loop(aggregates, collections)
    return True

  def _zero(self, aggregate: lazy.Aggregate) -> list[tf.Tensor]:
    return [
      programs.with_declared_shape(tf.convert_to_tensor(leaf), spec)
      for leaf, spec in zip(
        values.flatten(lazy.force(aggregate.zero)),
        values.leaf_specs(aggregate.type_spec),
        strict=True,
      )
    ]

  def _loop(self, aggregates, collections):
    """Computes aggregates and collections client by client."""
    totals = list(map(self._zero, aggregates))
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

  def _batch(self, blocks, sums, aggregates, collections):
    """Computes clients' values block by block.

    Args:
      blocks: The clients of each block.
      sums: Their parts are added in one operation, and blocks in their order.
      aggregates: Their parts are kept for `_loop`, which accumulates them in
        the order of the clients.
      collections: Their parts are returned.
    """
    totals = list(map(self._zero, sums))
    num_blocks = tf.size(blocks.ends) - 1
    types = [_part_type(each) for each in aggregates]
    types += [each.type_spec for each in collections]
    kept = [
      [
        tf.TensorArray(
          spec.dtype,
          # With those of devices that have no block in the last turn.
          size=-(-num_blocks // len(self._graphs)) * len(self._graphs),
          element_shape=tf.TensorShape([None]).concatenate(spec.shape),
          infer_shape=False,
        )
        for spec in values.leaf_specs(type_spec)
      ]
      for type_spec in types
    ]
    values_of = [each.part for each in (*sums, *aggregates, *collections)]

    def parts_of(number):
      start, stop = blocks.ends[number], blocks.ends[number + 1]

      def of_block(rows):
        block = dict(zip(self.arguments, rows, strict=True))
        stacked = [
          leaf
          for argument, leaves in block.items()
          for leaf in argument.stacked(leaves)
        ]

        def of_client(index):
          known = {lazy.BLOCK: block, lazy.INDEX: index}
          return [
            list(map(tf.identity, values.flatten(each.of_client(known))))
            for each in values_of
          ]

        parts = vectorization.map_clients(
          # Known to XLA.
          of_client,
          tf.shape(stacked[0])[0] if stacked else stop - start,
        )
        added = [
          [tf.reduce_sum(leaf, 0) for leaf in each]
          for each in parts[: len(sums)]
        ]
        return added + parts[len(sums) :]

      rows = [each.of_block(start, stop) for each in self.arguments]
      if not self._is_compiled:
        return of_block(rows)
      parts, num_bytes = xla.call(of_block, rows)
      self.num_bytes += num_bytes
      return parts

    def nothing():
      zeros = [list(map(tf.zeros_like, total)) for total in totals]
      empty = [
        [
          tf.zeros([0, *spec.shape], spec.dtype)
          for spec in values.leaf_specs(type_spec)
        ]
        for type_spec in types
      ]
      return zeros + empty

    def body(number, totals, kept):
      # At the same time on all devices.
      for place, (device, graph) in enumerate(self._graphs.items()):
        server_graph, self._graph = self._graph, graph
        with tf.device(device):
          parts = (
            tf.cond(
              number + place < num_blocks,
              functools.partial(parts_of, number + place),
              nothing,
            )
            if place
            else parts_of(number)
          )
        self._graph = server_graph
        totals = [
          list(map(tf.add, *pair))
          for pair in zip(totals, parts[: len(sums)], strict=True)
        ]
        kept = [
          [
            array.write(number + place, leaf)
            for array, leaf in zip(*pair, strict=True)
          ]
          for pair in zip(kept, parts[len(sums) :], strict=True)
        ]
      return number + len(self._graphs), totals, kept

    _, totals, kept = tf.while_loop(
      lambda number, *_: number < num_blocks,
      body,
      (tf.constant(0), totals, kept),
      parallel_iterations=1,
    )
    for each, total in zip(sums, totals, strict=True):
      each.total = values.unflatten(iter(total), each.type_spec)
    tables = [
      [tf.gather(array.concat(), blocks.places) for array in arrays]
      for arrays in kept
    ]
    for each, table, type_spec in zip(
      [*aggregates, *collections], tables, types, strict=True
    ):
      if isinstance(each, lazy.Aggregate):
        each.part = _rows(table, type_spec)
      else:
        each.stacked = table

  def _is_sum(self, aggregate: lazy.Aggregate) -> bool:
    """Returns whether an aggregate adds its parts, and does nothing else."""
    if lazy.captured(aggregate.accumulate):
      return False
    types = aggregate.type_spec, _part_type(aggregate)
    specs = [values.leaf_specs(each) for each in types]
    if specs[0] != specs[1]:
      return False

    def trace(*inputs):
      leaves = iter(inputs)
      argument = tuple(values.unflatten(leaves, each) for each in types)
      return values.flatten(self._call(aggregate.accumulate, argument))

    graph = wrapped_functions.wrap(trace, [*specs[0], *specs[1]]).graph
    pairs = zip(
      graph.inputs[: len(specs[0])], graph.inputs[len(specs[0]) :], strict=True
    )
    return all(
      _source(result).type == "AddV2"
      and [_source(each) for each in _source(result).inputs]
      == [each.op for each in pair]
      for result, pair in zip(graph.outputs, pairs, strict=True)
    )


def _source(tensor: tf.Tensor) -> tf.Operation:
  """Returns the operation that computes a value."""
  while tensor.op.type in ("EnsureShape", "Identity", "PlaceholderWithDefault"):
    tensor = tensor.op.inputs[0]
  return tensor.op


def _part_type(aggregate: lazy.Aggregate) -> tff.Type:
  """Returns the type of a client's part of an aggregate."""
  return aggregate.accumulate.function.type_signature.parameter[1]


def _rows(table: Sequence[tf.Tensor], type_spec: tff.Type) -> lazy.ClientValue:
  """Returns the clients' values of a table of each leaf."""
  return lazy.ClientValue(
    lambda known: values.unflatten(
      (leaf[known[lazy.INDEX]] for leaf in table), type_spec
    )
  )


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
    parameter_type: tff.Type,
    cache: programs.ProgramCache,
    device: str,
    num_parallel: int,
    client_devices: Sequence[str] = (),
    *,
    is_compiled: bool = False,
  ):
    """Traces the computation.

    Args:
      function: The computation's building block, without a `problem`.
      parameter_type: The computation's, whose containers the block has lost.
      cache: The programs of the computation.
      device: The full name of the device of server and clients.
      num_parallel: The number of clients that TensorFlow may run concurrently.
      client_devices: The full names of the devices that have batches of
        clients; (): clients run in a loop.
      is_compiled: Whether XLA compiles the batches.

    Raises:
      NotCompiledError: If XLA would draw other numbers.
      RepeatedDrawsError: If it must run client by client.
      ValueError: If it cannot run in batches.
    """
    self._device = device
    # None: found when it is asked for.
    self._num_bytes: collections.Counter[int] | None = None
    self._parameter_type = parameter_type
    self._result_type = function.type_signature.result
    signature = [tf.TensorSpec([], tf.int32)]
    if client_devices:
      signature += [tf.TensorSpec([None], tf.int32)] * len(
        blocks_lib.Blocks._fields
      )
    for type_spec in _placed(self._parameter_type):
      signature += packing.packed_specs(type_spec)

    def trace(num_clients, *inputs):
      leaves = iter(inputs)
      blocks = None
      if client_devices:
        blocks = blocks_lib.Blocks(next(leaves), next(leaves))
      builder = _Builder(
        cache,
        device,
        num_clients,
        num_parallel,
        client_devices,
        blocks,
        is_compiled,
      )
      argument = _argument(self._parameter_type, leaves, builder.arguments)
      result = builder.call(programs.Closure(function, {}), argument)
      results = _collect(result, self._result_type, builder)
      while builder.run_loop():
        pass
      if is_compiled:
        self._num_bytes = builder.num_bytes
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

  def bytes_per_client(self, num_rows: int) -> int:
    """Returns a bound of what a client in a batch takes.

    Args:
      num_rows: The number of rows of its data.

    Returns:
      The bytes of the outputs of all operations; most live less long.
    """
    if self._num_bytes is None:
      self._num_bytes = vectorization.num_bytes(self._function.graph)
    return sum(
      number * num_rows**power for power, number in self._num_bytes.items()
    )

  def __call__(
    self,
    num_clients: int,
    packed: Sequence[np.ndarray],
    *blocks: np.ndarray,
    materialize: bool = True,
  ) -> Any:
    """Runs the computation.

    Args:
      num_clients: The number of clients.
      packed: The result of `packing.Packer`.
      *blocks: The fields of `Blocks`, if clients run in batches.
      materialize: Whether tensors become NumPy values.

    Returns:
      The result in the form for `values.to_python`.
    """
    with tf.device(self._device):
      results = self._function(
        tf.constant(num_clients), *blocks, *map(packing.to_tensor, packed)
      )
    if materialize:
      results = [tensor.numpy() for tensor in results]
    return packing.unpack(iter(results), self._result_type, num_clients)


def _placed(type_spec: tff.Type) -> Iterator[tff.Type]:
  """Yields the parts of a type that have a placement, or are bare tensors."""
  if isinstance(type_spec, tff.StructType):
    for element in values.element_types(type_spec):
      yield from _placed(element)
  else:
    yield type_spec


class _Argument(lazy.ClientValue):
  """Clients' values in the computation's argument, packed."""

  def __init__(self, type_spec: tff.Type, leaves: Iterator[tf.Tensor]):
    super().__init__(self._rows)
    self._type = type_spec
    # Of each leaf the tensor, the end of each client or None, and the shape.
    self._tables = [
      (
        next(leaves),
        next(leaves) if spec.shape.rank and spec.shape[0] is None else None,
        spec.shape,
      )
      for spec in values.leaf_specs(type_spec)
    ]
    self._of_shapes = frozenset(packing.leaves_of_shapes(type_spec))

  def _rows(self, known):
    index = known[lazy.INDEX]
    if lazy.BLOCK not in known:
      return self._with_type(
        _of_client(table, ends, index) for table, ends, _ in self._tables
      )
    return self._with_type(
      leaf if place in self._of_shapes else tf.gather(leaf, index)
      for place, leaf in enumerate(known[lazy.BLOCK][self])
    )

  def _with_type(self, rows):
    shaped = (
      row if ends is None else tf.ensure_shape(row, shape)
      for row, (_, ends, shape) in zip(rows, self._tables, strict=True)
    )
    return values.unflatten(shaped, self._type)

  def of_block(self, start: tf.Tensor, stop: tf.Tensor) -> list[tf.Tensor]:
    """Returns the stacked leaves of the clients from `start` to `stop - 1`.

    A leaf that determines shapes is that of the first client.
    """
    return [
      _of_client(table, ends, start)
      if place in self._of_shapes
      else _of_block(table, ends, start, stop)
      for place, (table, ends, _) in enumerate(self._tables)
    ]

  def stacked(self, leaves: Sequence[tf.Tensor]) -> list[tf.Tensor]:
    """Returns those of `of_block` that have an axis of clients."""
    return [
      leaf for place, leaf in enumerate(leaves) if place not in self._of_shapes
    ]


def _argument(
  type_spec: tff.Type, leaves: Iterator[tf.Tensor], arguments: list[_Argument]
) -> Any:
  """Arranges the tensors of `packing.Packer` as the computation's argument.

  Args:
    type_spec: The type of the argument, or of a part of it.
    leaves: The tensors.
    arguments: Gets the values of clients.
  """
  if isinstance(type_spec, tff.StructType):
    return tuple(
      _argument(element, leaves, arguments)
      for element in values.element_types(type_spec)
    )
  if not values.is_clients_list_type(type_spec):
    return values.unflatten(leaves, packing.member_of(type_spec))
  arguments.append(_Argument(type_spec.member, leaves))
  return arguments[-1]


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


def _of_client(table, ends, index) -> tf.Tensor:
  return table[index] if ends is None else table[ends[index] : ends[index + 1]]


def _of_block(table, ends, start, stop) -> tf.Tensor:
  """Returns the values of a block's clients, which have as many rows each."""
  if ends is None:
    return table[start:stop]
  rows = table[ends[start] : ends[stop]]
  number = stop - start
  shape = [[number, (ends[stop] - ends[start]) // number], tf.shape(rows)[1:]]
  known = tf.TensorShape([None, None]).concatenate(table.shape[1:])
  return tf.ensure_shape(tf.reshape(rows, tf.concat(shape, 0)), known)
