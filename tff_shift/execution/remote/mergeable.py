"""Splits computations so that several workers share the clients.

TFF's mergeable form splits a computation at its aggregates: each worker does
the part before them with its own clients (`up_to_merge`), the partial
aggregates are merged, and the part after them runs once (`after_merge`). Two
things differ here from TFF's `MergeableCompExecutionContext`:

- In TFF's form, clients' results (their new states) come after the aggregates,
  so that every client's work is done twice, before and after. Here they are
  returned with the partial aggregates unless they depend on the merged ones.
- TFF combines clients' results in the order in which workers finish. Here they,
  and the partial aggregates, are in the order of the clients.

A value that is drawn without a seed has one value in a call. One worker
therefore runs the whole computation if it would be drawn several times: by
several workers, such as a value that the server draws and broadcasts, or before
and after the aggregates.
"""

import collections
import functools
import itertools
from collections.abc import Callable
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

import tensorflow_federated as tff
from absl import logging

from tff_shift._util import shown_names
from tff_shift.execution import compilation
from tff_shift.execution.in_process import graphs
from tff_shift.execution.in_process import programs
from tff_shift.execution.in_process import values

_REPEATED_DRAWS = "a value without a seed would be drawn several times"
# The calls that draw a value for each client.
_AT_CLIENTS = frozenset({"federated_eval_at_clients", "federated_map"})

# The position of an element in a nested structure: an index for each level.
_Path = tuple[int, ...]


class Plan:
  """A plan for running a computation on several workers.

  Attributes:
    result_type: The type of the computation's result.
    whole: The computation itself if one worker must run it because it has no
      clients, cannot be split or would draw a value several times; otherwise
      None.
    start: `argument -> <partial aggregate, early results>`, run for each part
      of the clients; without the former if nothing is aggregated.
    has_aggregate: Whether there are partial aggregates, and `finish`.
    early: The parts of the result that `start` returns.
    late: The parts of the result that come after the aggregates.
  """

  def __init__(self, computation: tff.framework.ConcreteComputation):
    computation = compilation.simulate_secure_sums(computation)
    signature = computation.type_signature
    self.result_type = signature.result
    self.whole = self.start = None
    self.has_aggregate = False
    paths = list(_leaf_paths(signature.result))
    self.early, self.late = paths, []
    if not _has_clients(signature.parameter):
      self.whole = _compile(computation)
      return
    original = computation
    computation = _number_draws(computation)
    if not _aggregates(computation):
      start = _function(
        signature.parameter,
        lambda argument: _select(computation(argument), paths),
      )
      if _repeats_draws(start):
        self._run_whole(original, _REPEATED_DRAWS)
      else:
        self.start = _compile(start)
      return
    try:
      self._form = tff.backends.native.compile_to_mergeable_comp_form(
        computation
      )
    except ValueError as error:
      # The rest of the message is a page of examples.
      self._run_whole(original, str(error).split(". ")[0])
      return
    self.has_aggregate = True
    self._parameter_type = signature.parameter
    self.early = [path for path in paths if self.is_at_clients(path)]
    if _aggregates(
      _function(
        signature.parameter,
        lambda argument: _select(computation(argument), self.early),
      )
    ):
      self.early = []
    self.late = [path for path in paths if path not in self.early]
    start = _share_calls(
      _function(
        signature.parameter,
        lambda argument: (
          self._form.up_to_merge(argument),
          _select(computation(argument), self.early),
        ),
      )
    )
    self._partial_type = self._form.up_to_merge.type_signature.result
    if _repeats_draws(start, self._build_finish(1)):
      self._run_whole(original, _REPEATED_DRAWS)
      return
    self.start = _compile(start)
    # One computation for each number of parts.
    self.finish = functools.cache(
      lambda num_parts: _compile(self._build_finish(num_parts))
    )

  def _run_whole(
    self, computation: tff.framework.ConcreteComputation, reason: str
  ) -> None:
    """Leaves the whole computation to one worker."""
    logging.warning(
      "one worker alone runs a computation that cannot be split: %s",
      shown_names.line(reason),
    )
    self.whole = _compile(computation)

  def num_receivers(self, paths: Sequence[_Path]) -> int:
    """Returns how many clients it takes to return parts of the result.

    Args:
      paths: The parts; those with a value for each client do not count.

    Returns:
      1 if there is a value that all clients share: TFF's executor has none
      without a client. Otherwise 0.
    """
    return int(
      any(
        _is_placed(_type_at(self.result_type, path), tff.CLIENTS)
        and not self.is_at_clients(path)
        for path in paths
      )
    )

  def is_at_clients(self, path: _Path) -> bool:
    """Returns whether a part of the result has a value for each client."""
    return values.is_clients_list_type(_type_at(self.result_type, path))

  def _build_finish(self, num_parts: int) -> tff.framework.ConcreteComputation:
    """Builds `<argument, <partial aggregates>> -> late results`."""

    def finish(argument, partials):
      merged = partials[0]
      for position in range(1, num_parts):
        merged = tff.federated_map(
          self._form.merge, (merged, partials[position])
        )
      return _select(self._form.after_merge(argument, merged), self.late)

    return _function(
      [self._parameter_type, [self._partial_type] * num_parts],
      lambda both: finish(both[0], both[1]),
    )

  def assemble(self, leaves: Mapping[_Path, object]) -> object:
    """Assembles the computation's result from its parts."""

    def build(type_spec, path):
      if path in leaves:
        return leaves[path]
      return tff.structure.Struct(
        (name, build(element, (*path, position)))
        for position, (name, element) in enumerate(
          tff.structure.iter_elements(type_spec)
        )
      )

    return tff.types.type_to_py_container(
      build(self.result_type, ()), self.result_type
    )


