"""The binary `experiments.workers`, and `--executor=remote` beside it."""

import concurrent.futures
import contextlib
import functools
import os
import signal
import socket
import time

import grpc
import numpy as np
import psutil
import pytest
import tensorflow_federated as tff

from benchmarks import resume
from tff_shift import execution
from tff_shift.command_line import comparison
from tff_shift.execution import local
from tff_shift.execution import remote
from tff_shift.simulation.storage import results

pytestmark = pytest.mark.cpp

_SMALL = """
  --algorithm=fed_rep --dataset=circle --num_domains=4
  --max_examples_per_domain=90 --num_clients=3 --rounds=4 --local_steps=1
  --evaluate_every=1 --learning_rate=1e-2 --checkpoint_every=1 --noprogress
"""


def _ports(flag):
  name, _, addresses = flag.partition("=")
  assert name == "--workers"
  return [int(each.removeprefix("127.0.0.1:")) for each in addresses.split(",")]


@pytest.fixture(scope="module", autouse=True)
def built_once():
  """All runs have one algorithm; the context of remote workers ends with each.

  What is built has no context.
  """
  build, built = comparison.Comparison.build, []

  def build_once(*arguments, **options):
    if not built:
      built.append(build(*arguments, **options))
    return built[0]

  with pytest.MonkeyPatch.context() as patches:
    patches.setattr(comparison.Comparison, "build", build_once)
    yield


@pytest.fixture(scope="module")
def start_workers(start_binary):
  """Returns `start(num_workers, *arguments, program="worker_binary")`.

  It gives the process, its flag, and the pids of its workers.
  """
  with contextlib.ExitStack() as processes:

    def start(num_workers, *arguments, program="worker_binary"):
      arguments = [f"--num_workers={num_workers}", *arguments]
      process = start_binary("workers", arguments)
      processes.enter_context(process)
      processes.callback(process.kill)
      flag = process.stdout.readline().strip()
      assert flag, process.stderr.read()
      pids = [
        child.pid
        for child in psutil.Process(process.pid).children(recursive=True)
        if program in " ".join(child.cmdline()) and "-c" not in child.cmdline()
      ]
      assert len(pids) == num_workers
      return process, flag, pids

    yield start


@pytest.fixture
def center_of():
  """Returns `center(addresses)`: four numbers minus the mean, and the mean."""
  subtract = tff.tensorflow.computation(
    lambda one, other: one - other, np.float32, np.float32
  )

  @tff.federated_computation(tff.FederatedType(np.float32, tff.CLIENTS))
  def center(values):
    mean = tff.federated_mean(values)
    shared = tff.federated_broadcast(mean)
    return tff.federated_map(subtract, (values, shared)), mean

  def center_of(addresses):
    # Not `execution.use`, whose contexts are shared in this folder.
    with remote.remote_context(execution.RemoteWorkers(addresses)):
      return center([1.0, 2.0, 3.0, 6.0])

  return center_of


def _connect(ports):
  """Connects to each port, for a moment."""
  for port in ports:
    socket.create_connection(("127.0.0.1", port)).close()


def _assert_closed(ports):
  for port in ports:
    with pytest.raises(ConnectionRefusedError):
      _connect([port])


def _wait_for_end(pids):
  while any(map(psutil.pid_exists, pids)):
    time.sleep(0.05)


@pytest.fixture(scope="module")
def whole(run_once):
  """A run on two workers that both stayed."""
  with local.Worker.start() as one, local.Worker.start() as other:
    flag = f"--executor=remote --workers={one.address},{other.address}"
    return run_once("evolving", _SMALL, flag, errors="")


@pytest.mark.long
def test_same_results_as_in_process(whole, run):
  here = run("evolving", _SMALL)
  (found,), (expected,) = whole.runs, here.runs
  assert found["setting"] == expected["setting"]
  assert found["metrics"].keys() == expected["metrics"].keys()
  for name, metric in found["metrics"].items():
    assert metric["seeds"] == pytest.approx(
      expected["metrics"][name]["seeds"], rel=1e-5
    )
  for found, expected in zip(whole.rows, here.rows, strict=True):
    assert float(found["train_loss"]) == pytest.approx(
      float(expected["train_loss"]), rel=1e-5
    )


