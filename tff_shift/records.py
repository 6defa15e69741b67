"""Records: JSON and TOML files with declared fields, validated on reading.

A record is a subclass of `Record`. One declaration defines the format of a
file, its reader and its writer: field names, types and ranges
(`Annotated[int, msgspec.Meta(ge=1)]`), and in `__post_init__` the constraints
between fields. An invalid file is refused in one line that names the file and
the field.
"""

# Decisions: BUILD_NOTES, "Files that the package reads back".

import functools
import hashlib
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
from typing import dataclass_transform
from typing import Literal
from typing import Self
from typing import TypeVar

import msgspec

from tff_shift import files

# Common types of fields.
Count = Annotated[int, msgspec.Meta(ge=0, le=2**53)]
PositiveInt = Annotated[int, msgspec.Meta(ge=1, le=2**53)]
Sha256 = Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{64}$")]
# A time in the format of `datetime.isoformat`, and one that may be empty. The
# latter is a pattern because msgspec does not support unions of text types.
_TIME = r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\S*$"
Time = Annotated[str, msgspec.Meta(pattern=_TIME)]
TimeOrNone = Annotated[str, msgspec.Meta(pattern=f"^$|{_TIME}")]
# A measured number: NaN as null, and infinity as text.
Number = float | None | Literal["inf", "-inf"]
# A number of at least 0, such as seconds and standard deviations.
Magnitude = Annotated[float, msgspec.Meta(ge=0)] | None | Literal["inf"]
# A number that is restored exactly, including NaN; see `exact`.
Exact = float | Literal["nan", "inf", "-inf"]

_FOUND_LENGTH = 60
_MESSAGE_LENGTH = 300
# More than any record needs, and below the recursion limit.
_MAX_DEPTH = 50
_DIGEST = "digest"
# A step of a path in msgspec's format: an item, a key of a mapping, a field.
_STEP = re.compile(r"\[\d+\]|\[\.\.\.\]|\.[^.\[]+")


# Subclasses are frozen without saying so, which type checkers do not infer.
@dataclass_transform(
  frozen_default=True, kw_only_default=True, field_specifiers=(msgspec.field,)
)
class Record(
  msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True
):
  """A record, or a part of one.

  Attributes:
    FORMAT: The number in the field `format` of the file, increased when fields
      change their meaning. None: the file has no such field.
    UPGRADES: For each format, a function that converts its fields to the next
      format. A file without `format` has format 0.
    HAS_DIGEST: Whether the last field of the file is `digest`, the digest of
      all other fields, to detect any change; see `digest`.
  """

  FORMAT: ClassVar[int | None] = None
  UPGRADES: ClassVar[Mapping[int, Callable[[dict[str, Any]], dict]]] = {}
  HAS_DIGEST: ClassVar[bool] = False

  def to_fields(self) -> dict[str, Any]:
    """Returns the fields by name, as JSON types, including nested records."""
    return msgspec.to_builtins(self, enc_hook=to_json)

  def replace(self, **changes: Any) -> Self:
    """Returns a copy with changed fields."""
    return msgspec.structs.replace(self, **changes)


_R = TypeVar("_R", bound=Record)


def read(path: str | os.PathLike[str], kind: type[_R], remedy: str = "") -> _R:
  """Reads a record from a JSON file, or a TOML file named `*.toml`.

  Args:
    path: The file.
    kind: The class of the record.
    remedy: What the user can do if the file is damaged, for example `export the
      model again`.

  Returns:
    The record.

  Raises:
    FileNotFoundError: If the file does not exist.
    ValueError: If the file cannot be read, is damaged or was written by a newer
      version, or if a field is missing, unknown, of another type or out of
      range; one line that names file and field.
  """
  content = files.read_text(path)
  try:
    if os.fspath(path).endswith(".toml"):
      return convert(_parse_toml(content), kind)
    return decode(content, kind)
  except ValueError as error:
    raise ValueError(
      f"{path}: {error}" + (f"; {remedy}" if remedy else "")
    ) from error


def read_toml(path: str | os.PathLike[str]) -> dict[str, Any]:
  """Reads the fields of a TOML file, for `convert`.

  Returns:
    The fields.

  Raises:
    FileNotFoundError: If the file does not exist.
    ValueError: If the file cannot be read or is damaged; one line that names
      it.
  """
  content = files.read_text(path)
  try:
    return _parse_toml(content)
  except ValueError as error:
    raise ValueError(f"{path}: {error}") from error


def decode(text: str, kind: type[_R]) -> _R:
  """Decodes a record from JSON text.

  Args:
    text: The text.
    kind: The class of the record.

  Returns:
    The record.

  Raises:
    ValueError: If the content is invalid, as in `read`; without the file name.
  """
  return convert(parse_json(text), kind)


