"""The TFF context that runs computations on several workers."""

import contextlib
from collections.abc import Iterator

import tensorflow_federated as tff

from tff_shift.execution import compilation
from tff_shift.execution import remote_workers
from tff_shift.execution.in_process import values
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
        itself.
      TypeError: If the argument is not of the computation's parameter type.
      ValueError: If parts of the argument disagree on the number of clients.
    """
    plan = self._plans.get(comp)
    if plan.whole is not None:
      (result,) = self._pool.run([(plan.whole, arg)])
      return result
    parameter_type = comp.type_signature.parameter
    num_clients = values.count_clients(arg, parameter_type)
    parts = [
      mergeable.take_clients(arg, parameter_type, clients)
      for clients in self._assign(plan, num_clients)
    ]
    started = [
      tff.structure.from_container(each)
      for each in self._pool.run([(plan.start, part) for part in parts])
    ]
    if not plan.has_aggregate:
      return plan.assemble(_join(plan, plan.early, started))
    partials, early = zip(*started, strict=True)
    leaves = _join(plan, plan.early, early)
    if not any(map(plan.is_at_clients, plan.late)):
      # The server needs only the partial aggregates: the clients' data need not
      # be sent again.
      parts = [mergeable.take_clients(arg, parameter_type, slice(0))]
    finish = plan.finish(len(partials))
    merged = tff.structure.Struct.unnamed(*partials)
    finished = self._pool.run(
      [(finish, tff.structure.Struct.unnamed(part, merged)) for part in parts]
    )
    leaves |= _join(plan, plan.late, finished)
    return plan.assemble(leaves)

  def _assign(self, plan: mergeable.Plan, num_clients: int) -> Iterator[slice]:
    """Assigns consecutive clients to each worker, as evenly as possible.

    The parts do not change when a worker is lost, since the last bits of a mean
    depend on them.
    """
    if not plan.has_aggregate and not any(map(plan.is_at_clients, plan.early)):
      yield slice(0)
      return
    num_parts = max(1, min(self._pool.num_workers, num_clients))
    for part in range(num_parts):
      yield slice(
        num_clients * part // num_parts, num_clients * (part + 1) // num_parts
      )


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
