r"""Predicts the examples of a file with a saved model of a run.

  python -m experiments.predict --model=runs/demo/model/fed_avg/... \
      --input=data.npz --output=predictions.npz

The input is an .npz file (numpy.savez) with an array x: examples [n, ...] with
the shape and type of the training inputs, or, for a model of titles, texts [n].
If it has an array y with classes [n], the accuracy is printed.

The output is an .npz file. Its arrays depend on the flags:

- by default, logits [n, classes] and predicted classes [n] of the server model;
- with --client, the same of that client's personal model;
- with --vote, the classes [n] predicted by most clients;
- with --guide, routes [n] and probabilities [n, clients], and, if all clients
  were saved, the classes [n] predicted by the client of each route.
"""

from __future__ import annotations

import os
import pathlib
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
from absl import flags

import tff_shift
from tff_shift import files
from tff_shift import shown_names
from tff_shift.command_line import common_flags
from tff_shift.command_line import output_folder
from tff_shift.command_line import program
from tff_shift.data import array_files

if TYPE_CHECKING:
  from tff_shift.serving import predictor

FLAGS = flags.FLAGS

_Predict = Callable[[np.ndarray], dict[str, np.ndarray]]


def define_flags() -> None:
  """Defines the flags of this binary."""
  flags.DEFINE_string(
    "model",
    None,
    "Folder of the model, or of a run with exactly one model.",
  )
  flags.DEFINE_string("input", None, "An .npz file with x, and optionally y.")
  flags.DEFINE_string("output", None, "The .npz file to write.")
  flags.DEFINE_bool("overwrite", False, "Replaces an existing --output.")
  flags.DEFINE_integer(
    "client", None, "Predicts with the personal model of this client."
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
    "output", output.parent.is_dir(), "a file in an existing folder"
  )
  common_flags.require("output", not output.is_dir(), "a file, not a folder")
  if output.exists() and not FLAGS.overwrite:
    raise common_flags.UsageError(
      f"--output={output}: the file exists; name another or pass --overwrite"
    )
  with (
    common_flags.usage_errors(),
    output_folder.unwritable_refused("output"),
  ):
    files.check_writable(output.parent)


def _read_input() -> tuple[np.ndarray, np.ndarray | None]:
  """Returns x, and y or None."""
  path = FLAGS.input
  if not os.path.exists(path):
    raise common_flags.UsageError(f"--input={path}: the file does not exist")
  try:
    arrays = array_files.read_npz(path)
  except ValueError as error:
    raise common_flags.UsageError(f"--input={path}: {error}") from error
  if "x" not in arrays:
    raise common_flags.UsageError(
      f"--input={path}: it must have an array x; it has"
      f" {', '.join(arrays) or 'none'}"
    )
  x, y = arrays["x"], arrays.get("y")
  if not x.ndim:
    raise common_flags.UsageError(f"--input={path}: x has no examples")
  if y is not None and (
    y.shape != x.shape[:1] or not np.issubdtype(y.dtype, np.integer)
  ):
    raise common_flags.UsageError(
      f"--input={path}: y is {y.dtype} {y.shape}; it must have an integer for"
      f" each of the {len(x)} examples"
    )
  return x, y


def _check_classes(y: np.ndarray | None, num_classes: int) -> None:
  """Refuses classes that the model cannot predict."""
  if y is not None and len(y) and not 0 <= y.min() <= y.max() < num_classes:
    raise common_flags.UsageError(
      f"--input={FLAGS.input}: y must lie in 0..{num_classes - 1}, the classes"
      f" of the model, got {y.min()}..{y.max()}"
    )


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
    return lambda x: from_logits(model.predict_as(FLAGS.client, x))
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


def main() -> None:
  """Predicts the input and writes the output."""
  _check_flags()
  x, y = _read_input()
  with common_flags.usage_errors():
    model = tff_shift.load(FLAGS.model)
  _check_classes(y, model.num_classes)
  with common_flags.usage_errors():
    if x.dtype.kind == "U" and x.ndim == 1:
      x = model.ids_of(x.tolist())
    try:
      # All at once: messages name the number of an example in the file.
      x = model.checked(x)
    except ValueError as error:
      raise ValueError(f"--input={FLAGS.input}: {error}") from error
    found = _in_batches(_chosen(model), x)
  array_files.write_npz(FLAGS.output, found)
  if y is not None and len(y) and "classes" in found:
    right = 100 * float(np.mean(found["classes"] == y))
    print(f"accuracy: {right:.2f} % of {len(y)} examples")
  print(shown_names.printable(f"predictions: {FLAGS.output}"))


def run() -> None:
  """Runs this binary with the command line and ends the process."""
  program.run(main, define_flags)


if __name__ == "__main__":
  run()
