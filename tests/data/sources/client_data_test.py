"""Tests of TFF's `ClientData`, with TFF's own `TestClientData`."""

from unittest import mock

import numpy as np
import pytest
import tensorflow_federated as tff

from tff_shift.data import from_python
from tff_shift.data.sources import client_data as client_data_lib

KEYS = {"x_key": "pixels", "y_key": "label"}


def make_client_data():
  """Makes two clients; an example is a number, its class, and its year."""
  years = np.array([2020, 2018, 2019, 2020, 2018, 2019])
  return tff.simulation.datasets.TestClientData(
    {
      name: {
        "pixels": np.arange(start, start + 6, dtype=np.float32)[:, np.newaxis],
        "label": np.arange(6) % 2,
        "year": years,
      }
      for name, start in (("a", 0), ("b", 6))
    }
  )


@pytest.fixture(scope="module")
def client_data():
  return make_client_data()


def values(examples):
  return examples.x[:, 0].tolist()


def test_evolving_orders_domains_by_their_numbers(client_data):
  one, two = from_python.from_client_data(
    "evolving", client_data, domain_key="year", test_fraction=0.5, **KEYS
  )
  assert one.train.domain_sizes.tolist() == [1, 1, 0]
  assert one.test.domain_sizes.tolist() == [1, 1, 2]
  assert values(two.test)[-2:] == [6, 9]
  both = sorted(values(one.train) + values(one.test))
  assert both == [0, 1, 2, 3, 4, 5]


def test_domain_may_be_a_function_of_the_client(client_data):
  clients = from_python.from_client_data(
    "evolving",
    client_data,
    domain_of=lambda client, _: int(client == "a"),
    **KEYS,
  )
  assert [
    (each.train.domain_sizes + each.test.domain_sizes).tolist()
    for each in clients
  ] == [[0, 6], [6, 0]]


def test_domain_may_be_a_function_of_the_example(client_data):
  periods = from_python.from_client_data(
    "dynamic_personalization",
    client_data,
    domain_of=lambda _, each: int(each["label"]),
    **KEYS,
  )
  assert values(periods.batch(1, 1)) == [7, 9, 11]
  assert periods.batch(1, 1).y.tolist() == [1, 1, 1]


def test_first_time_step_is_before_deployment(client_data):
  initial, streams = from_python.from_client_data(
    "online_adaptation", client_data, domain_key="year", **KEYS
  )
  assert [values(each) for each in initial] == [[1, 4], [7, 10]]
  assert values(streams.batch(0, 1)) == [2, 5]
  assert values(streams.batch(1, 2)) == [6, 9]


def test_guidance_splits_or_takes_test_data(client_data):
  train, test = from_python.from_client_data(
    "guidance", client_data, client_ids=["b"], test_fraction=0.5, **KEYS
  )
  assert sorted(values(train[0]) + values(test[0])) == list(range(6, 12))
  assert len(test[0].y) == 3
  train, test = from_python.from_client_data(
    "guidance", client_data, client_data, **KEYS
  )
  assert [values(each) for each in train] == [values(each) for each in test]


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
def test_what_is_masked_is_refused(name, refusal):
  arrays = {"pixels": np.arange(6.0)[:, np.newaxis], "label": np.arange(6) % 2}

  def of_arrays(as_dictionary):
    client = arrays if as_dictionary else tuple(arrays.values())
    return tff.simulation.datasets.TestClientData({"a": client})

  arrays[name] = np.ma.array(arrays[name], mask=False)
  assert (
    len(from_python.from_client_data("guidance", of_arrays(True), **KEYS).train)
    == 1
  )
  arrays[name][2] = np.ma.masked
  for as_dictionary, keys in ((True, KEYS), (False, {})):
    assert "of client 'a': 1 of 6 values are" in refusal(
      from_python.from_client_data, "guidance", of_arrays(as_dictionary), **keys
    )


def fails(*_):
  raise KeyError("city")


@pytest.mark.parametrize(
  "function, options, message",
  [
    ("guidance", {}, "x_key None: it must be one of "),
    (
      "guidance",
      KEYS | {"y_key": "labels"},
      "y_key 'labels': it must be one of ",
    ),
    (
      "guidance",
      KEYS | {"client_ids": ["a", "c"]},
      "client_ids: there is no client 'c'; there are 2, the first is",
    ),
    ("evolving", KEYS, "domain_key and domain_of: evolving needs one of them"),
    (
      "evolving",
      KEYS | {"domain_key": "year", "domain_of": lambda *_: 0},
      "domain_key and domain_of: give one of them",
    ),
    (
      "dynamic_personalization",
      KEYS | {"domain_of": lambda *_: 0.5},
      "domain of client 'a': integers wanted, got float64",
    ),
    (
      "dynamic_personalization",
      KEYS | {"domain_of": lambda *_: (2019, 1)},
      "domain of client 'a': integers wanted, got int64",
    ),
    (
      "dynamic_personalization",
      KEYS | {"domain_of": fails},
      "domain_of of client 'a': KeyError (",
    ),
    (
      "guidance",
      KEYS | {"domain_key": "year"},
      "domain_key and domain_of: guidance has no",
    ),
    (
      "guidance",
      KEYS | {"domain_of": lambda *_: 0},
      "domain_key and domain_of: guidance has no",
    ),
    (
      "guidance",
      KEYS | {"max_examples_per_client": 0},
      "max_examples_per_client must be an integer of at least 1",
    ),
  ],
)
def test_what_is_wrong_is_named(
  function, options, message, client_data, refusal
):
  assert refusal(
    from_python.from_client_data, function, client_data, **options
  ).startswith(message)


