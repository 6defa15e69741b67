"""TFF's C++ executor on this machine, with a worker process that always ends.

TensorFlow Federated (TFF) runs computations in a child process, the
`worker_binary` of its wheel, over gRPC. TFF's own context lets it inherit the
standard output and error of Python and ends it only when a Python object is
collected, so that it outlives errors and signals and keeps pipes such as
`python run.py | cat` open for ever. Here it belongs to a `with` block:

    with local.local_context(max_concurrent_computation_calls=2):
      process.next(state, data)

    Python -- pipe --> supervisor -- parent-death signal --> worker_binary

- The block is left, normally or by an exception (Ctrl-C is one): Python signals
  the supervisor, a Python process of 12 MB, to end the worker, and waits.
- Python dies in any other way (SIGTERM, SIGKILL, `os._exit`): the kernel
  closes Python's end of the pipe, and the supervisor ends the worker.
- The supervisor is killed, too (`killall -9 python`): on Linux the kernel
  kills the worker.

The parent-death signal alone is not sufficient. Linux sends it when the
*thread* that forked ends, so a worker started in a thread of a pool would die
with it; setting it between fork and exec can deadlock in a process with the
threads of TensorFlow and gRPC; macOS has no such signal. The supervisor has one
thread.

The output of both processes goes to a nameless temporary file, whose end is
part of the error messages, and both run in a session of their own: a Ctrl-C in
the terminal reaches only Python, which then ends them in order.

Choices:
  * gRPC logs nothing in this process (`GRPC_VERBOSITY`, unless it was set): its
    error messages have the same information. A worker keeps its log, which is
    read if it does not start.
  * With two malloc arenas (`MALLOC_ARENA_MAX=2`) the worker grows by 0.6 % from
    round 50 to 300 of FedEvolve with a CNN on digits, with glibc's default by
    19 %, at the same speed.
  * The worker listens on all interfaces and has no flag to change that: use it
    only in a trusted network.
"""

from __future__ import annotations

import contextlib
import importlib.util
import inspect
import os
import pathlib
import signal
import socket
import subprocess
import sys
import tempfile
import time
import weakref
from collections.abc import Iterator
from collections.abc import Sequence
from typing import BinaryIO
from typing import TYPE_CHECKING

from tff_shift._util import installed
from tff_shift._util import pem

# A process that only starts workers has no need of TFF's import, of seconds and
# hundreds of MB.
if TYPE_CHECKING:
  import tensorflow_federated as tff

installed.require_tff()
# TFF has no function that returns the path of its worker. This is the path in
# the package that `tff.framework.local_cpp_executor_factory` uses.
_WORKER_BINARY = os.path.join(
  os.path.dirname(importlib.util.find_spec("tensorflow_federated").origin),
  *("data", "worker_binary"),
)

# With glibc's default, an arena per thread, the worker grows for hundreds of
# rounds; with two arenas it does not, and is not slower.
_ENVIRONMENT = {"MALLOC_ARENA_MAX": "2"}


def _supervise() -> None:
  """Runs a command and ends it on request or when the parent is gone.

  This is the whole program of the supervisor process: a fresh interpreter gets
  its source, so it uses nothing outside itself and does not wait for TFF's
  import. Its arguments are the parent's pid and the command; it writes the pid
  of the command to standard output. A byte on standard input, the end of
  standard input or another parent requests the end. A process forked from the
  parent holds a copy of that pipe, hence the byte and the check of the parent.
  """
  import ctypes
  import os
  import select
  import signal
  import subprocess
  import sys

  parent_pid, command = int(sys.argv[1]), sys.argv[2:]
  supervisor_pid = os.getpid()
  # Loaded before the fork: less to do between fork and exec.
  libc = ctypes.CDLL(None) if sys.platform.startswith("linux") else None

  def follow_supervisor():
    if libc is not None:
      libc.prctl(1, signal.SIGKILL)  # 1 is PR_SET_PDEATHSIG.
    # The supervisor may have died before the line above took effect.
    if os.getppid() != supervisor_pid:
      os._exit(1)

  # A signal handler leaves a byte in this pipe and so ends `select` at once.
  wake_read, wake_write = os.pipe()
  os.set_blocking(wake_write, False)
  signal.set_wakeup_fd(wake_write)
  signal.signal(signal.SIGCHLD, lambda *_: None)
  signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
  try:
    worker = subprocess.Popen(
      command, stdin=subprocess.DEVNULL, stdout=2, preexec_fn=follow_supervisor
    )
  except OSError as error:
    sys.exit(str(error))
  try:
    os.write(1, b"%d\n" % worker.pid)
    os.close(1)
    while worker.poll() is None and os.getppid() == parent_pid:
      readable, _, _ = select.select([0, wake_read], [], [], 1.0)
      if wake_read in readable:
        os.read(wake_read, 4096)
      if 0 in readable:
        break
    code = worker.returncode
    if code is not None:
      how = signal.Signals(-code).name if code < 0 else f"exit code {code}"
      sys.exit(f"The worker ended by itself: {how}.")
  finally:
    # SIGTERM rather than SIGINT, which a shell lets its background jobs, and
    # so their children, ignore.
    worker.terminate()
    try:
      worker.wait(5.0)
    except subprocess.TimeoutExpired:
      worker.kill()
      worker.wait()


