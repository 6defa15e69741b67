"""Tests of the settings of remote workers."""

import pytest

from tff_shift import execution


class TestSettings:
  @pytest.mark.parametrize(
    ("settings", "message"),
    [
      ({"workers": []}, "one host:port or more; got none"),
      ({"workers": ["one"]}, "must each be host:port; got 'one'"),
      ({"workers": ["one:0"]}, "must each be host:port; got 'one:0'"),
      ({"workers": ["http://one:80"]}, "must each be host:port"),
      ({"workers": ["a:1", "a:1"]}, "must all be different; got a:1,a:1"),
      ({"worker_timeout": 0.0}, "worker_timeout must be seconds above 0"),
      ({"worker_timeout": float("nan")}, "worker_timeout must be seconds"),
      ({"on_worker_failure": "cry"}, "one of repeat, stop; got 'cry'"),
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

  def test_they_go_with_the_executor_remote(self):
    workers = execution.RemoteWorkers(["a:1"])
    with pytest.raises(ValueError, match="remote_workers must be given"):
      execution.use("local", remote_workers=workers)
    with pytest.raises(ValueError, match="remote_workers must be given"):
      execution.use("remote")
    with pytest.raises(ValueError, match="max_concurrent_clients is a setting"):
      execution.use("remote", remote_workers=workers, max_concurrent_clients=2)
