import math
import re

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest
from numpy.testing import assert_allclose
from numpy.testing import assert_array_equal

from tff_shift.data import datasets
from tff_shift.data import partition
from tff_shift.data import table
from tff_shift.data.datasets import circle
from tff_shift.data.images import transforms
from tff_shift.data.shifts import evolving


def sorted_rows(x):
  """The examples of `x` in an order that does not depend on theirs."""
  rows = x.reshape(len(x), -1)
  return rows[np.lexsort(rows.T)]


class TestRotatedDomains:
  def test_every_image_is_in_one_domain_and_turned_by_its_angle(self):
    dataset = evolving.load_evolving(
      "rotated_digits", num_domains=5, angle_step=90, first_angle=-90
    )
    assert [domain.name for domain in dataset.domains] == [
      *("-90 deg", "0 deg", "90 deg", "180 deg", "270 deg")
    ]
    sizes = [len(domain.y) for domain in dataset.domains]
    assert max(sizes) - min(sizes) == 1  # 1,797 is not a multiple of 5.
    turned_back = np.concatenate(
      [
        np.rot90(domain.x, 1 - m, axes=(1, 2))
        for m, domain in enumerate(dataset.domains)
      ]
    )
    source = datasets.load("digits")
    assert_array_equal(sorted_rows(turned_back), sorted_rows(source.x))
    # Each label came with its image.
    label_of = {x.tobytes(): y for x, y in zip(source.x, source.y, strict=True)}
    labels = np.concatenate([domain.y for domain in dataset.domains])
    assert [label_of[x.tobytes()] for x in turned_back] == labels.tolist()
    assert dataset.schema.classes == source.schema.classes

  @pytest.mark.parametrize(
    "options, angles",
    [
      ({}, range(0, 120, 15)),
      (
        {"angle_step": 10, "first_angle": 30, "target_extra_angle": 30},
        (30, 40, 50, 90),
      ),
    ],
  )
  def test_domains_are_the_upright_ones_turned(self, options, angles):
    number = {"num_domains": len(angles)} if options else {}
    dataset = evolving.load_evolving("rotated_digits", **number, **options)
    upright = evolving.load_evolving(
      "rotated_digits", num_domains=len(angles), angle_step=0
    )
    assert dataset.name == "rotated_digits"
    for domain, source, angle in zip(
      dataset.domains, upright.domains, angles, strict=True
    ):
      assert domain.name == f"{angle} deg"
      assert_array_equal(domain.x, transforms.rotate(source.x, angle))
      assert_array_equal(domain.y, source.y)


class TestCircleDomains:
  def test_domains_are_the_clouds_in_order(self):
    dataset = evolving.load_evolving("circle", seed=4)
    assert len(dataset.domains) == 30
    assert dataset.domains[11].name == "centre 12"
    assert dataset.schema.classes == ("outside", "inside")
    for field, expected in zip("xy", circle.generate(4), strict=False):
      parts = [getattr(domain, field) for domain in dataset.domains]
      assert_array_equal(np.concatenate(parts), expected)


class TestTimeDomains:
  @pytest.fixture
  def set_times(self, monkeypatch):
    """Lets every data set be examples of these times, their x."""

    def set_times(times):
      x = np.array(times)[:, np.newaxis, np.newaxis, np.newaxis]
      source = table.of_classes(x, np.arange(len(x)) % 2, "ab", x.ravel())
      monkeypatch.setattr(datasets, "load", lambda name, **options: source)

    return set_times

  def test_portraits_divide_into_twelve_years(self, set_times):
    years = [*range(1905, 2014, 3), 1916, 1917, 2000, 2001, 2012, 2013]
    set_times(years)
    dataset = evolving.load_evolving("portraits")
    assert [domain.name for domain in dataset.domains] == [
      *("1905-1916", "1917-1928", "1929-1940", "1941-1952", "1953-1964"),
      *("1965-1976", "1977-1988", "1989-2000", "2001-2013"),
    ]
    for domain in dataset.domains:
      first, last = map(int, domain.name.split("-"))
      expected = [year for year in years if first <= year <= last]
      assert domain.x.ravel().tolist() == expected

  def test_limited_examples_come_from_the_whole_range(self, set_times):
    set_times(range(1905, 2014))
    dataset = evolving.load_evolving(
      "portraits", num_domains=2, max_examples_per_domain=20
    )
    years = [domain.x.ravel() for domain in dataset.domains]
    assert [len(set(y)) for y in years] == [20, 20]
    assert years[0].max() <= 1958
    assert years[1].min() >= 1959
    # 20 of 54 at random: all of one half has a probability of about 1e-8.
    assert min(np.ptp(y) for y in years) > 27

  @pytest.mark.parametrize(
    "years, message",
    [
      ([1905, 1930, 2013], "no example in 1917-1928"),
      ([1905, 2014], "example of 2014.* 1905..2013$"),
    ],
  )
  def test_years_that_do_not_fit_are_refused(
    self, set_times, years, message, refusal
  ):
    set_times(years)
    assert re.search(message, refusal(evolving.load_evolving, "portraits"))

  def test_caltran_divides_into_two_hours(self, set_times):
    set_times(range(24))
    dataset = evolving.load_evolving("caltran")
    assert dataset.domains[0].name == "00:00-01:59"
    assert dataset.domains[-1].name == "22:00-23:59"
    hours = [domain.x.ravel().tolist() for domain in dataset.domains]
    assert hours == [[2 * m, 2 * m + 1] for m in range(12)]


