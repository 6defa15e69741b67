"""A TFF execution context in this process: GPU-capable, and without gRPC.

TFF's own executor is a child process, built for the CPU only, that every value
travels to and from in each round. This one runs the same computations with the
TensorFlow that the program has loaded anyway:

    import tensorflow_federated as tff
    from tff_shift.execution import in_process

    with in_process.in_process_context():
      state = process.initialize()
      result = process.next(state, client_data)

From the outside in: `context` (TFF's interface), `cohorts` (a whole computation
as one TensorFlow function), `federated` (what server and clients do, client by
client, where that cannot be), `programs` (a client's work as one TensorFlow
function), `graphs` (making a serialized graph fit for that), `values`,
`devices`, and `packing` (what all clients have, in one array per leaf).
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
