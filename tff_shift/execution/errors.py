"""Errors of executors, as opposed to errors of a computation."""


class WorkerError(RuntimeError):
  """A worker cannot be used, and the run must stop; the message is one line.

  The state before the computation that raises this is unchanged.
  """


class NotBatchedError(RuntimeError):
  """A computation cannot run in batches; the message says why."""
