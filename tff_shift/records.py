"""Records: JSON and TOML files with declared fields, validated on reading.

A record is a subclass of `Record`. One declaration is the definition, the
reader and the writer of a file: field names, types and ranges
(`Annotated[int, msgspec.Meta(ge=1)]`), and in `__post_init__` what several
fields must agree on. A file that does not fit is refused in one line that names
the file and the field.
"""

import functools
import json
import math
import os
import re
import tomllib
from collections.abc import Callable
from collections.abc import Mapping
from typing import Annotated
from typing import Any
from typing import ClassVar
from typing import Literal
from typing import Self
from typing import TypeVar

import msgspec

from tff_shift import files

# Ranges that many fields share.
Count = Annotated[int, msgspec.Meta(ge=0, le=2**53)]
PositiveInt = Annotated[int, msgspec.Meta(ge=1, le=2**53)]
# A measured number: null for NaN, and infinity as text.
Number = float | None | Literal["inf", "-inf"]

_FOUND_LENGTH = 60


class Record(
  msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True
):
  """A record, or a part of one.

  Attributes:
    FORMAT: The number in the field `format` of the file, raised when its fields
      change their meaning. None: the file has no such field.
    UPGRADES: By format, a function from the fields of that format to those of
      the next one. A file without `format` is of format 0.
  """

  FORMAT: ClassVar[int | None] = None
  UPGRADES: ClassVar[Mapping[int, Callable[[dict[str, Any]], dict]]] = {}

  def to_fields(self) -> dict[str, Any]:
    """Returns the fields by name, made of JSON types; nested ones too."""
    return msgspec.to_builtins(self)

  def replace(self, **changes: Any) -> Self:
    """Returns a copy with other values of some fields."""
    return msgspec.structs.replace(self, **changes)


_R = TypeVar("_R", bound=Record)


def read(path: str | os.PathLike[str], kind: type[_R], remedy: str = "") -> _R:
  """Reads a record from a JSON file, or a TOML file named `*.toml`.

  Args:
    path: The file.
    kind: The record.
    remedy: What the user can do if the file is damaged, such as `export the
      model again`.

  Returns:
    The record.

  Raises:
    FileNotFoundError: If there is no such file.
    ValueError: If the file cannot be read, is damaged, was written by a newer
      version, or a field is missing, unknown, of another type or out of range;
      one line that names file and field.
  """
  content = files.read_text(path)
  try:
    return convert(_parser(path)(content), kind)
  except ValueError as error:
    raise ValueError(
      f"{path}: {error}" + (f"; {remedy}" if remedy else "")
    ) from error


def read_fields(path: str | os.PathLike[str]) -> Any:
  """Reads what a JSON or TOML file holds, before it is made a record.

  Args:
    path: The file, see `read`.

  Returns:
    What `convert` takes.

  Raises:
    FileNotFoundError: If there is no such file.
    ValueError: If the file cannot be read or is damaged; one line that names
      it.
  """
  content = files.read_text(path)
  try:
    return _parser(path)(content)
  except ValueError as error:
    raise ValueError(f"{path}: {error}") from error


def _parser(path: str | os.PathLike[str]) -> Callable[[str], Any]:
  return _parse_toml if os.fspath(path).endswith(".toml") else _parse_json


def decode(text: str, kind: type[_R]) -> _R:
  """Decodes a record from JSON text.

  Args:
    text: The text.
    kind: The record.

  Returns:
    The record.

  Raises:
    ValueError: As for `read`, without the file.
  """
  return convert(_parse_json(text), kind)


def convert(fields: Any, kind: type[_R]) -> _R:
  """Makes a record from the fields that a file holds.

  Args:
    fields: What the file holds, made of JSON types.
    kind: The record.

  Returns:
    The record.

  Raises:
    ValueError: As for `read`, without the file.
  """
  if kind.FORMAT is not None:
    fields = _upgrade(fields, kind)
  try:
    return msgspec.convert(fields, kind)
  except msgspec.ValidationError as error:
    raise ValueError(_describe(error, fields, kind)) from None
  except RecursionError:
    raise ValueError("it is nested too deeply") from None


def encode(record: Record) -> str:
  """Encodes a record as strict, indented JSON text, `format` first.

  Args:
    record: The record. NaN becomes null, infinity the text `inf` or `-inf`.
  """
  fields = to_json(record.to_fields())
  if record.FORMAT is not None:
    fields = {"format": record.FORMAT} | fields
  return json.dumps(fields, indent=2, allow_nan=False) + "\n"


def write(path: str | os.PathLike[str], record: Record) -> None:
  """Replaces a file by a record in one step.

  Args:
    path: The file.
    record: The record, see `encode`.

  Raises:
    files.WriteError: If the file cannot be written; the old one is kept.
  """
  files.write_atomically(path, encode(record))


def to_json(value: Any) -> Any:
  """Returns a structure with NaN as null and infinity as text."""
  if isinstance(value, float) and not math.isfinite(value):
    return None if math.isnan(value) else str(value)
  if isinstance(value, Mapping):
    return {str(name): to_json(each) for name, each in value.items()}
  if isinstance(value, list | tuple):
    return [to_json(each) for each in value]
  return value


def to_float(value: Number) -> float:
  """Returns a measured number, where null is NaN."""
  return math.nan if value is None else float(value)


