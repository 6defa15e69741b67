"""Tests of the worker process with real processes: it works, and it ends."""

import contextlib
import dataclasses
import json
import os
import signal
import socket
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from typing import TextIO

import numpy as np
import psutil
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tests.fixtures.refusals import refused
from tff_shift.execution import local

pytestmark = pytest.mark.cpp

ROOT = Path(__file__).parents[2]
# Far above what an end takes (milliseconds), on a busy machine too, and far
# below what a hang lasts.
DEADLINE_SECONDS = 120.0
# Far above what a shell takes to start.
START_SECONDS = 4.0


@tff.federated_computation(tff.FederatedType(np.int32, tff.CLIENTS))
def total(values):
  return tff.federated_sum(values)


@tff.federated_computation
def number_of_clients():
  return tff.federated_sum(tff.federated_value(1, tff.CLIENTS))


@tff.tensorflow.computation(np.int64)
def count_up_to(limit):
  return tf.while_loop(
    lambda number: number < limit,
    lambda number: number + 1,
    [tf.constant(0, tf.int64)],
  )[0]


# Hours of counting: whoever waits for it must be interrupted.
ENDLESS = 10**15


def current_context():
  return tff.framework.get_context_stack().current


@pytest.fixture
def started() -> Callable[[], list[psutil.Process]]:
  """Lists the processes that the test has started and that still run."""
  # Another test of this Python process may have used TFF's own context, whose
  # worker stays.
  before = psutil.Process().children(recursive=True)

  def list_started() -> list[psutil.Process]:
    now = psutil.Process().children(recursive=True)
    return [process for process in now if process not in before]

  return list_started


def workers(processes: list[psutil.Process]) -> list[psutil.Process]:
  return [p for p in processes if p.name() == "worker_binary"]


def is_alive(process: psutil.Process) -> bool:
  try:
    return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
  except psutil.NoSuchProcess:
    return False


def wait_until(condition) -> bool:
  deadline = time.monotonic() + DEADLINE_SECONDS
  while time.monotonic() < deadline:
    if condition():
      return True
    time.sleep(0.02)
  return False


def all_end(processes: list[psutil.Process]) -> bool:
  return wait_until(lambda: not any(is_alive(p) for p in processes))


def write_program(folder: Path, text: str) -> str:
  program = folder / "program"
  program.write_text(f"#!/bin/sh\n{text}\n")
  program.chmod(0o755)
  return str(program)


class TestLocalContext:
  def test_sum_arguments_and_former_context(self, started):
    former = current_context()
    with local.local_context(2, default_num_clients=5) as context:
      assert current_context() is context
      processes = started()
      (worker,) = workers(processes)
      assert "--max_concurrent_computation_calls=2" in worker.cmdline()
      assert number_of_clients() == 5
      assert total([1, 2, 39]) == 42
    assert current_context() is former
    # The supervisor and the worker, and both have ended before the block did.
    assert len(processes) == 2
    assert not any(map(is_alive, processes))
    with pytest.raises(RuntimeError, match="was stopped"):
      context.invoke(total, [1])

  def test_leaves_no_thread_of_grpc(self):
    before = set(threading.enumerate())
    with local.local_context():
      assert total([1]) == 1
    left = [t.name for t in set(threading.enumerate()) - before]
    # The event loop of TFF's context, which TFF never ends, sleeps on.
    assert len(left) == 1
    assert "target_fn" in left[0]

  def test_nested_contexts_end_their_own_workers(self, started):
    with local.local_context() as outer:
      (outer_worker,) = workers(started())
      with local.local_context():
        assert len(workers(started())) == 2
        assert total([1, 2]) == 3
      assert workers(started()) == [outer_worker]
      assert current_context() is outer
      assert total([3, 4]) == 7
    assert not is_alive(outer_worker)

  def test_exception_ends_the_worker_and_passes_through(self, started):
    former = current_context()
    with pytest.raises(KeyError, match="mine"), local.local_context():
      processes = started()
      raise KeyError("mine")
    assert current_context() is former
    assert len(processes) == 2
    assert not any(map(is_alive, processes))

  def test_bad_arguments(self, started):
    with (
      refused("0 or -1 for no limit; got -2"),
      local.local_context(-2),
    ):
      pass
    with (
      refused("0 or more; got -1"),
      local.local_context(default_num_clients=-1),
    ):
      pass
    assert started() == []

  def test_dead_worker_gives_an_error(self, started):
    with local.local_context():
      assert total([1]) == 1
      (worker,) = workers(started())
      worker.kill()
      with pytest.raises(
        RuntimeError, match=r"(?s)died.*--max_concurrent_clients.*SIGKILL"
      ):
        total([1])

  @pytest.mark.slow
  def test_worker_that_dies_while_it_computes_gives_an_error(self, started):
    with local.local_context():
      (worker,) = workers(started())
      killer = threading.Timer(1.0, worker.kill)
      killer.start()
      with pytest.raises(RuntimeError, match="died"):
        count_up_to(ENDLESS)
      killer.join()


