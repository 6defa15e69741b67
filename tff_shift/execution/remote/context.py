"""The TFF context that runs computations on several workers."""

import contextlib
from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Sequence

import tensorflow_federated as tff

from tff_shift.execution import compilation
from tff_shift.execution import errors
from tff_shift.execution import remote_workers
from tff_shift.execution.in_process import values
from tff_shift.execution.remote import diagnosis
from tff_shift.execution.remote import mergeable
from tff_shift.execution.remote import pool as pool_lib
from tff_shift.execution.remote import worker as worker_lib


class RemoteContext(tff.framework.SyncContext):
  """Runs TFF computations on several workers; see `remote_context`."""

  def __init__(self, pool: pool_lib.WorkerPool):
    super().__init__()
    self._pool = pool
    self._plans = compilation.CompilationCache(mergeable.Plan)

  def invoke(
    self, comp: tff.framework.ConcreteComputation, arg: object
  ) -> object:
    """Runs a computation; TFF calls this when a computation is called.

    Args:
      comp: The computation.
      arg: Its argument, or None if it takes none.

    Returns:
      The result, NumPy values in Python containers.

    Raises:
      WorkerError: If a worker is lost, and the others do not take over its
        work; or if a worker answers with an error, such as one of the work
        itself, which names the client whose work fails alone, if any.
      TypeError: If the argument is not of the computation's parameter type.
      ValueError: If parts of the argument disagree on the number of clients, or
        there are none to share a result.
    """
    plan = self._plans.get(comp)
    parameter_type = comp.type_signature.parameter
    num_clients = values.count_clients(arg, parameter_type)
    if num_clients == 0 and plan.num_receivers([*plan.early, *plan.late]):
      raise ValueError(
        "a result that all clients share needs a client; there are 0 clients"
      )

    def take(clients: slice) -> object:
      if plan.whole is not None and clients == slice(0, num_clients):
        return arg
      return mergeable.take_clients(arg, parameter_type, clients)

    if plan.whole is not None:
      (result,) = self._run(
        plan.whole, take, [slice(0, num_clients)], num_clients
      )
      return result
    parts = list(self._assign(plan, num_clients))
    if not plan.has_aggregate:
      started = self._run(plan.start, take, parts, num_clients)
      return plan.assemble(_join(plan, plan.early, started))
    total, early = self._aggregate(plan, take, parts, num_clients)
    leaves = _join(plan, plan.early, early)
    if not any(map(plan.is_at_clients, plan.late)):
      # The server needs only the total: the clients' data need not be sent
      # again.
      parts = [slice(0, plan.num_receivers(plan.late))]
    finished = self._run(
      plan.finish,
      lambda clients: tff.structure.Struct.unnamed(take(clients), total),
      parts,
      num_clients,
    )
    leaves |= _join(plan, plan.late, finished)
    return plan.assemble(leaves)

  def _assign(self, plan: mergeable.Plan, num_clients: int) -> Iterator[slice]:
    """Assigns consecutive clients to each worker, as evenly as possible.

    The parts do not change when a worker is lost: the others take over whole
    ones.
    """
    if not plan.has_aggregate and not any(map(plan.is_at_clients, plan.early)):
      yield slice(0, plan.num_receivers(plan.early))
      return
    num_parts = max(1, min(self._pool.num_workers, num_clients))
    for part in range(num_parts):
      yield slice(
        num_clients * part // num_parts, num_clients * (part + 1) // num_parts
      )

  def _aggregate(
    self,
    plan: mergeable.Plan,
    take: Callable[[slice], object],
    parts: Sequence[slice],
    num_clients: int,
  ) -> tuple[object, list[object]]:
    """Lets all parts work at the same time, and adds one after the other.

    Args:
      plan: The plan.
      take: Returns the argument for some of the clients.
      parts: The parts.
      num_clients: The number of all clients, for messages.

    Returns:
      The total of all clients, and the early results of each part.
    """
    first, *others = parts
    works = [worker_lib.Work(plan.halves[0], take(part)) for part in others]
    with self._named_client(plan.start, take, parts, num_clients):
      started, *_ = self._pool.run(
        [
          _invocation(plan.start, take(first)),
          *(work.compute for work in works),
        ]
      )
    total, early = tff.structure.from_container(started)
    early_results = [early]
    for part, work in zip(others, works, strict=True):
      with self._named_client(plan.start, take, [part], num_clients):
        (added,) = self._pool.run(
          [work.add_to(total, plan.halves[1])], preferred=work.worker
        )
      total, early = tff.structure.from_container(added)
      early_results.append(early)
    return total, early_results

  def _run(
    self,
    computation: tff.framework.ConcreteComputation,
    take: Callable[[slice], object],
    parts: Sequence[slice],
    num_clients: int | None,
  ) -> list[object]:
    """Runs a computation for each part of the clients.

    Args:
      computation: The computation.
      take: Returns its argument for some of the clients.
      parts: The parts.
      num_clients: The number of all clients, for messages; or None.

    Returns:
      The results.
    """
    with self._named_client(computation, take, parts, num_clients):
      return self._pool.run(
        [_invocation(computation, take(part)) for part in parts]
      )

  @contextlib.contextmanager
  def _named_client(
    self,
    computation: tff.framework.ConcreteComputation,
    take: Callable[[slice], object],
    parts: Sequence[slice],
    num_clients: int | None,
  ) -> Iterator[None]:
    """Names the client in the error of a block that runs tasks, if one failed.

    Args:
      computation: The computation of the tasks, or one with the same work.
      take: Returns its argument for some of the clients.
      parts: The clients of each task.
      num_clients: The number of all clients; or None.
    """
    try:
      yield
    except diagnosis.ComputationError as error:
      client = None
      if num_clients is not None:
        with contextlib.suppress(errors.WorkerError):
          client = self._find_failing(computation, take, parts[error.task])
      if client is None:
        raise
      raise errors.WorkerError(
        f"{error} for client {client} of {num_clients}"
      ) from error

  def _find_failing(
    self,
    computation: tff.framework.ConcreteComputation,
    take: Callable[[slice], object],
    part: slice,
  ) -> int | None:
    """Finds a client whose work fails alone, by halving; None if none does."""

    def fails(start: int, stop: int) -> bool:
      try:
        argument = take(slice(start, stop))
        self._pool.run([_invocation(computation, argument)])
      except diagnosis.ComputationError:
        return True
      return False

    start, stop = part.start, part.stop
    # Without clients, the server's work is left.
    if fails(start, start):
      return None
    while stop - start > 1:
      middle = (start + stop) // 2
      if fails(start, middle):
        stop = middle
      else:
        start = middle
    return start if stop > start and fails(start, stop) else None