def take_clients(value: Any, type_spec: tff.Type, clients: slice) -> object:
  """Takes some clients' parts of an argument, and all of the server's."""
  if values.is_clients_list_type(type_spec):
    return value[clients]
  if not isinstance(type_spec, tff.StructType):
    return value
  names = [name for name, _ in tff.structure.iter_elements(type_spec)]
  return tff.structure.Struct(
    (name, take_clients(part, element, clients))
    for name, (part, element) in zip(
      names, values.pair_elements(value, type_spec), strict=True
    )
  )


def _has_clients(type_spec: tff.Type | None) -> bool:
  """Returns whether a value of the type determines the number of clients."""
  if isinstance(type_spec, tff.StructType):
    return any(map(_has_clients, values.element_types(type_spec)))
  return type_spec is not None and values.is_clients_list_type(type_spec)


def _leaf_paths(type_spec: tff.Type) -> list[_Path]:
  """Lists the positions of the placed values of a result."""
  if not isinstance(type_spec, tff.StructType):
    return [()]
  return [
    (position, *path)
    for position, element in enumerate(values.element_types(type_spec))
    for path in _leaf_paths(element)
  ]


def _type_at(type_spec: tff.Type, path: _Path) -> tff.Type:
  return functools.reduce(lambda part, index: part[index], path, type_spec)


def _select(value: object, paths: Sequence[_Path]) -> tuple[object, ...]:
  return tuple(_type_at(value, path) for path in paths)


def _function(
  parameter_type: object, function: Callable[[Any], object]
) -> tff.framework.ConcreteComputation:
  return tff.federated_computation(function, parameter_type)


def _aggregates(computation: tff.framework.ConcreteComputation) -> bool:
  """Returns whether any client value reaches the server."""
  block = tff.framework.to_call_dominant(computation.to_building_block())
  return any(
    isinstance(part, tff.framework.Intrinsic)
    and isinstance(part.type_signature, tff.FunctionType)
    and _is_placed(part.type_signature.parameter, tff.CLIENTS)
    and _is_placed(part.type_signature.result, tff.SERVER)
    for part in compilation.walk(block)
  )


def _is_placed(
  type_spec: tff.Type, placement: tff.framework.PlacementLiteral
) -> bool:
  """Returns whether something within the type is at the placement."""
  if isinstance(type_spec, tff.StructType):
    return any(
      _is_placed(element, placement)
      for element in values.element_types(type_spec)
    )
  return (
    isinstance(type_spec, tff.FederatedType)
    and type_spec.placement is placement
  )


def _draws(block: tff.framework.ComputationBuildingBlock) -> bool:
  """Returns whether a block is TensorFlow that draws without a seed."""
  if not isinstance(block, tff.framework.CompiledComputation):
    return False
  graph_def = programs.graph_of(block)
  functions = graph_def.library.function
  nodes = itertools.chain(
    graph_def.node, *(each.node_def for each in functions)
  )
  return graphs.has_draws(graph_def) or any(
    # Data sets, also with a seed.
    node.op.startswith("Shuffle")
    for node in nodes
  )


