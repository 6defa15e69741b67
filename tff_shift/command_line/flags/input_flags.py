"""The flags of what is done to the pixels of images, and to features."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from absl import flags

from tff_shift import arguments
from tff_shift.command_line import output_folder
from tff_shift.command_line.flags import dataset_flags

if TYPE_CHECKING:
  from tff_shift.models import input_scaling

FLAGS = flags.FLAGS

# Features beyond it saturate a network whose weights suit inputs near 1.
_LARGE = 100

_NUMBERS = ("input_mean", "input_deviation")


def define_flags(default: str) -> None:
  """Defines the flags.

  Args:
    default: The binary's default, one of `input_scaling.NAMES`.
  """
  flags.DEFINE_string(
    "input_scaling",
    default,
    "What a model's images are scaled to: zero_one, minus_one_one, or"
    " standardized (each channel to mean 0 and deviation 1). Vectors stay as"
    " they are by default; standardized, each feature has mean 0 and deviation"
    " 1.",
  )
  for name, what in zip(_NUMBERS, ("mean", "deviation"), strict=True):
    flags.DEFINE_list(
      name,
      None,
      f"With --input_scaling=standardized: the {what} of pixels that are"
      " divided by 255, one number or one for each channel; or of features, one"
      " number or one for each. Default: that of the training part, with the"
      " first seed.",
    )


def chosen(parts: Sequence[np.ndarray]) -> input_scaling.InputScaling | None:
  """Returns the scaling that the flags ask for, checked.

  Numbers that are not given are taken from the examples and become the flags'
  values: config.json has them, and a run goes on with these alone.

  Args:
    parts: What a model is trained on, x of the examples.

  Returns:
    The scaling; None for examples that stay as they are.

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
    # The default is for images.
    is_asked = not FLAGS["input_scaling"].using_default_value
    are_features = parts[0].dtype.kind == "f"
    asked = ["input_scaling"] * is_asked + given
    if not (are_features and is_asked and name == "standardized"):
      if asked:
        raise ValueError(
          f"--{asked[0]} is for images, and --dataset={FLAGS.dataset} has none;"
          " leave it out"
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
    raise ValueError(f"--{given[0]} without --{missing}: give both or none")
  if given:
    return _parse(parts[0].shape[-1])
  scaling = input_scaling.make(name, parts)
  if name == "standardized":
    FLAGS.input_mean = list(map(repr, scaling.mean))
    FLAGS.input_deviation = list(map(repr, scaling.deviation))
  return scaling


def _warn_of_large_features(parts: Sequence[np.ndarray]) -> None:
  """Says that features will hardly train; not all of them diverge."""
  largest = max(np.abs(part).max(initial=0) for part in parts)
  if largest > _LARGE:
    output_folder.warn(
      f"features of --dataset={dataset_flags.short_name()} are as large as"
      f" {largest:.3g}, which may leave a model at chance; pass"
      " --input_scaling=standardized"
    )


def _parse(num_channels: int) -> input_scaling.InputScaling:
  """Returns the scaling of the numbers that are given."""
  from tff_shift.models import input_scaling

  values = []
  for flag in _NUMBERS:
    limit = " above 0" if flag == "input_deviation" else ""
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
        f"--{flag}={','.join(texts)}: one finite number{limit} wanted,"
        f" {arguments.FLOAT32}, or {num_channels}, one for each channel or"
        " feature"
      )
    values.append(numbers)
  mean, deviation = values
  size = max(map(len, values))
  return input_scaling.InputScaling(
    *(each * (size // len(each)) for each in (mean, deviation))
  )