@pytest.mark.parametrize(
  "name, options, message",
  [
    (
      "rotated_minst",
      {},
      f"dataset must be one of {', '.join(datasets.names('evolving'))}, ",
    ),
    ("rotated_digits", {"num_domains": 2.5}, "num_domains must be an integer"),
    ("rotated_digits", {"num_domains": 1}, "num_domains must be at least 2 "),
    (
      "rotated_digits",
      {"num_domains": 1798},
      "num_domains of rotated_digits must be at most 1797, one for each exam",
    ),
    (
      "portraits",
      {"num_domains": 110},
      "num_domains of portraits must be at most 109, one for each of 1905..",
    ),
    (
      "rotated_digits",
      {"max_examples_per_domain": 0},
      "max_examples_per_domain must be an integer of at least 1, got 0",
    ),
    ("circle", {"angle_step": 0.0}, "angle_step does not apply to circle, "),
    ("portraits", {"first_angle": 5.0}, "first_angle does not apply to port"),
    (
      "rotated_digits",
      {"target_extra_angle": math.nan},
      "target_extra_angle must be a finite number, got nan",
    ),
  ],
)
def test_invalid_options_are_refused(name, options, message, refusal):
  told = refusal(evolving.load_evolving, name, **options)
  assert told.startswith(message)


def numbered_dataset(sizes, num_classes):
  """A data set whose example i is the number i and has the label i mod C."""
  ends = np.cumsum(sizes)
  parts = []
  for m, (size, end) in enumerate(zip(sizes, ends, strict=True)):
    ids = np.arange(end - size, end)
    x = ids[:, np.newaxis].astype(np.float32)
    y = (ids % num_classes).astype(np.int32)
    parts.append(evolving.Domain(x, y, f"domain {m}"))
  class_names = tuple(f"class {c}" for c in range(num_classes))
  return evolving.EvolvingDataset(
    "numbered", tuple(parts), table.Schema(classes=class_names)
  )


def ids_by_domain(examples):
  """The numbers of a client's examples, domain by domain."""
  assert examples.domain_sizes.sum() == len(examples.x) == len(examples.y)
  ends = np.cumsum(examples.domain_sizes)[:-1]
  return np.split(examples.x[:, 0].astype(int), ends)


@st.composite
def assembled(draw):
  """A data set and the options of `assemble_clients`."""
  num_clients = draw(st.integers(1, 6))
  sizes = draw(
    st.lists(st.integers(20 * num_clients, 200), min_size=2, max_size=4)
  )
  options = {
    "num_clients": num_clients,
    "dirichlet": draw(st.sampled_from([math.inf, 10.0, 1.0])),
    "test_fraction": draw(st.sampled_from([0.1, 0.2, 0.5, 0.9])),
    "seed": draw(st.integers(0, 1000)),
  }
  return numbered_dataset(sizes, draw(st.integers(1, 4))), options