@pytest.mark.slow
class TestFaults:
  """What happens in the third round of four, when workers have their parts."""

  @pytest.fixture
  def two_workers(self):
    with local.Worker.start() as one, local.Worker.start() as other:
      yield one, other

  @pytest.fixture
  def run_remote(self, run, two_workers):
    """Returns `run(*flags, code=0)`, which uses the two workers."""
    addresses = ",".join(worker.address for worker in two_workers)
    flags = f"--executor=remote --workers={addresses} --worker_timeout=2"
    return functools.partial(run, "evolving", _SMALL, flags)

  def assert_stopped(self, ended, start, num_rows):
    *_, message = ended.errors.splitlines()
    assert message.startswith(f"evolving: the worker {start}")
    assert resume.num_rows(ended.folder) == num_rows
    return message

  @pytest.fixture
  def before_round_3(self, monkeypatch):
    """Returns `do(action)`, which arranges for something to be done then."""
    write = results.RunFolder.write_metrics

    def do(action):
      def write_and_act(self, row):
        write(self, row)
        if row["round"] == 2:
          # Once: a run that is resumed writes this row again.
          monkeypatch.setattr(results.RunFolder, "write_metrics", write)
          action()

      monkeypatch.setattr(results.RunFolder, "write_metrics", write_and_act)

    return do

  @pytest.mark.long
  def test_round_is_repeated(
    self, run_remote, before_round_3, two_workers, whole, caplog
  ):
    one, other = two_workers
    before_round_3(lambda: psutil.Process(other.pid).suspend())
    folder = run_remote().folder
    psutil.Process(other.pid).resume()
    (warning,) = (
      each.message for each in caplog.records if "worker" in each.message
    )
    assert warning.startswith(
      f"the worker {other.address} has not answered for 2 seconds"
    )
    assert warning.endswith(f" go to the other workers: {one.address}")
    assert resume.differences(whole.folder, folder) == []

  @pytest.mark.long
  def test_stop_and_resume(
    self, run_remote, before_round_3, two_workers, whole
  ):
    lost = two_workers[0]
    before_round_3(lambda: os.kill(lost.pid, signal.SIGKILL))
    ended = run_remote("--on_worker_failure=stop", code=4)
    start = f"{lost.address} has not answered for 2 seconds"
    assert self.assert_stopped(ended, start, 2).endswith(
      "; partial results were saved; continue with --resume"
      f" --output_dir={ended.folder}"
    )
    assert ended.errors.count("\n") == 1
    with local.Worker.start(port=lost.port):
      # It does not complain about a checkpoint.
      run_remote("--on_worker_failure=stop --resume", errors="")
    assert resume.differences(whole.folder, ended.folder) == []

  @pytest.mark.long
  def test_no_worker_is_left(self, run_remote, before_round_3, two_workers):
    def kill_both():
      for worker in two_workers:
        os.kill(worker.pid, signal.SIGKILL)

    before_round_3(kill_both)
    message = self.assert_stopped(run_remote(code=4), "127.0.0.1:", 2)
    assert "; no worker is left; partial results were saved; " in message

  def test_server_of_another_kind(self, run_remote, two_workers):
    with concurrent.futures.ThreadPoolExecutor() as pool:
      server = grpc.server(pool)
      address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
      server.start()
      both = f"--workers={two_workers[0].address},{address}"
      ended = run_remote(both, code=4)
      server.stop(None).wait()
    message = self.assert_stopped(ended, f"{address} answers ", 0)
    assert "UNIMPLEMENTED" in message
    assert ended.errors.count("\n") == 1

  def test_worker_that_is_not_there_at_the_start(self, run_remote, two_workers):
    os.kill(two_workers[1].pid, signal.SIGKILL)
    ended = run_remote(code=4)
    self.assert_stopped(ended, two_workers[1].address, 0)
    assert ended.errors.count("\n") == 1


