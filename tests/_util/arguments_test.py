"""Tests of the checks of arguments: what is allowed, and what is said."""

import fractions
import math

import numpy as np
import pytest

from tests.fixtures import tables
from tff_shift import algorithms
from tff_shift import models
from tff_shift._util import arguments


@pytest.mark.parametrize(
  "value, expected",
  [
    (np.int64(4), 4),
    # The float that it is, not the decimal that it was made of.
    (np.float32(0.1), 0.10000000149011612),
    (np.longdouble(0.5), 0.5),
    (np.bool_(True), True),
    (np.str_("sgd"), "sgd"),
  ],
)
def test_scalars_of_numpy_become_pythons(value, expected):
  found = arguments.as_python(value)
  assert found == expected and type(found) is type(expected)


class TestInteger:
  @pytest.mark.parametrize("value", [1, 7, np.int8(3), np.uint64(7)])
  def test_of_python_or_numpy(self, value):
    found = arguments.integer("n", value, 1, 7)
    assert type(found) is int and found == value

  @pytest.mark.parametrize(
    "value", [0, 8, True, np.bool_(True), 2.0, np.float64(2), "2", None, [2]]
  )
  def test_others_are_refused(self, value, refusal):
    assert refusal(arguments.integer, "n", value, 1, 7) == (
      f"n={value!r} is not allowed: it must be an integer at least 1 and at"
      " most 7"
    )

  def test_one_without_a_largest_and_seeds(self, refusal):
    assert arguments.integer("n", 10**30, 0) == 10**30
    assert refusal(arguments.integer, "n", -1, 0) == (
      "n=-1 is not allowed: it must be an integer at least 0"
    )
    assert arguments.seed("seed", np.uint32(2**32 - 1)) == 2**32 - 1
    assert refusal(arguments.seed, "seed", 2**32) == (
      "seed=4294967296 is not allowed: it must be a non-negative integer below"
      " 2**32"
    )


class TestNumber:
  @pytest.mark.parametrize(
    "value", [0.25, 1, np.float32(0.25), np.int32(1), fractions.Fraction(1, 4)]
  )
  def test_share_of_python_or_numpy(self, value):
    found = arguments.participation(value)
    assert type(found) is float and found == value

  @pytest.mark.parametrize(
    "value", [0, -0.5, 1.5, math.nan, math.inf, True, "1", None, 1j, 10**400]
  )
  def test_others_are_refused(self, value, refusal):
    assert refusal(arguments.participation, value) == (
      f"participation={value!r} is not allowed: it must be a number above 0"
      " and at most 1"
    )
    assert refusal(arguments.number, "n", math.inf) == (
      "n=inf is not allowed: it must be a finite number"
    )


def test_sequence_gives_its_length(refusal):
  assert arguments.sequence("rows", np.zeros([3, 2])) == 3
  assert arguments.sequence("rows", [], 0) == 0
  for values, length, message in tables.cases("""
[], None
    at least one, got none
[1], 2
    must have 2 entries, one for each client, got 1
"ab", 2
    got str
{1: 2}, 1
    got dict
7, None
    got int
"""):
    told = refusal(arguments.sequence, "rows", values, length)
    assert told.startswith("rows ") and message in told


def test_choices_functions_and_kinds(refusal):
  assert arguments.choice("c", "a", ("a", "b")) == "a"
  assert refusal(arguments.choice, "c", 3, ("a", "b")) == (
    "c must be one of a, b, got 3"
  )
  arguments.functions(on_end=print)
  with pytest.raises(ValueError, match=r"^on_end=3 .* a function"):
    arguments.functions(on_end=3)
  arguments.has("text", "a", ["upper"], "a text")
  for attributes in (["upper"], ["real", "upper"]):
    assert refusal(arguments.has, "text", 3, attributes, "a text") == (
      "text must be a text, got int 3"
    )


@pytest.mark.parametrize(
  "value, suggested",
  [
    ("fedavg", "fed_avg"),
    ("FedAvg", "fed_avg"),
    ("fed-avg", "fed_avg"),
    ("fed_avgg", "fed_avg"),
    ("Fed Evolve", "fed_evolve"),
    ("sgd", None),
    ("", None),
    (3, None),
  ],
)
def test_near_names_are_suggested(value, suggested):
  found = arguments.did_you_mean(value, ["fed_avg", "fed_evolve", "local"])
  assert found == (f"; did you mean {suggested}?" if suggested else "")


def test_suggestions_stand_behind_what_is_refused():
  for get, name, right in (
    (lambda name: arguments.choice("n", name, ["one", "two"]), "onee", "one"),
    (algorithms.get, "FedAvg", "fed_avg"),
    (models.options, "MLP", "mlp"),
  ):
    with pytest.raises(ValueError, match=rf"; did you mean {right}\?$"):
      get(name)