class TestWorker:
  @pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="needs a parent-death signal"
  )
  def test_ends_when_its_supervisor_is_killed(self):
    with local.Worker.start() as worker:
      process = psutil.Process(worker.pid)
      process.parent().kill()
      assert all_end([process])
      with pytest.raises(RuntimeError, match="died"):
        worker.check_running()

  def test_outlives_the_thread_that_started_it(self):
    made = []
    thread = threading.Thread(target=lambda: made.append(local.Worker.start()))
    thread.start()
    thread.join()
    with made[0] as worker:
      # A parent-death signal would have come with the end of the thread.
      time.sleep(0.5)
      worker.check_running()
      assert is_alive(psutil.Process(worker.pid))

  def test_ends_when_it_is_forgotten(self):
    worker = local.Worker.start()
    process = psutil.Process(worker.pid)
    with pytest.warns(ResourceWarning):
      del worker
    assert all_end([process])

  def test_inherits_no_descriptor_and_no_terminal_signal(self):
    read_end, write_end = os.pipe()
    os.set_inheritable(write_end, True)
    with local.Worker.start() as worker:
      os.close(write_end)
      os.set_blocking(read_end, False)
      # The end of the file at once: nobody else holds the other end.
      assert os.read(read_end, 1) == b""
      group = os.getpgid(worker.pid)
      assert group not in (os.getpgid(0), worker.pid)
    os.close(read_end)

  def test_address_and_port(self):
    with local.Worker.start() as first, local.Worker.start() as second:
      assert first.address == f"127.0.0.1:{first.port}"
      assert first.port != second.port
      for worker in (first, second):
        listening = [
          connection.laddr.port
          for connection in psutil.Process(worker.pid).net_connections("tcp")
          if connection.status == psutil.CONN_LISTEN
        ]
        assert listening == [worker.port]

  def test_reserved_ports_are_distinct(self):
    # Of 600 ports drawn from the usual 28,232 with replacement, two would be
    # the same with a probability of 99.8 percent.
    with contextlib.ExitStack() as sockets:
      ports = [
        sockets.enter_context(local._reserve_port()).getsockname()[1]
        for _ in range(600)
      ]
    assert len(set(ports)) == 600

  def test_forked_process_leaves_the_worker_alone(self):
    with local.Worker.start() as worker:
      worker_pid = worker.pid
      release, hold = os.pipe()
      forked = os.fork()
      if forked == 0:
        # Only system calls: the fork has none of TensorFlow's threads.
        code = 1
        try:
          worker.stop()
          worker.check_running()
        except RuntimeError as error:
          code = 0 if "must start its own" in str(error) else 2
        os.write(hold, b"%d" % code)
        time.sleep(10 * DEADLINE_SECONDS)
        os._exit(0)
      try:
        assert os.read(release, 1) == b"0"
        worker.check_running()
        worker.stop()
        # The fork still holds a copy of the pipe; only the byte in it tells.
        # A supervisor that did not read it would have been killed.
        assert worker._supervisor.returncode == 0
        assert not psutil.pid_exists(worker_pid)
      finally:
        os.kill(forked, signal.SIGKILL)
        os.waitpid(forked, 0)
        os.close(release)
        os.close(hold)


