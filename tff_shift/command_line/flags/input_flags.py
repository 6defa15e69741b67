"""Input scaling: flags that scale pixels of images, and features."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from absl import flags

from tff_shift._util import arguments
from tff_shift.command_line import configuration
from tff_shift.command_line import output_folder
from tff_shift.command_line.flags import dataset_flags
from tff_shift.data import examples

if TYPE_CHECKING:
  from tff_shift.models import input_scaling

GROUP = "model"

FLAGS = flags.FLAGS

_NUMBERS = ("input_mean", "input_std")
_NUMBER = (
  "For --input_scaling=standardized: {} of pixels divided by 255 (one number,"
  " or one per channel) or of features (one number, or one per feature)."
  " Default: computed for each run from the examples that it trains on."
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Configuration(configuration.Configuration):
  """The flags of input scaling."""

  input_scaling: str = configuration.setting(
    "zero_one",
    "Scaling of image inputs: zero_one, minus_one_one, or standardized (each"
    " channel has mean 0 and standard deviation 1). Feature vectors are not"
    " scaled by default; standardized gives each feature mean 0 and standard"
    " deviation 1.",
  )
  input_mean: tuple[str, ...] | None = configuration.setting(
    None, _NUMBER.format("mean")
  )
  input_std: tuple[str, ...] | None = configuration.setting(
    None, _NUMBER.format("standard deviation")
  )


def chosen(
  parts: Sequence[np.ndarray], names: Sequence[str] = ()
) -> input_scaling.InputScaling | None:
  """Returns the input scaling of the flags, checked.

  Args:
    parts: The inputs x of the examples that train.
    names: The names of the features. Empty: they have none.

  Returns:
    The scaling. None if the inputs are not scaled.

  Raises:
    ValueError: If a flag is wrong or does not apply.
  """
  from tff_shift.models import input_scaling

  name = FLAGS.input_scaling
  if name not in input_scaling.NAMES:
    raise ValueError(
      f"--input_scaling={name}: it must be one of"
      f" {', '.join(input_scaling.NAMES)}"
      f"{arguments.did_you_mean(name, input_scaling.NAMES)}"
    )
  given = [flag for flag in _NUMBERS if FLAGS[flag].value is not None]
  if parts[0].dtype != np.uint8:
    # The default only applies to images.
    is_set = not FLAGS["input_scaling"].using_default_value
    are_features = parts[0].dtype.kind == "f"
    unused = ["input_scaling"] * is_set + given
    if not (are_features and is_set and name == "standardized"):
      if unused:
        raise ValueError(
          f"--{unused[0]} applies to images, and"
          f" --dataset={dataset_flags.shown()} has none; leave it out"
          + (", or pass --input_scaling=standardized" if are_features else "")
        )
      if are_features:
        _warn_of_unscaled(parts, names)
      FLAGS.input_scaling = None
      return None
  if given and name != "standardized":
    raise ValueError(
      f"--{given[0]} belongs to --input_scaling=standardized, not to"
      f" --input_scaling={name}"
    )
  if len(given) == 1:
    (missing,) = set(_NUMBERS) - set(given)
    raise ValueError(f"--{given[0]} needs --{missing}: set both or neither")
  if given:
    return _parse(parts[0].shape[-1])
  return input_scaling.make(name, parts)


def depends_on_data() -> bool:
  """Returns whether the examples that train determine the scaling."""
  return FLAGS.input_scaling == "standardized" and FLAGS.input_mean is None


def _warn_of_unscaled(
  parts: Sequence[np.ndarray], names: Sequence[str]
) -> None:
  """Warns of features that hinder training; not all of them diverge."""
  problem = examples.unscaled(parts, names)
  if problem:
    output_folder.warn(
      f"features of --dataset={dataset_flags.short_name()} {problem} and are"
      " not scaled; the model may stay at chance accuracy; pass"
      " --input_scaling=standardized"
    )


def warn_of_extremes(
  runs: Iterable[tuple[Sequence[np.ndarray], Sequence[np.ndarray]]],
  names: Sequence[str] = (),
) -> None:
  """Warns once of features that are extreme after scaling.

  Args:
    runs: The inputs x that train, and those that are evaluated, of each run.
    names: The names of the features. Empty: they have none.
  """
  from tff_shift.models import input_scaling

  if FLAGS.input_scaling != "standardized":
    return
  for train, evaluated in runs:
    if train[0].dtype.kind != "f":
      return
    scaling = (
      input_scaling.standardized(train)
      if depends_on_data()
      else _parse(train[0].shape[-1])
    )
    listed = input_scaling.extremes(scaling, [*train, *evaluated], names)
    if listed:
      output_folder.warn(
        f"--dataset={dataset_flags.short_name()}: scaled features are more than"
        " 1,000 standard deviations from the mean of the training examples:"
        f" {listed}; check the unit of the column, or leave it out"
      )
      return


def _parse(num_channels: int) -> input_scaling.InputScaling:
  """Returns the scaling with the given mean and standard deviation."""
  from tff_shift.models import input_scaling

  values = []
  for flag in _NUMBERS:
    limit = " above 0" if flag == "input_std" else ""
    texts = FLAGS[flag].value
    try:
      numbers = tuple(map(float, texts))
    except ValueError:
      numbers = ()
    if (
      len(numbers) not in (1, num_channels)
      or not all(map(arguments.is_float32, numbers))
      or (limit and min(numbers) <= 0)
    ):
      raise ValueError(
        f"--{flag}={','.join(texts)}: it must be one finite number{limit},"
        f" {arguments.FLOAT32}, or {num_channels}, one per channel or feature"
      )
    values.append(numbers)
  mean, deviation = values
  size = max(map(len, values))
  return input_scaling.InputScaling(
    *(each * (size // len(each)) for each in (mean, deviation))
  )
