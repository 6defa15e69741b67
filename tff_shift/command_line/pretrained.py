"""Models that are trained beforehand and kept: their flags and training."""

from __future__ import annotations

import dataclasses
import pathlib
from typing import TYPE_CHECKING

from absl import flags

from tff_shift import files
from tff_shift.command_line import common_flags
from tff_shift.data import examples as examples_lib
from tff_shift.simulation.scenarios import pretraining_hparams

if TYPE_CHECKING:
  from tff_shift.models import split_model
  from tff_shift.simulation.scenarios import pretraining

FLAGS = flags.FLAGS


def define_flags(what: str) -> None:
  """Defines the flags.

  Args:
    what: What is trained and kept, in the plural.
  """
  flags.DEFINE_integer(
    "pretraining_epochs",
    None,
    f"Trains {what} for at most so many epochs. Default: "
    f"{pretraining_hparams.PretrainingHParams().max_epochs}.",
  )
  flags.DEFINE_string(
    "cache_dir", "runs/cache", f"Folder in which {what} are kept."
  )


def chosen_hparams() -> pretraining_hparams.PretrainingHParams:
  """Returns how the flags let it be trained.

  Raises:
    UsageError: If a flag is wrong.
  """
  common_flags.require_at_least_one("pretraining_epochs")
  hparams = pretraining_hparams.PretrainingHParams()
  if FLAGS.pretraining_epochs is None:
    return hparams
  return dataclasses.replace(hparams, max_epochs=FLAGS.pretraining_epochs)


def check_cache_folder() -> None:
  """Refuses a `--cache_dir` in which nothing can be kept; makes nothing.

  Raises:
    UsageError: If nothing can be written there.
  """
  try:
    files.check_writable(pathlib.Path(FLAGS.cache_dir))
  except files.WriteError as error:
    raise common_flags.UsageError(
      f"--cache_dir={FLAGS.cache_dir}: it cannot be written ({error.strerror});"
      " name a folder that you may write to"
    ) from error


def train(
  model: split_model.SplitModel,
  examples: examples_lib.Examples,
  held_out: examples_lib.Examples,
  hparams: pretraining_hparams.PretrainingHParams,
  *,
  seed: int,
  name: str,
) -> pretraining.Pretrained:
  """Trains a model or takes it from the cache, and says how good it is.

  Args:
    model: The model.
    examples: What it is trained on.
    held_out: What tells when to stop.
    hparams: How it is trained.
    seed: The seed.
    name: What the user is told that it is.

  Returns:
    The trained model's weights and predictions.

  Raises:
    UsageError: If it cannot be trained as asked for, or not be kept.
    files.WriteError: If that is found out when it is trained.
  """
  from tff_shift.simulation.scenarios import pretraining

  # Not after the training: it would be lost.
  check_cache_folder()
  with (
    common_flags.progress_bar(
      hparams.max_epochs, f"{name}, {len(examples.y)} examples", unit="epoch"
    ) as bar,
    common_flags.usage_errors(),
  ):
    trained = pretraining.pretrain(
      model,
      examples,
      held_out,
      hparams,
      seed=seed,
      cache_dir=FLAGS.cache_dir,
      on_epoch=lambda epoch: bar.update(
        epoch.number,
        loss=epoch.validation_loss,
        accuracy=epoch.validation_accuracy,
      ),
    )
  print(
    f"{name}: {trained.validation_accuracy:.2f} % on {len(held_out.y)}"
    f" held-out examples, epoch {trained.best_epoch} of {trained.num_epochs}",
    flush=True,
  )
  return trained
