"""A `datasets.Dataset` of Hugging Face, or a folder of `save_to_disk`.

The package `datasets` is the extra `huggingface`. Nothing is downloaded: a data
set is an object, or a folder that `Dataset.save_to_disk` has written.
"""

import hashlib
import os
import pathlib
from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any
from typing import TYPE_CHECKING

import msgspec

from tff_shift._util import files
from tff_shift._util import installed
from tff_shift.data import array_files
from tff_shift.data import table
from tff_shift.data.sources import frames
from tff_shift.data.sources import image_files
from tff_shift.data.sources import source

if TYPE_CHECKING:
  import datasets
  import pandas

FORM = "path/to/folder of Dataset.save_to_disk with --label"
OPTIONS = source.COLUMNS

# Files in a folder of `save_to_disk`: of a data set, and of several splits.
_STATE = "state.json"
_INFO = "dataset_info.json"
_SPLITS = "dataset_dict.json"


def takes(name: str) -> bool:
  """Returns whether `save_to_disk` has written a folder of this name."""
  folder = pathlib.Path(name)
  return "/" in name and (
    (folder / _SPLITS).exists()
    or ((folder / _STATE).exists() and (folder / _INFO).exists())
  )


def load(
  name: str, options: Mapping[str, str], folder: pathlib.Path
) -> source.Content:
  """Reads a folder of `save_to_disk`.

  Args:
    name: The path of the folder.
    options: The columns, see `source.COLUMNS`.
    folder: Not used.

  Raises:
    OSError: If a file cannot be read.
    ValueError: If the content is not valid; one line that names the folder.
  """
  del folder
  path = pathlib.Path(name)
  images = {}

  def on_file(name, content):
    images[pathlib.Path(name)] = hashlib.sha256(content).digest()

  saved = _loaded(path)
  try:
    columns = source.columns(options)
    content = read(saved, on_file=on_file, **columns)
  except ValueError as error:
    raise ValueError(f"{path}: {error}") from error
  digest = hashlib.sha256()
  for saved_file in _saved_files(path):
    with files.reading(saved_file) as file:
      digest.update(hashlib.file_digest(file, "sha256").digest())
  for image in images.values():
    digest.update(image)
  return source.Content(content, digest.hexdigest(), tuple(images))


def read(
  dataset: "datasets.Dataset",
  label: str,
  client: str | None = None,
  time: str | None = None,
  features: Sequence[str] | None = None,
  *,
  group: str | None = None,
  drop: Sequence[str] = (),
  image: str | None = None,
  image_size: int | None = None,
  domain_order: Sequence[str] | None = None,
  on_file: Callable[[str, bytes], None] | None = None,
  **options: Any,
) -> table.Table:
  """Reads a data set, with the arguments of `frames.read`.

  Args:
    dataset: The examples, one split.
    label: The column of the class. A `ClassLabel` keeps all of its classes;
      other values become classes in sorted order.
    client: The column of the client. None: no column.
    time: The column of the time: numbers, dates, a `ClassLabel`, or any values
      with `domain_order`. None: no column.
    features: Without `image`, the columns of x. None: all others.
    group: The column of the group, see `frames.read`. None: no column.
    drop: Columns that are left out.
    image: The column of the images, of type `datasets.Image`. None: no images.
    image_size: Height and width of the images after resizing, see
      `image_files.read`. None: they have one size.
    domain_order: The values of `time` as texts, in order. None: they have an
      order.
    on_file: Called with the path and the content of each image that is a file
      and not in the data set.
    **options: Further arguments of `frames.read`.

  Raises:
    ValueError: If a column does not exist or has values that are not allowed;
      one line that names it.
  """
  library = installed.require_huggingface()
  if not isinstance(dataset, library.Dataset):
    hint = ""
    if isinstance(dataset, library.DatasetDict):
      hint = f"; choose a split: {', '.join(dataset)}"
    raise ValueError(
      f"a datasets.Dataset is wanted, got {type(dataset).__name__}{hint}"
    )
  roles = {"label": label, "client": client, "time": time, "group": group}
  roles["image"] = image
  used = frames.check_roles(roles, dataset.column_names)
  dataset = dataset.with_format(None)
  if image is not None:
    kind = dataset.features[image]
    if not isinstance(kind, library.Image):
      raise ValueError(
        f"image={image!r} has the type {type(kind).__name__}, not Image; use"
        f" dataset.cast_column({image!r}, datasets.Image())"
      )
    dataset = dataset.cast_column(image, library.Image(decode=False))
    dataset = dataset.select_columns(used)
  elif features is not None:
    present = [column for column in features if column in dataset.column_names]
    dataset = dataset.select_columns([*used, *present])
  frame = dataset.to_pandas()
  for column in used:
    kind = dataset.features[column]
    if isinstance(kind, library.ClassLabel):
      frame[column] = _named(frame[column], kind.names)
  return frames.read(
    frame,
    label,
    client,
    time,
    features,
    group=group,
    drop=drop,
    image=image,
    read_images=lambda column: image_files.read(
      _contents(column, on_file), len(column), image_size
    ),
    domain_order=domain_order,
    keep_empty_classes=True,
    **options,
  )


