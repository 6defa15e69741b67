r"""Predicts the examples of a file with a saved model of a run.

  python -m experiments.predict --model=runs/demo/model/fed_avg/... \
      --input=new.csv --output=predictions.csv

The input is a .csv or .parquet file with the columns of the model, by name and
in any order. The columns that the run knows as label, client, time or group,
and those that it left out, may be there; any other one is refused. Or it is an
.npz file (numpy.savez) with an array x: examples [n, ...] with the shape and
type of the training inputs, or, for a model of titles, texts [n]. Arrays
feature_names and class_names match columns and classes by name; without names,
they count by position. With classes, the accuracy is printed: of a table, those
of --label or of the run's label; of an .npz file, an array y with classes [n].

A .csv or .parquet output has the columns of the input, then, depending on the
flags:

- by default, `predicted`, the class of the server model, and
  `probability_<class>` for each class;
- with --client, the same of that client's personal model, and `model_client`;
- with --vote, the class `predicted` by most clients;
- with --guide, `route`, the client of each example, and, if all clients were
  saved, the class `predicted` by it.

An .npz output has the arrays logits [n, classes] and classes [n], which count
in the order of the model's class_names; with --vote classes; with --guide
routes [n], probabilities [n, clients] and classes.
"""

from __future__ import annotations

import contextlib
import pathlib
from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Sequence
from typing import Any
from typing import NamedTuple
from typing import TYPE_CHECKING

import numpy as np
from absl import flags

import tff_shift
from tff_shift._util import files
from tff_shift._util import shown_names
from tff_shift.command_line import common_flags
from tff_shift.command_line import output_folder
from tff_shift.command_line import program
from tff_shift.data import array_files
from tff_shift.data import examples
from tff_shift.data.sources import frames
from tff_shift.data.sources import npz
from tff_shift.data.sources import tables

if TYPE_CHECKING:
  import pandas

  from tff_shift.serving import predictor

FLAGS = flags.FLAGS

_SUFFIXES = (*tables.SUFFIXES, ".npz")
_DIALECT = tables.Dialect._fields

_Predict = Callable[[np.ndarray], dict[str, np.ndarray]]


def define_flags() -> None:
  """Defines the flags of this binary."""
  flags.DEFINE_string(
    "model",
    None,
    "Folder of the model, or of a run with exactly one model.",
  )
  flags.DEFINE_string(
    "input",
    None,
    "A .csv or .parquet file with the columns of the model, or an .npz file"
    " with x, and optionally y, feature_names and class_names.",
  )
  flags.DEFINE_string(
    "label",
    None,
    "The column of the class in a .csv or .parquet file. Default: the label of"
    " the run, if the file has it.",
  )
  for name in _DIALECT:
    flags.DEFINE_string(name, None, f"The {name} of CSV files, as in training.")
  flags.DEFINE_string(
    "output",
    None,
    "The file to write: .csv or .parquet with the rows of the input and their"
    " predictions, or .npz with arrays.",
  )
  flags.DEFINE_bool("overwrite", False, "Replaces an existing --output.")
  flags.DEFINE_string(
    "client",
    None,
    "Predicts with the personal model of the client of this name; if clients"
    " have no names, of this number.",
  )
  flags.DEFINE_bool(
    "guide", False, "Routes each example to a client, which predicts it."
  )
  flags.DEFINE_bool("vote", False, "Predicts by majority vote of all clients.")
  flags.DEFINE_integer("batch_size", 1024, "Number of examples per batch.")


def _check_flags() -> None:
  """Checks the flags as far as possible without the files."""
  for flag in ("model", "input", "output"):
    if not FLAGS[flag].value:
      raise common_flags.UsageError(f"--{flag}: it must be set")
  chosen = [
    name
    for name, is_chosen in (
      ("client", FLAGS.client is not None),
      ("guide", FLAGS.guide),
      ("vote", FLAGS.vote),
    )
    if is_chosen
  ]
  if len(chosen) > 1:
    raise common_flags.UsageError(
      " and ".join(f"--{name}" for name in chosen) + ": set only one of them"
    )
  common_flags.require("batch_size", FLAGS.batch_size >= 1, "at least 1")
  output = pathlib.Path(FLAGS.output)
  common_flags.require(
    "output", output.name.endswith(_SUFFIXES), f"one of {', '.join(_SUFFIXES)}"
  )
  common_flags.require(
    "output", output.parent.is_dir(), "a file in an existing folder"
  )
  common_flags.require("output", not output.is_dir(), "a file, not a folder")
  with common_flags.usage_errors():
    _dialect()
  if output.exists() and not FLAGS.overwrite:
    raise common_flags.UsageError(
      f"--output={output}: the file exists; name another or pass --overwrite"
    )
  with (
    common_flags.usage_errors(),
    output_folder.unwritable_refused("output"),
  ):
    files.check_writable(output.parent)


