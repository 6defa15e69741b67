"""Tests of arrays of one's own: each example comes through once, or a line."""

import functools

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st
from numpy.testing import assert_array_equal

from tff_shift.data import from_python
from tff_shift.data.shifts import evolving


def make_pair(start, size, dtype=np.float32):
  """Makes examples whose x is a number that no other has."""
  numbers = np.arange(start, start + size)
  return numbers.astype(dtype)[:, np.newaxis], numbers % 3


def make_groups(sizes):
  """Makes pairs of these sizes; numbers go on from one to the next."""
  groups, start = [], 0
  for row in sizes:
    groups.append([])
    for size in row:
      groups[-1].append(make_pair(start, size))
      start += size
  return groups


def numbers_of(parts):
  return sorted(int(n) for each in parts for n in each.x[:, 0])


def assert_labels_go_with_examples(parts):
  for each in parts:
    assert_array_equal(each.y, each.x[:, 0] % 3)
    assert (each.x.dtype, each.y.dtype) == (np.float32, np.int32)


_SIZES = st.integers(1, 4).flatmap(
  lambda width: st.lists(
    st.lists(st.integers(1, 9), min_size=width + 1, max_size=width + 1),
    min_size=1,
    max_size=4,
  )
)


class TestEveryExampleOnce:
  @hypothesis.given(sizes=_SIZES, fraction=st.floats(0.05, 0.9))
  def test_evolving_keeps_every_example_once(self, sizes, fraction):
    clients = from_python.from_arrays(
      "evolving", make_groups(sizes), test_fraction=fraction
    )
    sides = [each for c in clients for each in (c.train, c.test)]
    assert numbers_of(sides) == list(range(np.sum(sizes)))
    assert_labels_go_with_examples(sides)
    for client, row in zip(clients, sizes, strict=True):
      found = client.train.domain_sizes + client.test.domain_sizes
      assert found.tolist() == row
      assert client.train.domain_sizes[-1] == 0
      assert client.train.domain_sizes[:-1].min() >= 1

  @hypothesis.given(sizes=st.lists(st.integers(4, 20), min_size=1, max_size=5))
  def test_guidance_keeps_every_example_once(self, sizes):
    (pairs,) = make_groups([sizes])
    train, test = from_python.from_arrays("guidance", pairs)
    assert numbers_of([*train, *test]) == list(range(sum(sizes)))
    assert_labels_go_with_examples([*train, *test])
    for own, held_out, size in zip(train, test, sizes, strict=True):
      assert len(held_out.y) == round(0.3 * size)
      assert len(own.y) + len(held_out.y) == size

  @hypothesis.given(sizes=_SIZES)
  def test_online_and_dynamic_keep_places(self, sizes):
    groups = make_groups(sizes)
    initial, streams = from_python.from_arrays(
      "online_adaptation",
      [own[0] for own in groups],
      [own[1:] for own in groups],
    )
    periods = from_python.from_arrays("dynamic_personalization", groups)
    for client, own in enumerate(groups):
      for place, (x, _) in enumerate(own):
        assert_array_equal(periods.batch(client, place).x, x)
        found = streams.batch(client, place) if place else initial[client]
        assert_array_equal(found.x, x)


def test_domains_come_in_order():
  (client,) = from_python.from_arrays(
    "evolving",
    make_groups([[4, 3, 5]]),
    test_fraction=0.5,
    client_names=np.array(["north"]),
  )
  assert client.name == "north"
  assert client.test.domain_sizes.tolist() == [2, 2, 5]
  assert client.test.x[-5:, 0].tolist() == [7, 8, 9, 10, 11]
  assert max(client.train.x[:2, 0]) < 4 <= min(client.train.x[2:, 0])


def test_whole_domains_are_dealt_to_clients():
  ((*parts,),) = make_groups([[9, 12]])
  dataset = from_python.domains(parts, names=["before", "after"])
  assert [domain.name for domain in dataset.domains] == ["before", "after"]
  assert dataset.schema.classes == ("0", "1", "2")
  clients = evolving.assemble_clients(dataset, num_clients=3)
  sides = [side for client in clients for side in (client.train, client.test)]
  assert numbers_of(sides) == list(range(21))


def test_split_holds_a_fraction_out():
  train, test = from_python.split(*make_pair(0, 10))
  assert numbers_of([train, test]) == list(range(10))
  assert len(test.y) == 2