def _invocation(
  computation: tff.framework.ConcreteComputation, argument: object
) -> worker_lib.Task:
  return lambda worker: worker.invoke(computation, argument)


def _join(plan, paths, results) -> dict:
  """Combines the results of all parts, in the order of the clients."""
  leaves = {}
  for position, path in enumerate(paths):
    of_parts = [
      tff.structure.from_container(each)[position] for each in results
    ]
    leaves[path] = (
      [value for part in of_parts for value in part]
      if plan.is_at_clients(path)
      else of_parts[0]
    )
  return leaves


@contextlib.contextmanager
def remote_context(
  settings: remote_workers.RemoteWorkers, default_num_clients: int = 0
) -> Iterator[RemoteContext]:
  """Runs the TFF computations of a `with` block on several workers.

  The block starts when all workers have shown that they work. The workers are
  not ended with it.

  Args:
    settings: The workers, and how to handle failures.
    default_num_clients: The number of clients if the arguments of a computation
      do not determine it; such a computation runs on one worker.

  Yields:
    The context, which is TFF's current one until the block ends.

  Raises:
    ValueError: If `default_num_clients` is below 0.
    WorkerError: If a worker is not ready in time; also from a computation in
      the block, see `RemoteContext.invoke`.
  """
  if default_num_clients < 0:
    raise ValueError(
      f"default_num_clients must be 0 or more; got {default_num_clients}"
    )
  pool = pool_lib.WorkerPool(
    [
      worker_lib.RemoteWorker(address, settings, default_num_clients)
      for address in settings.workers
    ],
    repeat=settings.on_worker_failure == "repeat",
  )
  with contextlib.closing(pool):
    pool.wait_until_ready()
    context = RemoteContext(pool)
    with tff.framework.get_context_stack().install(context):
      yield context
