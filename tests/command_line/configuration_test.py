"""Configurations: one declaration gives a flag, its help and its check."""

import dataclasses
import math

import pytest
from absl import flags
from absl.testing import flagsaver

from tests.fixtures import tables
from tff_shift.command_line import configuration

FLAGS = flags.FLAGS


@dataclasses.dataclass(frozen=True, kw_only=True)
class Configuration(configuration.Configuration):
  an_integer: int = configuration.setting(3, "An integer.", minimum=1)
  a_share: float | None = configuration.setting(
    None, "A share.", above=0, maximum=1
  )
  an_angle: float = configuration.setting(
    0.0, "An angle.", minimum=-9, maximum=9, unit="degrees"
  )
  a_limit: float = configuration.setting(1.0, "", minimum=0, infinite=True)
  a_word: str = configuration.setting(
    "red", "One of {choices}.", choices=("red", "green")
  )
  some_words: tuple[str, ...] = configuration.setting(
    ("a",), "Of {choices}.", choices=("a", "b")
  )
  a_concentration: float = configuration.positive_or_infinite(math.inf, "")
  some_seeds: tuple[int, ...] | None = configuration.seeds(None, "")
  a_switch: bool = configuration.setting(True, "")

  def check_together(self):
    if self.a_word == "green" and not self.a_switch:
      raise ValueError(configuration.refusal("a_word", "red"))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Other(Configuration):
  an_integer: int = configuration.changed(
    Configuration, "an_integer", 7, more_help="More."
  )


def chosen(*arguments, kind=Configuration, **options):
  with flagsaver.flagsaver():
    configuration.define(kind)
    FLAGS(["binary", *arguments])
    return configuration.chosen(kind, **options)


def test_flags_are_compared_unless_they_are_declared_otherwise():
  @dataclasses.dataclass(frozen=True, kw_only=True)
  class Kind(Configuration):
    a_path: str = configuration.setting("a", "", is_compared=False)

  chosen(kind=Kind)
  found = configuration.not_compared()
  # Values have their seeds.
  assert {"a_path", "some_seeds"} <= found
  assert not {"an_integer", "a_switch", "never_declared"} & found


def test_values_have_the_types_of_the_fields():
  assert chosen() == Configuration()
  assert chosen(kind=Other).an_integer == 7
  # What the data determine is not checked.
  assert chosen("--a_word=own", unchecked=["a_word"]).a_word == "own"
  found = chosen(
    *("--an_integer=5", "--a_share=1", "--an_angle=-9", "--a_limit=inf"),
    *("--a_word=green", "--some_words=b,a", "--a_concentration=0.5"),
    *("--some_seeds=2,0", "--a_switch"),
  )
  assert found == Configuration(
    an_integer=5,
    a_share=1.0,
    an_angle=-9.0,
    a_limit=math.inf,
    a_word="green",
    some_words=("b", "a"),
    a_concentration=0.5,
    some_seeds=(2, 0),
  )


@pytest.mark.parametrize(
  "argument, requirement",
  tables.rows("""
an_integer=0
    at least 1
an_integer=10000001
    at most 10000000
a_share=0.0
    above 0 and at most 1
a_share=nan
    above 0 and at most 1
an_angle=9.5
    at least -9 and at most 9 degrees
an_angle=inf
    a finite number at least -9 and at most 9 degrees
a_limit=-1.0
    a number at least 0, or inf
a_word=gren
    one of red, green; did you mean green?
some_words=a,a
    one or more of a, b, without duplicates
some_words=
    one or more of a, b, without duplicates
a_concentration=0
    a number above 0, or inf
a_concentration=nan
    a number above 0, or inf
some_seeds=1,1
    integers from 0 to 2147483647, at least one and no duplicates
"""),
)
def test_refusals_name_flag_value_and_requirement(
  argument, requirement, refusal
):
  told = refusal(chosen, f"--{argument}")
  assert told == f"--{argument}: it must be {requirement[0]}"


def test_values_are_checked_together(refusal):
  told = refusal(chosen, "--a_word=green", "--noa_switch")
  assert told == "--a_word=green: it must be red"


def test_help_has_the_choices_and_what_a_subclass_adds():
  with flagsaver.flagsaver():
    configuration.define(Other)
    assert FLAGS["a_word"].help == "One of red, green."
    assert FLAGS["an_integer"].help == "An integer. More."
    names = {flag.name for flag in configuration.own_flags()}
    assert {field.name for field in dataclasses.fields(Other)} <= names
