"""Index of algorithms and models: metadata without importing TensorFlow.

The files of algorithms and models import TensorFlow, which takes seconds. The
binaries use `index.json` instead to define and check their flags. `make index`
writes it (`write_index`).

The index has the digest of each source file of an entry. If a file is new or
its digest differs, the functions below return None, and the caller imports the
file.
"""

import functools
import hashlib
import pathlib

import msgspec

from tff_shift._util import records

# The package, to which the names of source files are relative.
FOLDER = pathlib.Path(__file__).parents[1]
FILE = pathlib.Path(__file__).with_name("index.json")


class Field(records.Record, omit_defaults=True):
  """A hyper-parameter, see `hyperparameters.hparam`."""

  name: str
  default: bool | int | float | str
  help: str
  choices: tuple[str, ...] | None = None
  minimum: int | float | None = None
  maximum: int | float | None = None
  exclusive_minimum: bool = False
  or_zero: bool = False
  published: bool = False


class Algorithm(records.Record):
  """Metadata of an algorithm.

  Attributes:
    sources: The source files of the entry, relative to the package: the file of
      the algorithm, and files that define its hyper-parameters.
    summary: The first line of its docstring.
    scenarios: Its scenarios, see `algorithms`.
    min_source_domains: The number of source domains that it needs.
    hparams: Its hyper-parameters.
  """

  sources: tuple[str, ...]
  summary: str
  scenarios: tuple[str, ...]
  min_source_domains: records.PositiveInt
  hparams: tuple[Field, ...]


class Index(records.Record):
  """The content of `index.json`.

  Attributes:
    algorithms: The algorithms by name.
    models: The modules of `models.networks` that have a function `build`.
    digests: The SHA-256 of each source file, and of each file of
      `models.networks`.
  """

  algorithms: dict[str, Algorithm]
  models: tuple[str, ...]
  digests: dict[str, records.Sha256]


@functools.cache
def _index() -> Index:
  return records.read(FILE, Index, "run `make index`")


def digest(source: str) -> str:
  """Returns the SHA-256 of a file of the package."""
  return hashlib.sha256((FOLDER / source).read_bytes()).hexdigest()


@functools.cache
def _is_unchanged(source: str) -> bool:
  known = _index().digests.get(source)
  return (
    known is not None
    and (FOLDER / source).is_file()
    and digest(source) == known
  )


def algorithm(name: str) -> Algorithm | None:
  """Returns the entry of an algorithm, or None if it is missing or stale."""
  found = _index().algorithms.get(name)
  if found is None or not all(map(_is_unchanged, found.sources)):
    return None
  return found


def is_model(name: str) -> bool | None:
  """Returns whether a network is a model; None if its file has changed."""
  if not _is_unchanged(f"models/networks/{name}.py"):
    return None
  return name in _index().models


def to_json(found: Index) -> str:
  """Returns the text of `index.json`."""
  content = msgspec.json.format(msgspec.json.encode(found), indent=1)
  return f"{content.decode()}\n"
