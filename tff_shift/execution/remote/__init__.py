"""TFF's remote execution: one `worker_binary` per machine share the clients.

    from tff_shift import execution

    workers = execution.RemoteWorkers(["one:8000", "other:8000"])
    with execution.use("remote", remote_workers=workers):
      state = process.initialize(seed)

From the outside in: `context` (TFF's interface; deals clients out and puts
results together), `mergeable` (takes computations apart), `pool` (who computes
what, again if a worker is lost), `worker` (a channel and a watch),
`bounded_channel` (deadlines), `diagnosis` (what is said).

What runs where. A computation with clients and aggregates runs in TFF's
mergeable form: each worker has clients in a row, as many as the others or one
more; the first worker that is left merges the partial aggregates, in the order
of the clients, and does what is the server's. Without aggregates there is
nothing to merge. Without clients, with clients of which no argument tells the
number, or with an aggregate that depends on another, one worker runs it all.
Results differ from those of one worker in the last bits of sums.

What is bounded, and how. TFF's executor calls a worker without a deadline, and
repeats for ever when the connection is lost. So every worker is asked for a
sign of life at least once a second, on the very connection that TFF uses. After
`worker_timeout` seconds without one, and a last chance of a second, the channel
is closed, which ends the call that hangs, and nobody waits for it any longer.
At the latest `worker_timeout` + 3 seconds after a worker has been killed or
stopped, or its network has gone, its part is with another worker, or the
computation raises an `execution.WorkerError` of one line. The same holds for a
worker that is not there at the start, which always is an error. Within that
time a worker may be started anew, or a connection break: all is then sent
again.

A sign of life comes from gRPC, not from TFF's executor. So each request that
computes nothing has a deadline of its own (`bounded_channel`), and a worker has
to run a computation that takes no time (a rehearsal): at the start, and each
`worker_timeout` seconds while it computes. What computes, `CreateCall` and
`Compute`, may take any time, or `compute_timeout`.

A worker that answers a request with an error, or with what cannot be read,
raises an `execution.WorkerError` that says what it seems to be (`diagnosis`):
the others would be likely to answer alike.

What is not bounded: without `compute_timeout`, how long a worker computes that
does what else it is asked; and the time to serialize a value in this process.

What counts once. A part of a computation is begun again if need be, but only
one result of it is taken, and a computation returns when all are there. The
parts do not depend on which workers are left, so the results have the same bits
whether or not a worker was lost. A lost worker stays lost for the context.

Security. The workers run what they are sent, encrypt nothing and ask nobody who
they are. With a certificate, the channel is TLS (`grpc.secure_channel`), to a
proxy that terminates it beside the worker; with a client certificate, the proxy
can tell who asks. The worker's own port must then be closed to others.
"""

from tff_shift.execution.remote.context import remote_context
from tff_shift.execution.remote.context import RemoteContext

__all__ = ["RemoteContext", "remote_context"]
