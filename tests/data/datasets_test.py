"""Tests of the registry: entries keep their word, and a new one is one file."""

import dataclasses
import functools
import pathlib
import subprocess
import sys

import numpy as np
import pytest

from tff_shift import models
from tff_shift.data import dataset
from tff_shift.data import datasets
from tff_shift.data import sources
from tff_shift.data import table
from tff_shift.data.shifts import dynamic_personalization
from tff_shift.data.shifts import evolving
from tff_shift.data.shifts import guidance
from tff_shift.data.shifts import online_adaptation
from tff_shift.data.texts import text

SCENARIOS = {
  module.SCENARIO: module
  for module in (evolving, online_adaptation, guidance, dynamic_personalization)
}
NAMES = datasets.names()


@pytest.mark.parametrize(
  "arguments, end",
  [
    (("minst",), "'minst'; did you mean mnist?"),
    (("circle", "guidance"), "'circle'"),
  ],
)
def test_unknown_name_lists_those_that_there_are(arguments, end, refusal):
  names = ", ".join(datasets.names(*arguments[1:]))
  assert refusal(datasets.get, *arguments) == (
    f"dataset must be one of {names}, {sources.forms()}; got {end}"
  )


@pytest.mark.parametrize("name", NAMES)
def test_entry_says_what_it_is(name):
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
    # Every class has an example, and there are no others.
    np.testing.assert_array_equal(
      np.unique(loaded.y), np.arange(entry.num_classes)
    )
    assert len(set(loaded.schema.classes)) == entry.num_classes

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


LOADED = table.of_classes(
  x=np.zeros((4, 2), np.float32),
  y=np.int32([0, 1, 2, 0]),
  classes=("a", "b", "c"),
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
      ({"x": np.zeros((4, 3), np.float32)}, "x of toy: the shape must be "),
      (
        {"schema": table.Schema(classes=("a",))},
        "class_names of toy: there must be 3, got 1",
      ),
      ({"num_train": 4}, "num_train of toy: it must lie in 1..3, "),
      ({"time": None}, "time of toy: its domains are ranges of time, "),
      ({"time": np.arange(3)}, "time of toy: 4 integers wanted, "),
      ({"time": np.zeros(4)}, "time of toy: 4 integers wanted, "),
      # Of words.
      ({"vocabulary": ("a", "b", "c")}, "vocabulary of toy: it must name "),
      ({"x": np.full((4, 2), 3)}, "x of toy: ids of words must lie in 0..2, "),
      ({"x": np.full((4, 2), -1)}, "x of toy: ids of words must lie in 0..2, "),
    ],
  )
  def test_invalid_tables_are_named(self, changes, message, refusal):
    loaded, entry = LOADED, make_entry()
    if "word" in message or "vocabulary" in message:
      vocabulary = (*text.RESERVED, "word")
      loaded = LOADED._replace(x=np.full((4, 2), 2), vocabulary=vocabulary)
      entry = make_entry(dtype=np.int32, vocabulary_size=3)
      assert datasets.checked(loaded, entry, "toy").x.dtype == np.int32
    loaded = loaded._replace(**changes)
    assert refusal(datasets.checked, loaded, entry, "toy").startswith(message)

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


ONE_SOURCE = "a data set must have exactly one of load, generate and"
GENERATED = {"generate": lambda seed, num_domains: LOADED}
VOCABULARY = "a data set must have a vocabulary_size if and"


@pytest.mark.parametrize(
  "changes, message",
  [
    ({"load": None}, ONE_SOURCE),
    (GENERATED, ONE_SOURCE),
    ({"tokenize": lambda folder, model_dir: LOADED}, ONE_SOURCE),
    (
      {"load": None, **GENERATED, "evolution": None},
      "a data set with generate must have an evolution",
    ),
    ({"dtype": np.int32}, VOCABULARY),
    ({"vocabulary_size": 9}, VOCABULARY),
    # Domains by angles or by time.
    *(
      (functools.partial(dataset.Evolution, num_domains=2, **options), "evol")
      for options in (
        {},
        {"angle_step": 15.0, "range_format": "{}"},
        {"angle_step": 15.0, "time_range": (0, 1)},
      )
    ),
  ],
)
def test_entry_that_contradicts_itself_is_refused(changes, message, refusal):
  if callable(changes):
    assert message in refusal(changes)
  else:
    assert refusal(make_entry, **changes).startswith(message)


class TestNewDataset:
  def test_new_file_is_a_data_set_of_every_scenario(self, small_digits):
    assert datasets.names() == tuple(sorted([*NAMES, small_digits]))
    for scenario in SCENARIOS:
      assert small_digits in datasets.names(scenario)