_SUPERVISOR_PROGRAM = inspect.getsource(_supervise) + "_supervise()\n"


def _reserve_port(port: int = 0) -> socket.socket:
  """Returns a socket bound to a port that the worker can bind, too.

  The worker binds its port with SO_REUSEPORT, so two workers on the same port
  both start and silently share the connections. A port that is looked up and
  released (as in portpicker) can be given to two workers before one binds it; a
  port that stays bound cannot. A socket that does not listen gets no
  connections.

  Args:
    port: The port; 0 for a free one.

  Returns:
    The socket.

  Raises:
    ValueError: If the port is in use, or not allowed for this user.
  """

  def bind(option: int) -> socket.socket:
    with contextlib.ExitStack() as on_error:
      bound = on_error.enter_context(
        socket.socket(socket.AF_INET, socket.SOCK_STREAM)
      )
      bound.setsockopt(socket.SOL_SOCKET, option, 1)
      bound.bind(("", port))
      on_error.pop_all()
    return bound

  try:
    if port:
      # With this option there is an error where another worker listens.
      bind(socket.SO_REUSEADDR).close()
    return bind(socket.SO_REUSEPORT)
  except OSError as error:
    raise ValueError(
      f"port must be a free one; {port} is not: {error.strerror}"
    ) from error


def python_worker(
  *,
  all_interfaces: bool = False,
  number: int = 0,
  num_workers: int = 1,
  certificate: str | None = None,
  certificate_key: str | None = None,
  client_authority: str | None = None,
) -> list[str]:
  """Returns the command of a worker in Python, `execution.remote.service`.

  Args:
    all_interfaces: Whether it listens on all network interfaces; otherwise only
      this machine can connect.
    number: The worker's number among those of this machine.
    num_workers: Their number: they share its GPUs, or else its cores.
    certificate: A PEM file with the worker's certificate and its chain. None:
      no encryption.
    certificate_key: A PEM file with the key of `certificate`.
    client_authority: A PEM file with the certificates of the authorities that
      signed the drivers'. None: any driver is served.

  Returns:
    The program and its first arguments, for `Worker.start`.

  Raises:
    ValueError: If one of the files is given without another, or holds no
      certificate or key.
    FileNotFoundError: If a file does not exist.
  """
  host = "0.0.0.0" if all_interfaces else "127.0.0.1"
  flags = {"host": host, "number": number, "num_workers": num_workers}
  if bool(certificate) != bool(certificate_key):
    raise ValueError("certificate and certificate_key must be given together")
  if client_authority and not certificate:
    raise ValueError(
      "client_authority must come with certificate: without it there is no"
      " encryption"
    )
  if certificate:
    pem.check_key(
      "certificate", certificate, "certificate_key", certificate_key
    )
    flags |= {"certificate": certificate, "key": certificate_key}
  if client_authority:
    pem.check_certificate("client_authority", client_authority)
    flags["client_authority"] = client_authority
  return [
    *(sys.executable, "-m", "tff_shift.execution.remote.service"),
    *(f"--{name}={value}" for name, value in flags.items()),
  ]