class TestWorkers:
  @pytest.mark.slow
  def test_workers_end_with_it(self, start_workers):
    process, flag, pids = start_workers(2)
    _connect(_ports(flag))
    process.kill()
    assert process.wait() == -signal.SIGKILL
    _wait_for_end(pids)
    _assert_closed(_ports(flag))

  @pytest.mark.slow
  def test_python_workers(self, start_workers, center_of):
    process, flag, pids = start_workers(
      2, "--executor=in_process", program="execution.remote.service"
    )
    addresses = flag.removeprefix("--workers=").split(",")
    assert center_of(addresses) == ([-2.0, -1.0, 0.0, 3.0], 3.0)
    for pid in pids:
      hosts = {
        connection.laddr.ip
        for connection in psutil.Process(pid).net_connections()
        if connection.status == psutil.CONN_LISTEN
      }
      # gRPC has sockets of IPv6.
      assert {host.removeprefix("::ffff:") for host in hosts} == {"127.0.0.1"}
    process.terminate()
    assert process.wait() == 143
    _wait_for_end(pids)

  @pytest.fixture
  def run_workers(self, run_here):
    """Returns `run(arguments) -> exit code`; it is in this process."""
    former = {
      each: signal.getsignal(each) for each in (signal.SIGTERM, signal.SIGINT)
    }
    yield functools.partial(run_here, "workers")
    for each, handler in former.items():
      signal.signal(each, handler)

  @pytest.fixture
  def while_they_run(self, monkeypatch):
    """Returns `do(action)`, which has it done once, with a worker."""
    check = local.Worker.check_running

    def do(action):
      def act_and_check(self):
        monkeypatch.setattr(local.Worker, "check_running", check)
        action(self)
        check(self)

      monkeypatch.setattr(local.Worker, "check_running", act_and_check)

    return do

  @pytest.mark.slow
  @pytest.mark.parametrize(
    "asked, code", [(signal.SIGTERM, 143), (signal.SIGINT, 0)]
  )
  def test_workers_end_with_it_when_it_is_asked_to(
    self, run_workers, while_they_run, capsys, asked, code
  ):
    ports = []

    def ask(_):
      ports.extend(_ports(capsys.readouterr().out.strip()))
      _connect(ports)
      os.kill(os.getpid(), asked)

    while_they_run(ask)
    assert run_workers(["--num_workers=2"]) == code
    assert len(ports) == 2
    _assert_closed(ports)

  @pytest.mark.slow
  def test_last_one_dies(self, run_workers, while_they_run, capsys):
    while_they_run(lambda worker: os.kill(worker.pid, signal.SIGKILL))
    # Python prints it and makes it a 1.
    assert run_workers(["--num_workers=1"]) == "no worker is left"
    output, errors = capsys.readouterr()
    assert errors.startswith(output.strip().removeprefix("--workers="))
    assert "SIGKILL" in errors

  @pytest.mark.slow
  def test_started_anew_when_all_drivers_have_left(
    self, run_workers, monkeypatch, capsys
  ):
    wait, check = local.Worker.wait_until_ready, local.Worker.check_running
    started, num_checks, drivers = [], 0, contextlib.ExitStack()

    def wait_and_connect(self):
      wait(self)
      started.append(self)
      if len(started) == 1:
        address = ("127.0.0.1", self.port)
        drivers.enter_context(socket.create_connection(address))

    def leave_at_the_fourth(self):
      nonlocal num_checks
      num_checks += 1
      if num_checks == 4:
        # As long as it is connected, the worker stays.
        assert len(started) == 1
        assert self.num_connections() == 1
        drivers.close()
      if len(started) == 2:
        os.kill(os.getpid(), signal.SIGINT)
      check(self)

    monkeypatch.setattr("tff_shift.binaries.workers._VACANT_SECONDS", 0.1)
    monkeypatch.setattr(local.Worker, "wait_until_ready", wait_and_connect)
    monkeypatch.setattr(local.Worker, "check_running", leave_at_the_fourth)
    with drivers:
      assert run_workers(["--num_workers=1"]) == 0
    first, second = started
    assert first.port == second.port
    assert first.pid != second.pid
    _wait_for_end([first.pid, second.pid])
    assert capsys.readouterr().err == ""

  @pytest.mark.slow
  def test_ports_one_of_which_is_taken(self, run_workers, capsys):
    with local.Worker.start() as worker:
      code = run_workers(["--num_workers=2", f"--port={worker.port - 1}"])
    assert code == 2
    assert capsys.readouterr().err == (
      f"workers: port must be a free one; {worker.port} is not: Address"
      " already in use\n"
    )
