"""Tests of the worker in Python: its bits, its values, its errors, its end."""

import concurrent.futures
import contextlib
import hashlib
import threading
import time

import grpc
import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff
from tensorflow_federated.proto.v0 import executor_pb2
from tensorflow_federated.proto.v0 import executor_pb2_grpc

from benchmarks import plain_loop
from tff_shift import algorithms
from tff_shift import execution
from tff_shift.execution import in_process
from tff_shift.execution import local
from tff_shift.execution.remote import service
from tff_shift.models.networks import mlp
from tff_shift.simulation.engine import rounds

AT_CLIENTS = tff.FederatedType(np.float32, tff.CLIENTS)


@pytest.fixture(scope="module")
def context():
  return in_process.in_process_context()


class _Served(contextlib.AbstractContextManager):
  """A service in this process."""

  def __init__(self, context, credentials=None):
    self.service = service.ExecutorService(context)
    self._server, port = service.serve(self.service, "127.0.0.1:0", credentials)
    self.address = f"127.0.0.1:{port}"

  def __exit__(self, *exception_details):
    self._server.stop(None).wait()


@pytest.fixture
def served(context):
  with _Served(context) as served:
    yield served


@pytest.fixture
def stub(served):
  """The requests to a service, as gRPC sends them."""
  with grpc.insecure_channel(
    served.address, [("grpc.enable_http_proxy", 0)]
  ) as channel:
    yield executor_pb2_grpc.ExecutorGroupStub(channel)


def _states(name, num_clients):
  """The SHA-256 of all states after three rounds."""
  model = mlp.build((784,), num_classes=10, width=8, head_width=8)
  hparams = algorithms.get(name).HParams(batch_size=16, local_steps=2)
  run = rounds.Rounds(
    algorithms.build(name, model, hparams),
    [plain_loop.make_client(number) for number in range(num_clients)],
    run_seed=0,
  )
  for _ in range(3):
    run.step()
  digest = hashlib.sha256()
  leaves = tf.nest.flatten([run.server_state, run.client_states])
  for leaf in leaves:
    digest.update(np.asarray(leaf).tobytes())
  return len(leaves), digest.hexdigest()


@pytest.mark.slow
@pytest.mark.parametrize("start_worker", ["in_process"], indirect=True)
# A client more on the second worker, or two.
@pytest.mark.parametrize(
  ("name", "num_workers"), [("fed_avg", 3), ("fed_rep", 2)]
)
def test_same_bits_as_in_process(workers, use, name, num_workers):
  with execution.use("in_process"):
    expected = _states(name, num_clients=5)
  with use(workers[:num_workers], worker_timeout=60.0):
    assert _states(name, num_clients=5) == expected


class TestValues:
  def test_none_is_left(self, served, use, center):
    held = []
    with use([served], worker_timeout=60.0):
      for _ in range(4):
        for num_clients in (4, 6):
          center([0.5] * num_clients)
        held.append(served.service.num_values)
    # What TFF disposes of at once, what is kept: not more with every round.
    assert 0 < held[3] <= held[2] + 2 * 20
    assert served.service.num_values == 0

  def test_two_drivers_at_the_same_time(self, served, use, center):
    def drive(number):
      with use([served], worker_timeout=60.0):
        return [center([number, number + 2.0])[1] for _ in range(10)]

    with concurrent.futures.ThreadPoolExecutor() as pool:
      one, other = pool.map(drive, [1.0, 5.0])
    assert (one, other) == ([2.0] * 10, [6.0] * 10)

  def test_executor_and_its_values(self, served, stub):
    def get(num_clients):
      cardinality = executor_pb2.Cardinality(cardinality=num_clients)
      cardinality.placement.uri = tff.CLIENTS.uri
      request = executor_pb2.GetExecutorRequest(cardinalities=[cardinality])
      return stub.GetExecutor(request).executor

    def number_of_clients(executor):
      compiled = tff.backends.native.desugar_and_transform_to_native(
        tff.federated_computation(
          lambda: tff.federated_sum(tff.federated_value(1, tff.CLIENTS))
        )
      )
      value = executor_pb2.Value(
        computation=tff.framework.serialize_computation(compiled)
      )
      function = stub.CreateValue(
        executor_pb2.CreateValueRequest(executor=executor, value=value)
      ).value_ref
      result = stub.CreateCall(
        executor_pb2.CreateCallRequest(executor=executor, function_ref=function)
      ).value_ref
      answer = stub.Compute(
        executor_pb2.ComputeRequest(executor=executor, value_ref=result)
      )
      (member,) = answer.value.federated.value
      stub.Dispose(
        executor_pb2.DisposeRequest(executor=executor, value_ref=[result])
      )
      return member.array.int32_list.value[0], result

    one, other = get(3), get(5)
    assert one != other
    assert number_of_clients(one)[0] == 3
    number, result = number_of_clients(other)
    assert number == 5
    # Their computations.
    assert served.service.num_values == 2
    with pytest.raises(grpc.RpcError, match="there is no value") as error:
      stub.Compute(
        executor_pb2.ComputeRequest(executor=other, value_ref=result)
      )
    assert error.value.code() is grpc.StatusCode.FAILED_PRECONDITION
    stub.DisposeExecutor(executor_pb2.DisposeExecutorRequest(executor=one))
    assert served.service.num_values == 1
    with pytest.raises(grpc.RpcError, match="there is no executor") as error:
      number_of_clients(one)
    assert error.value.code() is grpc.StatusCode.FAILED_PRECONDITION

  @pytest.mark.slow
  def test_clients_whose_arrays_differ_and_large_ones(self, served, use):
    # gRPC's limit is 4 MB by default.
    sizes = [3, 0, 3_000_000]
    lengths = tff.federated_computation(
      lambda arrays: tff.federated_sum(tff.federated_map(length, arrays)),
      tff.FederatedType((np.float32, [None]), tff.CLIENTS),
    )
    same = tff.federated_computation(
      lambda arrays: arrays,
      tff.FederatedType((np.float32, [None]), tff.CLIENTS),
    )
    arrays = [np.arange(size, dtype=np.float32) for size in sizes]
    with use([served], worker_timeout=60.0):
      assert lengths(arrays) == sum(sizes)
      for found, array in zip(same(arrays), arrays, strict=True):
        np.testing.assert_array_equal(found, array)

  def test_texts_and_data_sets(self, served, use):
    @tff.tensorflow.computation(tff.SequenceType(np.int64), np.str_)
    def describe(numbers, name):
      total = numbers.reduce(np.int64(0), lambda total, number: total + number)
      return total, tf.strings.join([name, "!"])

    described = tff.federated_computation(
      lambda numbers, names: tff.federated_map(describe, (numbers, names)),
      tff.FederatedType(tff.SequenceType(np.int64), tff.CLIENTS),
      tff.FederatedType(np.str_, tff.CLIENTS),
    )
    with use([served], worker_timeout=60.0):
      found = described(
        [tf.data.Dataset.range(4), tf.data.Dataset.range(3)], ["a", "b"]
      )
    assert [tuple(each) for each in found] == [(6, b"a!"), (3, b"b!")]


