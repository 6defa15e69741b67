"""Tests of `ts.AdapterClient` and `ts.AdapterServer`: the bits of `ts.Adapter`.

Messages and broadcasts are passed as bytes, as between processes.
"""

import contextlib
import json
import os
import pathlib
import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

import tff_shift as ts
from tests.serving import adapter_test
from tff_shift import errors
from tff_shift.serving import adapter_messages

pytestmark = pytest.mark.usefixtures("context")

_ROOT = pathlib.Path(__file__).parents[2]
NAMES = adapter_test.NAMES


def open_server(algorithm, folder, **options):
  options = {"client_names": NAMES, "seed": 5, **options}
  return ts.AdapterServer(algorithm, folder / "server", **options)


def open_client(algorithm, folder, client, **options):
  deployment = adapter_test.DEPLOYMENT
  return ts.AdapterClient(
    algorithm,
    deployment._replace(initial=[deployment.initial[client]]),
    folder / f"client_{client}",
    **{"client": client, "seed": 5, **options},
  )


class Apart:
  """A server and its clients, which know each other by bytes alone."""

  def __init__(self, algorithm, folder, **options):
    self.server = open_server(algorithm, folder, **options)
    self.clients = {
      name: open_client(algorithm, folder, client)
      for client, name in enumerate(NAMES)
    }

  def adapt(self, batches):
    broadcast = self.server.begin(list(batches))
    first = dict(batches)
    while broadcast.clients:
      broadcast = self.server.receive(
        {
          name: self.clients[name]
          .receive(broadcast.to_bytes(), first.pop(name, None))
          .to_bytes()
          for name in self.server.asked
        }
      )
    # The weights of the end, to predict with.
    for name, client in self.clients.items():
      client.receive(broadcast.to_bytes(), first.pop(name, None))


def bits(value):
  return [np.asarray(each).tobytes() for each in tf.nest.flatten(value)]


def assert_same(apart, adapter):
  """The states of server and clients, and predictions, bit for bit."""
  running = adapter._rounds
  assert bits(apart.server._state) == bits(running.server_state)
  x = adapter_test.draw(4, 9).x
  for client, name in enumerate(NAMES):
    found = apart.clients[name]
    assert bits(found._own_state()) == bits(running.states[client])
    assert bits(found.predict(x)) == bits(adapter.predict(name, x))


@pytest.fixture(scope="module")
def algorithm():
  return adapter_test.build()


@pytest.mark.parametrize(
  "options", [{}, {"rounds_per_step": 2, "participation": 0.5}]
)
def test_clients_apart_have_the_bits_of_one_process(
  algorithm, tmp_path, options
):
  apart = Apart(algorithm, tmp_path, **options)
  adapter = adapter_test.open_adapter(algorithm, tmp_path / "whole", **options)
  assert_same(apart, adapter)
  for timestep in range(1, adapter_test.NUM_STEPS + 1):
    batches = adapter_test.Streams().by_name(timestep)
    apart.adapt(batches)
    adapted = adapter.adapt(batches)
    assert_same(apart, adapter)
    assert apart.server.loss == adapted.loss
    assert apart.server.timestep == adapter.timestep
  for name, rate in adapter.learning_rates.items():
    np.testing.assert_array_equal(apart.clients[name].learning_rate, rate)


@pytest.mark.parametrize("name", adapter_test.METHODS)
@pytest.mark.every_algorithm
def test_every_method_of_streams_runs_apart(name, tmp_path):
  algorithm = adapter_test.build(name, adapter_test.normalized_model())
  apart = Apart(algorithm, tmp_path)
  adapter = adapter_test.open_adapter(algorithm, tmp_path / "whole")
  for timestep in (1, 2):
    batches = adapter_test.Streams().by_name(timestep)
    apart.adapt(batches)
    adapter.adapt(batches)
  assert_same(apart, adapter)
