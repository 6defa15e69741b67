"""Tests of the registry: entries keep their word, and a new one is one file."""

import dataclasses
import pathlib
import subprocess
import sys

import numpy as np
import pytest
from sklearn import datasets as sklearn_datasets

from tff_shift import models
from tff_shift.data import dataset
from tff_shift.data import datasets
from tff_shift.data.shifts import dynamic_personalization
from tff_shift.data.shifts import evolving
from tff_shift.data.shifts import guidance
from tff_shift.data.shifts import online_adaptation
from tff_shift.data.texts import text
from tff_shift.data.your_own import own_datasets

SCENARIOS = {
  module.SCENARIO: module
  for module in (evolving, online_adaptation, guidance, dynamic_personalization)
}
NAMES = datasets.names()


class TestNames:
  @pytest.mark.parametrize("function", [datasets.get, datasets.load])
  def test_unknown_name_lists_those_that_there_are(self, function, refusal):
    assert refusal(function, "minst") == (
      f"dataset must be one of {', '.join(NAMES)}, {own_datasets.FORMS}; got"
      " 'minst'; did you mean mnist?"
    )

  def test_name_of_another_scenario_lists_those_of_this_one(self, refusal):
    assert refusal(datasets.get, "circle", "guidance") == (
      f"dataset must be one of {', '.join(datasets.names('guidance'))},"
      f" {own_datasets.FORMS}; got 'circle'"
    )


@pytest.mark.parametrize("name", NAMES)
class TestEntries:
  def test_entry_says_what_it_is(self, name):
    entry = datasets.get(name)
    assert isinstance(entry, dataset.DatasetInfo)
    assert sys.modules[f"{datasets.__name__}.{name}"].__doc__
    assert entry.dtype in (np.uint8, np.int32, np.float32)
    assert all(size >= 1 for size in entry.shape)
    assert entry.num_classes >= 2
    assert set(entry.models) <= set(SCENARIOS)
    assert set(entry.models.values()) <= set(models.names())
    assert ("evolving" in entry.models) == (entry.evolution is not None)


def test_finer_labels_are_of_the_same_examples():
  coarse = [name for name in NAMES if datasets.get(name).fine_labels]
  assert "cifar20" in coarse
  for entry in map(datasets.get, coarse):
    finer = datasets.get(entry.fine_labels)
    assert (finer.shape, finer.dtype) == (entry.shape, entry.dtype)
    assert finer.num_classes > entry.num_classes


class TestLoad:
  @pytest.mark.slow
  @pytest.mark.parametrize("name", NAMES)
  def test_data_are_what_the_entry_says(self, name, load_once):
    entry = datasets.get(name)
    loaded = load_once(name)
    assert loaded.x.shape == (len(loaded.y), *entry.shape)
    assert loaded.x.dtype == entry.dtype
    assert loaded.y.dtype == np.int32
    # Every class has an example, and there are no others.
    np.testing.assert_array_equal(
      np.unique(loaded.y), np.arange(entry.num_classes)
    )
    assert len(set(loaded.class_names)) == entry.num_classes

  def test_number_of_domains_that_are_generated(self):
    fewer = datasets.load("circle", num_domains=3)
    assert np.unique(fewer.time).tolist() == [1, 2, 3]

  @pytest.mark.slow
  def test_import_leaves_tensorflow_alone(self):
    program = (
      "import sys; from tff_shift.data import datasets;"
      " from tff_shift.data.shifts import dynamic_personalization, evolving,"
      " guidance, online_adaptation; datasets.names('evolving');"
      " evolving.load_evolving('rotated_digits');"
      " sys.exit('tensorflow' in sys.modules)"
    )
    root = pathlib.Path(__file__).parents[2]
    subprocess.run([sys.executable, "-c", program], check=True, cwd=root)


LOADED = dataset.Dataset(
  x=np.zeros((4, 2), np.float32),
  y=np.int32([0, 1, 2, 0]),
  class_names=("a", "b", "c"),
  time=np.array([1, 1, 2, 2]),
  num_train=3,
)


def make_entry(**changes):
  fields = {
    "shape": (2,),
    "dtype": np.float32,
    "num_classes": 3,
    "models": {"evolving": "mlp"},
    "load": lambda folder: LOADED,
    "evolution": dataset.Evolution(num_domains=2, range_format="{}"),
  }
  return dataset.DatasetInfo(**(fields | changes))


