"""Changes of GraphDefs that let a TFF block run in this process.

A `tff.tensorflow.computation` is a serialized graph that TFF's C++ executor
runs once per call in a fresh session. To run as a function of this process,
several calls at a time, the graph needs six changes, made by `prepare` and
`import_into_current_graph`:

*   only the nodes that the results need are kept;
*   variables and lookup tables become anonymous: a named one is shared by the
    whole process, and parallel clients would train each other's model;
*   the initializer runs before everything that reads what it initializes;
*   loops over data sets become part of the graph (see `loops`);
*   functions get new names, since two blocks may contain different functions of
    the same name and a process has one name space; so do the frames of loops,
    since TensorFlow takes two loops with one frame for one loop;
*   nodes are pinned to the requested device, also in functions, except where
    `tf.data` runs them (on the host).
"""

import dataclasses
import itertools
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Sequence
from collections.abc import Set

import tensorflow as tf

from tff_shift.execution.in_process import loops
from tff_shift.execution.in_process import vectorization

# The name that gives every execution of a `VarHandleOp` a variable of its own
# (`ResourceHandle::ANONYMOUS_NAME` in TensorFlow's C++ sources). TensorFlow
# has no public Python symbol for it.
_ANONYMOUS_NAME = "cd2c89b7-88b7-44c8-ad83-06c2a9158347"

# Named lookup tables and their anonymous counterparts, with the same output
# and, except for the names, the same attributes.
_ANONYMOUS_TABLES = {
  "HashTableV2": "AnonymousHashTable",
  "MutableHashTableV2": "AnonymousMutableHashTable",
  "MutableHashTableOfTensorsV2": "AnonymousMutableHashTableOfTensors",
  "MutableDenseHashTableV2": "AnonymousMutableDenseHashTable",
}
# Operations whose state is that of a kernel, which all clients would share, and
# those that wait for other clients.
_SHARED_STATE = frozenset(
  {
    *("Variable", "VariableV2", "TemporaryVariable"),
    *("HashTable", "MutableHashTable", "MutableHashTableOfTensors"),
    *("MutableDenseHashTable", "OneShotIterator", "Iterator", "IteratorV2"),
    *("ConditionalAccumulator", "SparseConditionalAccumulator"),
    *("ResourceConditionalAccumulator", "Barrier", "MutexV2"),
    *("FIFOQueue", "FIFOQueueV2", "PaddingFIFOQueue", "PaddingFIFOQueueV2"),
    *("PriorityQueue", "PriorityQueueV2"),
    *("RandomShuffleQueue", "RandomShuffleQueueV2", "Stage", "MapStage"),
    "OrderedMapStage",
  }
)
# Parts of the names of operations whose results are no functions of their
# inputs, also with a seed.
_DRAWS = (
  *("Random", "Multinomial", "TruncatedNormal", "StatefulUniform"),
  *("StatefulStandardNormal", "RngRead", "NonDeterministicInts"),
  *("CandidateSampler", "SampleDistortedBoundingBox", "Timestamp", "PyFunc"),
  # Data sets that draw: those of no or of one seed draw in each iteration.
  *("Shuffle", "SamplingDataset", "SnapshotDataset", "AnonymousSeedGenerator"),
  *("CudnnRNN", "RecordInput", "FractionalAvgPool", "FractionalMaxPool"),
  *("KmeansPlusPlus", "KMC2Chain"),
)
_NAMING_ATTRIBUTES = ("container", "shared_name", "use_node_name_sharing")

# Loops and conditions, and the attribute with which TensorFlow lowers them.
_CONTROL_FLOW = frozenset(
  {"Case", "If", "StatelessCase", "StatelessIf", "StatelessWhile", "While"}
)
_LOWERED = "_lower_using_switch_merge"

# The device of `tf.data`.
_HOST = "/device:CPU:0"

# Makes the names of every import unique in the process.
_import_numbers = itertools.count()