class TestWorkerThatFails:
  def test_missing_binary(self, tmp_path):
    missing = tmp_path / "worker_binary"
    with pytest.raises(RuntimeError, match=f"no executable.*{missing}"):
      local.Worker.start(command=[str(missing)])

  def test_not_a_program(self, tmp_path, started):
    program = tmp_path / "program"
    program.write_bytes(b"\x00\x01")
    program.chmod(0o755)
    with pytest.raises(RuntimeError, match="Exec format error"):
      local.Worker.start(command=[str(program)])
    assert started() == []

  def test_ends_at_once(self, tmp_path, started):
    program = write_program(tmp_path, "echo out; echo no library >&2; exit 3")
    with pytest.raises(RuntimeError, match=f"{program} ended") as error:
      local.Worker.start(command=[program])
    assert "out\nno library\n" in str(error.value)
    assert "exit code 3" in str(error.value)
    assert started() == []

  def test_cannot_listen(self, tmp_path, started):
    with socket.create_server(("", 0)) as other:
      port = other.getsockname()[1]
      program = write_program(
        tmp_path, f"exec {local._WORKER_BINARY} --port={port}"
      )
      with pytest.raises(RuntimeError, match="Address already in use"):
        local.Worker.start(command=[program])
    assert started() == []

  @pytest.mark.slow
  def test_never_ready(self, tmp_path, started):
    program = write_program(tmp_path, "echo waiting; exec sleep 600")
    with pytest.raises(TimeoutError, match=r"after 4 sec.*\nwaiting"):
      local.Worker.start(command=[program], timeout_seconds=START_SECONDS)
    assert started() == []

  @pytest.mark.slow
  def test_ignores_the_request_to_end(self, tmp_path, started):
    program = write_program(tmp_path, "trap '' TERM; exec sleep 600")
    start = time.monotonic()
    with pytest.raises(TimeoutError):
      local.Worker.start(command=[program], timeout_seconds=START_SECONDS)
    assert started() == []
    # The time-out, then the grace between SIGTERM and SIGKILL.
    limit = START_SECONDS + 5.0
    assert limit <= time.monotonic() - start < limit + DEADLINE_SECONDS


# What the processes under test do; the first imports all, and forks the others.
# Each prints a line of JSON with the pids that it started once the worker has
# computed, then "busy" before what never ends. The first prints their pids,
# then a line for each that has ended.
PROGRAM = """
  import json, os, signal, sys, time
  import tff_shift
  import numpy as np
  import psutil
  import tensorflow as tf
  import tensorflow_federated as tff
  from tff_shift.execution import local

  # A background job of a shell, and so its children, would ignore it.
  signal.signal(signal.SIGINT, signal.default_int_handler)
  assert not psutil.Process().children(), "an import started a process"
  pipes, pids = json.loads(sys.argv[1]), {}
  for way, pipe in pipes.items():
    pids[way] = os.fork()
    if pids[way] == 0:
      os.setsid()
      for target, descriptor in enumerate(pipe):
        os.dup2(descriptor, target)
      break
  for pipe in pipes.values():
    for descriptor in pipe:
      os.close(descriptor)
  if pids[way] != 0:
    print(json.dumps(pids), flush=True)
    for _ in pids:
      pid, status = os.wait()
      code = os.waitstatus_to_exitcode(status)
      print(json.dumps([pid, code]), flush=True)
    sys.exit()
  # Whatever goes wrong, the test neither waits for ever nor leaves this behind.
  signal.alarm(300)

  @tff.federated_computation(tff.FederatedType(np.int32, tff.CLIENTS))
  def total(values):
    return tff.federated_sum(values)

  @tff.tensorflow.computation(np.int64)
  def count_up_to(limit):
    return tf.while_loop(
      lambda number: number < limit,
      lambda number: number + 1,
      [tf.constant(0, tf.int64)],
    )[0]

  with local.local_context(max_concurrent_computation_calls=1):
    started = psutil.Process().children(recursive=True)
    answer = {"total": int(total([20, 22])), "pids": [p.pid for p in started]}
    if way == "SIGKILL":
      answer["forked"] = os.fork()
      if answer["forked"] == 0:
        for descriptor in (0, 1, 2):
          os.close(descriptor)
        time.sleep(120)
        os._exit(0)
    print(json.dumps(answer), flush=True)
    if way == "raise":
      raise ArithmeticError("on purpose")
    if way == "exit":
      os._exit(7)
    if way.startswith("SIG"):
      if not sys.stdin.readline():
        sys.exit("the test has died")
      print("busy", flush=True)
      count_up_to(10**15)
"""


WAYS = ("normal", "raise", "exit", "SIGINT", "SIGTERM", "SIGKILL")


def rest_of(file: TextIO) -> str:
  """Reads to the end, which does not come while anyone holds the pipe."""
  found = []
  reader = threading.Thread(
    target=lambda: found.append(file.read()), daemon=True
  )
  reader.start()
  reader.join(DEADLINE_SECONDS)
  assert found, "a process that is left holds the pipe"
  return found[0]


@dataclasses.dataclass
class Child:
  """A process under test and the other ends of its pipes."""

  stdin: TextIO
  stdout: TextIO
  stderr: TextIO
  pid: int = 0


