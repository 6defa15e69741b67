"""Building blocks of TFF as TensorFlow functions of this process.

A `Program` is one function argument of a federated intrinsic (a client's work,
an accumulation step, ...) traced into one TensorFlow graph for one device. A
call is one call into TensorFlow, however many blocks it consists of.
"""

import dataclasses
import threading
from collections.abc import Iterator
from collections.abc import Mapping
from typing import Any
from typing import TypeAlias

import tensorflow as tf
import tensorflow_federated as tff

from tff_shift._util import wrapped_functions
from tff_shift.execution import compilation
from tff_shift.execution.in_process import graphs
from tff_shift.execution.in_process import values

_BuildingBlock: TypeAlias = tff.framework.ComputationBuildingBlock


@dataclasses.dataclass(frozen=True)
class Closure:
  """A function and the values of its free names.

  Attributes:
    function: A lambda, a compiled computation or an intrinsic.
    environment: The value of each name in scope where it was defined.
  """

  function: _BuildingBlock
  environment: Mapping[str, Any]


class Evaluator:
  """Evaluates building blocks; subclasses implement the work of blocks."""

  def evaluate(
    self, block: _BuildingBlock, environment: Mapping[str, Any]
  ) -> Any:
    """Returns the value of `block`: tensors in tuples, or a `Closure`."""
    if isinstance(block, tff.framework.Reference):
      return environment[block.name]
    if isinstance(block, tff.framework.Selection):
      return self.evaluate(block.source, environment)[block.as_index()]
    if isinstance(block, tff.framework.Struct):
      return tuple(
        self.evaluate(element, environment) for element in block.children()
      )
    if isinstance(block, tff.framework.Block):
      for name, local in block.locals:
        environment = {**environment, name: self.evaluate(local, environment)}
      return self.evaluate(block.result, environment)
    if isinstance(block, tff.framework.Call):
      closure = self.evaluate(block.function, environment)
      argument = block.argument
      if argument is not None:
        argument = self.evaluate(argument, environment)
      return self.call(closure, argument)
    if isinstance(block, tff.framework.Literal):
      return tf.constant(block.value, values.tensor_dtype(block.type_signature))
    return Closure(block, environment)

  def call(self, closure: Closure, argument: Any) -> Any:
    """Applies a function to a value, or to None if it takes none."""
    function = closure.function
    if isinstance(function, tff.framework.Lambda):
      environment = closure.environment
      if function.parameter_name is not None:
        environment = {**environment, function.parameter_name: argument}
      return self.evaluate(function.result, environment)
    if isinstance(function, tff.framework.CompiledComputation):
      return self.call_compiled(function, argument)
    return self.call_intrinsic(function, argument)

  def call_compiled(
    self, function: tff.framework.CompiledComputation, argument: Any
  ) -> Any:
    """Applies a TensorFlow block to a value."""
    raise NotImplementedError

  def call_intrinsic(
    self, function: tff.framework.Intrinsic, argument: Any
  ) -> Any:
    """Applies an intrinsic to a value."""
    raise NotImplementedError


class ProgramCache:
  """The programs of one computation.

  A program is made at its first call, once for a function and device.

  Attributes:
    num_imports: How many times a block was imported into a graph.
    num_traces: How many programs were made.
  """

  def __init__(self, *, keeps_functions: bool = False):
    self._keeps_functions = keeps_functions
    self.num_imports = 0
    self.num_traces = 0
    self._lock = threading.Lock()
    self._prepared = {}
    self._programs = {}
    self._needs_tensorflow = {}

  def call(self, closure: Closure, argument: Any, device: str) -> Any:
    """Applies a function without intrinsics to a value, on `device`.

    Args:
      closure: The function.
      argument: Its argument, or None if it takes none.
      device: The full name of the device.

    Returns:
      Its result.
    """
    function = closure.function
    if id(function) not in self._needs_tensorflow:
      self._needs_tensorflow[id(function)] = any(
        isinstance(
          block, (tff.framework.CompiledComputation, tff.framework.Literal)
        )
        for block in compilation.walk(function)
      )
    if not self._needs_tensorflow[id(function)]:
      # It only selects and arranges values.
      return Evaluator().call(closure, argument)
    key = (id(function), device)
    program = self._programs.get(key)
    if program is None:
      with self._lock:
        program = self._programs.get(key)
        if program is None:
          program = _Program(closure, device, self)
          self._programs[key] = program
          self.num_traces += 1
    return program(closure, argument)

  def import_compiled(
    self,
    function: tff.framework.CompiledComputation,
    arguments: list[tf.Tensor],
    device: str,
  ) -> list[tf.Tensor]:
    """Adds a TensorFlow block to the graph under construction.

    Args:
      function: The block.
      arguments: A symbolic tensor for each leaf of its argument.
      device: The full name of the device.

    Returns:
      A symbolic tensor for each leaf of its result.
    """
    prepared = self._prepared.get(id(function))
    if prepared is None:
      prepared = _prepare(function, self._keeps_functions)
      self._prepared[id(function)] = prepared
    self.num_imports += 1
    return prepared.import_into_current_graph(arguments, device)