@dataclasses.dataclass(frozen=True)
class PreparedGraph:
  """A block's graph, fit for import on any device.

  Attributes:
    graph_def: The graph without the placeholders of `feeds`.
    feeds: The names of the tensors that receive the argument's leaves.
    fetches: The names of the tensors that hold the result's leaves.
    keeps_functions: Whether the import keeps the graphs of functions, for
      `vectorization`.
  """

  graph_def: tf.compat.v1.GraphDef
  feeds: Sequence[str]
  fetches: Sequence[str]
  keeps_functions: bool

  def import_into_current_graph(
    self, arguments: Sequence[tf.Tensor], device: str
  ) -> list[tf.Tensor]:
    """Adds the block to the graph under construction.

    Args:
      arguments: A symbolic tensor for each of `feeds`.
      device: The device of the block's operations, e.g. `/device:CPU:0`.

    Returns:
      A symbolic tensor for each of `fetches`.
    """
    arguments_by_name = dict(zip(self.feeds, arguments, strict=True))
    graph_def = tf.compat.v1.GraphDef()
    graph_def.CopyFrom(self.graph_def)
    number = next(_import_numbers)
    _rename_functions(graph_def, suffix=f"_import{number}")
    _rename_frames(graph_def, prefix=f"import{number}/")
    _pin_to_device(graph_def, device)
    used_names = {
      _tensor_name(name) for node in graph_def.node for name in node.input
    }
    computed = [name for name in self.fetches if name not in arguments_by_name]
    if self.keeps_functions and graph_def.library.function:
      vectorization.import_functions(
        graph_def, tf.compat.v1.get_default_graph()
      )
    with tf.device(device):
      outputs = tf.import_graph_def(
        graph_def,
        input_map={
          name: tensor
          for name, tensor in arguments_by_name.items()
          if name in used_names
        },
        return_elements=computed,
        # A loop's captured tensors keep their outer names, so nothing inside
        # may have the same name.
        name=f"block{number}",
      )
    results = arguments_by_name | dict(zip(computed, outputs, strict=True))
    return [results[name] for name in self.fetches]


def prepare(
  graph_def: tf.compat.v1.GraphDef,
  feeds: Sequence[str],
  fetches: Sequence[str],
  initializer: str,
  keeps_functions: bool,
) -> PreparedGraph:
  """Rewrites a block's graph as described in the module's docstring.

  Args:
    graph_def: The graph as TFF serialized it.
    feeds: The names of the tensors that receive the argument.
    fetches: The names of the tensors that hold the result.
    initializer: The name of the operation to run first, or ''.
    keeps_functions: See `PreparedGraph`.

  Returns:
    The rewritten graph.
  """
  feeds = [_tensor_name(name) for name in feeds]
  fetches = [_tensor_name(name) for name in fetches]
  fed_nodes = {_node_name(name) for name in feeds}
  targets = {_node_name(name) for name in fetches} - fed_nodes
  if initializer:
    targets.add(_node_name(initializer))
  kept = _ancestors(graph_def, targets, stop_at=fed_nodes) - fed_nodes
  pruned = tf.compat.v1.GraphDef(
    node=[node for node in graph_def.node if node.name in kept],
    library=graph_def.library,
    versions=graph_def.versions,
  )
  control_edges_of_feeds = {f"^{name}" for name in fed_nodes}
  for node in pruned.node:
    _replace_inputs(
      node, [name for name in node.input if name not in control_edges_of_feeds]
    )
    _make_resource_anonymous(node)
  for node in _all_nodes(pruned):
    # Replaced by pinning; the colocated node may have been removed.
    node.attr.pop("_class", None)
  if initializer:
    _run_first(pruned, _node_name(initializer), fed_nodes)
  loops.loop_over_datasets(pruned)
  drop_unused_functions(pruned)
  return PreparedGraph(pruned, feeds, fetches, keeps_functions)


