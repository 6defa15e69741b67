"""Tests of TFF's `ClientData`, with TFF's own `TestClientData`."""

import types

import numpy as np
import pytest
import tensorflow_federated as tff

from tff_shift.data import from_python
from tff_shift.data.sources import client_data as client_data_lib

KEYS = {"x_key": "pixels", "y_key": "label"}
# Client a lacks 2020, and b lacks 2018.
YEARS = {
  "a": [2019, 2018, 2018, 2019, 2018, 2018],
  "b": [2020, 2019, 2020, 2019, 2020, 2019],
}


@pytest.fixture(scope="module")
def client_data():
  """Two clients; an example is a number, its class, and its year."""
  return tff.simulation.datasets.TestClientData(
    {
      name: {
        "pixels": np.arange(start, start + 6, dtype=np.float32)[:, np.newaxis],
        "label": np.arange(6) % 2,
        "year": np.array(YEARS[name]),
      }
      for name, start in (("a", 0), ("b", 6))
    }
  )


def values(examples):
  return examples.x[:, 0].tolist()


def test_evolving_orders_domains_by_their_numbers(client_data):
  one, two = from_python.from_client_data(
    "evolving", client_data, domain_key="year", test_fraction=0.5, **KEYS
  )
  assert (one.name, two.name) == ("a", "b")
  assert one.train.domain_sizes.tolist() == [2, 1, 0]
  assert one.test.domain_sizes.tolist() == [2, 1, 0]
  assert two.train.domain_sizes.tolist() == [0, 1, 0]
  assert two.test.domain_sizes.tolist() == [0, 2, 3]
  assert values(two.test)[-3:] == [6, 8, 10]
  assert sorted(values(one.train) + values(one.test)) == list(range(6))


def test_domain_may_be_a_function_of_client_and_example(client_data):
  periods = from_python.from_client_data(
    "dynamic_personalization",
    client_data,
    domain_of=lambda client, example: 2 * (client == "b") + example["label"],
    **KEYS,
  )
  assert values(periods.batch(1, 3)) == [7, 9, 11]
  assert periods.batch(1, 3).y.tolist() == [1, 1, 1]
  assert not len(periods.batch(1, 1).y)


def test_guidance_splits_or_takes_test_data(client_data):
  train, test = from_python.from_client_data(
    "guidance", client_data, client_ids=["b"], test_fraction=0.5, **KEYS
  )
  assert sorted(values(train[0]) + values(test[0])) == list(range(6, 12))
  assert len(test[0].y) == 3
  with pytest.warns(UserWarning, match=r"^12 of 12 test examples are also"):
    train, test = from_python.from_client_data(
      "guidance", client_data, client_data, **KEYS
    )
  assert [values(client) for client in train] == [
    values(client) for client in test
  ]


def test_so_many_examples_of_a_client_are_kept(client_data):
  draws = [
    client_data_lib.read(
      client_data, max_examples_per_client=4, seed=seed, **KEYS
    )
    for seed in (0, 0, 1)
  ]
  first, again, other = map(values, draws)
  assert first == again
  assert first != other
  for client in range(2):
    drawn = draws[0].x[draws[0].client == client, 0].tolist()
    assert drawn == sorted(set(drawn)) and len(drawn) == 4
  np.testing.assert_array_equal(draws[0].y, draws[0].x[:, 0] % 2)


@pytest.mark.parametrize("name", ["pixels", "label"])
@pytest.mark.parametrize("kind", [dict, lambda arrays: tuple(arrays.values())])
def test_masked_values_are_refused(name, kind, refusal):
  arrays = {"pixels": np.arange(6.0)[:, np.newaxis], "label": np.arange(6) % 2}
  keys = KEYS if kind is dict else {}

  def read():
    data = tff.simulation.datasets.TestClientData({"a": kind(arrays)})
    return from_python.from_client_data("guidance", data, **keys)

  arrays[name] = np.ma.array(arrays[name], mask=False)
  read()
  arrays[name][2] = np.ma.masked
  assert "of client 'a': 1 of 6 values are" in refusal(read)


def fails(*_):
  raise KeyError("city")


