"""Tests of `records`."""

import json
import math
from typing import Annotated

import msgspec
import pytest

from tests.fixtures import tables
from tff_shift._util import records


class Part(records.Record):
  mean: records.Number
  seeds: tuple[records.Number, ...]


class Whole(records.Record):
  FORMAT = 2

  size: records.PositiveInt
  length: int = 0
  parts: dict[str, Part] = msgspec.field(default_factory=dict)
  names: dict[str, dict[str, int]] = msgspec.field(default_factory=dict)
  listed: tuple[Part, ...] = ()
  share: Annotated[float, msgspec.Meta(gt=0, le=1)] = 1.0

  def __post_init__(self):
    if self.length and self.length != 2 * self.size:
      raise ValueError(f"length must be twice the size {self.size}")


_PART = '{"mean": 1.5, "seeds": [1, null, "inf"]}'


@pytest.mark.parametrize(
  "text, message",
  [
    (f'{{"format": 2, "size": {"9" * 5000}}}', "Integer value out of range"),
    ("[" * 100_000, "maximum recursion depth exceeded while deserializing an"),
    *tables.cases(r"""
""
    Input data was truncated
'{"format": 2, "size": 1'
    Input data was truncated
"[]"
    Expected `object`, got `array`
'{"format": 2, "size": NaN}'
    JSON is malformed: invalid character
'{"format": 2, "size": 1e999}'
    Number out of range - at `$
'{"format": 2}'
    Object missing required field `size`
'{"format": 2, "size": 1, "a\\nb": 1}'
    Object contains unknown field `a b`
'{"format": 2, "size": 0}'
    Expected `int` >= 1 - at `$.size`
'{"format": 2, "size": 1, "share": 0}'
    Expected `float` > 0.0 - at `$.share`
'{"format": 2, "size": 1, "length": 3}'
    length must be twice the size 1
'{"format": 3, "size": 1}'
    it has format 3, and this version of tff_shift reads format 2
'{"size": 1}'
    it has format None, and this version of tff_shift reads format 2
'{"format": 2, "size": 1, "parts": {"b": {"mean": "x", "seeds": []}}}'
    Invalid enum value 'x' - at `$.parts[...].mean`
'{"format": 2, "size": 1, "listed": [PART, {"mean": 1, "seeds": [0, {}]}]}'
    Expected `float | str | null`, got `object` - at `$.listed[1].seeds[1]`
"""),
  ],
)
def test_what_does_not_fit_is_refused(text, message, refusal):
  text = text.replace("PART", _PART)
  assert refusal(records.decode, text, Whole).startswith(message)


def test_numbers_that_are_not_finite_come_back(tmp_path):
  part = Part(mean=math.nan, seeds=(math.inf, -math.inf, 0.1))
  path = tmp_path / "record.json"
  records.write(path, Whole(size=1, parts={"a": part}))
  assert json.loads(path.read_text())["parts"]["a"] == {
    "mean": None,
    "seeds": ["inf", "-inf", 0.1],
  }
  found = records.read(path, Whole).parts["a"]
  assert math.isnan(records.to_float(found.mean))
  assert tuple(map(records.to_float, found.seeds)) == part.seeds


def test_toml_is_read_by_its_name(tmp_path):
  path = tmp_path / "record.toml"
  path.write_text("format = 2\nsize = 4\n[names.a]\nb = 1\n")
  assert records.read(path, Whole) == Whole(size=4, names={"a": {"b": 1}})
  path.write_text("size = \n")
  with pytest.raises(ValueError, match=r"record\.toml: Invalid value"):
    records.read(path, Whole)


def test_message_names_the_file_and_the_remedy(tmp_path, refusal):
  path = tmp_path / "record.json"
  path.write_text("{}")
  assert (
    refusal(records.read, path, Part, "run it again")
    == f"{path}: Object missing required field `mean`; run it again"
  )
