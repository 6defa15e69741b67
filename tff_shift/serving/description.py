"""`model.json`: what a folder holds that a run was exported to."""

import dataclasses
import importlib.metadata
import json
import math
import pathlib
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

from tff_shift.data import text

FILE = "model.json"
_VOCABULARY_FILE = "vocabulary.txt"
# Raised when a program that reads the format as it is would go wrong.
FORMAT = 1


@dataclasses.dataclass(frozen=True, kw_only=True)
class Description:
  """What a model is.

  Attributes:
    algorithm: The name of the algorithm.
    hparams: Its hyper-parameters.
    model: The name of the architecture.
    input_shape: The shape of one example.
    input_dtype: The name of its type.
    num_classes: The number of classes.
    class_names: Their names; None: not known.
    clients: The clients whose own models are there.
    functions: What the model can do: names of the `Predictor`'s methods.
    request_shape: The shape of a request; None where there is no such thing.
    versions: Those of the libraries, by name.
  """

  algorithm: str
  hparams: Mapping[str, Any]
  model: str
  input_shape: Sequence[int]
  input_dtype: str
  num_classes: int
  class_names: Sequence[str] | None
  clients: Sequence[int]
  functions: Sequence[str]
  request_shape: Sequence[int] | None
  versions: Mapping[str, str | None] = dataclasses.field(
    default_factory=lambda: {
      name: _version(name) for name in ("tensorflow", "tff_shift")
    }
  )


def write(folder: pathlib.Path, description: Description) -> None:
  """Writes the description into a folder; numbers without end as text."""
  told = {"format": FORMAT, **dataclasses.asdict(description)}
  told["hparams"] = {
    name: str(value)
    if isinstance(value, float) and not math.isfinite(value)
    else value
    for name, value in description.hparams.items()
  }
  text = json.dumps(told, indent=2, allow_nan=False)
  (folder / FILE).write_text(text + "\n", encoding="utf-8")


def read(folder: pathlib.Path) -> Description:
  """Reads the description in a folder.

  Args:
    folder: A folder that has the file.

  Returns:
    The description.

  Raises:
    ValueError: If the file is damaged, or of another format.
  """
  path = folder / FILE
  try:
    told = json.loads(path.read_text(encoding="utf-8"))
    found = told.pop("format")
    if found == FORMAT:
      return Description(**told)
  except (ValueError, TypeError, AttributeError, KeyError) as error:
    raise ValueError(
      f"{path} is damaged; export the model once more"
    ) from error
  raise ValueError(
    f"{path} is of format {found}, and this version of tff_shift reads format"
    f" {FORMAT}"
  )


def write_vocabulary(folder: pathlib.Path, vocabulary: Sequence[str]) -> None:
  """Writes the word of each id into a folder, a line each."""
  content = "".join(f"{word}\n" for word in vocabulary)
  (folder / _VOCABULARY_FILE).write_text(content, encoding="utf-8")


def read_vocabulary(folder: pathlib.Path) -> tuple[str, ...] | None:
  """Reads the word of each id.

  Args:
    folder: The folder of a model.

  Returns:
    The words, or None where there is no such file.

  Raises:
    ValueError: If the file is damaged.
  """
  path = folder / _VOCABULARY_FILE
  if not path.exists():
    return None
  try:
    *vocabulary, rest = path.read_text(encoding="utf-8").split("\n")
  except (OSError, ValueError) as error:
    raise ValueError(
      f"{path} is damaged; export the model once more"
    ) from error
  if rest or tuple(vocabulary[:2]) != text.RESERVED:
    raise ValueError(f"{path} is damaged; export the model once more")
  return tuple(vocabulary)


def _version(package: str) -> str | None:
  try:
    return importlib.metadata.version(package)
  except importlib.metadata.PackageNotFoundError:
    return None
