"""Splits computations so that several workers share the clients.

TFF's mergeable form splits a computation at its aggregates: each worker does
the part before them with its own clients (`up_to_merge`), the partial
aggregates are merged, and the part after them runs once (`after_merge`). Three
things differ here from TFF's `MergeableCompExecutionContext`:

- Partial aggregates are not merged: sums of sums have other last bits for each
  number of workers. All workers work at the same time; what their clients send
  stays there. Then one after the other adds this to the total of the clients
  before its own, client by client, as a single worker would.

- In TFF's form, clients' results (their new states) come after the aggregates,
  so that every client's work is done twice, before and after. Here they are
  returned with the partial aggregates unless they depend on the merged ones.
- TFF combines clients' results in the order in which workers finish. Here they
  are in the order of the clients.

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
    start: `argument -> <total, early results>`, run for the first part of the
      clients; without a total, and for each part, if nothing is aggregated.
    has_aggregate: Whether there are totals, `halves` and `finish`.
    finish: `<argument, total> -> late results`.
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
    finish = self._build_finish()
    if _repeats_draws(start, finish):
      self._run_whole(original, _REPEATED_DRAWS)
      return
    self._shared_start = start
    self.start, self.finish = _compile(start), _compile(finish)

  @functools.cached_property
  def halves(self) -> Sequence[tff.framework.ConcreteComputation]:
    """The halves of `start`, for the other parts of the clients.

    `argument -> work`, and `<total of the clients before, work> -> <total,
    early results>`.
    """
    work, add = _split_at_aggregate(self._shared_start)
    return _compile(work), _compile(add)

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

  def _build_finish(self) -> tff.framework.ConcreteComputation:
    """Builds `<argument, total> -> late results`."""
    return _function(
      [self._parameter_type, self._form.up_to_merge.type_signature.result],
      lambda both: _select(self._form.after_merge(*both), self.late),
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


def _split_at_aggregate(
  start: tff.framework.ConcreteComputation,
) -> Sequence[tff.framework.ConcreteComputation]:
  """Splits `Plan.start` into the clients' work and their aggregate.

  Args:
    start: `argument -> <total, early results>`, a list of calls.

  Returns:
    `argument -> <what clients send, early results>`, and
    `<total before, <what clients send, early results>> -> <total, early
    results>`.
  """
  function = start.to_building_block()
  ((name, call),) = (
    (name, call)
    for name, call in function.result.locals
    if isinstance(call.function, tff.framework.Intrinsic)
    and call.function.uri == "federated_aggregate"
  )
  sent, _, *functions = call.argument
  total, early = function.result.result
  assert isinstance(total, tff.framework.Reference) and total.name == name
  work = tff.framework.Lambda(
    function.parameter_name,
    function.parameter_type,
    tff.framework.Block(
      [each for each in function.result.locals if each[0] != name],
      tff.framework.Struct([sent, early]),
    ),
  )
  before_and_work = tff.framework.Reference(
    "before_and_work",
    tff.StructType([call.type_signature.member, work.type_signature.result]),
  )
  before, worked = (
    tff.framework.Selection(before_and_work, index=index) for index in range(2)
  )
  sent, early = (
    tff.framework.Selection(worked, index=index) for index in range(2)
  )
  arguments = tff.framework.Struct([sent, before, *functions])
  add = tff.framework.Lambda(
    before_and_work.name,
    before_and_work.type_signature,
    tff.framework.Struct(
      [
        tff.framework.Call(
          tff.framework.Intrinsic(
            call.function.uri,
            tff.FunctionType(arguments.type_signature, call.type_signature),
          ),
          arguments,
        ),
        early,
      ]
    ),
  )
  from_block = tff.framework.ConcreteComputation.from_building_block
  return from_block(work), tff.framework.ConcreteComputation.with_type(
    from_block(add),
    tff.FunctionType(
      before_and_work.type_signature, start.type_signature.result
    ),
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