class _Input(NamedTuple):
  """The examples of a file.

  Attributes:
    x: The examples, an array or a frame without the column of the class.
    y: The number of the class of each example, -1 without one. None: unknown.
    class_names: The name of each number in y. None: y has the model's.
    feature_names: The name of each column of an array. None: they have none.
    label: The column of the class. None: an array.
  """

  x: Any
  y: np.ndarray | None
  class_names: Sequence[str] | None = None
  feature_names: Sequence[str] | None = None
  label: str | None = None


def _dialect() -> tables.Dialect:
  """Returns how CSV files are written.

  Raises:
    ValueError: If a flag is wrong.
  """
  options = {
    name: FLAGS[name].value
    for name in _DIALECT
    if FLAGS[name].value is not None
  }
  is_csv = any(
    tables.takes(name) and not name.endswith(".parquet")
    for name in (FLAGS.input, FLAGS.output)
  )
  return tables.dialect_of(options, is_csv)


def _read_table(path: pathlib.Path, label: str | None) -> _Input:
  """Reads a table, which may lack the label of the run."""
  import pandas

  frame = tables.read_frame(path, FLAGS.label or label, _dialect())
  if FLAGS.label is not None:
    frames.check_roles({"label": FLAGS.label}, frame.columns)
    label = FLAGS.label
  if label not in frame.columns:
    return _Input(frame, None)
  texts = frame.pop(label).map(str, na_action="ignore")
  codes, names = pandas.factorize(texts)
  return _Input(frame, codes, names, label=label)


def _read_arrays(path: pathlib.Path) -> _Input:
  """Reads an .npz file."""
  if FLAGS.label is not None:
    raise common_flags.UsageError(
      f"--label={FLAGS.label}: --input has no columns; its classes are y"
    )
  arrays = array_files.read_npz(path)
  if "x" not in arrays:
    raise ValueError(
      f"it must have an array x; it has {', '.join(arrays) or 'none'}"
    )
  x, y = arrays["x"], arrays.get("y")
  if not x.ndim:
    raise ValueError("x has no examples")
  if y is not None and (
    y.shape != x.shape[:1] or not np.issubdtype(y.dtype, np.integer)
  ):
    raise ValueError(
      f"y is {y.dtype} {y.shape}; it must have an integer for each of the"
      f" {len(x)} examples"
    )
  class_names, feature_names = (
    npz.texts(arrays, key, "it") or None
    for key in ("class_names", "feature_names")
  )
  if feature_names is not None:
    examples.check_feature_names(feature_names, x.shape, "feature_names")
  if class_names is not None and y is not None:
    _check_classes(y, len(class_names), "class_names")
  return _Input(x, y, class_names, feature_names)


def _check_classes(y: np.ndarray, num_classes: int, what: str) -> None:
  """Refuses numbers of classes that there are not."""
  if len(y) and not 0 <= y.min() <= y.max() < num_classes:
    raise ValueError(
      f"y must lie in 0..{num_classes - 1}, the classes of {what}, got"
      f" {y.min()}..{y.max()}"
    )


def _classes_of(data: _Input, model: predictor.Predictor) -> np.ndarray | None:
  """Returns the model's class of each example, by name if names are known."""
  y, names = data.y, data.class_names
  if y is None:
    return None
  if model.class_names is None and data.label is not None:
    raise ValueError(
      "the classes of the model have no names; give their numbers as y of an"
      " .npz file"
    )
  if names is None or model.class_names is None:
    _check_classes(y, model.num_classes, "the model")
    return y
  known = {name: number for number, name in enumerate(model.class_names)}
  where = "class_names" if data.label is None else f"label {data.label!r}"
  for number in np.unique(y[y >= 0]):
    if names[number] not in known:
      raise ValueError(
        f"{where}: {str(names[number])!r} is no class of the model, whose"
        f" class_names are {', '.join(model.class_names)}"
      )
  if data.label is None and list(names) != list(model.class_names):
    order = ", ".join(f"{number} {name}" for name, number in known.items())
    print(shown_names.line(f"classes of the predictions: {order}"))
  return np.array([*(known.get(name, -1) for name in names), -1])[y]


def _examples_of(data: _Input, model: predictor.Predictor) -> np.ndarray:
  """Returns the valid examples, columns by name if names are known."""
  x = data.x
  if data.feature_names is not None:
    import pandas

    x = pandas.DataFrame(x, columns=list(data.feature_names))
  elif hasattr(x, "columns"):
    if model.feature_names is None:
      raise ValueError(
        "the columns of the model have no names; give x of an .npz file"
      )
  elif x.dtype.kind == "U" and x.ndim == 1:
    x = model.ids_of(x.tolist())
  # All at once: messages name the number of an example in the file.
  return model.checked(x)


