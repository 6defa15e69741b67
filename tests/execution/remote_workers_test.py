"""Tests of the settings of remote workers."""

import pytest

from tests.fixtures import tables
from tff_shift import execution

BROKEN_PEM = b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"


class TestSettings:
  @pytest.mark.parametrize(
    "settings, message",
    [
      ({"workers": []}, "one host:port or more; got none"),
      ({"workers": ["one"]}, "must each be host:port; got 'one'"),
      ({"workers": ["one:0"]}, "must each be host:port; got 'one:0'"),
      ({"workers": ["http://one:80"]}, "must each be host:port"),
      ({"workers": ["a:1", "a:1"]}, "must all be different; got a:1,a:1"),
      ({"worker_timeout": 0.0}, "worker_timeout must be seconds above 0"),
      ({"worker_timeout": float("nan")}, "worker_timeout must be seconds"),
      ({"worker_timeout": 1e9}, "worker_timeout must be .* 1000000; got"),
      ({"compute_timeout": 0.0}, "compute_timeout must be seconds above 0"),
      ({"compute_timeout": float("inf")}, "compute_timeout must be seconds"),
      ({"on_worker_failure": "cry"}, "one of repeat, stop, got 'cry'"),
      ({"worker_client_key": "key"}, "must be given together"),
      (
        {"worker_client_key": "key", "worker_client_certificate": "c"},
        "must come with worker_certificate",
      ),
    ],
  )
  def test_bad_ones_are_named(self, settings, message):
    with pytest.raises(ValueError, match=message):
      execution.RemoteWorkers(**{"workers": ["a:1"], **settings})

  def test_missing_file_is_named(self):
    with pytest.raises(FileNotFoundError, match=r"^worker_cert.*no file now"):
      execution.RemoteWorkers(["[::1]:1"], worker_certificate="nowhere")

  @pytest.mark.parametrize("content", [b"", b"text", b"\xff" * 99, BROKEN_PEM])
  def test_file_that_is_no_certificate_is_named(
    self, tmp_path, content, refusal
  ):
    path = tmp_path / "authority.pem"
    path.write_bytes(content)
    told = refusal(
      execution.RemoteWorkers, ["a:1"], worker_certificate=str(path)
    )
    assert told.startswith(
      f"worker_certificate: {path} holds no certificate that can be read ("
    )
    assert "\n" not in told and "_ssl.c" not in told

  def with_client(self, certificates, certificate, key):
    return execution.RemoteWorkers(
      ["a:1"],
      worker_certificate=str(certificates / "server.crt"),
      worker_client_certificate=str(certificates / certificate),
      worker_client_key=str(certificates / key),
    )

  def test_certificate_and_its_key_are_taken(self, certificates):
    assert self.with_client(
      certificates, "client.crt", "client.key"
    ).worker_client_key

  @pytest.mark.parametrize(
    "certificate, key, refused",
    tables.cases("""
"client.key", "client.key"
    worker_client_certificate: {folder}/client.key
"client.crt", "client.crt"
    worker_client_key: {folder}/client.crt
"client.crt", "server.key"
    worker_client_key: {folder}/server.key
"client.crt", "client.locked"
    worker_client_key: {folder}/client.locked
"""),
  )
  def test_what_is_none_is_named(
    self, certificates, certificate, key, refused, refusal
  ):
    assert refusal(self.with_client, certificates, certificate, key).startswith(
      refused.format(folder=certificates) + " holds no "
    )

  def test_they_go_with_the_executor_remote(self):
    workers = execution.RemoteWorkers(["a:1"])
    with pytest.raises(ValueError, match="remote_workers must be given"):
      execution.use("local", remote_workers=workers)
    with pytest.raises(ValueError, match="remote_workers must be given"):
      execution.use("remote")
    with pytest.raises(ValueError, match="max_concurrent_clients is a setting"):
      execution.use("remote", remote_workers=workers, max_concurrent_clients=2)
