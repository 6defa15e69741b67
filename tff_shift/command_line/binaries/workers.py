"""Starts TFF workers on this machine, for `--executor=remote`.

  python -m experiments.workers --num_workers=2

prints one line, `--workers=127.0.0.1:<port>,127.0.0.1:<port>`, which is the
flag to give to the other binaries, and waits. On several machines, start it on
each, on a port that is known beforehand (`--num_workers=1 --port=8000`), and
name the machines: `--workers=one:8000,other:8000`.

The workers end with it, however it ends: by Ctrl-C (exit code 0), SIGTERM (143)
or SIGKILL. A worker that dies is reported, the others go on; when the last one
has died, the exit code is 1.

TFF's worker listens on all network interfaces, takes any computation from
anyone and encrypts nothing: it is for networks where everyone is trusted.
Elsewhere let it listen behind a firewall and a proxy that terminates TLS, and
see the flag `--worker_certificate` of the other binaries.
"""

import contextlib
import signal
import sys
import time

from absl import flags

from tff_shift import shown_names
from tff_shift.command_line import common_flags
from tff_shift.command_line import program

FLAGS = flags.FLAGS


def define_flags() -> None:
  """Defines the flags."""
  flags.DEFINE_integer("num_workers", 2, "How many workers to start.")
  flags.DEFINE_integer(
    "port",
    0,
    "The TCP port of the first worker; the others have those that follow. 0:"
    " free ones.",
  )
  flags.DEFINE_integer(
    "max_concurrent_clients",
    0,
    "Clients that a worker trains at the same time. 0: no limit.",
  )


def _terminate(signal_number, _) -> None:
  sys.exit(128 + signal_number)


def main() -> None:
  """Starts the workers, says where they are, and waits for the end."""
  common_flags.require("num_workers", FLAGS.num_workers >= 1, "at least 1")
  common_flags.require(
    "port",
    0 <= FLAGS.port <= 2**16 - FLAGS.num_workers,
    f"at least 0 and at most {2**16 - FLAGS.num_workers}",
  )
  common_flags.require(
    "max_concurrent_clients", FLAGS.max_concurrent_clients >= 0, "at least 0"
  )
  from tff_shift.execution import local

  signal.signal(signal.SIGTERM, _terminate)
  with contextlib.ExitStack() as stack, contextlib.suppress(KeyboardInterrupt):
    workers = []
    for position in range(FLAGS.num_workers):
      port = FLAGS.port and FLAGS.port + position
      with common_flags.usage_errors():
        worker = local.Worker.start(FLAGS.max_concurrent_clients, port=port)
      workers.append(stack.enter_context(worker))
    addresses = ",".join(worker.address for worker in workers)
    print(f"--workers={addresses}", flush=True)
    while workers:
      time.sleep(0.5)
      for worker in list(workers):
        try:
          worker.check_running()
        except RuntimeError as error:
          line = shown_names.line(f"{worker.address}: {error}")
          print(line, file=sys.stderr, flush=True)
          workers.remove(worker)
    sys.exit("no worker is left")


def run() -> None:
  """Reads the command line and runs this binary, to the end of the process."""
  program.run(main, define_flags)


if __name__ == "__main__":
  run()