class TestAssembleClients:
  @hypothesis.given(assembled())
  @hypothesis.settings(max_examples=40)
  def test_every_example_has_one_owner_and_one_role(self, case):
    dataset, options = case
    clients = evolving.assemble_clients(dataset, **options)
    assert [c.client_id for c in clients] == list(range(options["num_clients"]))
    num_classes = len(dataset.schema.classes)
    owned = [[] for _ in dataset.domains]
    for client in clients:
      for examples in (client.train, client.test):
        assert_array_equal(examples.y, examples.x[:, 0] % num_classes)
        for m, ids in enumerate(ids_by_domain(examples)):
          owned[m].extend(ids)
      assert client.train.domain_sizes[-1] == 0
      assert client.test.domain_sizes[-1] >= 1
      assert client.train.domain_sizes[:-1].min() >= 1
    for ids, domain in zip(owned, dataset.domains, strict=True):
      assert_array_equal(np.sort(ids), domain.x[:, 0])

  @hypothesis.given(assembled())
  @hypothesis.settings(max_examples=40)
  def test_data_set_without_target_keeps_the_split(self, case):
    dataset, options = case
    hypothesis.assume(len(dataset.domains) > 2)
    shorter = dataset._replace(domains=dataset.domains[:-1])
    for whole, cut in zip(
      evolving.assemble_clients(dataset, **options),
      evolving.assemble_clients(shorter, **options),
      strict=True,
    ):
      whole_train, whole_test = map(ids_by_domain, (whole.train, whole.test))
      cut_train, cut_test = map(ids_by_domain, (cut.train, cut.test))
      for m in range(len(shorter.domains) - 1):
        assert_array_equal(whole_train[m], cut_train[m])
        assert_array_equal(whole_test[m], cut_test[m])
      # The domain that is last now: all of the client's share is for testing.
      assert_array_equal(
        np.union1d(whole_train[-2], whole_test[-2]), cut_test[-1]
      )
      assert not cut_train[-1].size

  def test_classes_that_never_occur_change_no_number_of_examples(self):
    dataset = numbered_dataset([90, 60, 60], 3)
    moved = dataset._replace(
      domains=[each._replace(y=each.y + 2) for each in dataset.domains],
      schema=table.Schema(classes=tuple("abcdefg")),
    )
    options = {"num_clients": 3, "dirichlet": 0.5, "seed": 2}
    for one, other in zip(
      evolving.assemble_clients(dataset, **options),
      evolving.assemble_clients(moved, **options),
      strict=True,
    ):
      before, after = (
        np.bincount(np.concatenate([each.train.y, each.test.y]), minlength=7)
        for each in (one, other)
      )
      assert_array_equal(after, np.roll(before, 2))
      assert np.ptp(before[:3]) > 0

  def test_sizes_iid_are_even(self):
    dataset = numbered_dataset([100, 100, 100], 4)
    for client in evolving.assemble_clients(dataset, num_clients=5):
      assert_array_equal(client.train.domain_sizes, [16, 16, 0])
      assert_array_equal(client.test.domain_sizes, [4, 4, 20])

  def test_classes_of_a_client_are_the_same_in_all_domains(self):
    dataset = numbered_dataset([4000, 4000], 10)
    clients = evolving.assemble_clients(
      dataset, num_clients=4, dirichlet=0.5, test_fraction=0.01, seed=3
    )
    for client in clients:
      source = np.bincount(
        np.concatenate(
          [client.train.y, client.test.y[: client.test.domain_sizes[0]]]
        ),
        minlength=10,
      )
      target = np.bincount(
        client.test.y[client.test.domain_sizes[0] :], minlength=10
      )
      assert_allclose(source, target, atol=1)
    shares = [np.bincount(c.train.y, minlength=10) for c in clients]
    # Clients differ: an even deal would give 99 of each class to everyone.
    assert np.ptp(shares, axis=0).min() > 50

  def test_client_without_example_is_named(self, refusal):
    # With seed 2, four of five clients want class 1 only, of which the target
    # domain has three examples.
    dataset = numbered_dataset([60, 6], 2)
    options = {"num_clients": 5, "dirichlet": 0.001, "seed": 2}
    proportions = partition.dirichlet_proportions(5, 2, 0.001, 2)
    assert_allclose(proportions[:, 1], [1, 1, 0, 1, 1], atol=1e-6)
    message = refusal(evolving.assemble_clients, dataset, **options)
    assert re.match("client [0134] would have no example in", message)
    for part in ("'domain 1'", "dirichlet 0.001", "larger dirichlet"):
      assert part in message

  @pytest.mark.parametrize(
    "sizes, options, message",
    [
      ([50], {}, "numbered needs at least 2 domains"),
      (
        [50, 3, 50],
        {"num_clients": 4},
        "client 3 would have no example in domain 'domain 1', whose 3 examples"
        " are too few for 4 clients; use fewer clients or fewer domains",
      ),
      ([50, 50], {"num_clients": 0}, "num_clients must "),
    ],
  )
  def test_bad_option_is_named(self, sizes, options, message, refusal):
    dataset = numbered_dataset(sizes, 2)
    options = {"num_clients": 2} | options
    told = refusal(evolving.assemble_clients, dataset, **options)
    assert told.startswith(message)