class GraphEvaluator(Evaluator):
  """Evaluates building blocks to symbolic tensors of the current graph."""

  def __init__(self, cache: ProgramCache, device: str):
    self._cache = cache
    self._device = device

  def call_compiled(
    self, function: tff.framework.CompiledComputation, argument: Any
  ) -> Any:
    """Adds the block to the current graph."""
    arguments = [] if argument is None else values.flatten(argument)
    # Inside of a loop, outer tensors must be captured.
    graph = tf.compat.v1.get_default_graph()
    specs = values.leaf_specs(function.type_signature.parameter)
    arguments = [
      with_declared_shape(graph.capture(each), spec)
      for each, spec in zip(arguments, specs, strict=True)
    ]
    results = self._cache.import_compiled(function, arguments, self._device)
    return values.unflatten(iter(results), function.type_signature.result)


def with_declared_shape(tensor: tf.Tensor, spec: tf.TensorSpec) -> tf.Tensor:
  """Hides a known shape if the type of the value leaves it open.

  TensorFlow checks all branches of a graph for the shapes that it knows, also
  those that never run for these shapes. TFF's executor knows the types only.
  """
  if spec.shape.is_fully_defined() or tensor.shape == spec.shape:
    return tensor
  return tf.compat.v1.placeholder_with_default(tensor, spec.shape)


class _Program:
  """One function, traced for one device."""

  def __init__(self, closure: Closure, device: str, cache: ProgramCache):
    function = closure.function
    parameter_type = function.type_signature.parameter
    self._device = device
    self._result_type = function.type_signature.result
    # Free names of the function become further arguments.
    self._captured = list(free_references(function))

    def trace(*inputs: tf.Tensor) -> list[tf.Tensor]:
      leaves = iter(inputs)
      environment = {
        reference.name: values.unflatten(leaves, reference.type_signature)
        for reference in self._captured
      }
      argument = None
      if parameter_type is not None:
        argument = values.unflatten(leaves, parameter_type)
      result = GraphEvaluator(cache, device).call(
        Closure(function, environment), argument
      )
      return values.flatten(result)

    signature = [
      spec
      for type_spec in (
        *(reference.type_signature for reference in self._captured),
        parameter_type,
      )
      for spec in values.leaf_specs(type_spec)
    ]
    self._function = wrapped_functions.wrap(trace, signature)

  def __call__(self, closure: Closure, argument: Any) -> Any:
    leaves = values.flatten(
      tuple(closure.environment[each.name] for each in self._captured)
    )
    if argument is not None:
      leaves += values.flatten(argument)
    with tf.device(self._device):
      results = self._function(*leaves)
    return values.unflatten(iter(results), self._result_type)


def graph_of(
  function: tff.framework.CompiledComputation,
) -> tf.compat.v1.GraphDef:
  """Returns the graph of a TensorFlow block."""
  graph_def = tf.compat.v1.GraphDef()
  function.proto.tensorflow.graph_def.Unpack(graph_def)
  return graph_def


def has_resources(function: tff.framework.CompiledComputation) -> bool:
  """Returns whether a TensorFlow block has variables, tables or data sets."""
  return bool(function.proto.tensorflow.initialize_op) or graphs.has_resources(
    graph_of(function)
  )


def has_draws(closure: Closure) -> bool:
  """Returns whether a function draws values that its inputs do not determine.

  Args:
    closure: The function; functions that it captures count too.
  """
  blocks = compilation.walk(closure.function)
  return any(
    isinstance(block, tff.framework.CompiledComputation)
    and graphs.has_draws(graph_of(block))
    for block in blocks
  ) or any(
    has_draws(captured)
    for captured in (
      closure.environment.get(reference.name)
      for reference in free_references(closure.function)
    )
    if isinstance(captured, Closure)
  )


def free_references(
  block: _BuildingBlock,
) -> Iterator[tff.framework.Reference]:
  """Yields, once per name, the references that `block` does not bind."""
  seen = set()

  def visit(part, bound):
    if isinstance(part, tff.framework.Reference):
      if part.name not in bound and part.name not in seen:
        seen.add(part.name)
        yield part
    elif isinstance(part, tff.framework.Lambda):
      yield from visit(part.result, bound | {part.parameter_name})
    elif isinstance(part, tff.framework.Block):
      for name, local in part.locals:
        yield from visit(local, bound)
        bound = bound | {name}
      yield from visit(part.result, bound)
    else:
      for child in part.children():
        yield from visit(child, bound)

  yield from visit(block, frozenset())


def _prepare(
  function: tff.framework.CompiledComputation, keeps_functions: bool
) -> graphs.PreparedGraph:
  """Prepares the graph of a TensorFlow block."""
  proto = function.proto.tensorflow
  feeds = (
    list(_tensor_names(proto.parameter)) if proto.HasField("parameter") else []
  )
  return graphs.prepare(
    graph_of(function),
    feeds,
    list(_tensor_names(proto.result)),
    proto.initialize_op,
    keeps_functions,
  )


def _tensor_names(binding: Any) -> Iterator[str]:
  """Yields the names of the tensors that a binding lists, in order."""
  kind = binding.WhichOneof("binding")
  if kind == "tensor":
    yield binding.tensor.tensor_name
  elif kind == "sequence":
    yield binding.sequence.variant_tensor_name
  else:
    for element in binding.struct.element:
      yield from _tensor_names(element)
