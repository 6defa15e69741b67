"""The flags that change a model: normalisation, weights of files, Llamas."""

from __future__ import annotations

import pathlib
from typing import Any
from typing import TYPE_CHECKING

from absl import flags

from tff_shift import models
from tff_shift.data import dataset

if TYPE_CHECKING:
  from tff_shift.models import split_model

FLAGS = flags.FLAGS

_NAMES = ("lora_rank", "lora_alpha")


def define_flags() -> None:
  """Defines the flags."""
  flags.DEFINE_string(
    "weights_file",
    None,
    "Weights that the model starts from: a Keras model (.keras, .h5, or the"
    " folder of a SavedModel) with layers of the same names, or an .npz file."
    " All of the head, or of the backbone, may be left out. Where a model is"
    " pre-trained (online_adaptation), pre-training starts from them. Default:"
    " random.",
  )
  flags.DEFINE_enum(
    "normalization",
    "group",
    ("group", "batch"),
    "What normalises in a network for images: group, the layers that it has;"
    " batch, batch normalisation in their place (--personal_norm says what of"
    " it is a client's own).",
  )
  flags.DEFINE_string(
    "model_dir",
    None,
    "Folder of a pre-trained model (config.json, model*.safetensors,"
    " tokenizer.json), for models with an option model_dir (llama). A relative"
    " one that is not there is looked for in the folder of the data sets.",
  )
  flags.DEFINE_integer(
    "lora_rank",
    None,
    "Rank of the adapters of a pre-trained model. Default: the model's.",
  )
  flags.DEFINE_float(
    "lora_alpha",
    None,
    "Adapters count lora_alpha / lora_rank. Default: the model's.",
  )


def model_dir() -> pathlib.Path | None:
  """Returns the folder of `--model_dir`; None where it is not set."""
  if FLAGS.model_dir is None:
    return None
  folder = pathlib.Path(FLAGS.model_dir).expanduser()
  if not folder.is_dir() and not folder.is_absolute():
    in_data = dataset.data_folder(FLAGS.data_dir) / folder
    if in_data.is_dir():
      return in_data
  return folder


def options() -> dict[str, Any]:
  """Returns the options of a model that the flags set."""
  chosen = {name: FLAGS[name].value for name in _NAMES}
  chosen["model_dir"] = model_dir()
  return {name: each for name, each in chosen.items() if each is not None}


def changed(model: split_model.SplitModel) -> split_model.SplitModel:
  """Changes a model by `--normalization` and `--weights_file`.

  Args:
    model: The model that is trained. A guide is no part of such files.

  Returns:
    The model.

  Raises:
    FileNotFoundError: If there is no such file.
    ValueError: If it is damaged or does not fit, or if the model has no group
      normalisation to be replaced.
  """
  if FLAGS.normalization == "batch":
    model = models.with_batch_normalization(model)
  if FLAGS.weights_file is None:
    return model
  from tff_shift.models import split_model

  return split_model.load_weights(model, FLAGS.weights_file)


def digest_of_weights() -> str | None:
  """Returns the SHA-256 of `--weights_file`; None where it is not set.

  Raises:
    FileNotFoundError: If there is no such file.
    ValueError: If it cannot be read.
  """
  if FLAGS.weights_file is None:
    return None
  from tff_shift.models import split_model

  return split_model.weights_digest(FLAGS.weights_file)
