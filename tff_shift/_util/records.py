"""Records: JSON and TOML files with declared fields, validated on reading.

A record is a subclass of `Record`. One declaration defines the format of a
file, its reader and its writer: field names, types and ranges
(`Annotated[int, msgspec.Meta(ge=1)]`), and in `__post_init__` the constraints
between fields. An invalid file is refused in one line, its name and the words
of msgspec.

Choices:
  * A wrong file, or one of another format number, ends a command with exit code
    2.
  * There is no defence against attackers: only the program writes these files.
    A checkpoint has one digest, of its record and its states, because a changed
    bit must not become a number.
  * Unknown fields are refused in the package's own files: they come from a
    newer version or from a misspelt name. A language model's `config.json` and
    index are written by others and have many fields that are not used here.
    Only the fields that are used are checked, but `rope_parameters`, which
    would change the network, is refused.
  * NaN and infinity, which JSON does not have, are null and strings; as numbers
    they are refused.
"""

import contextlib
import hashlib
import json
import math
import os
from collections.abc import Iterator
from collections.abc import Mapping
from typing import Annotated
from typing import Any
from typing import ClassVar
from typing import dataclass_transform
from typing import Literal
from typing import Self
from typing import TypeVar

import msgspec

from tff_shift._util import files
from tff_shift._util import shown_names

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
      change. Files with another number are refused. None: the file has no such
      field.
  """

  FORMAT: ClassVar[int | None] = None

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
    ValueError: If the file cannot be read, is damaged or has another format
      number, or if a field is missing, unknown, of another type or out of
      range; one line that names the file.
  """
  is_toml = os.fspath(path).endswith(".toml")
  parse: Any = msgspec.toml.decode if is_toml else msgspec.json.decode
  content = files.read_bytes(path)
  with _refusing(f"{path}: ", remedy):
    return convert(parse(content), kind)


def read_toml(path: str | os.PathLike[str]) -> dict[str, Any]:
  """Reads the fields of a TOML file, for `convert`.

  Returns:
    The fields.

  Raises:
    FileNotFoundError: If the file does not exist.
    ValueError: If the file cannot be read or is damaged; one line that names
      it.
  """
  content = files.read_bytes(path)
  with _refusing(f"{path}: "):
    return msgspec.toml.decode(content)


def decode(text: str | bytes, kind: type[_R]) -> _R:
  """Decodes a record from JSON text.

  Raises:
    ValueError: If the content is invalid, as in `read`; without the file name.
  """
  with _refusing():
    return convert(msgspec.json.decode(text), kind)


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
  with _refusing():
    if kind.FORMAT is not None and isinstance(fields, dict):
      fields = dict(fields)
      number = fields.pop("format", None)
      if number != kind.FORMAT:
        raise ValueError(
          f"it has format {number}, and this version of tff_shift reads format"
          f" {kind.FORMAT}"
        )
    return msgspec.convert(fields, kind)


@contextlib.contextmanager
def _refusing(prefix: str = "", remedy: str = "") -> Iterator[None]:
  """Converts errors of reading to a ValueError of one line."""
  try:
    yield
  except (ValueError, RecursionError) as error:
    line = shown_names.line(error) + (f"; {remedy}" if remedy else "")
    raise ValueError(prefix + line) from error


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
