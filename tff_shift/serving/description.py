"""`model.json`: the description of an exported run."""

import pathlib
from collections.abc import Sequence
from typing import Annotated
from typing import Any
from typing import Literal

import msgspec

from tff_shift._util import files
from tff_shift._util import installed
from tff_shift._util import records
from tff_shift.data import examples
from tff_shift.data import table

FILE = "model.json"
WEIGHTS_FILE = "weights.npz"
DEPLOYMENT_FILE = "deployment.npz"
# Prefix of the names of clients' tensors in files of weights.
CLIENTS = "clients"
_VOCABULARY_FILE = "vocabulary.txt"
_REMEDY = "export the model once more"

_Name = Annotated[str, msgspec.Meta(min_length=1)]
_Size = Annotated[int, msgspec.Meta(ge=1, le=2**31 - 1)]
_Client = Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)]
Function = Literal[
  "predict", "predict_as", "predict_for", "guide", "answer", "vote"
]


class Network(records.Record):
  """What builds the model again.

  Attributes:
    name: Its name in `models.build`.
    options: See `split_model.Origin`.
    input_mean: The mean of the input scaling.
    input_deviation: Its standard deviation.
  """

  name: _Name
  options: dict[str, Any]
  input_mean: tuple[float, ...]
  input_deviation: tuple[float, ...]


class Description(records.Record):
  """The description of a model: `model.json`.

  Attributes:
    algorithm: The name of the algorithm.
    hparams: Its hyper-parameters.
    model: The name of the architecture.
    input_shape: The shape of one example.
    input_dtype: The name of its type.
    num_classes: The number of classes.
    clients: The clients whose own models are included.
    functions: The methods of `Predictor` that the model supports.
    request_shape: The shape of a request; None: no requests.
    schema: The names of classes, features and all clients. Without classes,
      their names are unknown.
    function: The digest of the model, see `fingerprint.function_digest`; None:
      unknown.
    network: What builds the model again; None: unknown.
    versions: Versions of the libraries, by name.
  """

  FORMAT = 3

  algorithm: _Name
  hparams: dict[str, Any]
  model: _Name
  input_shape: tuple[_Size, ...]
  input_dtype: Literal["uint8", "int32", "float32"]
  num_classes: _Size
  clients: tuple[_Client, ...]
  functions: tuple[Function, ...]
  request_shape: tuple[_Size, ...] | None
  schema: table.Schema = table.Schema()
  function: records.Sha256 | None = None
  network: Network | None = None
  versions: dict[str, str | None] = msgspec.field(
    default_factory=lambda: {
      name: installed.version(name) for name in ("tensorflow", "tff_shift")
    }
  )

  def __post_init__(self):
    schema = self.schema
    if schema.classes and len(schema.classes) != self.num_classes:
      raise ValueError(
        f"schema.classes has {len(schema.classes)} names, and num_classes is"
        f" {self.num_classes}"
      )
    names = schema.clients
    if names is not None and max(self.clients, default=0) >= len(names):
      raise ValueError(
        f"clients has {max(self.clients)}, and schema.clients has"
        f" {len(names)} names"
      )
    if schema.features is not None:
      examples.check_feature_names(
        schema.features, (None, *self.input_shape), "schema.features"
      )
    for field in ("classes", "clients"):
      values = getattr(schema, field) or ()
      if len(set(values)) < len(values):
        raise ValueError(f"schema.{field} has one of them twice")

  @property
  def client_names(self) -> tuple[str, ...] | None:
    """The name of each client of `clients`; None: their numbers."""
    names = self.schema.clients
    return names and tuple(names[client] for client in self.clients)


def attribute(function: str) -> str:
  """Returns the name of a function in a SavedModel."""
  # Keras models already have a method `predict`.
  return "server_predict" if function == "predict" else function


def write(folder: pathlib.Path, description: Description) -> None:
  """Writes the description into a folder."""
  records.write(folder / FILE, description)


def read(folder: pathlib.Path) -> Description:
  """Reads the description in a folder.

  Args:
    folder: A folder that has the file.

  Returns:
    The description.

  Raises:
    ValueError: If the file is damaged, or of another format.
  """
  return records.read(folder / FILE, Description, _REMEDY)


def write_vocabulary(folder: pathlib.Path, vocabulary: Sequence[str]) -> None:
  """Writes the word of each id into a folder, one per line."""
  content = "".join(f"{word}\n" for word in vocabulary)
  (folder / _VOCABULARY_FILE).write_text(content, encoding="utf-8")


def read_vocabulary(folder: pathlib.Path) -> tuple[str, ...] | None:
  """Reads the word of each id.

  Args:
    folder: The folder of a model.

  Returns:
    The words, or None if there is no such file.

  Raises:
    ValueError: If the file cannot be read; one line.
  """
  path = folder / _VOCABULARY_FILE
  try:
    return tuple(files.read_text(path).split("\n")[:-1])
  except FileNotFoundError:
    return None
  except ValueError as error:
    raise ValueError(f"{error}; {_REMEDY}") from error
