"""Tests of gRPC servers that are no worker, or one that misbehaves."""

import concurrent.futures
import contextlib
import socket
import threading
import time

import grpc
import numpy as np
import pytest
import tensorflow_federated as tff

pytestmark = pytest.mark.cpp

# Far below what a hang lasts.
DEADLINE = 60.0


class TestAtTheStart:
  """In time means at once: nobody waits for a server that has answered."""

  @pytest.fixture
  def fails(self, workers, misbehaving, no_use):
    """Returns `fails(faults, *parts, **settings)`: a server is not used."""

    def check(faults, *parts, worker_timeout=2 * DEADLINE):
      with misbehaving(workers[0].address, faults) as server:
        no_use(server, *parts, worker_timeout=worker_timeout)

    return check

  @pytest.mark.parametrize(
    ("code", "seems"),
    [
      ("INTERNAL", "broken"),
      ("UNKNOWN", "broken"),
      ("DATA_LOSS", "broken"),
      ("INVALID_ARGUMENT", "broken"),
      ("RESOURCE_EXHAUSTED", "no memory left"),
      ("PERMISSION_DENIED", "not to let this client in"),
      ("UNAUTHENTICATED", "not to let this client in"),
      ("UNIMPLEMENTED", "a gRPC server of another kind"),
    ],
  )
  @pytest.mark.parametrize("method", ["*", "CreateCall"])
  def test_error(self, fails, code, seems, method):
    # No control code comes through but as an escape.
    answer = rf" with {code}: so it is \x1b[31m here; "
    fails({method: grpc.StatusCode[code]}, answer, seems)

  def test_another_service(self, no_use):
    with concurrent.futures.ThreadPoolExecutor() as pool:
      server = grpc.server(pool)
      address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
      server.start()
      parts = "UNIMPLEMENTED", "gRPC server of another kind"
      no_use(address, *parts, worker_timeout=2 * DEADLINE)
      server.stop(None).wait()

  @pytest.mark.parametrize("answer", [b"\xff\xff\xff", b""])
  @pytest.mark.parametrize("method", ["GetExecutor", "CreateValue"])
  def test_garbage(self, fails, method, answer, capfd, caplog):
    unread = f"{method} with what cannot be read"
    fails({method: answer}, unread, "version")
    assert not capfd.readouterr().err
    assert not caplog.records

  def test_another_one_is_not_waited_for(
    self, workers, misbehaving, use, refused
  ):
    with (
      misbehaving(workers[0].address, {"*": grpc.StatusCode.INTERNAL}) as bad,
      # It never answers.
      socket.create_server(("127.0.0.1", 0)) as silent,
      refused(bad.address, "INTERNAL"),
      use(
        [f"127.0.0.1:{silent.getsockname()[1]}", bad],
        worker_timeout=2 * DEADLINE,
      ),
    ):
      pass

  @pytest.mark.slow
  @pytest.mark.parametrize(
    "method", ["SignOfLife", "GetExecutor", "CreateValue", "CreateCall"]
  )
  def test_hangs(self, fails, method):
    fails({method: None}, "not answered", worker_timeout=0.2)

  @pytest.mark.slow
  @pytest.mark.parametrize("method", ["GetExecutor", "CreateCall"])
  def test_unavailable_for_ever(self, fails, method):
    fails(
      {method: grpc.StatusCode.UNAVAILABLE},
      f"0.2 seconds ({method}: UNAVAILABLE: so it is",
      worker_timeout=0.2,
    )


