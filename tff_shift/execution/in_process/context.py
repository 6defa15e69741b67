"""TFF contexts that run computations with the TensorFlow of this process."""

import asyncio
import concurrent.futures
import functools
import inspect
import re
import textwrap
import threading
from collections.abc import Sequence
from typing import Self

import tensorflow as tf
import tensorflow_federated as tff
from absl import logging

from tff_shift._util import memory as memory_limits
from tff_shift.execution import compilation
from tff_shift.execution import errors
from tff_shift.execution.in_process import blocks
from tff_shift.execution.in_process import cohorts
from tff_shift.execution.in_process import convolutions
from tff_shift.execution.in_process import devices
from tff_shift.execution.in_process import federated
from tff_shift.execution.in_process import graphs
from tff_shift.execution.in_process import memory
from tff_shift.execution.in_process import packing
from tff_shift.execution.in_process import programs
from tff_shift.execution.in_process import values
from tff_shift.execution.in_process import vectorization
from tff_shift.execution.in_process import xla


def _to_native(
  computation: tff.framework.ConcreteComputation, *, keeps_functions: bool
) -> tff.framework.ComputationBuildingBlock:
  """Does the work of TFF's native compiler without most optimisations.

  TensorFlow optimises a function of this process at its first call, so graphs
  only need to be made importable here: functions are inlined, which preserves
  the order of reads and writes of variables.

  Args:
    computation: The computation.
    keeps_functions: Whether loops and conditions stay calls of functions.

  Returns:
    Its building block.
  """
  native, _ = tff.framework.transform_postorder(
    compilation.to_call_dominant(compilation.simulate_secure_sums(computation)),
    functools.partial(_with_functions_in_line, keeps_functions),
  )
  return native


def _with_functions_in_line(
  keeps_functions: bool, block: tff.framework.ComputationBuildingBlock
) -> tuple[tff.framework.ComputationBuildingBlock, bool]:
  """Transforms a block of TensorFlow that has functions."""
  if not isinstance(block, tff.framework.CompiledComputation):
    return block, False
  graph_def = programs.graph_of(block)
  if not graph_def.library.function:
    return block, False
  config = tf.compat.v1.ConfigProto()
  options = config.graph_options.rewrite_options
  for name in (
    "arithmetic_optimization",
    "constant_folding",
    "dependency_optimization",
    "implementation_selector",
    "layout_optimizer",
    "loop_optimization",
    "pin_to_host_optimization",
    "remapping",
    "shape_optimization",
  ):
    setattr(options, name, options.OFF)
  options.memory_optimization = options.NO_MEM_OPT
  options.meta_optimizer_iterations = options.ONE
  options.function_optimization = options.ON
  # It would remove what `batch_values` says.
  options.disable_model_pruning = keeps_functions

  def transform(proto):
    native = tff.backends.native.transform_to_native_form(
      tff.framework.ConcreteComputation(
        computation_proto=proto,
        context_stack=tff.framework.get_context_stack(),
      ),
      grappler_config=config,
    )
    return native.to_building_block()

  def unlowered():
    return _with_graph(block.proto, graphs.with_lowering(graph_def, False))

  if keeps_functions:
    return transform(unlowered()), True
  native = transform(block.proto)
  if graphs.has_loops_in_functions(programs.graph_of(native)):
    # TensorFlow can only import some of them. It replaces loops itself later.
    native = transform(unlowered())
    native, _ = _with_lowering(native)
  return native, True


def _with_lowering(
  block: tff.framework.ComputationBuildingBlock,
) -> tuple[tff.framework.ComputationBuildingBlock, bool]:
  """Lets TensorFlow replace the loops and conditions of a block."""
  if not isinstance(block, tff.framework.CompiledComputation):
    return block, False
  lowered = graphs.with_lowering(programs.graph_of(block), True)
  return tff.framework.CompiledComputation(
    _with_graph(block.proto, lowered), type_signature=block.type_signature
  ), True


def _with_graph(proto, graph_def: tf.compat.v1.GraphDef):
  """Returns the protocol buffer of a TensorFlow block with another graph."""
  changed = type(proto)()
  changed.CopyFrom(proto)
  changed.tensorflow.graph_def.Pack(graph_def)
  return changed