def test_given_test_examples_stay_whole():
  (pairs,) = make_groups([[3, 4]])
  train, test = from_python.from_arrays(
    "guidance", pairs, list(reversed(pairs))
  )
  assert [len(each.y) for each in (*train, *test)] == [3, 4, 4, 3]


def test_result_is_a_read_only_copy():
  x, y = np.zeros((2, 1), np.float32), np.zeros(2, np.int32)
  periods = from_python.from_arrays(
    "dynamic_personalization", [[(x, y)], [(x.astype(float), y)]]
  )
  x += 1
  for client in range(2):
    stored = periods.batch(client, 0)
    assert not stored.x.any()
    assert not stored.x.flags.writeable and not stored.y.flags.writeable


def test_integers_become_images():
  image = np.full((2, 4, 4, 1), 255)
  train, _ = from_python.split(image, np.zeros(2, int), test_fraction=0.5)
  assert train.x.dtype == np.uint8
  assert train.x.min() == 255


class TestPlaces:
  def test_periods_repeat(self):
    pairs = [make_pair(0, 4), make_pair(4, 3)]
    periods = from_python.from_arrays(
      "dynamic_personalization", [pairs], repeats=True
    )
    for period in range(5):
      x, _ = pairs[period % 2]
      assert_array_equal(periods.batch(0, period).x, x)

  def test_extent_and_drifts_are_those_of_the_user(self, refusal):
    ((first, *later),) = make_groups([[2, 2, 2]])
    _, streams = from_python.from_arrays("online_adaptation", [first], [later])
    assert (streams.num_clients, streams.num_timesteps) == (1, 2)
    assert streams.omega is None
    assert streams.num_classes == 3
    # Of the labelled examples.
    assert streams.class_distribution(0, 0).tolist() == [0.5, 0.5, 0]
    _, extended = from_python.from_arrays(
      "online_adaptation", [first], [later], omega=[0, 0.5, 1]
    )
    assert extended.omega.tolist() == [0, 0.5, 1]
    periods = from_python.from_arrays(
      "dynamic_personalization",
      [[first, *later]],
      drifted=[[False, True, False]],
      num_classes=9,
    )
    assert [periods.is_drift(0, period) for period in (1, 2)] == [True, False]
    assert (periods.num_classes, periods.num_periods) == (9, 3)
    for method, place, message in (
      (periods.batch, (0, 3), "period 3 does not exist: it must lie in 0..2"),
      (
        periods.is_drift,
        (0, 0),
        "period 0 does not exist: it must lie in 1..2",
      ),
      (periods.batch, (1, 1), "client 1 does not exist: it must lie in 0..0"),
      (streams.batch, (-1, 1), "client -1 does not exist: it must lie in 0..0"),
      (streams.batch, (0, 0), "timestep 0 does not exist: it must lie in 1..2"),
    ):
      assert refusal(method, *place) == message


GOOD = np.zeros((2, 3), np.float32), np.array([0, 1])
NAN = np.float32([[0, 0, 0], [0, np.nan, 0]]), np.array([0, 1])
EMPTY = np.zeros((0, 3), np.float32), np.zeros(0, int)
IMAGE = np.zeros((2, 3), np.uint8), np.array([0, 1])
WIDE = np.zeros((2, 4), np.float32), np.array([0, 1])
SHORT = np.zeros((2, 3), np.float32), np.array([0])
NEGATIVE = np.zeros((2, 3), np.float32), np.array([0, -1])
HIGH = np.zeros((2, 3), np.float32), np.array([0, 7])
CLOSE = 1.7e9 + np.arange(12.0).reshape(4, 3), np.array([0, 1, 0, 1])


