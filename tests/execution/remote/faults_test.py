"""Tests of workers that die, stop or are not there, and of broken lines."""

import collections
import contextlib
import os
import signal
import threading
import time
import types
from collections.abc import Iterator

import numpy as np
import psutil
import pytest
import tensorflow_federated as tff

from tff_shift import execution
from tff_shift.execution import local
from tff_shift.simulation.engine import rounds

pytestmark = [pytest.mark.cpp, pytest.mark.slow]

# Far below what a hang lasts.
DEADLINE = 60.0

INTS_AT_CLIENTS = tff.FederatedType(np.int64, tff.CLIENTS)


@tff.tensorflow.computation(np.int64, np.int64)
def add(a, b):
  return a + b


@tff.federated_computation(
  tff.FederatedType(np.int64, tff.SERVER), INTS_AT_CLIENTS, INTS_AT_CLIENTS
)
def add_up(state, client_states, data):
  """A phase: clients add their data to what they keep, the server all that."""
  own = tff.federated_map(add, (client_states, data))
  new_state = tff.federated_map(add, (state, tff.federated_sum(data)))
  metrics = collections.OrderedDict(
    num_clients=tff.federated_sum(tff.federated_value(1, tff.CLIENTS)),
    num_diverged=tff.federated_value(0, tff.SERVER),
  )
  return new_state, own, metrics


class Client(np.int64):
  _fields = ()
  seed = 0


# As much of an algorithm as rounds need: quickly compiled.
ALGORITHM = types.SimpleNamespace(
  initialize=tff.federated_computation(
    lambda _: tff.federated_value(np.int64(0), tff.SERVER),
    tff.FederatedType((np.int32, [2]), tff.SERVER),
  ),
  initialize_client=tff.federated_computation(
    lambda state, seeds: seeds,
    tff.FederatedType(np.int64, tff.SERVER),
    INTS_AT_CLIENTS,
  ),
  phases=(add_up,),
  evaluate_clients=types.SimpleNamespace(
    # Clients' data have no field; they are the third and fourth argument.
    type_signature=types.SimpleNamespace(
      parameter=[types.SimpleNamespace(member=tff.StructType([]))] * 4
    )
  ),
)
CLIENTS = [Client(1), Client(2), Client(3)]


@contextlib.contextmanager
def stopped(worker: local.Worker) -> Iterator[None]:
  """Stops a worker's process, which answers nothing in the block."""
  process = psutil.Process(worker.pid)
  process.suspend()
  while process.status() != psutil.STATUS_STOPPED:
    time.sleep(0.01)
  try:
    yield
  finally:
    process.resume()