class _CompiledComputation:
  """A computation in the form that this process runs."""

  def __init__(
    self, in_batches: bool, computation: tff.framework.ConcreteComputation
  ):
    self.function = _to_native(computation, keeps_functions=in_batches)
    # Why it cannot be one function; "": it has no clients.
    self.problem = cohorts.problem(self.function)
    if in_batches:
      self._batch_function = self.function
      if self.problem is None:
        self.function, _ = tff.framework.transform_postorder(
          self.function, _with_lowering
        )
      else:
        self.function = _to_native(computation, keeps_functions=False)
    self.programs = programs.ProgramCache()
    self.batch_programs = programs.ProgramCache(keeps_functions=True)
    self._cohort_program: cohorts.CohortProgram | None = None
    # By whether XLA compiles it.
    self._batch_programs: dict[bool, cohorts.CohortProgram] = {}
    # Whether it was said why it runs client by client.
    self.was_said = False
    self._lock = threading.Lock()
    parts = compilation.walk(self.function)
    for block in parts:
      problem = _unsupported(block)
      if problem is not None:
        signature = computation.type_signature.compact_representation()
        raise NotImplementedError(
          f"the in-process context cannot run {problem}, which is part of the "
          f"computation {textwrap.shorten(signature, 200)}"
        )
    # On a CPU, clients of such computations must run one by one.
    self.has_unsafe_kernels = any(
      isinstance(block, tff.framework.CompiledComputation)
      and graphs.has_unsafe_kernels(programs.graph_of(block))
      for block in parts
    )
    self.name = _name(computation)
    self.parameter_type = computation.type_signature.parameter
    # The operations of batches that run client by client.
    self.looped = set[str]()
    # Why it cannot run in batches, as far as this was tried.
    self.not_batched: str | None = None
    # Why XLA cannot compile its batches, as far as this was tried.
    self.not_compiled: str | None = None
    if self.problem is None:
      self.pack = packing.Packer(self.parameter_type)

  def batch_program(
    self, device: str, client_devices: Sequence[str], is_compiled: bool
  ) -> cohorts.CohortProgram:
    """Returns the computation in batches, built on first use.

    Args:
      device: The full name of the server's device.
      client_devices: Those of the clients, each of which has batches.
      is_compiled: Whether XLA compiles the batches.

    Raises:
      NotBatchedError: If an operation cannot be batched.
    """
    with self._lock:
      if is_compiled not in self._batch_programs:
        with vectorization.Notes() as notes:
          try:
            program = cohorts.CohortProgram(
              self._batch_function,
              self.parameter_type,
              self.batch_programs,
              device,
              1,
              client_devices,
              is_compiled=is_compiled,
            )
          # TensorFlow's converters fail in many ways.
          except Exception as error:
            raise notes.not_batched(error) from error
        self._batch_programs[is_compiled] = program
        self.looped = notes.looped
        self.programs.num_traces += 1
        if notes.looped:
          logging.info(
            "%s runs in batches, except for %s: client by client",
            self.name,
            ", ".join(sorted(notes.looped)),
          )
      return self._batch_programs[is_compiled]

  def cohort_program(
    self, device: str, num_parallel: int
  ) -> cohorts.CohortProgram:
    """Returns the whole computation as one function, built on first use."""
    with self._lock:
      if self._cohort_program is None:
        self._cohort_program = cohorts.CohortProgram(
          self.function,
          self.parameter_type,
          self.programs,
          device,
          num_parallel,
        )
        self.programs.num_traces += 1
      return self._cohort_program


def _name(computation: tff.framework.ConcreteComputation) -> str:
  """Returns the name of the Python function, as far as TFF keeps it."""
  block = compilation.block_of(computation)
  names = [getattr(block, "parameter_name", None) or ""]
  result = getattr(block, "result", None)
  if isinstance(result, tff.framework.Block):
    names.insert(0, result.locals[0][0])
  for name in names:
    match = re.fullmatch(r"fc_(.+)_symbol_\d+|(.+)_arg", name)
    if match:
      return match[1] or match[2]
  return "computation"