@pytest.mark.slow
class TestEndOfPython:
  """Every way in which a Python process can end takes its worker with it."""

  @pytest.fixture(scope="class")
  def started(self, tmp_path_factory) -> Iterator[tuple[dict[str, Child], Any]]:
    """The processes under test, side by side, and their exit codes."""
    program = tmp_path_factory.mktemp("local") / "program.py"
    program.write_text(textwrap.dedent(PROGRAM))
    # A proxy must not get in the way of a connection to this machine.
    environment = {
      **os.environ,
      "PYTHONPATH": str(ROOT),
      "http_proxy": "http://127.0.0.1:9",
      "TF_CPP_MIN_LOG_LEVEL": "3",
    }
    children, theirs = {}, {}
    with contextlib.ExitStack() as stack:
      for way in WAYS:
        inputs, outputs, errors = (os.pipe() for _ in range(3))
        theirs[way] = inputs[0], outputs[1], errors[1]
        ours = zip((inputs[1], outputs[0], errors[0]), "wrr", strict=True)
        children[way] = Child(
          *(stack.enter_context(os.fdopen(*each)) for each in ours)
        )
      descriptors = [each for pipe in theirs.values() for each in pipe]
      first = subprocess.Popen(
        [sys.executable, program, json.dumps(theirs)],
        text=True,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        env=environment,
        pass_fds=descriptors,
      )
      stack.enter_context(first)
      stack.callback(first.kill)
      for descriptor in descriptors:
        os.close(descriptor)
      for way, pid in json.loads(first.stdout.readline()).items():
        children[way].pid = pid

      def kill_all():
        for child in children.values():
          with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)

      stack.callback(kill_all)
      ended = {}

      def exit_code(child):
        while child.pid not in ended:
          pid, code = json.loads(first.stdout.readline())
          ended[pid] = code
        return ended[child.pid]

      yield children, exit_code

  @pytest.fixture
  def children(self, started):
    return started[0]

  @pytest.fixture
  def exit_code(self, started):
    """Returns `exit_code(child)`, when it has ended."""
    return started[1]

  def start_of(self, child: Child) -> dict:
    """Reads the first line and checks what does not depend on the ending."""
    line = child.stdout.readline()
    assert line, child.stderr.read()
    answer = json.loads(line)
    assert answer["total"] == 42
    assert len(answer["pids"]) == 2
    return answer

  def ends_with(self, child: Child, answer: dict) -> str:
    """Checks that no process is left; returns what was written to stderr."""
    rest_of(child.stdout)
    errors = rest_of(child.stderr)

    def gone(pid: int) -> bool:
      with contextlib.suppress(psutil.NoSuchProcess):
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
      return True

    assert wait_until(lambda: all(map(gone, answer["pids"])))
    return errors

  def make_busy(self, child: Child) -> None:
    """Returns while the worker of the child computes."""
    child.stdin.write("\n")
    child.stdin.flush()
    assert child.stdout.readline() == "busy\n"
    time.sleep(1.0)

  def test_normal_exit_into_a_pipe(self, children, exit_code):
    child = children["normal"]
    errors = self.ends_with(child, self.start_of(child))
    assert exit_code(child) == 0
    assert "Traceback" not in errors

  def test_exception(self, children, exit_code):
    child = children["raise"]
    errors = self.ends_with(child, self.start_of(child))
    assert exit_code(child) == 1
    assert errors.count("Traceback") == 1
    assert errors.endswith("ArithmeticError: on purpose\n")

  def test_exit_without_leaving_the_block(self, children, exit_code):
    child = children["exit"]
    self.ends_with(child, self.start_of(child))
    assert exit_code(child) == 7

  def test_interrupt_by_the_terminal(self, children, exit_code):
    child = children["SIGINT"]
    answer = self.start_of(child)
    self.make_busy(child)
    # A terminal sends it to all processes of the group.
    os.killpg(child.pid, signal.SIGINT)
    errors = self.ends_with(child, answer)
    assert exit_code(child) == -signal.SIGINT
    # Only the interrupt itself: the lost connection is nobody's business.
    assert errors.count("Traceback") == 1
    assert errors.endswith("KeyboardInterrupt\n")

  def test_terminate(self, children, exit_code):
    child = children["SIGTERM"]
    answer = self.start_of(child)
    self.make_busy(child)
    os.kill(child.pid, signal.SIGTERM)
    self.ends_with(child, answer)
    assert exit_code(child) == -signal.SIGTERM

  @pytest.mark.long
  def test_kill_while_a_fork_holds_the_pipe(self, children, exit_code):
    child = children["SIGKILL"]
    answer = self.start_of(child)
    self.make_busy(child)
    os.kill(child.pid, signal.SIGKILL)
    try:
      self.ends_with(child, answer)
    finally:
      os.kill(answer["forked"], signal.SIGKILL)
    assert exit_code(child) == -signal.SIGKILL