@tff.tensorflow.computation((np.float32, [None]))
def length(array):
  return tf.size(array)


class TestErrors:
  def test_lack_of_memory(self, served, use):
    @tff.tensorflow.computation(np.int32)
    def fill(size):
      return tf.fill([size, size, size], 1.0)[0, 0, 0]

    with (
      pytest.raises(execution.WorkerError, match=r"RESOURCE_EXHAUSTED: OOM"),
      use([served], worker_timeout=60.0),
    ):
      # More than any machine has.
      fill(2**16)

  def test_value_that_is_not_there(self, served, stub):
    executor = stub.GetExecutor(executor_pb2.GetExecutorRequest()).executor
    with pytest.raises(grpc.RpcError) as error:
      stub.CreateSelection(
        executor_pb2.CreateSelectionRequest(
          executor=executor, source_ref=executor_pb2.ValueRef(id="x")
        )
      )
    assert error.value.details() == "there is no value x"


class TestTls:
  @pytest.fixture
  def encrypted(self, context, certificates):
    credentials = service.tls_credentials(
      *(str(certificates / name) for name in ("server.crt", "server.key")),
      str(certificates / "authority.crt"),
    )
    with _Served(context, credentials) as served:
      yield served

  def test_client_shows_who_it_is(
    self, encrypted, use, count, trust, shown, no_use
  ):
    with use([encrypted], **trust, **shown, worker_timeout=60.0):
      assert count([3, 6]) == ([3, 6], 1.5)
    no_use(encrypted, "wants its certificate (worker_client_cert", **trust)
    no_use(encrypted, "it seems to want TLS")


class TestProcess:
  def test_files_that_are_no_certificates_are_named(self, tmp_path):
    path = tmp_path / "file.pem"
    path.write_text("text")
    with pytest.raises(ValueError, match="certificate and certificate_key"):
      local.python_worker(certificate=str(path))
    with pytest.raises(ValueError, match="client_authority must come with"):
      local.python_worker(client_authority=str(path))
    with pytest.raises(ValueError, match=r"^certificate: .* holds no certifi"):
      local.python_worker(certificate=str(path), certificate_key=str(path))

  @pytest.mark.slow
  def test_ends_at_once_while_it_computes(self, use, count):
    seconds = []

    def stop():
      start = time.monotonic()
      worker.stop()
      seconds.append(time.monotonic() - start)

    with local.Worker.start(command=local.python_worker()) as worker:
      ending = threading.Timer(2.0, stop)
      with use([worker], worker_timeout=2.0):
        ending.start()
        with pytest.raises(execution.WorkerError, match="no worker is left"):
          count([10**15])
        ending.join()
    # It is killed only after five.
    assert seconds[0] < 4.0