def pair(example):
  return example["pixels"], example["label"]


def nested(example):
  return {"inner": {"x": example["pixels"]}, "label": example["label"]}


def nested_pair(example):
  return {"x": example["pixels"]}, example["label"]


def infinite(example):
  return example | {"pixels": 0.0 / (example["pixels"] - 9.0)}


@pytest.mark.parametrize(
  "scenario, process, options, message",
  [
    ("guidance", None, {"x_key": None}, "x_key None: it must be one of "),
    ("guidance", None, {"y_key": "labels"}, "y_key 'labels': it must be one "),
    (
      "guidance",
      None,
      {"client_ids": ["a", "c"]},
      "client_ids: there is no client 'c'; there are 2, the first is",
    ),
    (
      "evolving",
      None,
      {},
      "domain_key and domain_of: evolving needs one of them",
    ),
    (
      "evolving",
      None,
      {"domain_key": "year", "domain_of": lambda *_: 0},
      "domain_key and domain_of: give one of them",
    ),
    *(
      ("dynamic_personalization", None, {"domain_of": function}, message)
      for function, message in (
        (lambda *_: 0.5, "domain of client 'a': integers wanted, got float64"),
        (
          lambda *_: (2019, 1),
          "domain of client 'a': integers wanted, got int64",
        ),
        (fails, "domain_of of client 'a': KeyError ("),
      )
    ),
    (
      "guidance",
      None,
      {"domain_key": "year"},
      "domain_key and domain_of: guidance has no",
    ),
    (
      "guidance",
      None,
      {"max_examples_per_client": 0},
      "max_examples_per_client must be an integer of at least 1",
    ),
    ("guidance", pair, {}, "x_key 'pixels': elements "),
    ("guidance", nested, {"x_key": "inner"}, "x_key 'inner': it must be one"),
    (
      "guidance",
      nested_pair,
      {"x_key": None, "y_key": None},
      "client 'a': x and y of its elements",
    ),
    ("guidance", infinite, {}, "x of client 'b': all numbers"),
  ],
)
def test_invalid_arguments_are_named(
  scenario, process, options, message, client_data, refusal
):
  if process is not None:
    client_data = client_data.preprocess(lambda data: data.map(process))
  assert refusal(
    from_python.from_client_data, scenario, client_data, **KEYS | options
  ).startswith(message)


def test_pipeline_without_end_is_refused(client_data, refusal):
  endless = client_data.preprocess(lambda data: data.repeat())
  told = refusal(from_python.from_client_data, "guidance", endless, **KEYS)
  assert told.startswith("client 'a': its pipeline has no end; leave repeat")


def test_client_that_cannot_be_made_is_named(client_data, refusal):
  def make(client_id):
    if client_id == "b":
      raise RuntimeError("no such file")
    return client_data.create_tf_dataset_for_client(client_id)

  lazy = types.SimpleNamespace(
    client_ids=["a", "b"], create_tf_dataset_for_client=make
  )
  told = refusal(from_python.from_client_data, "guidance", lazy, **KEYS)
  assert told.startswith("client 'b': its examples cannot be")


def test_elements_may_be_pairs(client_data):
  pairs = client_data.preprocess(lambda data: data.map(pair))
  (one, _), _ = from_python.from_client_data("guidance", pairs)
  assert one.x.shape == (4, 1)


def test_repeated_examples_are_not_in_training_and_test(client_data):
  repeated = client_data.preprocess(
    # Shuffled, and cut off in the middle of a pass.
    lambda data: data.repeat(5).shuffle(30, seed=1).take(27)
  )
  guided = from_python.from_client_data("guidance", repeated, **KEYS)
  assert sum(len(part.y) for side in guided for part in side) == 2 * 27
  evolving = from_python.from_client_data(
    "evolving", repeated, domain_key="year", test_fraction=0.5, **KEYS
  )
  sides = zip(
    *((client.train, client.test) for client in evolving), strict=True
  )
  for train, test in (guided, sides):
    trained, tested = (
      {value for part in side for value in values(part)}
      for side in (train, test)
    )
    assert tested
    assert not trained & tested