def convert(fields: Any, kind: type[_R]) -> _R:
  """Makes a record from the fields of a file.

  Args:
    fields: The fields, as JSON types.
    kind: The class of the record.

  Returns:
    The record.

  Raises:
    ValueError: If the content is invalid, as in `read`; without the file name.
  """
  _check_depth(fields)
  if kind.HAS_DIGEST:
    fields = _without_digest(fields)
  if kind.FORMAT is not None:
    fields = _upgrade(fields, kind)
  try:
    return msgspec.convert(fields, kind)
  except msgspec.ValidationError as error:
    raise ValueError(one_line(_describe(error, fields, kind))) from None


def encode(record: Record, *, indent: int | None = 2) -> str:
  """Encodes a record as strict JSON text, `format` first.

  Args:
    record: The record. NaN becomes null, infinity the text `inf` or `-inf`.
    indent: The argument of `json.dumps`.

  Raises:
    TypeError: If a value has no JSON form.
  """
  fields = to_json(record.to_fields())
  if record.FORMAT is not None:
    fields = {"format": record.FORMAT} | fields
  if record.HAS_DIGEST:
    fields[_DIGEST] = digest(fields)
  return json.dumps(fields, indent=indent, allow_nan=False) + "\n"


def write(
  path: str | os.PathLike[str], record: Record, *, indent: int | None = 2
) -> None:
  """Replaces a file atomically by a record.

  Args:
    path: The file.
    record: The record.
    indent: The argument of `json.dumps`.

  Raises:
    files.WriteError: If the file cannot be written; the old one is kept.
  """
  files.write_atomically(path, encode(record, indent=indent))


def to_json(value: Any, where: str = "") -> Any:
  """Converts a value to JSON types: NaN to null, infinity to text.

  Args:
    value: Numbers, texts, None, arrays, and mappings, lists and tuples of
      these.
    where: The location of the value, for the message, such as
      `config.json: flags`.

  Raises:
    TypeError: If a value has another type.
  """
  # NumPy arrays and numbers.
  if hasattr(value, "tolist"):
    value = value.tolist()
  if isinstance(value, float) and not math.isfinite(value):
    return None if math.isnan(value) else str(value)
  if value is None or isinstance(value, bool | int | float | str):
    return value
  if isinstance(value, Mapping):
    return {
      str(name): to_json(each, f"{where}: {name}" if where else str(name))
      for name, each in value.items()
    }
  if isinstance(value, list | tuple):
    return [to_json(each, where) for each in value]
  raise TypeError(
    (f"{where}: " if where else "")
    + f"a {type(value).__name__} has no JSON form"
  )


def to_float(value: Number | Exact) -> float:
  """Converts a number of a record to a float; null to NaN."""
  return math.nan if value is None else float(value)


def exact(value: float) -> Exact:
  """Converts a number for a record; `to_float` restores it, also NaN."""
  if math.isfinite(value):
    return value
  return str(float(value))  # type: ignore[return-value] # nan, inf, -inf


def digest(fields: Mapping[str, Any]) -> str:
  """Returns the SHA-256 of fields of JSON types, independent of order."""
  text = json.dumps(fields, sort_keys=True)
  return hashlib.sha256(text.encode()).hexdigest()


def _without_digest(fields: Any) -> dict[str, Any]:
  if not isinstance(fields, dict):
    raise ValueError(f"expected an object, got {_shortened(fields)}")
  rest = {name: value for name, value in fields.items() if name != _DIGEST}
  if fields.get(_DIGEST) != digest(rest):
    raise ValueError(
      f"{_DIGEST}: it does not match the other fields, which have changed"
    )
  return rest


def _check_depth(fields: Any) -> None:
  level: list[Any] = [[fields]]
  for _ in range(_MAX_DEPTH + 1):
    level = [
      inner
      for each in level
      for inner in (each.values() if isinstance(each, dict) else each)
      if isinstance(inner, dict | list)
    ]
    if not level:
      return
  raise ValueError("it is nested too deeply")


def one_line(text: str) -> str:
  """Formats a message of limited length, printable in one line."""
  text = "".join(
    each if each.isprintable() else ascii(each)[1:-1] for each in text
  )
  if len(text) > _MESSAGE_LENGTH:
    text = text[:_MESSAGE_LENGTH] + "..."
  return text


def parse_json(text: str) -> Any:
  """Parses strict JSON: without duplicate keys, NaN and infinity.

  Raises:
    ValueError: If the text is invalid; one line.
  """
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
      # A single surrogate cannot be encoded or printed.
      json.dumps(found, ensure_ascii=False).encode("utf-8")
  except json.JSONDecodeError as error:
    raise ValueError(
      f"it is not JSON, or damaged (line {error.lineno}, column {error.colno}:"
      f" {error.msg})"
    ) from error
  except UnicodeEncodeError as error:
    raise ValueError("a text in it has a single surrogate") from error
  except RecursionError:
    raise ValueError("it is nested too deeply") from None
  return found


