"""Tests of data with domains in the scenarios that otherwise draw a drift."""

import itertools

import numpy as np
import pandas
import pytest
from numpy.testing import assert_array_equal

import tff_shift as ts
from tff_shift.data.shifts import dynamic_personalization
from tff_shift.data.shifts import online_adaptation

chain = itertools.chain.from_iterable
NAMES = ["gap", "late", "leaver", "stays"]
# The examples of each client in the domains 2019, 2020 and 2021.
SIZES = {
  "gap": (20, 0, 8),
  "late": (0, 4, 8),
  "leaver": (20, 4, 0),
  "stays": (20, 8, 4),
}
# Of 20 examples, rint(13) are for pre-training, rint(16) - 13 held out.
NUM_HELD_OUT, NUM_LABELLED = 3, 4


def make_arrays():
  """Rows in random order; x is the number of the row."""
  cells = [
    (name, year)
    for name, sizes in SIZES.items()
    for year, size in zip((2019, 2020, 2021), sizes, strict=True)
    for _ in range(size)
  ]
  order = np.random.default_rng(3).permutation(len(cells))
  frame = pandas.DataFrame(cells, columns=["client", "domain"]).iloc[order]
  groups = frame.groupby(["client", "domain"])
  # Half of the labels are 1 in 2019, a quarter later.
  fraction = np.where(frame["domain"] == 2019, 0.5, 0.25)
  y = groups.cumcount() < fraction * groups["client"].transform("size")
  return {
    "x": np.arange(len(cells), dtype=np.float32)[:, np.newaxis],
    "y": y.to_numpy(np.int32),
    "client": frame["client"].to_numpy(str),
    "domain": frame["domain"].to_numpy(),
  }


ARRAYS = make_arrays()


def rows_of(name, *years):
  is_chosen = (ARRAYS["client"] == name) & np.isin(ARRAYS["domain"], years)
  return np.flatnonzero(is_chosen).tolist()


def rows(examples):
  return examples.x[:, 0].astype(int).tolist()


@pytest.fixture
def save(tmp_path):
  """Returns `save(left_out, **changes)`, which gives the name of a file."""

  def save_file(left_out="", **changes):
    arrays = ARRAYS | changes
    arrays.pop(left_out, None)
    np.savez(tmp_path / "drift.npz", **arrays)
    return str(tmp_path / "drift.npz")

  return save_file


class TestOnline:
  def test_streams_are_the_rows_of_clients_and_domains(self, save):
    dataset = online_adaptation.load_online_adaptation(save())
    streams = dataset.streams
    assert (streams.num_clients, streams.num_timesteps) == (4, 2)
    assert streams.omega is None
    for client, name in enumerate(NAMES):
      for timestep, year in ((1, 2020), (2, 2021)):
        batch = streams.batch(client, timestep)
        assert rows(batch) == rows_of(name, year)
        assert batch.y.tolist() == ARRAYS["y"][rows(batch)].tolist()
    assert dataset.schema.times == ("2019", "2020", "2021")
    shifts = [[streams.shift(c, t) for t in (1, 2)] for c in range(4)]
    # From 1/2 to 1/4 of a label is an L1 distance of 1/2.
    assert_array_equal(
      shifts, [[np.nan, 0.5], [np.nan, 0], [0.5, np.nan], [0.5, 0]]
    )
    assert streams.class_distribution(3, 1).tolist() == [0.75, 0.25]
    assert np.isnan(streams.class_distribution(0, 1)).all()
    short = streams.until(1)
    assert short.num_timesteps == 1
    assert rows(short.batch(1, 1)) == rows_of("late", 2020)

  def test_first_domain_of_each_client_is_split(self, save):
    dataset = online_adaptation.load_online_adaptation(
      save(), seed=5, pretraining_distribution="uniform"
    )
    parts = list(map(rows, dataset[1:4]))
    assert len(set(chain(parts))) == sum(map(len, parts))
    assert len(parts[0]) <= 3 * 13
    for client, name in enumerate(NAMES):
      in_2019 = set(rows_of(name, 2019))
      assert [len(in_2019.intersection(part)) for part in parts[1:]] == (
        [0, 0] if name == "late" else [NUM_HELD_OUT, NUM_LABELLED]
      )
      labelled = online_adaptation.initial_examples(dataset, 99, client, 0)
      assert set(rows(labelled)) <= in_2019
      assert online_adaptation.num_labelled(dataset, client) == len(labelled.y)
      assert len(labelled.y) == (0 if name == "late" else NUM_LABELLED)
    assert set(chain(parts)) <= set(chain(rows_of(n, 2019) for n in NAMES))
    held_out = online_adaptation.held_out_examples(dataset, 5, 0)
    assert len(held_out.y) == 5
    assert set(rows(held_out)) <= set(parts[1])

  def test_all_rows_before_deployment_train_as_they_are(self, save):
    name = save()
    dataset = online_adaptation.load_online_adaptation(name, seed=5)
    in_2019 = sorted(chain(rows_of(n, 2019) for n in NAMES))
    assert rows(dataset.labelled) == in_2019
    assert dataset.num_labelled == len(in_2019) == 60
    # Early stopping needs rows that the first training does not see.
    held_out = rows(dataset.validation)
    assert len(held_out) == 3 * NUM_HELD_OUT
    assert sorted([*rows(dataset.pretraining), *held_out]) == in_2019
    assert dataset.class_distribution.tolist() == [0.5, 0.5]
    limited = online_adaptation.load_online_adaptation(
      name, seed=5, max_pretraining_examples=7
    )
    assert limited.labelled is None
    assert len(limited.pretraining.y) == 7
    assert set(rows(limited.pretraining)) <= set(rows(dataset.pretraining))
    assert limited.num_labelled == 60

  def test_later_labels_do_not_change_what_is_fitted(self, save):
    first = online_adaptation.load_online_adaptation(save(), seed=5)
    y = np.where(ARRAYS["domain"] > 2019, 2, ARRAYS["y"])
    name = save(y=y, class_names=np.array(["no", "yes", "later"]))
    again = online_adaptation.load_online_adaptation(name, seed=5)
    assert_array_equal(again.pretraining.y, first.pretraining.y)
    assert again.class_distribution.tolist() == [0.5, 0.5, 0]

  def test_rows_without_clients_are_dealt_iid(self, save):
    name = save("client")
    one, same, other = (
      online_adaptation.load_online_adaptation(
        name, num_clients=3, seed=seed
      ).streams
      for seed in (1, 1, 2)
    )
    for timestep, year in ((1, 2020), (2, 2021)):
      dealt, again, differently = (
        [rows(each.batch(client, timestep)) for client in range(3)]
        for each in (one, same, other)
      )
      assert dealt == again != differently
      in_year = np.flatnonzero(ARRAYS["domain"] == year).tolist()
      assert sorted(chain(dealt)) == in_year
      counts = np.array([np.bincount(ARRAYS["y"][each]) for each in dealt])
      assert np.ptp(counts, axis=0).max() <= 1