def _number_draws(
  computation: tff.framework.ConcreteComputation,
) -> tff.framework.ConcreteComputation:
  """Makes the graphs of all calls that draw different from each other.

  Copies of a call, which have one value, can then be told from independent
  calls of one function.
  """
  if not any(map(_draws, compilation.walk(computation.to_building_block()))):
    return computation
  count = itertools.count()

  def number(block):
    if not _draws(block):
      return block, False
    graph_def = programs.graph_of(block)
    graph_def.node.add(name=f"call_that_draws_{next(count)}", op="NoOp")
    proto = type(block.proto)()
    proto.CopyFrom(block.proto)
    proto.tensorflow.graph_def.Pack(graph_def)
    return tff.framework.CompiledComputation(
      proto, type_signature=block.type_signature
    ), True

  numbered, _ = tff.framework.transform_postorder(
    compilation.to_call_dominant(computation), number
  )
  return tff.framework.ConcreteComputation.with_type(
    tff.framework.ConcreteComputation.from_building_block(numbered),
    computation.type_signature,
  )


def _repeats_draws(
  start: tff.framework.ConcreteComputation,
  finish: tff.framework.ConcreteComputation | None = None,
) -> bool:
  """Returns whether parts of a computation would draw a value several times.

  Args:
    start: What each worker runs, with numbered draws.
    finish: What runs after the aggregates, likewise, if there are any.
  """
  counts: collections.Counter[bytes] = collections.Counter()
  for part in [start] if finish is None else [start, finish]:
    for call in _calls(part):
      draws = [
        block.proto.SerializeToString(deterministic=True)
        for block in compilation.walk(call)
        if _draws(block)
      ]
      counts.update(draws)
      if draws and part is start and not _is_call_at_clients(call):
        return True
  return max(counts.values(), default=0) > 1


def _calls(
  computation: tff.framework.ConcreteComputation,
) -> list[tff.framework.ComputationBuildingBlock]:
  """Lists the calls of a computation that its result needs."""
  block = tff.framework.to_call_dominant(computation.to_building_block())
  calls = []
  while isinstance(block, (tff.framework.Lambda, tff.framework.Block)):
    if isinstance(block, tff.framework.Block):
      calls += [call for _, call in block.locals]
    block = block.result
  return calls


def _is_call_at_clients(block: tff.framework.ComputationBuildingBlock) -> bool:
  """Returns whether a block calls a function once for each client."""
  return (
    isinstance(block, tff.framework.Call)
    and isinstance(block.function, tff.framework.Intrinsic)
    and block.function.uri in _AT_CLIENTS
  )


def _compile(
  computation: tff.framework.ConcreteComputation,
) -> tff.framework.ConcreteComputation:
  """Compiles a computation for a worker, once for all of them."""
  native = tff.backends.native.desugar_and_transform_to_native(computation)
  # The compiled form has lost Python's containers.
  return tff.framework.ConcreteComputation.with_type(
    native,
    tff.FunctionType(
      native.type_signature.parameter, computation.type_signature.result
    ),
  )


def _share_calls(
  computation: tff.framework.ConcreteComputation,
) -> tff.framework.ConcreteComputation:
  """Merges equal calls, so that clients work only once."""
  function = tff.framework.to_call_dominant(computation.to_building_block())
  kept, first, replaced = [], {}, {}

  def replace(block):
    if isinstance(block, tff.framework.Reference) and block.name in replaced:
      return replaced[block.name], True
    return block, False

  for name, value in function.result.locals:
    value, _ = tff.framework.transform_postorder(value, replace)
    reference = tff.framework.Reference(name, value.type_signature)
    replaced[name] = first.setdefault(_fingerprint(value, {}), reference)
    if replaced[name] is reference:
      kept.append((name, value))
  result, _ = tff.framework.transform_postorder(function.result.result, replace)
  shared = tff.framework.ConcreteComputation.from_building_block(
    tff.framework.Lambda(
      function.parameter_name,
      function.parameter_type,
      tff.framework.Block(kept, result),
    )
  )
  return tff.framework.ConcreteComputation.with_type(
    shared, computation.type_signature
  )


def _fingerprint(
  block: tff.framework.ComputationBuildingBlock, parameters: Mapping[str, int]
) -> object:
  """Returns a key that is equal for blocks up to names of parameters."""
  if isinstance(block, tff.framework.Reference):
    return parameters.get(block.name, block.name)
  children = block.children()
  own: Any
  if isinstance(block, tff.framework.Lambda):
    parameters = {**parameters, block.parameter_name: len(parameters)}
    own = "lambda"
  elif isinstance(block, tff.framework.Selection):
    own = "selection", block.as_index()
  elif isinstance(block, (tff.framework.Call, tff.framework.Struct)):
    own = type(block).__name__, block.type_signature.compact_representation()
  else:
    # TensorFlow, an intrinsic, a literal: compared by content.
    own, children = block.proto.SerializeToString(deterministic=True), ()
  return own, tuple(_fingerprint(child, parameters) for child in children)