_CALLS = {"domains": from_python.domains, "split": from_python.split}
_WRONG = {
  "evolving": [
    (
      [[[GOOD, EMPTY, GOOD]] * 2],
      "domain '2019': no client has an example of it",
      {"domain_names": ["2018", "2019", "2020"]},
    ),
    (
      [[[GOOD, EMPTY]] * 2],
      "domain 1, the target: no client has an example of it",
    ),
    (
      [[[GOOD, GOOD], [GOOD, NAN]]],
      "x of client 'south', domain '2019': all numbers",
      {"client_names": ["north", "south"], "domain_names": ["2018", "2019"]},
    ),
    (
      [[[GOOD, GOOD]]],
      "client_names: there must be 1, one for each client, got 2",
      {"client_names": ["north", "south"]},
    ),
    (
      [[[GOOD, GOOD]]],
      "domain_names: 'a' is there twice (domain 0 and domain 1)",
      {"domain_names": ["a", "a"]},
    ),
    (
      [[[GOOD, GOOD], [GOOD, IMAGE]]],
      "x of client 1, domain 1: floating-point numbers [n, ...] wanted as"
      " in client 0, domain 0, got uint8 [2, 3]; images go from 0 to 255",
    ),
    (
      [[[GOOD, GOOD], [WIDE, GOOD]]],
      "x of client 1, domain 0: the shape must be [n, 3], got [2, 4]",
    ),
    (
      [[[GOOD, GOOD], [GOOD]]],
      "client 1: there must be at least 2 domains, got 1",
    ),
    (
      [[[GOOD] * 2, [GOOD] * 3]],
      "client 1: there must be 2 domains, as of client 0, got 3",
    ),
    ([[]], "there must be at least one client"),
    ([[[GOOD, 5]]], "client 0, domain 1: arrays (x, y) are"),
  ],
  "domains": [
    ([[GOOD]], "arrays: there must be at least 2 domains, got 1"),
    (
      [[GOOD, HIGH]],
      "domain_names: there must be 2, one for each domain, got 1",
      {"names": ["a"]},
    ),
  ],
  "guidance": [
    ([[GOOD, SHORT]], "y of client 1: the shape must be [2]"),
    (
      [[GOOD, NEGATIVE]],
      "y of client 1: classes must count from 0, got -1 for example 1",
    ),
    (
      [[GOOD]],
      "client 0: test_fraction 0.1 of 2 examples leaves none to test",
      {"test_fraction": 0.1},
    ),
    ([[GOOD], []], "test: there must be 1 clients, as in train"),
    ([[GOOD], [EMPTY]], "x of client 0, test: there must be"),
    ([[CLOSE]], "x: float32 cannot tell the values of column 0 apart"),
  ],
  "online_adaptation": [
    ([[GOOD], [[GOOD, NAN]]], "x of client 0, time step 2: all numbers"),
    ([[GOOD], [[]]], "client 0: there must be at least 1 time"),
    ([[], [[GOOD]]], "initial: there must be 1 clients, as in"),
    (
      [[GOOD], [[GOOD]]],
      "omega: the shape must be [2], got [1]",
      {"omega": [0.0]},
    ),
  ],
  "dynamic_personalization": [
    (
      [[[GOOD, HIGH]]],
      "y of client 0, period 1: classes must lie in 0..2, got 7 for example 1",
      {"num_classes": 3},
    ),
    ([[[GOOD, GOOD]]], "drifted: [1, 2] bools wanted", {"drifted": [[True]]}),
  ],
}


@pytest.mark.parametrize(
  "function, row",
  [(name, row) for name, rows in _WRONG.items() for row in rows],
)
def test_invalid_arrays_are_named(function, row, refusal):
  arguments, message, *options = row
  call = _CALLS.get(
    function, functools.partial(from_python.from_arrays, function)
  )
  call = functools.partial(call, *arguments)
  assert refusal(call, **dict(*options)).startswith(message)


class TestCopies:
  # Ten examples, of which each comes three times.
  PAIR = tuple(np.repeat(each, 3, axis=0) for each in make_pair(0, 10))

  @pytest.mark.parametrize(
    "call, size",
    [
      (
        lambda pair, **options: (
          part
          for (part,) in from_python.from_arrays("guidance", [pair], **options)
        ),
        9,
      ),
      (lambda pair, **options: from_python.split(*pair, **options), 6),
    ],
    ids=["guidance", "split"],
  )
  def test_copies_are_warned_of_or_kept_together(self, call, size):
    with pytest.warns(UserWarning, match="test examples are also train"):
      call(self.PAIR)
    train, test = call(self.PAIR, keep_copies_together=True)
    assert not set(train.x[:, 0]) & set(test.x[:, 0])
    assert len(test.y) == size

  def test_copies_of_one_example_cannot_be_split(self, refusal):
    assert "of 2 examples, all copies of one, " in refusal(
      from_python.split, *GOOD, keep_copies_together=True
    )