def test_training_periods_are_split_and_the_others_stay_whole(save):
  dataset = dynamic_personalization.load_dynamic_personalization(save(), seed=0)
  periods = dataset.periods
  parts = {
    "public": set(rows(dataset.public)),
    "validation": set(rows(dataset.validation)),
    "train": set(rows(dataset.train)),
  }
  for client, name in enumerate(NAMES):
    held = set(rows_of(name, 2019, 2020))
    cut = [held & part for part in parts.values()]
    assert set.union(*cut) == held
    # A tenth is public, and a tenth is for validation.
    ends = np.rint(np.array([0.1, 0.2]) * len(held)).astype(int)
    assert np.cumsum(list(map(len, cut))).tolist() == [*ends, len(held)]
    for period, year in enumerate((2019, 2020)):
      in_year = sorted(parts["train"].intersection(rows_of(name, year)))
      assert rows(periods.train.batch(client, period)) == in_year
      # Further rounds start again.
      assert rows(periods.train.batch(client, period + 4)) == in_year
      # The stream goes on from the last training period.
      whole = rows_of(name, year + 1)
      assert rows(periods.stream.batch(client, period)) == whole
  assert periods.stream.num_periods == 2
  assert periods.stream.is_drift(0, 1) is None


@pytest.mark.parametrize(
  "scenario, left_out, options, message",
  [
    *(
      (scenario, left_out, options, message)
      for scenario in ("online_adaptation", "dynamic_personalization")
      for left_out, options, message in (
        ("client", {}, "num_clients must be given: .*drift.npz does not"),
        ("client", {"num_clients": 50}, "domain '2020' of .* has 16 examples"),
        ("domain", {"num_clients": 4}, "num_clients does not apply to"),
        ("", {"num_clients": 3}, "num_clients must be 4, the number of clien"),
      )
    ),
    ("online_adaptation", "", {"disjoint_clients": 2}, "disjoint_clients does"),
    ("dynamic_personalization", "", {"train_periods": 3}, "train_periods must"),
    ("dynamic_personalization", "", {"test_fraction": 0.2}, "test_fraction do"),
    ("dynamic_personalization", "", {"max_examples": 1}, "20.* would be empty"),
  ],
)
def test_options_that_do_not_apply_are_refused(
  save, scenario, left_out, options, message
):
  with pytest.raises(ValueError, match=message) as error:
    getattr(ts, f"load_{scenario}")(save(left_out), seed=0, **options)
  assert "\n" not in str(error.value)


def test_split_by_num_train_does_not_apply_to_domains(save, refusal):
  name = save(num_train=40)
  told = refusal(ts.load_online_adaptation, name)
  assert told.startswith(f"num_train of {name}: it does not apply")