def _unsupported(block: tff.framework.ComputationBuildingBlock) -> str | None:
  """Returns the name of an unsupported part of a building block, if any."""
  if isinstance(block, tff.framework.Intrinsic):
    if block.uri not in federated.INTRINSICS:
      return f"the intrinsic {block.uri}"
  elif isinstance(block, tff.framework.CompiledComputation):
    kind = block.proto.WhichOneof("computation")
    if kind != "tensorflow":
      return f"a compiled block of the kind {kind}"
    operation = graphs.shared_state(programs.graph_of(block))
    if operation is not None:
      return f"the operation {operation}, whose state all clients would share"
  elif isinstance(block, (tff.framework.Data, tff.framework.Placement)):
    return f"a block of the kind {type(block).__name__}"
  return None


class _Installable:
  """Makes the context TFF's current one in a `with` block."""

  def __init__(self):
    super().__init__()
    # TFF has a stack of contexts for each thread.
    self._installed = threading.local()

  def __enter__(self) -> Self:
    installation = tff.framework.get_context_stack().install(self)
    installation.__enter__()
    self._installed.__dict__.setdefault("stack", []).append(installation)
    return self

  def __exit__(self, *exception_info) -> None:
    self._installed.stack.pop().__exit__(*exception_info)


class InProcessContext(_Installable, tff.framework.SyncContext):
  """Runs TFF computations in this process; see `in_process_context`.

  Attributes:
    num_imports: How many times a TensorFlow block was imported into a graph:
      once per block and device for the computations that are alive.
    num_traces: How many TensorFlow functions were made for them.
  """

  def __init__(
    self,
    server_device: str | None,
    client_devices: Sequence[str] | None,
    num_threads: int | None,
    default_num_clients: int,
    materialize: bool,
    batch_clients: bool | str,
    clients_per_batch: int,
    compile_clients: bool,
  ):
    super().__init__()
    if num_threads is not None and num_threads < 1:
      raise ValueError(f"num_threads must be 1 or more; got {num_threads}")
    if default_num_clients < 0:
      raise ValueError(
        f"default_num_clients must be 0 or more; got {default_num_clients}"
      )
    # Not `in`: 1 is equal to True, but no request for batches.
    if batch_clients != "auto" and not isinstance(batch_clients, bool):
      raise ValueError(
        f"batch_clients must be 'auto', True or False; got {batch_clients!r}"
      )
    if clients_per_batch < 0:
      raise ValueError(
        f"clients_per_batch must be 0 or more; got {clients_per_batch}"
      )
    if compile_clients and batch_clients is False:
      raise ValueError("compile_clients needs batches; got batch_clients=False")
    self._server_device, self._client_devices = devices.choose(
      server_device, client_devices
    )
    if num_threads is None:
      num_threads = devices.default_num_threads(self._client_devices)
    self._num_threads = num_threads
    self._client_pool = None
    if num_threads > 1:
      self._client_pool = concurrent.futures.ThreadPoolExecutor(
        num_threads, thread_name_prefix="client"
      )
    self._default_num_clients = default_num_clients
    self._materialize = materialize
    self._memory = memory.Memory()
    self._batch_clients = batch_clients
    self._clients_per_batch = clients_per_batch
    self._compile_clients = compile_clients
    self._forms = dict[str, str]()
    self.batch_memory = None
    on_gpus = not any("CPU" in device for device in self._client_devices)
    if batch_clients is not False and (
      batch_clients is True or compile_clients or on_gpus
    ):
      self.batch_memory = min(map(devices.memory_of, self._client_devices))

  @property
  def batch_memory(self) -> int | None:
    """What the clients of a device may take in batches, in bytes.

    None: clients do not run in batches. With that of another run, batches have
    its sizes and results its bits.
    """
    return self._batch_memory

  @batch_memory.setter
  def batch_memory(self, value: int | None) -> None:
    self._batch_memory = value
    self._compiled = compilation.CompilationCache(
      functools.partial(_CompiledComputation, value is not None)
    )

  @property
  def batch_convolutions(self) -> str | None:
    """How the clients of a batch convolve float32; None without batches."""
    if self._batch_memory is None:
      return None
    are_groups = convolutions.is_grouped(self._client_devices[0], tf.float32)
    return "groups" if are_groups else "patches"

  @property
  def num_imports(self) -> int:
    """The number of blocks imported."""
    return sum(
      compiled.programs.num_imports + compiled.batch_programs.num_imports
      for compiled in self._compiled.living()
    )

  @property
  def num_traces(self) -> int:
    """The number of functions made."""
    return sum(each.programs.num_traces for each in self._compiled.living())

  @property
  def forms(self) -> dict[str, str]:
    """How each computation with clients ran last, by its name.

    `compiled batch`, `batch`, `loop` or `client by client`. TFF does not keep
    the names of computations without federated values; computations of one name
    share it.
    """
    return dict(self._forms)

  def invoke(
    self,
    comp: tff.framework.ConcreteComputation,
    arg: object,
    default_num_clients: int | None = None,
  ) -> object:
    """Runs a computation; TFF calls this when a computation is called.

    Args:
      comp: The computation.
      arg: Its argument, or None if it takes none.
      default_num_clients: In place of the context's, for this call.

    Returns:
      The result: NumPy values or, without `materialize`, tensors.

    Raises:
      TypeError: If the argument is not of the computation's parameter type.
      ValueError: If parts of the argument disagree on the number of clients.
      NotImplementedError: If a part of the computation is not supported.
      NotBatchedError: If it cannot run in batches that were asked for.
      ClientError: If a client's work fails.
      tf.errors.OpError: If the server's work fails.
    """
    if not isinstance(comp, tff.framework.ConcreteComputation):
      raise TypeError(
        f"a tff.Computation was expected; got {type(comp).__name__}"
      )
    compiled = self._compiled.get(comp)
    parameter_type = comp.type_signature.parameter
    num_clients = values.count_clients(arg, parameter_type)
    if num_clients is None:
      num_clients = default_num_clients
    if num_clients is None:
      num_clients = self._default_num_clients
    result_type = comp.type_signature.result
    failure = None
    for form, run in (("batch", self._run_batch), ("loop", self._run_loop)):
      try:
        result = run(compiled, arg, num_clients)
      except tf.errors.OpError as error:
        # In another form, or client by client, so that the error names the
        # client.
        failure = failure or (form, error)
        continue
      if result is not None:
        self._note(compiled, form, failure)
        return values.to_python(result, result_type, materialize=False)
    if parameter_type is not None:
      arg = values.to_tensors(
        arg, parameter_type, self._client_devices, self._server_device
      )
    evaluator = federated.FederatedEvaluator(
      compiled.programs,
      self._server_device,
      self._client_devices,
      num_clients,
      self._client_pool if self._num_parallel(compiled) > 1 else None,
    )
    result = evaluator.run(compiled.function, arg, result_type)
    if num_clients:
      self._note(compiled, "client by client", failure)
    return values.to_python(result, result_type, materialize=self._materialize)

  def _note(self, compiled, form, failure) -> None:
    """Notes the form in which a computation ran, and says what failed before.

    Args:
      compiled: The computation.
      form: Its form.
      failure: The form that failed before, and why; or None.

    Raises:
      NotBatchedError: If batches failed that were asked for.
    """
    if form == "batch" and self._is_compiled(compiled):
      form = "compiled batch"
    self._forms[compiled.name] = form
    if failure is None:
      return
    failed, error = failure
    if failed == "batch":
      self._refuse(compiled, vectorization.failure(error))
    elif not compiled.was_said:
      compiled.was_said = True
      # Not a warning: such computations are correct, and only slower.
      logging.info(
        "%s runs client by client, which takes longer; in one function it"
        " fails: %s",
        compiled.name,
        textwrap.shorten(str(error), 500),
      )

  def _refuse(self, compiled, reason) -> None:
    """Lets a computation run in another form, or raises an error.

    Args:
      compiled: The computation.
      reason: Why its clients cannot run in batches.

    Raises:
      NotBatchedError: If batches were asked for.
    """
    is_new = compiled.not_batched is None
    compiled.not_batched = reason
    message = f"the clients of {compiled.name} cannot run in batches: {reason}"
    if self._batch_clients is True:
      raise errors.NotBatchedError(message)
    if is_new:
      logging.info(message)

  def _num_parallel(self, compiled: _CompiledComputation) -> int:
    """Returns the number of clients that may run concurrently."""
    on_cpu = any("CPU" in device for device in self._client_devices)
    return 1 if on_cpu and compiled.has_unsafe_kernels else self._num_threads

  def _run_loop(self, compiled, arg, num_clients):
    """Runs a computation as one function; None if this is not possible."""
    if (
      compiled.problem is not None
      or not self._materialize
      or num_clients == 0
      or {*self._client_devices} != {self._server_device}
    ):
      return None
    with self._memory.lent() as lender:
      packed = compiled.pack(arg, lender)
      if packed is None:
        return None
      try:
        program = compiled.cohort_program(
          self._server_device, self._num_parallel(compiled)
        )
      except cohorts.RepeatedDrawsError as error:
        compiled.problem = str(error)
        return None
      return program(num_clients, packed)

  def _is_compiled(self, compiled: _CompiledComputation) -> bool:
    """Returns whether XLA compiles the batches of a computation."""
    return self._compile_clients and compiled.not_compiled is None

  def _run_batch(self, compiled, arg, num_clients):
    """Runs a computation in batches; None if it runs in another form."""
    if self._is_compiled(compiled):
      try:
        return self._run_blocks(compiled, arg, num_clients)
      except (tf.errors.OpError, errors.NotBatchedError) as error:
        compiled.not_compiled = xla.failure(error)
        logging.info(
          "the batches of %s are not compiled: %s",
          compiled.name,
          compiled.not_compiled,
        )
    return self._run_blocks(compiled, arg, num_clients)

  def _run_blocks(self, compiled, arg, num_clients):
    """Runs a computation in batches, compiled or not."""
    if self._batch_memory is None or not num_clients or compiled.problem == "":
      return None
    reason = compiled.not_batched or compiled.problem
    if reason is not None:
      self._refuse(compiled, reason)
      return None
    is_compiled = self._is_compiled(compiled)
    try:
      program = compiled.batch_program(
        self._server_device, self._client_devices, is_compiled
      )
    except errors.NotBatchedError as error:
      if is_compiled:
        raise
      self._refuse(compiled, str(error))
      return None
    shapes = compiled.pack.shapes(arg)
    order, plan = blocks.plan(shapes, self._most_clients(program, shapes))
    if self._batch_clients == "auto" and len(plan.ends) > num_clients:
      # As many operations as the loop has: memory, or unequal sizes, leave a
      # batch to each client.
      return None
    # As much is left for the work of a batch.
    max_bytes = self._batch_memory // 2
    with self._memory.lent() as lender:
      packed = compiled.pack(arg, lender, order, max_bytes)
      if packed is None:
        # Lists, tensors or numbers of other types.
        tensors = values.to_tensors(
          arg,
          compiled.parameter_type,
          self._client_devices,
          self._server_device,
        )
        arg = tf.nest.map_structure(lambda each: each.numpy(), tensors)
        packed = compiled.pack(arg, lender, order, max_bytes)
      if packed is None:
        self._refuse(
          compiled,
          "its clients have more than"
          f" {memory_limits.described(max_bytes)} together",
        )
        return None
      return program(num_clients, packed, *plan, materialize=self._materialize)

  def _most_clients(self, program, shapes) -> int:
    """Returns the number of clients of a batch, at most."""
    sizes = (size for shape in shapes for size in shape)
    rows = max((size for size in sizes if isinstance(size, int)), default=1)
    most = self._clients_per_batch or blocks.most_clients(
      self._batch_memory // 2, program.bytes_per_client(rows)
    )
    # Every device has a batch.
    return min(most, -(-len(shapes) // len(self._client_devices)))


class AsyncInProcessContext(_Installable, tff.framework.AsyncContext):
  """The asynchronous form of `InProcessContext`."""

  def __init__(self, context: InProcessContext):
    super().__init__()
    self._context = context

  async def invoke(
    self, comp: tff.framework.ConcreteComputation, arg: object
  ) -> object:
    """Runs a computation in a thread; `arg` may be awaitable."""
    if inspect.isawaitable(arg):
      arg = await arg
    return await asyncio.to_thread(self._context.invoke, comp, arg)


def in_process_context(
  server_device: str | None = None,
  client_devices: Sequence[str] | None = None,
  num_threads: int | None = None,
  *,
  default_num_clients: int = 0,
  materialize: bool = True,
  batch_clients: bool | str = "auto",
  clients_per_batch: int = 0,
  compile_clients: bool = False,
) -> InProcessContext:
  """Returns a TFF context that runs computations in this process.

  Make it the default with `tff.framework.set_default_context`, or TFF's current
  context in a `with` block, after which the former one is restored:

      with in_process_context() as context:
        state = process.initialize()

  It runs the output of TFF's native compiler, for any computation without
  secure or sequence intrinsics and without JAX. Results are the same for any
  `num_threads`, bit for bit, as long as clients draw random numbers from seeds
  (`tf.random.stateless_uniform` and similar functions). What is drawn otherwise
  (`tf.random.uniform`, also with `seed=`) is drawn once per client and call,
  and depends on the number of threads and on earlier calls.

  If clients run on the CPU and TensorFlow's runtime has not started, this
  limits each operation to one thread, for the whole process: concurrent clients
  with one thread each are faster than sequential clients with all threads. To
  change this, call `tf.config.threading.set_intra_op_parallelism_threads`
  before.

  Args:
    server_device: The device of the server's work, e.g. `GPU:0`; by default the
      first GPU, or the CPU if TensorFlow sees no GPU.
    client_devices: The devices of the clients' work, assigned to clients in
      turn; by default every GPU, or the CPU if TensorFlow sees no GPU.
    num_threads: The number of concurrent clients; by default the number of CPU
      cores, or two per GPU.
    default_num_clients: The number of clients if the arguments of a computation
      do not determine it.
    materialize: Whether results are NumPy values, as in TFF's other contexts.
      Otherwise they are eager tensors on the device where they were computed;
      a state passed to the next call is then neither copied nor moved.
      `to_numpy` converts them to NumPy values.
    batch_clients: Whether clients run in batches: the same operation of many
      clients as one. `"auto"`: on GPUs, where it takes far less time. Results
      are those of the other forms up to rounding. What cannot be batched is
      said in the log; True: it is an error.
    clients_per_batch: The number of clients of a batch at most; 0: the largest
      power of two whose work fits in half of `batch_memory`.
    compile_clients: Whether XLA compiles batches, also on a CPU, once for each
      number of clients and of their examples. Draws are the same; what it
      cannot compile runs in batches that are not, which is said in the log.

  Returns:
    The context.

  Raises:
    ValueError: If a device does not exist or a number is out of range.
  """
  return InProcessContext(
    server_device,
    client_devices,
    num_threads,
    default_num_clients,
    materialize,
    batch_clients,
    clients_per_batch,
    compile_clients,
  )


def async_in_process_context(
  server_device: str | None = None,
  client_devices: Sequence[str] | None = None,
  num_threads: int | None = None,
  *,
  default_num_clients: int = 0,
  materialize: bool = True,
  batch_clients: bool | str = "auto",
  clients_per_batch: int = 0,
  compile_clients: bool = False,
) -> AsyncInProcessContext:
  """Returns the asynchronous form of `in_process_context`.

  A call of a computation is then a coroutine, as required by
  `tff.backends.native.create_mergeable_comp_execution_context` and
  `tff.program.NativeFederatedContext`.

  The arguments are those of `in_process_context`.

  Returns:
    The context.

  Raises:
    ValueError: If a device does not exist or a number is out of range.
  """
  return AsyncInProcessContext(
    InProcessContext(
      server_device,
      client_devices,
      num_threads,
      default_num_clients,
      materialize,
      batch_clients,
      clients_per_batch,
      compile_clients,
    )
  )