class TestChecked:
  def test_source_is_given_the_types_of_the_entry(self):
    loaded = LOADED._replace(
      x=LOADED.x.astype(np.float64), y=LOADED.y.astype(np.int64)
    )
    checked = datasets.checked(loaded, make_entry(), "toy")
    assert (checked.x.dtype, checked.y.dtype) == (np.float32, np.int32)
    assert checked[2:] == loaded[2:]

  @pytest.mark.parametrize(
    "changes, message",
    [
      ({"vocabulary": ("a", "b", "c")}, "vocabulary of toy: it must name "),
      ({"x": np.full((4, 2), 3)}, "x of toy: ids of words must lie in 0..2, "),
      ({"x": np.full((4, 2), -1)}, "x of toy: ids of words must lie in 0..2, "),
    ],
  )
  def test_words_that_are_none_are_refused(self, changes, message, refusal):
    titles = LOADED._replace(
      x=np.full((4, 2), 2), vocabulary=(*text.RESERVED, "word")
    )
    entry = make_entry(dtype=np.int32, vocabulary_size=3)
    assert datasets.checked(titles, entry, "toy").x.dtype == np.int32
    assert refusal(
      datasets.checked, titles._replace(**changes), entry, "toy"
    ).startswith(message)

  @pytest.mark.parametrize(
    "changes, message",
    [
      ({"x": np.zeros((4, 3), np.float32)}, "x of toy: the shape must be "),
      ({"y": np.array([0, 1, 3, 0])}, "y of toy: classes must lie in 0..2, "),
      ({"class_names": ("a",)}, "class_names of toy: there must be 3, got 1"),
      ({"num_train": 4}, "num_train of toy: it must lie in 1..3, "),
      ({"time": None}, "time of toy: its domains are ranges of time, "),
      ({"time": np.arange(3)}, "time of toy: 4 integers wanted, "),
      ({"time": np.zeros(4)}, "time of toy: 4 integers wanted, "),
    ],
  )
  def test_what_is_wrong_is_named(self, changes, message, refusal):
    assert refusal(
      datasets.checked, LOADED._replace(**changes), make_entry(), "toy"
    ).startswith(message)

  def test_every_data_set_is_checked_under_its_name(
    self, small_digits, monkeypatch, refusal
  ):
    entry = datasets.get(small_digits)
    wrong = dataclasses.replace(entry, num_classes=9)
    monkeypatch.setattr(
      sys.modules[f"{datasets.__name__}.{small_digits}"], "DATASET", wrong
    )
    assert refusal(datasets.load, small_digits) == (
      "y of small_digits: classes must lie in 0..8, got 9 for example 9"
    )


class TestDataset:
  @pytest.mark.parametrize(
    "changes, message",
    [
      (
        {"load": None},
        "a data set must have exactly one of load, generate and",
      ),
      (
        {"generate": lambda seed, num_domains: LOADED},
        "a data set must have exactly one of load, generate and",
      ),
      (
        {"tokenize": lambda folder, model_dir: LOADED},
        "a data set must have exactly one of load, generate and",
      ),
      (
        {
          "load": None,
          "generate": lambda seed, num_domains: LOADED,
          "evolution": None,
        },
        "a data set with generate must have an evolution",
      ),
      ({"dtype": np.int32}, "a data set must have a vocabulary_size if and"),
      ({"vocabulary_size": 9}, "a data set must have a vocabulary_size if and"),
    ],
  )
  def test_entry_that_contradicts_itself_is_refused(
    self, changes, message, refusal
  ):
    assert refusal(make_entry, **changes).startswith(message)

  @pytest.mark.parametrize(
    "options",
    [
      {},
      {"angle_step": 15.0, "range_format": "{}"},
      {"angle_step": 15.0, "time_range": (0, 1)},
    ],
  )
  def test_domains_that_are_both_or_neither_are_refused(self, options, refusal):
    assert "evolution" in refusal(dataset.Evolution, num_domains=2, **options)


class TestNewDataset:
  def test_new_file_is_a_data_set_of_every_scenario(self, small_digits):
    assert datasets.names() == tuple(sorted([*NAMES, small_digits]))
    for scenario in SCENARIOS:
      assert small_digits in datasets.names(scenario)

  def test_new_data_set_evolves(self, small_digits):
    loaded = evolving.load_evolving(small_digits, num_domains=3)
    names = [each.name for each in loaded.domains]
    assert names == ["0 deg", "90 deg", "180 deg"]
    # Turned back, they are scikit-learn's images.
    turned_back = np.concatenate(
      [
        np.rot90(each.x, -m, axes=(1, 2))
        for m, each in enumerate(loaded.domains)
      ]
    )
    pixels = (sklearn_datasets.load_digits().data * (255 / 16)).astype(np.uint8)
    assert sorted(map(bytes, turned_back)) == sorted(map(bytes, pixels))

  def test_domains_may_be_the_numbers_in_time(
    self, small_digits, monkeypatch, refusal
  ):
    datasets.get(small_digits)
    evolution = dataset.Evolution(2, range_format="part {}")
    monkeypatch.setattr(
      sys.modules[f"{datasets.__name__}.{small_digits}"],
      "DATASET",
      make_entry(evolution=evolution),
    )
    loaded = evolving.load_evolving(small_digits)
    assert [each.name for each in loaded.domains] == ["part 1", "part 2"]
    assert [each.y.tolist() for each in loaded.domains] == [[0, 1], [2, 0]]
    assert "no example in part 3" in refusal(
      evolving.load_evolving, small_digits, num_domains=3
    )
