"""Tests of encrypted connections, to proxies that terminate TLS."""

import contextlib
import threading
import time

import psutil
import pytest

pytestmark = pytest.mark.cpp

# Far below what a hang lasts.
DEADLINE = 60.0


class TestTls:
  def test_encrypted(self, workers, proxy, use, count, trust, tls):
    with contextlib.ExitStack() as stack:
      proxies = [
        stack.enter_context(proxy(worker.port, tls())) for worker in workers[:2]
      ]
      with use(proxies, **trust):
        assert count([3, 6, 9]) == ([3, 6, 9], 2.0)
      assert [each.num_connections for each in proxies] == [1, 1]

  def test_client_shows_who_it_is(
    self, workers, proxy, use, count, trust, shown, tls, no_use
  ):
    asking = tls(asks_who=True)
    with proxy(workers[0].port, asking) as passing:
      with use([passing], **trust, **shown):
        assert count([3]) == ([3], 1.0)
      no_use(passing, "wants its certificate (worker_client_cert", **trust)

  @pytest.mark.parametrize("seconds_away", [0.0, 2.0])
  def test_proxy_that_is_started_anew(
    self, workers, proxy, use, count, trust, tls, caplog, seconds_away
  ):
    worker = psutil.Process(workers[0].pid)
    with contextlib.ExitStack() as started:
      ending = started.enter_context(contextlib.ExitStack())
      passing = ending.enter_context(proxy(workers[0].port, tls()))
      port = int(passing.address.rpartition(":")[2])

      def start_anew():
        ending.close()
        time.sleep(seconds_away)
        started.enter_context(proxy(workers[0].port, tls(), port))
        worker.resume()

      with use([passing], **trust, worker_timeout=DEADLINE):
        assert count([3]) == ([3], 1.0)
        # It cannot be done before the proxy is ended.
        worker.suspend()
        restart = threading.Timer(0.3, start_anew)
        restart.start()
        assert count([3, 6]) == ([3, 6], 1.5)
        restart.join()
    assert not caplog.records

  def test_name_without_subject_alternative_name(
    self, workers, proxy, use, count, trust, tls, no_use, capfd
  ):
    with proxy(workers[0].port, tls("localhost")) as passing:
      port = passing.address.rpartition(":")[2]
      with use([f"localhost:{port}"], **trust):
        assert count([3]) == ([3], 1.0)
    # What TensorFlow says when it computes.
    capfd.readouterr()
    with proxy(workers[0].port, tls("127.0.0.1")) as passing:
      no_use(passing, "it has no subjectAltName", **trust)
    assert not capfd.readouterr().err

  def test_name_of_another_host(
    self, workers, proxy, trust, tls, no_use, capfd
  ):
    with proxy(workers[0].port, tls("elsewhere")) as passing:
      no_use(passing, "its certificate is refused: ", "127.0.0.1", **trust)
    assert not capfd.readouterr().err

  def test_worker_without_tls(self, workers, trust, no_use):
    no_use(workers[0], "it seems to be a worker without TLS", **trust)

  @pytest.mark.parametrize(
    ("certificate", "parts"),
    [
      (
        "stranger.crt",
        ("CERTIFICATE_VERIFY_FAILED", "; its certificate is refus"),
      ),
      (None, ("UNAVAILABLE", "; it seems to want TLS")),
    ],
  )
  def test_refused(
    self, workers, proxy, no_use, certificates, tls, certificate, parts
  ):
    path = certificate and str(certificates / certificate)
    with proxy(workers[0].port, tls()) as passing:
      no_use(passing, *parts, worker_certificate=path)
