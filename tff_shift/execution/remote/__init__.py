"""TFF's remote execution: workers on several machines share the clients.

    from tff_shift import execution

    workers = execution.RemoteWorkers(["one:8000", "other:8000"])
    with execution.use("remote", remote_workers=workers):
      state = process.initialize(seed)

A worker is TFF's `worker_binary` or a process of `service`; both serve the same
requests. From the outside in: `context` (TFF's interface; assigns clients and
combines results), `mergeable` (splits computations), `pool` (assigns parts to
workers, again if a worker is lost), `worker` (a channel and a health check),
`bounded_channel` (deadlines), `diagnosis` (error messages).

Placement. A computation with clients and aggregates runs in TFF's mergeable
form: each worker gets consecutive clients, in equal numbers up to one. When all
have worked, one after the other adds its clients to the total, and the first
remaining worker does the server's work. One worker runs the whole computation
if it has no clients, if no argument determines their number, if an aggregate
depends on another, or if a value that is drawn without a seed would be drawn
several times (a warning names the reason). Results have the bits of one worker,
except for batches of clients (`service` on a GPU), whose sizes depend on the
number of clients.

Time limits. TFF's executor calls a worker without a deadline, and retries for
ever when the connection is lost. Therefore every worker must give a sign of
life at least once a second, on the same connection that TFF uses. After
`worker_timeout` seconds without one, and a last chance of a second, the channel
is closed. This ends the hanging call, and nothing waits for it any longer. At
the latest `worker_timeout` + 3 seconds after a worker was killed or stopped, or
its network is gone, its part runs on another worker, or the computation raises
an `execution.WorkerError` of one line. The same holds for a worker that is
missing at the start, which is always an error. Within this time a worker may be
restarted, or a connection may break: everything is then sent again.

A sign of life comes from gRPC, not from TFF's executor. Therefore each request
that computes nothing has its own deadline (`bounded_channel`), and a worker has
to run a computation that takes no time (a rehearsal): at the start, and each
`worker_timeout` seconds while it computes. Requests that compute, `CreateCall`
and `Compute`, may take any time, or `compute_timeout`.

If a worker answers a request with an error, or with an unreadable message, an
`execution.WorkerError` names the probable cause (`diagnosis`): the other
workers would probably answer in the same way. If a computation fails, it is run
again on some of its clients, to name the one whose work fails alone.

Not limited: without `compute_timeout`, the time that a worker computes while it
answers other requests; and the time to serialize a value in this process.

Exactly one result. A part of a computation may be started again, but only one
result of it is used, and a computation returns when all parts are complete. The
parts do not depend on the remaining workers, so the results have the same bits
whether or not a worker was lost. A lost worker stays lost for the context.

Security. The workers run any computation that they receive, without encryption
or authentication. With a certificate, the channel is TLS
(`grpc.secure_channel`), to a worker of `service`, or to a proxy that terminates
it beside the worker, whose own port must then be closed to others; with a
client certificate, they can authenticate the client.

Choices:
  * Clients are added one by one, in their order: sums of the workers' sums have
    other bits for each number of workers. What clients send stays on their
    worker, and the total goes from worker to worker. No more is sent than with
    partial sums; additions are in sequence, and a worker holds an update of
    each client.
  * The server's work stays on the first worker, which gets the total and the
    server's state: in the driver it would save this, and move the work there.
  * A worker in Python answers FAILED_PRECONDITION for values that it does not
    have: ids of executors are random and those of values are never used twice,
    so that a driver of a former process cannot take one for another.
  * The health check calls a method that the service does not have, on TFF's
    connection: gRPC answers for any live server.
  * INTERNAL and RESOURCE_EXHAUSTED end the run: a computation that fails has
    these codes too, and would fail on every worker. UNAVAILABLE and
    FAILED_PRECONDITION (a restarted worker has lost all values) are retried for
    `worker_timeout` seconds, not counting the time that it computes.
  * A request's deadline is two seconds above `worker_timeout`, so that a worker
    that is gone altogether is reported as such.
  * A certificate without a subjectAltName is left to gRPC, which takes the
    common name for a host name, but not for an address. Refusing it takes a
    second connection, which another server might answer.
"""

from tff_shift.execution.remote.context import remote_context
from tff_shift.execution.remote.context import RemoteContext

__all__ = ["RemoteContext", "remote_context"]
