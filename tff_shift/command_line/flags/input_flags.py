"""Input scaling: flags that scale pixels of images, and features."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from absl import flags

from tff_shift import arguments
from tff_shift.command_line import configuration
from tff_shift.command_line import output_folder
from tff_shift.command_line.flags import dataset_flags

if TYPE_CHECKING:
  from tff_shift.models import input_scaling

FLAGS = flags.FLAGS

# Larger features saturate a network with weights for inputs near 1.
_LARGE = 100

_NUMBERS = ("input_mean", "input_std")
_NUMBER = (
  "For --input_scaling=standardized: {} of pixels divided by 255 (one number,"
  " or one per channel) or of features (one number, or one per feature)."
  " Default: computed from the training data of the first seed."
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


def chosen(parts: Sequence[np.ndarray]) -> input_scaling.InputScaling | None:
  """Returns the input scaling of the flags, checked.

  Missing numbers are computed from the examples and stored in the flags, so
  that config.json records them and resumed runs use them.

  Args:
    parts: The inputs x of the training examples.

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
        _warn_of_large_features(parts)
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
  scaling = input_scaling.make(name, parts)
  if name == "standardized":
    FLAGS.input_mean = list(map(repr, scaling.mean))
    FLAGS.input_std = list(map(repr, scaling.deviation))
  return scaling


def _warn_of_large_features(parts: Sequence[np.ndarray]) -> None:
  """Warns of features that hinder training; not all of them diverge."""
  largest = max(np.abs(part).max(initial=0) for part in parts)
  if largest > _LARGE:
    output_folder.warn(
      f"features of --dataset={dataset_flags.short_name()} are as large as"
      f" {largest:.3g}; the model may stay at chance accuracy; pass"
      " --input_scaling=standardized"
    )


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