def has_resources(graph_def: tf.compat.v1.GraphDef) -> bool:
  """Returns whether a graph has variables, tables or data sets."""
  return any(
    node.op == "VarHandleOp"
    or node.op in _ANONYMOUS_TABLES
    or _is_of_data_set(node)
    for node in _all_nodes(graph_def)
  )


def shared_state(graph_def: tf.compat.v1.GraphDef) -> str | None:
  """Returns an operation whose state all clients would share, if any."""
  found = {node.op for node in _all_nodes(graph_def)} & _SHARED_STATE
  return min(found, default=None)


def drop_unused_functions(graph_def: tf.compat.v1.GraphDef) -> None:
  """Removes the library's functions that no node uses."""
  functions = {
    function.signature.name: function for function in graph_def.library.function
  }
  reached = {}
  pending = list(graph_def.node)
  while pending:
    for name in _called_names(pending.pop()):
      if name in functions and name not in reached:
        reached[name] = functions[name]
        pending.extend(functions[name].node_def)
  pruned = tf.compat.v1.GraphDef()
  pruned.library.function.extend(reached.values())
  graph_def.library.CopyFrom(pruned.library)


def has_draws(graph_def: tf.compat.v1.GraphDef) -> bool:
  """Returns whether results of a graph are no functions of its inputs."""
  return any(
    not node.op.startswith("Stateless")
    and any(part in node.op for part in _DRAWS)
    for node in _all_nodes(graph_def)
  )


def has_unsafe_kernels(graph_def: tf.compat.v1.GraphDef) -> bool:
  """Returns whether a CPU must not run a graph several times concurrently.

  TensorFlow's fused batch normalisation with oneDNN corrupts memory if calls
  with different batch sizes run concurrently.
  """
  return any(
    node.op.startswith("FusedBatchNorm") for node in _all_nodes(graph_def)
  )


def has_loops_in_functions(graph_def: tf.compat.v1.GraphDef) -> bool:
  """Returns whether a function has a loop of single operations, a cycle."""
  return any(
    node.op == "NextIteration"
    for function in graph_def.library.function
    for node in function.node_def
  )


def with_lowering(
  graph_def: tf.compat.v1.GraphDef, is_lowered: bool
) -> tf.compat.v1.GraphDef:
  """Returns a graph whose loops and conditions TensorFlow lowers, or not.

  Lowered, they are cycles and branches of single operations.
  """
  copied = tf.compat.v1.GraphDef()
  copied.CopyFrom(graph_def)
  for node in _all_nodes(copied):
    if node.op in _CONTROL_FLOW:
      node.attr[_LOWERED].b = is_lowered
  return copied


def _ancestors(
  graph_def: tf.compat.v1.GraphDef,
  targets: Iterable[str],
  stop_at: Set[str] = frozenset(),
) -> set[str]:
  """Returns the names of `targets` and of the nodes that they depend on."""
  nodes = {node.name: node for node in graph_def.node}
  found = set(targets)
  pending = list(targets)
  while pending:
    name = pending.pop()
    if name in stop_at:
      continue
    for source in map(_node_name, nodes[name].input):
      if source not in found:
        found.add(source)
        pending.append(source)
  return found


def _all_nodes(
  graph_def: tf.compat.v1.GraphDef,
) -> Iterator[tf.compat.v1.NodeDef]:
  """Yields the nodes of a graph and of its functions."""
  yield from graph_def.node
  for function in graph_def.library.function:
    yield from function.node_def


def _replace_inputs(node: tf.compat.v1.NodeDef, inputs: Iterable[str]) -> None:
  """Gives `node` other inputs."""
  inputs = list(inputs)
  del node.input[:]
  node.input.extend(inputs)


def _tensor_name(name: str) -> str:
  """Returns the name of a tensor or control edge in its full form."""
  return name if name.startswith("^") or ":" in name else f"{name}:0"


