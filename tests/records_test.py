"""Tests of `records`."""

import json
import math
from typing import Annotated
from typing import ClassVar

import hypothesis
import msgspec
import pytest
from hypothesis import strategies as st

from tff_shift import records


class Part(records.Record):
  mean: records.Number
  seeds: tuple[records.Number, ...]


class Whole(records.Record):
  FORMAT = 2
  UPGRADES: ClassVar = {
    1: lambda fields: fields | {"size": fields["length"] // 2}
  }

  size: records.PositiveInt
  length: int = 0
  parts: dict[str, Part] = msgspec.field(default_factory=dict)
  names: dict[str, dict[str, int]] = msgspec.field(default_factory=dict)
  listed: tuple[Part, ...] = ()
  share: Annotated[float, msgspec.Meta(gt=0, le=1)] = 1.0

  def __post_init__(self):
    if self.length and self.length != 2 * self.size:
      raise ValueError(f"length must be twice the size {self.size}")


def _text(**fields):
  return json.dumps({"format": 2, "size": 1} | fields)


_PART = {"mean": 1.5, "seeds": [1, None, "inf"]}


@pytest.mark.parametrize(
  ("text", "message"),
  [
    ("", "it is empty"),
    (" \n", "it is empty"),
    ("{", "it is not JSON, or damaged (line 1, column 2:"),
    ("[" * 100_000, "it is nested too deeply"),
    ("[]", "expected an object, got []"),
    ('{"size": 1, "size": 2}', '"size" is a duplicate key'),
    ('{"format": 2, "size": NaN}', "NaN is not a JSON number"),
    ('{"format": 2, "size": 1e999}', "1e999 is too large"),
    ('{"format": 2, "size": ' + "9" * 5000 + "}", "9... is too large"),
    ('{"format": 2, "names": "\\ud800"}', "single surrogate"),
    ('{"format": 2}', "the field size is missing"),
    (_text(other=1), "the field other is unknown"),
    (_text(size=0), "size: expected int >= 1, got 0"),
    (_text(size=10**30), "size: expected int <= 9007199254740992, got 1000"),
    (_text(size=True), "size: expected int, got bool"),
    (_text(size="1"), "size: expected int, got str"),
    (_text(share=0), "share: expected float > 0.0, got 0"),
    (_text(length=3), "length must be twice the size 1"),
    (
      _text(format="2"),
      'format: this version of tff_shift reads up to 2, got "',
    ),
    (_text(format=3), "format: this version of tff_shift reads up to 2, got 3"),
    (_text(format=0), "format: 0 is unknown; expected 2"),
    (_text(format=1, length="a"), "it does not fit format 1: TypeError"),
    (
      _text(parts={"a": _PART, "b": _PART | {"mean": "x"}}),
      'parts.b.mean: "x" is not allowed',
    ),
    (
      _text(parts={"a": _PART, "b": {"mean": 1}}),
      "parts.b: the field seeds is missing",
    ),
    (
      _text(names={"a": {"x": 1}, "b": {"y": 1, "z": None}}),
      "names.b.z: expected int, got null",
    ),
    (
      _text(listed=[_PART, _PART | {"seeds": [0, {}]}]),
      "listed[1].seeds[1]: expected float | str | null, got object",
    ),
  ],
)
def test_what_does_not_fit_is_refused_by_field(text, message, refusal):
  told = refusal(records.decode, text, Whole)
  assert told.startswith(message) or message in told
  assert len(told) < 200


def test_older_format_is_read():
  assert records.decode('{"format": 1, "length": 6}', Whole) == Whole(
    size=3, length=6
  )


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
  assert [records.to_float(each) for each in found.seeds] == [
    math.inf,
    -math.inf,
    0.1,
  ]


def test_toml_is_read_by_its_name(tmp_path):
  path = tmp_path / "record.toml"
  path.write_text("format = 2\nsize = 4\n[names.a]\nb = 1\n")
  assert records.read(path, Whole) == Whole(size=4, names={"a": {"b": 1}})
  path.write_text("size = \n")
  with pytest.raises(ValueError, match=r"record\.toml: it is not TOML"):
    records.read(path, Whole)


def test_message_names_the_file_and_the_remedy(tmp_path, refusal):
  path = tmp_path / "record.json"
  path.write_text("{}")
  assert (
    refusal(records.read, path, Part, "run it again")
    == f"{path}: the field mean is missing; run it again"
  )


_JSON = st.recursive(
  st.none()
  | st.booleans()
  | st.integers()
  | st.floats(allow_nan=False)
  | st.text(max_size=3),
  lambda inner: (
    st.lists(inner, max_size=3)
    | st.dictionaries(st.text(max_size=3), inner, max_size=3)
  ),
  max_leaves=5,
)


@pytest.mark.slow
@hypothesis.given(name=st.sampled_from(Whole.__struct_fields__), value=_JSON)
def test_any_value_is_read_or_refused_in_one_line(name, value):
  try:
    records.decode(_text(**{name: value}), Whole)
  except ValueError as error:
    assert type(error) is ValueError
    assert "\n" not in str(error)


@hypothesis.given(cut=st.integers(0, 200))
def test_a_cut_file_is_refused(cut):
  text = _text(parts={"a": _PART}, listed=[_PART])
  hypothesis.assume(cut < len(text))
  with pytest.raises(ValueError):
    records.decode(text[:cut], Whole)