class Worker(contextlib.AbstractContextManager):
  """A running worker, TFF's C++ executor service or another, and its end.

  Ended by `stop`, at the end of a `with` block, when the object is collected,
  or with the Python process, however that ends. In a process that was forked
  from that one, `stop` does nothing.

  TFF's listens on all network interfaces (it has no flag for that), without
  encryption, and runs whatever it is sent: use it where the other users and the
  network are trusted.
  """

  def __init__(
    self,
    binary: str,
    reservation: socket.socket,
    supervisor: subprocess.Popen,
    log: BinaryIO,
  ):
    self._binary, self._reservation = binary, reservation
    self._port = reservation.getsockname()[1]
    self._supervisor, self._log = supervisor, log
    self._owner_pid = os.getpid()
    self._pid: int | None = None
    self._stopped = False
    # Otherwise `subprocess` keeps the pipe of a running process.
    weakref.finalize(self, supervisor.stdin.close)

  @classmethod
  def start(
    cls,
    max_concurrent_computation_calls: int = -1,
    *,
    port: int = 0,
    command: Sequence[str] = (_WORKER_BINARY,),
    timeout_seconds: float = 300.0,
  ) -> Worker:
    """Starts a worker and waits until it takes connections.

    Args:
      max_concurrent_computation_calls: See `launch`.
      port: See `launch`.
      command: See `launch`.
      timeout_seconds: How long the worker may take to start.

    Returns:
      The running worker.

    Raises:
      ValueError: See `launch`.
      RuntimeError: If the program is missing or ends before it is ready.
      TimeoutError: If the worker is not ready in time.
    """
    with contextlib.ExitStack() as on_error:
      worker = cls.launch(
        max_concurrent_computation_calls, port=port, command=command
      )
      on_error.callback(worker.stop)
      worker.wait_until_ready(timeout_seconds)
      on_error.pop_all()
    return worker

  @classmethod
  def launch(
    cls,
    max_concurrent_computation_calls: int = -1,
    *,
    port: int = 0,
    command: Sequence[str] = (_WORKER_BINARY,),
  ) -> Worker:
    """Starts a worker, without waiting until it takes connections.

    Args:
      max_concurrent_computation_calls: How many calls of one computation (the
        clients of a round) run at the same time; 0 or -1 for no limit.
      port: The TCP port to listen on; 0 for a free one.
      command: The program to run and its first arguments; by default TFF's.

    Returns:
      The worker.

    Raises:
      ValueError: If `max_concurrent_computation_calls` is below -1, or the port
        is taken.
      RuntimeError: If the program is missing.
    """
    limit = max_concurrent_computation_calls
    if limit < -1:
      raise ValueError(
        "max_concurrent_computation_calls must be a positive number, or 0 or"
        f" -1 for no limit; got {limit}."
      )
    binary, *arguments = command
    if not os.access(binary, os.X_OK) or not os.path.isfile(binary):
      raise RuntimeError(
        f"There is no executable TFF worker at {binary}. A worker in Python"
        " needs none: python -m experiments.workers --executor=in_process"
      )
    with contextlib.ExitStack() as on_error:
      reservation = on_error.enter_context(_reserve_port(port))
      arguments += [f"--port={reservation.getsockname()[1]}"]
      arguments += [f"--max_concurrent_computation_calls={limit}"]
      environment = _ENVIRONMENT | os.environ
      # This package silences gRPC in its own process. A worker's log is read if
      # it does not start, and only gRPC logs the reason.
      environment.pop("GRPC_VERBOSITY", None)
      log = on_error.enter_context(tempfile.TemporaryFile())
      supervisor = subprocess.Popen(
        # -I and -S: the environment cannot change what the program imports.
        [
          *(sys.executable, "-I", "-S", "-c", _SUPERVISOR_PROGRAM),
          *(str(os.getpid()), binary, *arguments),
        ],
        bufsize=0,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=log,
        start_new_session=True,
        env=environment,
      )
      on_error.pop_all()
    return cls(binary, reservation, supervisor, log)

  @property
  def pid(self) -> int:
    """The process id of the worker."""
    return self._pid

  @property
  def port(self) -> int:
    """The TCP port that the worker listens on."""
    return self._port

  @property
  def address(self) -> str:
    """Host and port, as `grpc.insecure_channel` takes them."""
    return f"127.0.0.1:{self._port}"

  def num_connections(self) -> int | None:
    """Returns the number of connections to the worker; None if unknown.

    It is known on Linux only.
    """
    found = 0
    try:
      for name in ("tcp", "tcp6"):
        table = pathlib.Path(f"/proc/{self._pid}/net/{name}").read_text()
        for line in table.splitlines()[1:]:
          _, local, _, state, *_ = line.split()
          # Addresses and ports are hexadecimal; 01 is ESTABLISHED.
          if state == "01" and int(local.rpartition(":")[2], 16) == self._port:
            found += 1
    except FileNotFoundError:
      return None
    return found

  def log_tail(self) -> str:
    """Returns the end of what the worker has written, at most 2,000 bytes."""
    log = self._log.fileno()
    # Not `seek` and `read`: the worker writes at the same file position.
    tail = os.pread(log, 2000, max(0, os.fstat(log).st_size - 2000))
    return tail.decode(errors="replace").strip()

  def check_running(self) -> None:
    """Raises an error with the reason if the worker cannot be used.

    Raises:
      RuntimeError: If it was stopped, has died or belongs to another process.
    """
    if os.getpid() != self._owner_pid:
      raise RuntimeError(
        f"The TFF worker {self._pid} belongs to process {self._owner_pid}; a"
        " process forked from it must start its own."
      )
    if self._stopped:
      raise RuntimeError(f"The TFF worker {self._pid} was stopped.")
    if self._supervisor.poll() is not None:
      raise RuntimeError(
        f"The TFF worker {self._pid} ({self._binary}) died. If memory ran out,"
        " lower --max_concurrent_clients. Its last output:\n" + self.log_tail()
      )

  def stop(self) -> None:
    """Ends the worker and waits for it; safe to call again."""
    if self._stopped or os.getpid() != self._owner_pid:
      return
    self._stopped = True
    with contextlib.suppress(BrokenPipeError):
      self._supervisor.stdin.write(b"\n")
    try:
      self._supervisor.wait(10.0)  # It gives the worker 5 seconds.
    except subprocess.TimeoutExpired:
      # The supervisor leads its session's process group: this reaches both.
      os.killpg(self._supervisor.pid, signal.SIGKILL)
      self._supervisor.wait()
    self._supervisor.stdin.close()
    self._supervisor.stdout.close()
    self._log.close()
    self._reservation.close()

  def __exit__(self, *exception_details: object) -> None:
    self.stop()

  def wait_until_ready(self, timeout_seconds: float = 300.0) -> None:
    """Waits for the worker's pid, then for its port; see `start`."""
    deadline = time.monotonic() + timeout_seconds
    os.set_blocking(self._supervisor.stdout.fileno(), False)
    while True:
      if self._supervisor.poll() is not None:
        raise RuntimeError(
          f"The TFF worker {self._binary} ended before it was ready. Its last"
          f" output:\n{self.log_tail()}"
        )
      if self._pid is None:
        # Written at once: either nothing or the whole line is available.
        line = self._supervisor.stdout.read(32)
        self._pid = int(line) if line else None
      if self._pid is not None:
        with contextlib.suppress(OSError):
          socket.create_connection(("127.0.0.1", self._port), 1.0).close()
          self._reservation.close()
          return
      if time.monotonic() >= deadline:
        raise TimeoutError(
          f"The TFF worker {self._binary} was not ready after"
          f" {timeout_seconds:g} seconds. Its last output:\n{self.log_tail()}"
        )
      time.sleep(0.05)