class TestLostWorker:
  LIMITS = (5_000, 5_001, 5_002, 5_003, 5_004)

  @pytest.fixture(scope="class")
  def expected(self, workers, use, count):
    with use(workers[:2]):
      return count(list(self.LIMITS))

  def test_killed_in_the_middle(
    self, start_worker, workers, expected, caplog, use, count
  ):
    one = workers[0]
    with start_worker() as other:
      with use([one, other]):
        assert count([3, 6]) == ([3, 6], 1.5)
        # It has its part of the computation, and cannot be done with it.
        psutil.Process(other.pid).suspend()
        killer = threading.Timer(0.5, os.kill, (other.pid, signal.SIGKILL))
        killer.start()
        # The parts are the same, and so are the bits.
        assert count(list(self.LIMITS)) == expected
        killer.join()
        assert count([3, 6]) == ([3, 6], 1.5)
      (record,) = caplog.records
      assert record.message.startswith(
        f"the worker {other.address} has not answered for 2 seconds"
      )
      assert record.message.endswith(f"to the other workers: {one.address}")
      assert "\n" not in record.message

  def test_stops_answering(self, workers, expected, caplog, use, count):
    # The one that would have merged.
    with use(workers[:2]), stopped(workers[0]):
      start = time.monotonic()
      assert count(list(self.LIMITS)) == expected
      assert 2.0 < time.monotonic() - start < DEADLINE
    assert workers[0].address in caplog.records[-1].message

  def test_stops_for_less_than_the_timeout(
    self, workers, expected, caplog, use, count
  ):
    with use(workers[:2], worker_timeout=60.0), stopped(workers[1]):
      resume = threading.Timer(1.0, os.kill, (workers[1].pid, signal.SIGCONT))
      resume.start()
      assert count(list(self.LIMITS)) == expected
      resume.join()
    assert not caplog.records

  @pytest.mark.parametrize(
    "start_worker",
    ["worker_binary", pytest.param("in_process", marks=pytest.mark.long)],
    indirect=True,
  )
  def test_started_anew_within_the_timeout(
    self, start_worker, workers, expected, caplog, use, count
  ):
    with contextlib.ExitStack() as started:
      worker = started.enter_context(start_worker())

      def start_anew():
        os.kill(worker.pid, signal.SIGKILL)
        worker.stop()
        started.enter_context(start_worker(port=worker.port))

      with use([workers[0], worker], worker_timeout=DEADLINE):
        assert count([3, 6]) == ([3, 6], 1.5)
        psutil.Process(worker.pid).suspend()
        killer = threading.Timer(0.5, start_anew)
        killer.start()
        assert count(list(self.LIMITS)) == expected
        killer.join()
    assert not caplog.records

  def test_stop_leaves_the_run_as_it_was(self, workers, use):
    with use(workers[:2], on_worker_failure="stop"):
      run = rounds.Rounds(ALGORITHM, CLIENTS, run_seed=0)
      run.step()
      assert (run.server_state, run.client_states) == (6, [1, 2, 3])
      with (
        stopped(workers[1]),
        pytest.raises(execution.WorkerError, match="has not answered for 2"),
      ):
        run.step()
    assert (run.server_state, run.client_states) == (6, [1, 2, 3])
    assert run.round_num == 1
    with use(workers[:2]):
      run.step()
    assert (run.server_state, run.client_states) == (12, [2, 4, 6])

  def test_round_is_repeated_and_counts_once(self, workers, use):
    with use(workers[:2]), stopped(workers[1]):
      run = rounds.Rounds(ALGORITHM, CLIENTS, run_seed=0)
      run.step()
      run.step()
    assert (run.server_state, run.client_states) == (12, [2, 4, 6])

  def test_no_worker_is_left(self, workers, use, count):
    with use(workers[:2]), stopped(workers[0]), stopped(workers[1]):
      for _ in range(2):
        with pytest.raises(execution.WorkerError, match=r"no worker is left$"):
          count([1, 2, 3])

  def test_ended_context_refuses(self, workers, use, count):
    with use(workers) as context:
      assert context.invoke(count, [3]) == ([3], 1.0)
    with pytest.raises(execution.WorkerError, match="has ended"):
      context.invoke(count, [3])

  def test_interrupt_does_not_wait(self, start_worker, workers, use, count):
    interrupted = threading.Event()

    def interrupt():
      # Python may swallow one: it ignores what a callback of the collector of
      # garbage raises, and hypothesis has one.
      while not interrupted.wait(0.5):
        # To the process, as Ctrl-C: this thread alone would not wake the other.
        os.kill(os.getpid(), signal.SIGINT)

    with start_worker() as worker:
      thread = threading.Thread(target=interrupt)
      thread.start()
      start = time.monotonic()
      with pytest.raises(KeyboardInterrupt), use([worker]):
        try:
          count([10**15])
        finally:
          interrupted.set()
      assert time.monotonic() - start < DEADLINE
      thread.join()


def test_broken_connection_is_mended(workers, proxy, use, count, caplog):
  limits = [1_000, 1_001]
  worker = psutil.Process(workers[0].pid)
  with (
    proxy(workers[0].port) as passing,
    use([passing], worker_timeout=DEADLINE),
  ):

    def break_connections():
      passing.break_connections()
      worker.resume()

    # It cannot be done before the connection is broken.
    worker.suspend()
    breaker = threading.Timer(0.3, break_connections)
    breaker.start()
    own, _ = count(limits)
    breaker.join()
    assert own == limits
    assert passing.num_connections == 2
  assert not caplog.records
