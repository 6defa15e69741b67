"""Several workers that share computations."""

import collections
import concurrent.futures
from collections.abc import Sequence

from absl import logging

from tff_shift._util import shown_names
from tff_shift.execution import errors
from tff_shift.execution.remote import diagnosis
from tff_shift.execution.remote import worker as worker_lib


class WorkerPool:
  """Runs computations on workers, and again if a worker is lost.

  Attributes:
    num_workers: The number of workers at the start, including lost ones.
  """

  def __init__(
    self, workers: Sequence[worker_lib.RemoteWorker], *, repeat: bool
  ):
    """Takes over workers.

    Args:
      workers: The workers.
      repeat: Whether the others take over the work of a lost worker.
    """
    self.num_workers = len(workers)
    self._all_workers = tuple(workers)
    self._workers = list(workers)
    self._repeat = repeat
    self._failure: str | None = None

  def wait_until_ready(self) -> None:
    """Waits until each worker has shown that it can compute.

    Raises:
      WorkerError: If one is not ready in time, or is something else. Its
        address may be wrong, so the others do not take over its work.
    """
    done, _ = concurrent.futures.wait(
      [worker.ready for worker in self._workers],
      return_when=concurrent.futures.FIRST_EXCEPTION,
    )
    for each in done:
      each.result()

  def run(
    self,
    tasks: Sequence[worker_lib.Task],
    preferred: worker_lib.RemoteWorker | None = None,
  ) -> list[object]:
    """Runs tasks concurrently, at most one on each worker.

    Args:
      tasks: The tasks. The first goes to the first remaining worker.
      preferred: The worker that counts as the first, unless it is lost.

    Returns:
      The results, in the order of the tasks: one for each, however often it was
      started.

    Raises:
      WorkerError: If a worker is lost and its task is not to be repeated, no
        worker is left, or the pool is closed; then again at each call. Also if
        a worker answers with an error, since the others would probably give
        the same; a `ComputationError` if it is one of the computation.
      Exception: If an argument is not valid.
    """
    if self._failure is not None:
      raise errors.WorkerError(self._failure)
    results: list[object] = [None] * len(tasks)
    waiting = collections.deque(range(len(tasks)))
    running = {}
    while waiting or running:
      busy = {worker for worker, _ in running.values()}
      for worker in sorted(
        self._workers, key=lambda worker: worker is not preferred
      ):
        if waiting and worker not in busy:
          position = waiting.popleft()
          future = worker.submit(tasks[position])
          running[future] = worker, position
      done, _ = concurrent.futures.wait(
        running, return_when=concurrent.futures.FIRST_COMPLETED
      )
      for future in done:
        worker, position = running.pop(future)
        try:
          results[position] = future.result()
        except diagnosis.WorkerLostError as error:
          self._remove(worker, str(error))
          waiting.appendleft(position)
        except diagnosis.ComputationError as error:
          error.task = position
          raise
    return results

  def close(self) -> None:
    """Closes the connections to all workers, which keep running."""
    self._failure = "the block in which the remote workers were used has ended"
    for worker in self._all_workers:
      worker.stop()

  def _remove(self, worker: worker_lib.RemoteWorker, reason: str) -> None:
    """Continues without a worker, or gives up."""
    if worker in self._workers:
      self._workers.remove(worker)
    if not self._repeat:
      self._failure = reason
    elif not self._workers:
      self._failure = f"{reason}; no worker is left"
    if self._failure is not None:
      raise errors.WorkerError(self._failure)
    logging.warning(
      "%s; its clients go to the other workers: %s",
      shown_names.line(reason),
      ", ".join(each.address for each in self._workers),
    )
