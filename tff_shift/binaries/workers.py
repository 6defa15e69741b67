"""Starts workers on this machine, for the flag `--executor=remote`.

  python -m experiments.workers --num_workers=2
  python -m experiments.workers --num_workers=2 --executor=in_process

The first are TFF's C++ program, for the CPU of Linux on x86-64. The second are
Python processes with TensorFlow, on a GPU if there is one, and on any platform:
their results have the same bits as those of the executor `in_process`.

Prints one line, `--workers=127.0.0.1:<port>,127.0.0.1:<port>`, and waits. Pass
this flag to the other binaries. To use several machines, start the binary on
each with a fixed port (`--num_workers=1 --port=8000`) and pass their names:
`--workers=one:8000,other:8000`.

The workers stop when the binary ends: by Ctrl-C (exit code 0), SIGTERM (143) or
SIGKILL. If a worker dies, this is reported and the others continue. If all have
died, the exit code is 1.

TFF frees the values of a driver only when the driver asks for it, which one
that was killed never does. Therefore a worker is started anew, at its port,
when all connections to it have been closed for three seconds (on Linux). A
driver that comes back sends everything again.

A worker runs any computation that it is sent. TFF's listens on all network
interfaces and does not encrypt. Use it in trusted networks only. Elsewhere, run
it behind a firewall and a proxy that terminates TLS, and use the flag
`--worker_certificate` of the other binaries. A Python worker listens on this
machine alone, unless `--all_interfaces` is set, and terminates TLS itself.
"""

import contextlib
import signal
import sys
import time
from collections.abc import Iterator

from absl import flags

from tff_shift._util import shown_names
from tff_shift._util import signals
from tff_shift.command_line import common_flags
from tff_shift.command_line import program

FLAGS = flags.FLAGS

# The values of `--executor`.
_EXECUTORS = ("worker_binary", "in_process")
# The flags of one of them.
_FLAGS_OF_PYTHON = (
  *("all_interfaces", "certificate", "certificate_key", "client_authority"),
)
_PAUSE_SECONDS = 0.5
# A driver connects again within a second or two, and a new one is not there so
# soon: it has to import TensorFlow.
# The alternative, that a new driver releases the executors of others, would
# release those of a run that shares the workers too: TFF's ids show their
# number, not their owner.
_VACANT_SECONDS = 3.0


def define_flags() -> None:
  """Defines the flags."""
  flags.DEFINE_integer("num_workers", 2, "Number of workers to start.")
  flags.DEFINE_integer(
    "port",
    0,
    "TCP port of the first worker; the others use the following ports. 0: free"
    " ports.",
  )
  flags.DEFINE_integer(
    "max_concurrent_clients",
    0,
    "Number of clients that a worker trains in parallel. 0: no limit, or, with"
    " --executor=in_process, two for each GPU, or one for each of the cores,"
    " which the workers share.",
  )
  flags.DEFINE_enum(
    "executor",
    _EXECUTORS[0],
    _EXECUTORS,
    "What computes. worker_binary: TFF's C++ program, on the CPU of Linux on"
    " x86-64. in_process: the executor of this name, in a Python process for"
    " each worker; workers share the machine's GPUs.",
  )
  flags.DEFINE_boolean(
    "all_interfaces",
    False,
    "Whether workers with --executor=in_process listen on all network"
    " interfaces; otherwise only this machine can connect.",
  )
  flags.DEFINE_string(
    "certificate",
    None,
    "PEM file with the certificate of workers with --executor=in_process, and"
    " its chain; turns TLS on.",
  )
  flags.DEFINE_string(
    "certificate_key", None, "PEM file with the key of --certificate."
  )
  flags.DEFINE_string(
    "client_authority",
    None,
    "PEM file of the authority that signed the certificates of the drivers,"
    " which workers with --executor=in_process then require.",
  )


def main() -> None:
  """Starts the workers, prints their addresses and waits."""
  common_flags.require("num_workers", FLAGS.num_workers >= 1, "at least 1")
  common_flags.require(
    "port",
    0 <= FLAGS.port <= 2**16 - FLAGS.num_workers,
    f"at least 0 and at most {2**16 - FLAGS.num_workers}",
  )
  common_flags.require(
    "max_concurrent_clients", FLAGS.max_concurrent_clients >= 0, "at least 0"
  )
  for name in _FLAGS_OF_PYTHON:
    common_flags.require(
      name,
      not FLAGS[name].value or FLAGS.executor == "in_process",
      "set with --executor=in_process only",
    )
  from tff_shift.execution import local

  def launch(number, port):
    settings = {"port": port}
    if FLAGS.executor == "in_process":
      settings["command"] = local.python_worker(
        number=number,
        num_workers=FLAGS.num_workers,
        **{name: FLAGS[name].value for name in _FLAGS_OF_PYTHON},
      )
    return local.Worker.launch(FLAGS.max_concurrent_clients, **settings)

  with contextlib.ExitStack() as stack, _ended_by_signals():
    workers = []
    stack.callback(_stop, workers)
    for number in range(FLAGS.num_workers):
      with common_flags.usage_errors():
        workers.append(launch(number, FLAGS.port and FLAGS.port + number))
    try:
      for worker in workers:
        worker.wait_until_ready()
    except (RuntimeError, TimeoutError) as error:
      sys.exit(str(error))
    numbers = {worker.port: number for number, worker in enumerate(workers)}
    addresses = ",".join(worker.address for worker in workers)
    print(f"--workers={addresses}", flush=True)
    # When a worker was last seen with a connection, by its port.
    last_used: dict[int, float] = {}
    while workers:
      time.sleep(_PAUSE_SECONDS)
      signals.check()
      for worker in list(workers):
        try:
          worker.check_running()
          if _is_vacant(worker, last_used):
            workers.remove(worker)
            worker.stop()
            workers.append(launch(numbers[worker.port], worker.port))
            workers[-1].wait_until_ready()
        except (RuntimeError, TimeoutError, ValueError) as error:
          line = shown_names.line(f"{worker.address}: {error}")
          print(line, file=sys.stderr, flush=True)
          if worker in workers:
            workers.remove(worker)
    sys.exit("no worker is left")


@contextlib.contextmanager
def _ended_by_signals() -> Iterator[None]:
  """Ends without a line: to be stopped is how this binary ends."""
  try:
    yield
  except signals.Terminated:
    sys.exit(128 + signal.SIGTERM)
  except KeyboardInterrupt:
    pass


def _stop(workers) -> None:
  for worker in workers:
    worker.stop()


def _is_vacant(worker, last_used: dict[int, float]) -> bool:
  """Returns whether drivers have used a worker, and all have left.

  Args:
    worker: The worker.
    last_used: When each port was last seen with a connection; is updated.
  """
  now = time.monotonic()
  if worker.num_connections():
    last_used[worker.port] = now
  if now - last_used.get(worker.port, now) < _VACANT_SECONDS:
    return False
  del last_used[worker.port]
  return True


def run() -> None:
  """Runs this binary with the command line and ends the process."""
  program.run(main, define_flags)


if __name__ == "__main__":
  run()