def _compile(
  computation: tff.framework.ConcreteComputation,
) -> tff.framework.ConcreteComputation:
  import tensorflow_federated as tff

  from tff_shift.execution import compilation

  return tff.backends.native.desugar_and_transform_to_native(
    compilation.simulate_secure_sums(computation)
  )


@contextlib.contextmanager
def local_context(
  max_concurrent_computation_calls: int = -1, default_num_clients: int = 0
) -> Iterator[tff.framework.SyncExecutionContext]:
  """Runs the TFF computations of a `with` block on its own C++ worker.

  As everywhere in TFF, this applies to the thread that enters the block. Blocks
  can be nested: the innermost is used, and each ends its own worker.

  Args:
    max_concurrent_computation_calls: The number of clients of a round that are
      computed concurrently; 0 or -1 for no limit. Fewer need less memory.
    default_num_clients: The number of clients if the arguments of a computation
      do not determine it.

  Yields:
    The context, which is TFF's current one until the block ends.

  Raises:
    ValueError: If `max_concurrent_computation_calls` is below -1 or
      `default_num_clients` below 0.
    RuntimeError, TimeoutError: If the worker does not start (`Worker.start`);
      the first also from a computation in the block, if the worker has died.
  """
  if default_num_clients < 0:
    raise ValueError(
      f"default_num_clients must be 0 or more; got {default_num_clients}."
    )
  import grpc
  import tensorflow_federated as tff

  from tff_shift.execution import worker_executors

  with Worker.start(max_concurrent_computation_calls) as worker:
    channel = grpc.insecure_channel(
      worker.address, worker_executors.CHANNEL_OPTIONS
    )
    factory = worker_executors.WorkerExecutorFactory(
      channel, worker.check_running, default_num_clients
    )
    # The same context as `tff.backends.native` makes, around our executors.
    context = tff.framework.SyncExecutionContext(
      factory,
      _compile,
      transform_args=tff.tensorflow.transform_args,
      transform_result=tff.tensorflow.transform_result,
    )
    with tff.framework.get_context_stack().install(context):
      yield context
