"""Pre-training: flags, training and cache of pre-trained models."""

from __future__ import annotations

import dataclasses
import pathlib
from typing import ClassVar
from typing import TYPE_CHECKING

from absl import flags

from tff_shift._util import files
from tff_shift.command_line import common_flags
from tff_shift.command_line import configuration
from tff_shift.data import examples as examples_lib
from tff_shift.simulation import pretraining_hparams

if TYPE_CHECKING:
  from tff_shift.models import split_model
  from tff_shift.simulation import pretraining

GROUP = "training"

FLAGS = flags.FLAGS


@dataclasses.dataclass(frozen=True, kw_only=True)
class Configuration(configuration.Configuration):
  """The flags of pre-training.

  Attributes:
    pretrained_models: The name of the models, in the plural.
    skip_help: The help text of 0 epochs, if training can be skipped.
  """

  pretrained_models: ClassVar[str]
  skip_help: ClassVar[str] = ""

  pretraining_epochs: int | None = configuration.setting(
    None,
    lambda kind: (
      f"Maximum number of epochs to train {kind.pretrained_models}."
      f" {kind.skip_help}Default: "
      f"{pretraining_hparams.PretrainingHParams().max_epochs}."
    ),
    minimum=0,
  )
  cache_dir: str = configuration.setting(
    "runs/cache",
    lambda kind: f"Folder where {kind.pretrained_models} are cached.",
    is_compared=False,
  )


def chosen_hparams(
  *, may_skip: bool = False
) -> pretraining_hparams.PretrainingHParams | None:
  """Returns the hyper-parameters of pre-training; None: it is skipped.

  Args:
    may_skip: Whether a model with the weights of a file needs no training.

  Raises:
    UsageError: If a flag is wrong.
  """
  if may_skip and FLAGS.pretraining_epochs == 0:
    if FLAGS.weights_file is None:
      raise common_flags.UsageError(
        "--pretraining_epochs=0: it must be at least 1, or --weights_file must"
        " name the deployed model"
      )
    return None
  common_flags.require(
    "pretraining_epochs", FLAGS.pretraining_epochs != 0, "at least 1"
  )
  hparams = pretraining_hparams.PretrainingHParams()
  if FLAGS.pretraining_epochs is None:
    return hparams
  return dataclasses.replace(hparams, max_epochs=FLAGS.pretraining_epochs)


def check_cache_folder() -> None:
  """Checks that `--cache_dir` is writable, without creating it.

  Raises:
    UsageError: If it is not writable.
  """
  try:
    files.check_writable(pathlib.Path(FLAGS.cache_dir))
  except files.WriteError as error:
    raise common_flags.UsageError(
      f"--cache_dir={FLAGS.cache_dir}: it must be a writable folder"
      f" ({error.strerror})"
    ) from error


def train(
  model: split_model.SplitModel,
  examples: examples_lib.Examples,
  held_out: examples_lib.Examples,
  hparams: pretraining_hparams.PretrainingHParams | None,
  *,
  seed: int,
  name: str,
  refit: examples_lib.Examples | None = None,
) -> pretraining.Pretrained:
  """Trains a model or loads it from the cache, and prints its accuracy.

  Args:
    model: The model.
    examples: The training examples.
    held_out: The hold-out examples for early stopping.
    hparams: The hyper-parameters of training. None: the model keeps its
      weights.
    seed: The seed.
    name: The name of the model in messages.
    refit: The examples of a last training, see `pretraining.pretrain`.

  Returns:
    The weights and predictions of the trained model.

  Raises:
    UsageError: If training fails, or if the cache is not writable.
    files.WriteError: If writing to the cache fails after training.
  """
  from tff_shift.simulation import pretraining

  if hparams is None:
    with common_flags.usage_errors():
      found = pretraining.untrained(model, held_out, seed=seed)
    print(
      f"{name}: {found.validation_accuracy:.2f} % on {len(held_out.y)} held-out"
      " examples, not trained",
      flush=True,
    )
    return found
  # Checked before training, whose result would be lost.
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
      refit=refit,
    )
  print(
    f"{name}: {trained.validation_accuracy:.2f} % on {len(held_out.y)}"
    f" held-out examples, epoch {trained.best_epoch} of {trained.num_epochs}"
    + (f"; then trained on all {len(refit.y)}" if refit is not None else ""),
    flush=True,
  )
  return trained
