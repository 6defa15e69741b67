"""Model options: flags of normalisation, initial weights and Llama models."""

from __future__ import annotations

import dataclasses
import pathlib
from collections.abc import Sequence
from typing import Any
from typing import TYPE_CHECKING

from absl import flags

from tff_shift import models
from tff_shift.command_line import configuration
from tff_shift.data import dataset
from tff_shift.data import table

if TYPE_CHECKING:
  from tff_shift.models import split_model

GROUP = "model"

FLAGS = flags.FLAGS

_NAMES = ("lora_rank", "lora_alpha")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Configuration(configuration.Configuration):
  """The flags of models."""

  weights_file: str | None = configuration.setting(
    None,
    "Initial weights: a Keras model (.keras, .h5, or a SavedModel folder) with"
    " layers of the same names, or an .npz file. The whole head, or the whole"
    " backbone, may be missing. In online_adaptation, pre-training starts from"
    " them, or is skipped by --pretraining_epochs=0. Default: random weights.",
  )
  normalization: str = configuration.setting(
    "group",
    "Normalisation layers of image models: group, the model's own; batch,"
    " replaces them by batch normalisation (--personal_norm selects which parts"
    " of it are personal).",
    choices=("group", "batch"),
  )
  model_dir: str | None = configuration.setting(
    None,
    "Folder of a pre-trained model (config.json, model*.safetensors,"
    " tokenizer.json), for models with the option model_dir (llama). A missing"
    " relative folder is looked up in the folder of the data sets.",
  )
  lora_rank: int | None = configuration.setting(
    None,
    "Rank of the LoRA adapters of a pre-trained model. Default: the model's.",
  )
  lora_alpha: float | None = configuration.setting(
    None,
    "Scaling of the LoRA adapters: their output is multiplied by lora_alpha /"
    " lora_rank. Default: the model's.",
  )


def model_dir() -> pathlib.Path | None:
  """Returns the folder of `--model_dir`, or None if it is not set."""
  if FLAGS.model_dir is None:
    return None
  folder = pathlib.Path(FLAGS.model_dir).expanduser()
  if not folder.is_dir() and not folder.is_absolute():
    in_data = dataset.data_folder(FLAGS.data_dir) / folder
    if in_data.is_dir():
      return in_data
  return folder


def options() -> dict[str, Any]:
  """Returns the model options that are set by flags."""
  chosen = {name: FLAGS[name].value for name in _NAMES}
  chosen["model_dir"] = model_dir()
  return {name: each for name, each in chosen.items() if each is not None}


def changed(
  model: split_model.SplitModel,
  schema: table.Schema,
) -> split_model.SplitModel:
  """Applies `--normalization` and `--weights_file` to a model.

  Args:
    model: The model to train, without a guide: weight files have none.
    schema: The names of the data.

  Returns:
    The changed model.

  Raises:
    FileNotFoundError: If the weights file does not exist.
    ValueError: If the file is damaged or does not fit the model, if its classes
      or columns have other names or another order, or if the model has no group
      normalisation to replace.
  """
  if FLAGS.normalization == "batch":
    model = models.with_batch_normalization(model)
  if FLAGS.weights_file is None:
    return model
  from tff_shift.models import split_model

  _check_names(FLAGS.weights_file, schema)
  return split_model.load_weights(model, FLAGS.weights_file)


def _check_names(path: str, schema: table.Schema) -> None:
  """Refuses the weights of a saved run for other classes or columns."""
  from tff_shift.data import array_files
  from tff_shift.serving import description

  folder = pathlib.Path(path)
  if folder.name == description.WEIGHTS_FILE:
    folder = folder.parent
  weights = folder / description.WEIGHTS_FILE
  if not (folder / description.FILE).is_file() or not weights.is_file():
    return
  described = description.read(folder)
  arrays = array_files.read_npz(weights)
  for part, what, theirs, names in (
    ("head/", "class_names", described.schema.classes, schema.classes),
    ("backbone/", "feature_names", described.schema.features, schema.features),
  ):
    # A part that the file lacks is drawn.
    if not any(name.startswith(part) for name in arrays):
      continue
    if not theirs or names is None or _are_numbers(theirs, names):
      continue
    if tuple(theirs) != tuple(names):
      raise ValueError(
        f"--weights_file={path}: its {what} are {', '.join(theirs)}, and those"
        f" of --dataset are {', '.join(names)}; weights belong to names in"
        " their order"
      )


def _are_numbers(*names: Sequence[str]) -> bool:
  """Returns whether some names are only numbers from 0: unknown."""
  return any(list(each) == list(map(str, range(len(each)))) for each in names)


def digest_of_weights() -> str | None:
  """Returns the SHA-256 of `--weights_file`, or None if it is not set.

  Raises:
    FileNotFoundError: If the file does not exist.
    ValueError: If the file cannot be read.
  """
  if FLAGS.weights_file is None:
    return None
  from tff_shift.models import split_model

  return split_model.weights_digest(FLAGS.weights_file)