def _refuse_constant(name: str) -> None:
  raise ValueError(f"{name} is not a JSON number")


def _parse_toml(text: str) -> dict[str, Any]:
  try:
    return tomllib.loads(text)
  except tomllib.TOMLDecodeError as error:
    raise ValueError(one_line(f"it is not TOML: {error}")) from error
  except RecursionError:
    raise ValueError("it is nested too deeply") from None


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
  found = dict(pairs)
  if len(found) < len(pairs):
    names = [name for name, _ in pairs]
    twice = next(name for name in names if names.count(name) > 1)
    raise ValueError(f"{_shortened(twice)} is a duplicate key")
  return found


def _finite(text: str) -> float:
  value = float(text)
  if not math.isfinite(value):
    raise ValueError(f"{text[:_FOUND_LENGTH]} is too large")
  return value


def _bounded(text: str) -> int:
  # The time of Python's conversion is quadratic in the number of digits.
  if len(text) > _FOUND_LENGTH:
    raise ValueError(f"{text[:_FOUND_LENGTH]}... is too large")
  return int(text)


def _upgrade(fields: Any, kind: type[Record]) -> dict[str, Any]:
  """Returns the fields in the current format, without `format`."""
  if not isinstance(fields, dict):
    raise ValueError(f"expected an object, got {_shortened(fields)}")
  if "format" not in fields and 0 not in kind.UPGRADES:
    raise ValueError("the field format is missing")
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
  """Formats an error as `field: what was expected, what was found`."""
  what, _, path = str(error).partition(" - at `$")
  path = path.rstrip("`")
  field = re.fullmatch(r"Object (missing|contains).* `(.*)`", what, re.DOTALL)
  if field is not None:
    problem = "is missing" if field[1] == "missing" else "is unknown"
    what = f"the field {field[2]} {problem}"
  where, value = _locate(path, fields, functools.partial(_failure, kind=kind))
  if what.startswith("Expected"):
    what = f"e{what[1:].replace('`', '')}"
    if "got" not in what:
      what += f", got {_shortened(value)}"
  elif what.startswith("Invalid"):
    what = f"{_shortened(value)} is not allowed"
    allowed = _literals(kind, _STEP.findall(path))
    if allowed:
      what += f"; it must be {' or '.join(map(json.dumps, allowed))}"
  return (f"{where}: " if where else "") + what


def _literals(kind: type, steps: list[str]) -> list[Any]:
  """Returns the allowed literals at a path, in order."""
  kinds = [msgspec.inspect.type_info(kind)]
  for step in [*steps, ""]:
    while any(isinstance(each, msgspec.inspect.UnionType) for each in kinds):
      kinds = [
        inner for each in kinds for inner in getattr(each, "types", [each])
      ]
    if step:
      kinds = [inner for each in kinds for inner in _members(each, step)]
  return [value for each in kinds for value in getattr(each, "values", ())]


def _members(kind: msgspec.inspect.Type, step: str) -> list[Any]:
  """Returns the types of the members at a step of a path, see `_STEP`."""
  if isinstance(kind, msgspec.inspect.StructType):
    return [each.type for each in kind.fields if f".{each.encode_name}" == step]
  if step == "[...]":
    return [kind.value_type] if hasattr(kind, "value_type") else []
  return [kind.item_type] if hasattr(kind, "item_type") else []


def _failure(fields: Any, kind: type) -> str:
  """Returns the error message of msgspec, or "" for valid fields."""
  try:
    msgspec.convert(fields, kind)
  except msgspec.ValidationError as error:
    return str(error)
  return ""


def _locate(
  path: str, fields: Any, failure: Callable[[Any], str]
) -> tuple[str, Any]:
  """Locates an error, including the keys of mappings.

  msgspec writes `[...]` for a key of a mapping. The function finds the first
  key for which the mapping with this key alone fails at the same path.

  Args:
    path: The path of msgspec after `$`.
    fields: All fields of the file.
    failure: Takes fields and returns the error message of msgspec.

  Returns:
    The location, and the value there.
  """
  where, value = "", fields

  def rebuild(keys, leaf, at=fields):
    if not keys:
      return leaf
    copy = at.copy()
    copy[keys[0]] = rebuild(keys[1:], leaf, at[keys[0]])
    return copy

  keys = []
  for step in _STEP.findall(path):
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
  """Formats a value with a limited number of printable characters."""
  try:
    text = json.dumps(value, default=str)
  except (ValueError, RecursionError):
    text = repr(type(value).__name__)
  text = one_line(text)
  return text if len(text) <= _FOUND_LENGTH else text[:_FOUND_LENGTH] + "..."
