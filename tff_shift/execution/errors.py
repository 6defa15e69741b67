"""Errors of executors that are not the computation's own."""


class WorkerError(RuntimeError):
  """A worker cannot be used, and the run cannot go on; the message is one line.

  What was computed is as it was before the computation that raises this.
  """