def _node_name(name: str) -> str:
  """Returns the name of the node that a tensor or control edge comes from."""
  return name.removeprefix("^").split(":")[0]


def _make_resource_anonymous(node: tf.compat.v1.NodeDef) -> None:
  """Makes each execution of `node` create its own variable or table."""
  if node.op == "VarHandleOp":
    node.attr["shared_name"].s = _ANONYMOUS_NAME.encode()
  elif node.op in _ANONYMOUS_TABLES:
    node.op = _ANONYMOUS_TABLES[node.op]
    for attribute in _NAMING_ATTRIBUTES:
      node.attr.pop(attribute, None)


def _run_first(
  graph_def: tf.compat.v1.GraphDef, initializer: str, fed_nodes: Set[str]
) -> None:
  """Adds control edges from `initializer` to the readers of its ancestors.

  Edges to all nodes of the graph would be wrong: a node inside the frame of a
  loop may not wait for one outside.

  Args:
    graph_def: The graph to change.
    initializer: The name of the operation that must run first. It may depend on
      the argument.
    fed_nodes: The names of the placeholders of the argument.
  """
  ancestors = _ancestors(graph_def, {initializer}, fed_nodes) - fed_nodes
  for node in graph_def.node:
    if node.name not in ancestors and any(
      _node_name(name) in ancestors for name in node.input
    ):
      node.input.append(f"^{initializer}")


def _function_attributes(
  node: tf.compat.v1.NodeDef,
) -> Iterator[tf.compat.v1.NameAttrList]:
  """Yields the attributes of `node` that name functions."""
  for value in node.attr.values():
    if value.HasField("func"):
      yield value.func
    yield from value.list.func


def _called_names(node: tf.compat.v1.NodeDef) -> list[str]:
  """Returns the names of the functions that `node` may call."""
  # A function can also be called as if it were an operation.
  return [node.op, *(each.name for each in _function_attributes(node))]


def _rename_functions(graph_def: tf.compat.v1.GraphDef, suffix: str) -> None:
  """Appends `suffix` to the name of every function of the library."""
  names = {function.signature.name for function in graph_def.library.function}
  for function in graph_def.library.function:
    function.signature.name += suffix
  for node in _all_nodes(graph_def):
    if node.op in names:
      node.op += suffix
    for attribute in _function_attributes(node):
      if attribute.name in names:
        attribute.name += suffix


def _rename_frames(graph_def: tf.compat.v1.GraphDef, prefix: str) -> None:
  """Puts `prefix` before the name of every frame of a loop."""
  for node in _all_nodes(graph_def):
    if "frame_name" in node.attr:
      node.attr["frame_name"].s = prefix.encode() + node.attr["frame_name"].s


def _pin_to_device(graph_def: tf.compat.v1.GraphDef, device: str) -> None:
  """Pins nodes to `device`, except those of data sets or other devices.

  The graph's own nodes get it from the scope of the import: TensorFlow would
  open a scope for each of them.
  """
  functions = {
    function.signature.name: function for function in graph_def.library.function
  }
  pinned = set()
  pending = [(graph_def.node, "")]
  while pending:
    nodes, nodes_device = pending.pop()
    for node in nodes:
      if _runs_on_host(node):
        node.device = _HOST
        continue
      if not node.device:
        node.device = nodes_device
      for name in _called_names(node):
        if name in functions and name not in pinned:
          pinned.add(name)
          pending.append((functions[name].node_def, device))


def _is_of_data_set(node: tf.compat.v1.NodeDef) -> bool:
  """Returns whether `node` makes or reads a data set."""
  return any(part in node.op for part in ("Dataset", "Iterator"))


def _runs_on_host(node: tf.compat.v1.NodeDef) -> bool:
  """Returns whether only the host has kernels for `node`.

  Optional values come from data sets, and from gradients of conditions.
  """
  return _is_of_data_set(node) or "Optional" in node.op