def _named(
  codes: "pandas.Series", names: Sequence[str]
) -> "pandas.Categorical":
  """Returns the values of a `ClassLabel`; -1 is missing."""
  import pandas

  return pandas.Categorical.from_codes(
    codes.fillna(-1).astype(int), names, ordered=True
  )


def _contents(
  column: "pandas.Series", on_file: Callable[[str, bytes], None] | None
) -> Iterator[tuple[str, bytes]]:
  """Yields the name and the content of each image of a column."""
  for row, value in enumerate(column):
    if value is None:
      raise ValueError(f"image {column.name!r} of row {row} is missing")
    name = f"image {column.name!r} of row {row}"
    content = value["bytes"]
    if content is None:
      try:
        content = files.read_bytes(value["path"])
      except FileNotFoundError as error:
        raise ValueError(
          f"{name}: {value['path']} cannot be read ({error.strerror})"
        ) from error
      except ValueError as error:
        raise ValueError(f"{name}: {error}") from error
      if on_file is not None:
        on_file(value["path"], content)
    yield name, content


def _loaded(folder: pathlib.Path) -> "datasets.Dataset":
  """Loads a folder of `Dataset.save_to_disk`.

  Raises:
    ValueError: If it cannot be loaded, or has splits; one line.
  """
  library = installed.require_huggingface()
  if not (folder / _SPLITS).exists():
    # A named pipe among them would block the library.
    for path in _saved_files(folder):
      files.check_regular(path)
  try:
    saved = library.load_from_disk(os.fspath(folder))
  # The library's errors, and pyarrow's, have no common type.
  except Exception as error:
    raise ValueError(
      f"{folder}: it cannot be read ({array_files.first_line(error)})"
    ) from error
  if isinstance(saved, library.DatasetDict):
    raise ValueError(
      f"{folder} has splits; name the folder of one: {', '.join(saved)}"
    )
  return saved


def _saved_files(folder: pathlib.Path) -> list[pathlib.Path]:
  """Returns the files that hold the data of a folder, see `_loaded`.

  `state.json` itself has a fingerprint that differs for equal data.

  Raises:
    FileNotFoundError: If there is no `state.json`.
    ValueError: If `state.json` is damaged; one line.
  """
  try:
    state = msgspec.json.decode(files.read_bytes(folder / _STATE))
    names = [item["filename"] for item in state["_data_files"]]
  except (msgspec.DecodeError, KeyError, TypeError, RecursionError) as error:
    raise ValueError(f"{folder / _STATE} lists no files of data") from error
  return [folder / _INFO, *(folder / name for name in names)]