def test_client_that_cannot_be_made_is_named(refusal):
  def make(client_id):
    if client_id == "b":
      raise RuntimeError("no such file")
    return make_client_data().create_tf_dataset_for_client(client_id)

  lazy = mock.Mock(spec=["client_ids", "create_tf_dataset_for_client"])
  lazy.client_ids = ["a", "b"]
  lazy.create_tf_dataset_for_client = make
  told = refusal(from_python.from_client_data, "guidance", lazy, **KEYS)
  assert told.startswith("client 'b': its examples cannot be")


def pair(each):
  return each["pixels"], each["label"]


def nested(each):
  return {"inner": {"x": each["pixels"]}, "label": each["label"]}


def nested_pair(each):
  return {"x": each["pixels"]}, each["label"]


def test_elements_may_be_pairs(client_data):
  pairs = client_data.preprocess(lambda data: data.map(pair))
  (one, _), _ = from_python.from_client_data("guidance", pairs)
  assert one.x.shape == (4, 1)


@pytest.mark.parametrize(
  "function, process, options, message",
  [
    (
      "guidance",
      lambda data: data.map(pair),
      KEYS,
      "x_key 'pixels': elements ",
    ),
    (
      "guidance",
      lambda data: data.map(nested),
      KEYS | {"x_key": "inner"},
      "x_key 'inner': it must be one of",
    ),
    (
      "guidance",
      lambda data: data.map(nested_pair),
      {},
      "client 'a': x and y of its elements",
    ),
    (
      "guidance",
      lambda data: data.repeat(),
      KEYS,
      "client 'a': its pipeline has no end; leave repeat",
    ),
  ],
)
def test_wrong_pipelines_are_refused(
  function, process, options, message, client_data, refusal
):
  told = refusal(
    from_python.from_client_data,
    function,
    client_data.preprocess(process),
    **options,
  )
  assert told.startswith(message)


class TestRepeatedExamples:
  """What a pipeline repeats is not in training and test."""

  @pytest.fixture(scope="class")
  def repeated(self):
    return make_client_data().preprocess(
      # Shuffled, and cut off in the middle of a pass.
      lambda data: data.repeat(5).shuffle(30, seed=1).take(27)
    )

  @staticmethod
  def assert_apart(train, test):
    trained = {x for each in train for x in values(each)}
    tested = [x for each in test for x in values(each)]
    assert tested
    assert not trained & set(tested)

  def test_guidance_splits_by_content(self, repeated):
    train, test = from_python.from_client_data("guidance", repeated, **KEYS)
    self.assert_apart(train, test)
    assert sum(len(each.y) for each in (*train, *test)) == 2 * 27

  def test_evolving_splits_by_content(self, repeated):
    clients = from_python.from_client_data(
      "evolving", repeated, domain_key="year", test_fraction=0.5, **KEYS
    )
    self.assert_apart(
      [each.train for each in clients], [each.test for each in clients]
    )

  def test_examples_to_test_that_are_given_are_warned_of(self, client_data):
    with pytest.warns(UserWarning, match=r"^12 of 12 test examples are also"):
      from_python.from_client_data("guidance", client_data, client_data, **KEYS)


class TestClientsThatLackDomains:
  @pytest.fixture(scope="class")
  def lacking(self):
    years = {"north": [2018] * 4 + [2019] * 2, "south": [2019] * 3 + [2020] * 3}
    return tff.simulation.datasets.TestClientData(
      {
        name: {
          "pixels": 10.0 * position + np.arange(6, dtype=np.float32)[:, None],
          "label": np.arange(6) % 2,
          "year": np.array(of_client),
        }
        for position, (name, of_client) in enumerate(years.items())
      }
    )

  def test_evolving_gives_what_there_is(self, lacking):
    north, south = from_python.from_client_data(
      "evolving", lacking, domain_key="year", test_fraction=0.5, **KEYS
    )
    assert (north.name, south.name) == ("north", "south")
    assert north.train.domain_sizes.tolist() == [2, 1, 0]
    assert north.test.domain_sizes.tolist() == [2, 1, 0]
    assert south.train.domain_sizes.tolist() == [0, 1, 0]
    assert south.test.domain_sizes.tolist() == [0, 2, 3]
    assert sorted(values(south.train) + values(south.test)) == list(
      range(10, 16)
    )

  def test_messages_call_clients_by_name(self, lacking, refusal):
    wrong = lacking.preprocess(
      lambda data: data.map(
        lambda each: each | {"pixels": 0.0 / (each["pixels"] - 15.0)}
      )
    )
    told = refusal(
      from_python.from_client_data, "evolving", wrong, domain_key="year", **KEYS
    )
    assert told.startswith("x of client 'south': all numbers")

  def test_clients_are_absent_at_times_that_they_lack(self, lacking):
    initial, streams = from_python.from_client_data(
      "online_adaptation", lacking, domain_key="year", **KEYS
    )
    assert [len(each.y) for each in initial] == [4, 0]
    sizes = [[len(streams.batch(i, t).y) for t in (1, 2)] for i in (0, 1)]
    assert sizes == [[2, 0], [3, 3]]
