"""Streams of river as tables: who gets which example, and what is refused."""

import importlib.util
import itertools

import numpy as np
import pytest

import tff_shift as ts
from examples import from_river
from tests.fixtures.refusals import refused


def counted(start=0, stop=None):
  """A stream whose features tell the number of the example."""
  numbers = itertools.count(start) if stop is None else range(start, stop)
  for number in numbers:
    yield {"a": number, "b": -number}, number % 3 == 0


def test_one_stream_is_dealt_in_turn():
  found = from_river.table(
    counted(),
    num_steps=2,
    examples_per_step=2,
    labelled_examples=3,
    num_clients=2,
  )
  assert list(found.columns) == ["client", "time", "label", "a", "b"]
  assert found.a.tolist() == list(range(14))
  assert found.b.tolist() == [-number for number in range(14)]
  assert found.client.tolist() == [0, 1] * 7
  # Three labelled examples of each client, then twice two.
  assert found.time.tolist() == [0] * 6 + [1] * 4 + [2] * 4
  assert found.label.tolist() == [number % 3 == 0 for number in range(14)]


def test_each_client_has_its_stream():
  found = from_river.table(
    {"north": counted(), "south": counted(100)},
    num_steps=1,
    examples_per_step=2,
  )
  assert found.client.tolist() == ["north"] * 4 + ["south"] * 4
  assert found.time.tolist() == [0, 0, 1, 1] * 2
  assert found.a.tolist() == [0, 1, 2, 3, 100, 101, 102, 103]


def test_data_are_those_of_a_scenario():
  named = ts.from_dataframe(
    "online_adaptation",
    from_river.table(
      counted(), num_steps=3, examples_per_step=4, num_clients=2
    ),
    label="label",
    client="client",
    time="time",
  )
  assert named.schema.clients == ("0", "1")
  assert named.schema.times == ("0", "1", "2", "3")
  assert named.schema.features == ("a", "b")
  streams = named.data.streams
  assert (streams.num_clients, streams.num_timesteps) == (2, 3)
  x, y = streams.batch(1, 2)
  # After 8 labelled examples and 8 of step 1, every other one.
  np.testing.assert_array_equal(x, [[n, -n] for n in (17, 19, 21, 23)])
  np.testing.assert_array_equal(y, [0, 0, 1, 0])


def of_client(label=0, **features):
  return {"a": [(features, label)] * 4}


@pytest.mark.parametrize(
  "streams, num_clients, message",
  [
    (counted(), None, "num_clients=None is not allowed"),
    ({"a": counted()}, 2, "num_clients=2 is not allowed"),
    ({}, None, "streams must have a client"),
    (counted(0, 7), 2, "the stream has 7 examples, and 8 are needed"),
    (
      {"a": counted(), "b": counted(0, 3)},
      *(None, "the stream of 'b' has 3 examples, and 4 are needed"),
    ),
    (
      {"a": [({"u": 1}, 0), ({"v": 1}, 0)] * 2},
      *(None, "example 1 of the table must have the features .* u; it has v"),
    ),
    (of_client(u="red"), None, "feature 'u' of example 0 is 'red'; .* encode"),
    (of_client(u=np.nan), None, "feature 'u' of example 0 is nan"),
    (of_client(0.5, u=1), None, "label of example 0 is 0.5"),
    (of_client(time=1), None, "feature .* called 'time'"),
  ],
)
def test_what_does_not_fit_is_refused_in_one_line(
  streams, num_clients, message
):
  with refused(message):
    from_river.table(
      streams, num_steps=1, examples_per_step=2, num_clients=num_clients
    )


@pytest.mark.skipif(
  importlib.util.find_spec("river") is None,
  reason="river: only in the lock of TensorFlow 2.21",
)
def test_real_series_keep_their_order():
  from river import datasets

  found = from_river.table(
    datasets.Bananas(), num_steps=4, examples_per_step=100, num_clients=5
  )
  expected = [
    list(x.values()) for x, _ in itertools.islice(datasets.Bananas(), 2_500)
  ]
  np.testing.assert_allclose(found.iloc[:, 3:], expected)
