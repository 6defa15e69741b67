"""A TFF execution context in this process: with GPU support, without gRPC.

TFF's own executor is a child process, built for the CPU only, and every value
is sent to it and back in each round. This context runs the same computations
with the TensorFlow of the program itself:

    import tensorflow_federated as tff
    from tff_shift.execution import in_process

    with in_process.in_process_context():
      state = process.initialize()
      result = process.next(state, client_data)

From the outside in: `context` (TFF's interface), `cohorts` (a whole computation
as one TensorFlow function: a loop over clients, or clients in batches),
`federated` (otherwise: the work of server and clients, client by client),
`programs` (a client's work as one TensorFlow function), `graphs` (preparation
of a serialized graph), `vectorization`, `converters`, `convolutions` and
`draws` (a client's graph for many clients), `values`, `devices`, `packing` (the
values of all clients in one array per leaf) and `blocks` (which clients are in
a batch).
"""

from tff_shift.execution.in_process.context import async_in_process_context
from tff_shift.execution.in_process.context import AsyncInProcessContext
from tff_shift.execution.in_process.context import in_process_context
from tff_shift.execution.in_process.context import InProcessContext
from tff_shift.execution.in_process.federated import ClientError
from tff_shift.execution.in_process.values import to_numpy

__all__ = [
  "AsyncInProcessContext",
  "ClientError",
  "InProcessContext",
  "async_in_process_context",
  "in_process_context",
  "to_numpy",
]