def _parse_json(text: str) -> Any:
  if not text.strip():
    raise ValueError("it is empty")
  try:
    found = json.loads(
      text,
      object_pairs_hook=_unique,
      parse_constant=_refuse_constant,
      parse_float=_finite,
      parse_int=_bounded,
    )
    if "\\u" in text:
      # Half of a surrogate pair is no text, and could not be printed.
      json.dumps(found, ensure_ascii=False).encode("utf-8")
    return found
  except json.JSONDecodeError as error:
    raise ValueError(
      f"it is not JSON, or damaged (line {error.lineno}, column {error.colno}:"
      f" {error.msg})"
    ) from error
  except UnicodeEncodeError as error:
    raise ValueError("a text in it has half of a surrogate pair") from error
  except RecursionError:
    raise ValueError("it is nested too deeply") from None


def _parse_toml(text: str) -> Any:
  try:
    return tomllib.loads(text)
  except tomllib.TOMLDecodeError as error:
    raise ValueError(f"it is not TOML: {error}") from error
  except RecursionError:
    raise ValueError("it is nested too deeply") from None


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
  found = dict(pairs)
  if len(found) < len(pairs):
    names = [name for name, _ in pairs]
    twice = next(name for name in names if names.count(name) > 1)
    raise ValueError(f"{_shortened(twice)} stands in it twice")
  return found


def _refuse_constant(name: str) -> None:
  raise ValueError(f"{name} is no number of JSON")


def _finite(text: str) -> float:
  value = float(text)
  if not math.isfinite(value):
    raise ValueError(f"{text[:_FOUND_LENGTH]} is too large a number")
  return value


def _bounded(text: str) -> int:
  # Python itself takes time that grows with the square of the digits.
  if len(text) > _FOUND_LENGTH:
    raise ValueError(f"{text[:_FOUND_LENGTH]}... is too large a number")
  return int(text)


def _upgrade(fields: Any, kind: type[Record]) -> dict[str, Any]:
  """Returns the fields in the present format, without `format`."""
  if not isinstance(fields, dict):
    raise ValueError(f"expected an object, got {_shortened(fields)}")
  fields = dict(fields)
  found = fields.pop("format", 0)
  if type(found) is not int or found > kind.FORMAT:
    raise ValueError(
      f"format: this version of tff_shift reads up to {kind.FORMAT}, got"
      f" {_shortened(found)}"
    )
  while found != kind.FORMAT:
    if found not in kind.UPGRADES:
      raise ValueError(f"format: {found} is unknown; expected {kind.FORMAT}")
    try:
      fields = kind.UPGRADES[found](fields)
    except (KeyError, TypeError, AttributeError) as error:
      raise ValueError(f"it does not fit format {found}: {error!r}") from error
    found += 1
  return fields


def _describe(error: msgspec.ValidationError, fields: Any, kind: type) -> str:
  """Returns `field: what was expected, what was found`."""
  what, _, path = str(error).partition(" - at `$")
  field = re.fullmatch(r"Object (missing|contains).* `(.+)`", what)
  if field is not None:
    problem = "is missing" if field[1] == "missing" else "is unknown"
    what = f"the field {field[2]} {problem}"
  where, value = _locate(
    path.rstrip("`"), fields, functools.partial(_failure, kind=kind)
  )
  if what.startswith("Expected"):
    what = f"e{what[1:].replace('`', '')}"
    if "got" not in what:
      what += f", got {_shortened(value)}"
  elif what.startswith("Invalid"):
    what = f"{_shortened(value)} is not allowed"
  return (f"{where}: " if where else "") + what


def _failure(fields: Any, kind: type) -> str:
  """Returns the message of msgspec; "" if the fields are valid."""
  try:
    msgspec.convert(fields, kind)
  except msgspec.ValidationError as error:
    return str(error)
  return ""


def _locate(
  path: str, fields: Any, failure: Callable[[Any], str]
) -> tuple[str, Any]:
  """Names the place of an error, with the keys of mappings.

  msgspec writes `[...]` for a key of a mapping. The key is the first with which
  alone the mapping fails at the same path.

  Args:
    path: The path of msgspec after `$`.
    fields: All that was read.
    failure: Returns the message of msgspec for such fields.

  Returns:
    The place, and the value there.
  """
  where, value = "", fields

  def rebuild(keys, leaf, at=fields):
    if not keys:
      return leaf
    copy = at.copy()
    copy[keys[0]] = rebuild(keys[1:], leaf, at[keys[0]])
    return copy

  keys = []
  for step in re.findall(r"\[\d+\]|\[\.\.\.\]|\.[^.\[]+", path):
    if step == "[...]":
      if not isinstance(value, dict):
        return where, value
      key = next(
        (
          name
          for name in value
          if f"`${path}`" in failure(rebuild(keys, {name: value[name]}))
        ),
        None,
      )
      if key is None:
        return where, value
      where += f".{key}" if where else str(key)
    elif step.startswith("["):
      key = int(step[1:-1])
      where += step
    else:
      key = step[1:]
      where += f".{key}" if where else key
    try:
      value = value[key]
    except (KeyError, IndexError, TypeError):
      return where, value
    keys.append(key)
  return where, value


def _shortened(value: Any) -> str:
  """Returns a value in a few printable characters."""
  try:
    text = json.dumps(value, default=str)
  except (ValueError, RecursionError):
    text = repr(type(value).__name__)
  return text if len(text) <= _FOUND_LENGTH else text[:_FOUND_LENGTH] + "..."
