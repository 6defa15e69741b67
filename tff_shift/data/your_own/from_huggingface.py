"""A `datasets.Dataset` of Hugging Face as data for the drivers.

The package `datasets` is the extra `huggingface`. Nothing is downloaded: a data
set is an object, or a folder that `Dataset.save_to_disk` has written.
"""

import os
import pathlib
from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Sequence
from typing import Any
from typing import TYPE_CHECKING

import msgspec

from tff_shift._util import files
from tff_shift._util import installed
from tff_shift.data import array_files
from tff_shift.data.your_own import frames
from tff_shift.data.your_own import from_dataframe
from tff_shift.data.your_own import image_files

if TYPE_CHECKING:
  import datasets
  import pandas

# Files in a folder of `save_to_disk`: of a data set, and of several splits.
_STATE = "state.json"
_INFO = "dataset_info.json"
_SPLITS = "dataset_dict.json"


def read(
  scenario: str,
  dataset: "datasets.Dataset",
  *,
  label: str,
  client: str,
  time: str | None = None,
  image: str | None = None,
  features: Sequence[str] | None = None,
  image_size: int | None = None,
  domain_order: Sequence[str] | None = None,
  **options: Any,
) -> from_dataframe.Named:
  """Reads a data set as the client data of a scenario.

  Args:
    scenario: The scenario, a function of `from_arrays`.
    dataset: The examples, one split.
    label: The column of the class. A `ClassLabel` keeps all of its classes;
      other values become classes in sorted order.
    client: The column of the client; clients are sorted.
    time: The column of the domain, time step or period: numbers, dates, a
      `ClassLabel`, or any values with `domain_order`. See
      `from_dataframe.read`.
    image: The column of the images, of type `datasets.Image`. None: no images.
    features: Without `image`, the columns of x: numbers, or vectors of one
      length. None: all others.
    image_size: Height and width of the images after resizing, see
      `image_files.read`. None: they have one size.
    domain_order: The values of `time` as texts, in order. None: they have an
      order.
    **options: Further arguments of the function in `from_arrays`.

  Returns:
    The data and the names.

  Raises:
    ValueError: If a column does not exist or has values that are not allowed,
      or the data are not valid; one line that names it.
  """
  from_dataframe.check(scenario, time, options)
  made = table(
    dataset,
    label=label,
    client=client,
    time=time,
    image=image,
    features=features,
    image_size=image_size,
    domain_order=domain_order,
  )
  return from_dataframe.named(scenario, made, options)


def table(
  dataset: "datasets.Dataset",
  *,
  label: str,
  client: str | None = None,
  time: str | None = None,
  image: str | None = None,
  features: Sequence[str] | None = None,
  image_size: int | None = None,
  domain_order: Sequence[str] | None = None,
  on_file: Callable[[str, bytes], None] | None = None,
) -> frames.Table:
  """Reads a data set as a table.

  Args:
    dataset: As in `read`, as the other arguments.
    label: See `read`.
    client: See `read`.
    time: See `read`.
    image: See `read`.
    features: See `read`.
    image_size: See `read`.
    domain_order: See `read`.
    on_file: Called with the path and the content of each image that is a file
      and not in the data set.

  Returns:
    The table.

  Raises:
    ValueError: See `read`.
  """
  library = installed.require_huggingface()
  if not isinstance(dataset, library.Dataset):
    hint = ""
    if isinstance(dataset, library.DatasetDict):
      hint = f"; choose a split: {', '.join(dataset)}"
    raise ValueError(
      f"a datasets.Dataset is wanted, got {type(dataset).__name__}{hint}"
    )
  roles = {"label": label, "client": client, "time": time, "image": image}
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
    present = [each for each in features if each in dataset.column_names]
    dataset = dataset.select_columns([*used, *present])
  frame = dataset.to_pandas()
  for column in used:
    kind = dataset.features[column]
    if isinstance(kind, library.ClassLabel):
      frame[column] = _named(frame[column], kind.names)
  return frames.Table(
    frame,
    label,
    client,
    time,
    features,
    image=image,
    read_images=lambda column: image_files.read(
      _contents(column, on_file), len(column), image_size
    ),
    domain_order=domain_order,
    keep_empty_classes=True,
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


def is_saved(folder: pathlib.Path) -> bool:
  """Returns whether `save_to_disk` has written a folder."""
  return (folder / _SPLITS).exists() or (
    (folder / _STATE).exists() and (folder / _INFO).exists()
  )


def load(folder: pathlib.Path) -> "datasets.Dataset":
  """Loads a folder of `Dataset.save_to_disk`.

  Raises:
    ValueError: If it cannot be loaded, or has splits; one line.
  """
  library = installed.require_huggingface()
  if not (folder / _SPLITS).exists():
    # A named pipe among them would block the library.
    for path in saved_files(folder):
      files.check_regular(path)
  try:
    found = library.load_from_disk(os.fspath(folder))
  # The library's errors, and pyarrow's, have no common type.
  except Exception as error:
    raise ValueError(
      f"{folder}: it cannot be read ({array_files.first_line(error)})"
    ) from error
  if isinstance(found, library.DatasetDict):
    raise ValueError(
      f"{folder} has splits; name the folder of one: {', '.join(found)}"
    )
  return found


def saved_files(folder: pathlib.Path) -> list[pathlib.Path]:
  """Returns the files that hold the data of a folder, see `load`.

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