class TestInTheMiddle:
  """Of a run that has begun well."""

  @pytest.fixture(scope="class")
  def double(self):
    """A computation of which clients keep a number each."""
    double = tff.tensorflow.computation(lambda number: 2 * number, np.int64)
    return tff.federated_computation(
      lambda numbers: tff.federated_map(double, numbers),
      tff.FederatedType(np.int64, tff.CLIENTS),
    )

  @pytest.fixture
  def begun(self, workers, misbehaving, use, count):
    """Returns `begun(worker_timeout=...)`: one that has computed, in use."""

    @contextlib.contextmanager
    def begin(worker_timeout=DEADLINE, **settings):
      with (
        misbehaving(workers[0].address, {}) as server,
        use([server], worker_timeout=worker_timeout, **settings),
      ):
        assert count([3, 6]) == ([3, 6], 1.5)
        yield server

    return begin

  @pytest.mark.parametrize(
    "method",
    ["GetExecutor", "CreateValue", "CreateStruct", "CreateCall", "Compute"],
  )
  def test_error(self, begun, count, refused, method):
    with begun() as server:
      server.faults[method] = grpc.StatusCode.INTERNAL
      with refused(server.address, f"answers {method} with INTERNAL: so it is"):
        # Another number of clients needs another executor.
        count([3, 6, 9])
      # It is the computation that ended, not the worker's use.
      server.faults.clear()
      assert count([3, 6, 9]) == ([3, 6, 9], 2.0)

  @pytest.mark.slow
  @pytest.mark.parametrize(
    ("method", "fault", "settings", "parts"),
    [
      *(
        (method, None, setting, (f"has not answered {method} for ", *limit))
        for methods, setting, limit in (
          (("GetExecutor", "CreateCall"), "worker_timeout", ()),
          (("CreateCall", "Compute"), "compute_timeout", ("limit",)),
        )
        for method in methods
      ),
      *(
        (
          method,
          grpc.StatusCode[code],
          "worker_timeout",
          (f"1 seconds ({method}: {code}: so it is",),
        )
        for method, code in (
          ("CreateValue", "UNAVAILABLE"),
          ("Compute", "FAILED_PRECONDITION"),
        )
      ),
    ],
  )
  def test_hangs_or_is_unavailable_for_ever(
    self, begun, count, refused, method, fault, settings, parts
  ):
    with begun(**{settings: 1.0}) as server:
      server.faults[method] = fault
      with refused(server.address, *parts):
        count([3, 6, 9])

  @pytest.mark.slow
  def test_letting_go_hangs(self, begun, count, refused):
    with begun(worker_timeout=1.0) as server:
      server.faults["Dispose"] = None
      with refused(server.address, "has not answered Dispose for "):
        for _ in range(30):
          count([3, 6])
      assert server.counts["Dispose"] == 1

  @pytest.mark.slow
  def test_computes_for_longer_than_the_timeout(self, begun, double):
    with begun(worker_timeout=1.0) as server:
      before = server.counts["CreateCall"]
      server.faults["Compute"] = 4.0
      assert double([3, 6]) == [6, 12]
      # It was asked in the meantime whether it works.
      assert server.counts["CreateCall"] - before > 1

  @pytest.mark.slow
  def test_unavailable_for_less_than_the_timeout(self, begun, double, caplog):
    with begun() as server:
      before = server.counts["Compute"]
      server.faults["Compute"] = grpc.StatusCode.UNAVAILABLE

      def come_back():
        while server.counts["Compute"] - before < 2:
          time.sleep(0.01)
        server.faults.clear()

      back = threading.Thread(target=come_back)
      back.start()
      assert double([3, 6]) == [6, 12]
      back.join()
    assert not caplog.records

  @pytest.mark.slow
  def test_hangs_and_another_one_does_its_part(
    self, workers, misbehaving, use, count, caplog
  ):
    with (
      misbehaving(workers[0].address, {}) as server,
      use([workers[1], server], worker_timeout=1.0),
    ):
      expected = count([3, 6, 9])
      server.faults["CreateCall"] = None
      assert count([3, 6, 9]) == expected
    (record,) = caplog.records
    assert record.message.startswith(
      f"the worker {server.address} has not answered CreateCall for "
    )

  @pytest.mark.slow
  @pytest.mark.parametrize(
    ("value", "type_spec", "reason"),
    [
      ([3.0, 6.0], np.float64, "float64[], not int64"),
      ([np.arange(2)] * 2, (np.int64, [2]), "cannot reshape"),
      ([3], np.int64, "1 clients instead of 2"),
      (None, None, "an empty answer"),
    ],
  )
  def test_result_of_another_type(
    self, begun, refused, double, value, type_spec, reason
  ):
    answer = b""
    if type_spec is not None:
      at_clients = tff.FederatedType(type_spec, tff.CLIENTS)
      message, _ = tff.framework.serialize_value(
        tff.structure.Struct.unnamed(value), tff.StructType([at_clients])
      )
      # The only field of a `ComputeResponse`: its number, a length and a value.
      value = message.SerializeToString()
      answer = b"\x0a" + bytes([len(value)]) + value
    with begun() as server:
      server.faults["Compute"] = answer
      with refused(server.address, "answers Compute with what cannot", reason):
        double([3, 6])
      server.faults.clear()
      assert double([3, 6]) == [6, 12]