def _rows_of(data: _Input, model: predictor.Predictor) -> pandas.DataFrame:
  """Returns the rows of the input, for a table."""
  path = pathlib.Path(FLAGS.input)
  if tables.takes(FLAGS.input):
    as_texts = not FLAGS.output.endswith(".parquet")
    return tables.read_rows(path, as_texts, _dialect())
  names = data.feature_names or model.feature_names
  if names is None or data.x.ndim != 2:
    raise ValueError(
      f"x has no feature_names, the columns of --output={FLAGS.output}; write"
      " an .npz file"
    )
  import pandas

  return pandas.DataFrame(data.x, columns=list(names))


@contextlib.contextmanager
def _refusals_of_input() -> Iterator[None]:
  """Refuses the input with its name."""
  path = FLAGS.input
  try:
    yield
  except common_flags.UsageError:
    raise
  except FileNotFoundError as error:
    raise common_flags.UsageError(
      f"--input={path}: the file does not exist"
    ) from error
  except (ValueError, OSError) as error:
    raise common_flags.UsageError(f"--input={path}: {error}") from error


def _chosen(model: predictor.Predictor) -> _Predict:
  """Returns the prediction function that the flags select, for a batch."""
  from tff_shift.learning import evaluation

  def from_logits(logits):
    classes = evaluation.predicted_classes(logits)
    return {"logits": logits.numpy(), "classes": classes.numpy()}

  def guide(x):
    found = model.guide(x)._asdict()
    if "answer" in model.functions:
      found["classes"] = model.answer(x).classes
    return {name: values.numpy() for name, values in found.items()}

  if FLAGS.guide:
    return guide
  if FLAGS.vote:
    return lambda x: {"classes": model.vote(x).numpy()}
  if FLAGS.client is not None:
    client: str | int = FLAGS.client
    if model.client_names is None and FLAGS.client.isdecimal():
      client = int(client)
    return lambda x: from_logits(model.predict_as(client, x))
  return lambda x: from_logits(model.predict(x))


def _in_batches(predict: _Predict, x: np.ndarray) -> dict[str, np.ndarray]:
  """Predicts in batches; without examples, one empty batch."""
  found = [
    predict(x[start : start + FLAGS.batch_size])
    for start in range(0, max(len(x), 1), FLAGS.batch_size)
  ]
  return {
    name: np.concatenate([part[name] for part in found]) for name in found[0]
  }


def _with_predictions(
  rows: pandas.DataFrame,
  arrays: dict[str, np.ndarray],
  model: predictor.Predictor,
) -> pandas.DataFrame:
  """Returns rows with the columns of their predictions.

  Raises:
    ValueError: If the rows have one of these columns.
  """
  import pandas
  import tensorflow as tf

  def named(names, numbers):
    # -1 stands for none.
    return np.array([*names, ""], object)[numbers]

  class_names = model.class_names or list(map(str, range(model.num_classes)))
  columns = {}
  if "classes" in arrays:
    columns["predicted"] = named(class_names, arrays["classes"])
  if "logits" in arrays:
    probabilities = tf.nn.softmax(arrays["logits"]).numpy()
    for name, values in zip(class_names, probabilities.T, strict=True):
      columns[f"probability_{name}"] = values
  if FLAGS.client is not None:
    columns["model_client"] = FLAGS.client
  if "routes" in arrays:
    num_clients = arrays["probabilities"].shape[1]
    client_names = model.schema.clients or map(str, range(num_clients))
    columns["route"] = named(client_names, arrays["routes"])
  both = [name for name in columns if name in rows.columns]
  if both:
    raise ValueError(
      f"column {both[0]!r} has the name of a column that"
      f" --output={FLAGS.output} adds; rename it"
    )
  added = pandas.DataFrame(columns, index=rows.index)
  return pandas.concat([rows, added], axis=1)


def main() -> None:
  """Predicts the input and writes the output."""
  _check_flags()
  with common_flags.usage_errors():
    model = tff_shift.load(FLAGS.model)
  is_table = not FLAGS.output.endswith(".npz")
  with _refusals_of_input():
    path = pathlib.Path(FLAGS.input)
    if tables.takes(FLAGS.input):
      data = _read_table(path, model.schema.label)
    else:
      data = _read_arrays(path)
    y, x = _classes_of(data, model), _examples_of(data, model)
    rows = _rows_of(data, model) if is_table else None
  with common_flags.usage_errors():
    arrays = _in_batches(_chosen(model), x)
  if is_table:
    with _refusals_of_input():
      rows = _with_predictions(rows, arrays, model)
    tables.write(FLAGS.output, rows, _dialect())
  else:
    array_files.write_npz(FLAGS.output, arrays)
  if y is not None and (y >= 0).any() and "classes" in arrays:
    is_right = (arrays["classes"] == y)[y >= 0]
    accuracy = 100 * float(np.mean(is_right))
    print(f"accuracy: {accuracy:.2f} % of {len(is_right)} examples")
  print(shown_names.printable(f"predictions: {FLAGS.output}"))


def run() -> None:
  """Runs this binary with the command line and ends the process."""
  program.run(main, define_flags)


if __name__ == "__main__":
  run()
