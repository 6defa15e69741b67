"""The server's step: `--server_optimizer` and its hyper-parameters."""

from __future__ import annotations

import dataclasses
from typing import Any
from typing import TYPE_CHECKING

from absl import flags

from tff_shift._util import arguments
from tff_shift.command_line import configuration
from tff_shift.learning import hyperparameters
from tff_shift.learning.aggregators import server_optimizer_hparams

if TYPE_CHECKING:
  import tensorflow_federated as tff

GROUP = "training"

FLAGS = flags.FLAGS

_NONE = "none"
_KINDS = server_optimizer_hparams.HPARAMS


def _fields() -> dict[str, dict[str, dataclasses.Field]]:
  """Returns each hyper-parameter's field by optimizer, by flag."""
  found = {}
  for name, kind in _KINDS.items():
    for field in dataclasses.fields(kind):
      found.setdefault(f"server_{field.name}", {})[name] = field
  return found


def define_flags() -> None:
  """Defines the flags."""
  configuration.declare_of_methods(__name__)
  flags.DEFINE_string(
    "server_optimizer",
    None,
    "How the server steps along the mean update: none (adds it);"
    f" {', '.join(_KINDS)}. Default: fed_avg_m with --server_momentum, else"
    " none.",
  )
  for flag, by_name in _fields().items():
    text = next(iter(by_name.values())).metadata["help"]
    defaults = ", ".join(
      f"{field.default:g} ({name})" for name, field in by_name.items()
    )
    flags.DEFINE_float(flag, None, f"{text} Default: {defaults}.")


def _chosen_name() -> str:
  if FLAGS.server_optimizer is not None:
    return FLAGS.server_optimizer
  return _NONE if FLAGS.server_momentum is None else "fed_avg_m"


def _hparams() -> hyperparameters.HParams | None:
  """Returns the hyper-parameters; refuses flags of other optimizers."""
  values, chosen_name = {}, _chosen_name()
  for flag, by_name in _fields().items():
    if FLAGS[flag].value is None:
      continue
    if chosen_name not in by_name:
      raise ValueError(
        f"--{flag} belongs to --server_optimizer={'|'.join(by_name)}, not to"
        f" --server_optimizer={chosen_name}"
      )
    values[flag.removeprefix("server_")] = FLAGS[flag].value
  if chosen_name == _NONE:
    return None
  hparams = _KINDS[chosen_name](**values)
  try:
    hyperparameters.validate(hparams)
  except ValueError as error:
    raise ValueError(f"--server_{error}") from error
  return hparams


def check() -> None:
  """Checks the flags, apart from the algorithms.

  Raises:
    ValueError: If a flag is wrong.
  """
  arguments.choice("--server_optimizer", _chosen_name(), (_NONE, *_KINDS))
  _hparams()


def settings() -> dict[str, Any]:
  """Returns the optimizer and its hyper-parameters by flag; empty if none."""
  hparams = _hparams()
  if hparams is None:
    return {}
  return {
    "server_optimizer": _chosen_name(),
    **{
      f"server_{name}": value
      for name, value in dataclasses.asdict(hparams).items()
    },
  }


def name() -> str | None:
  """Returns the name of the optimizer; None: the mean update is added."""
  chosen_name = _chosen_name()
  return None if chosen_name == _NONE else chosen_name


def chosen() -> tff.learning.optimizers.Optimizer | None:
  """Returns the argument `server_optimizer` of `algorithms.build`."""
  hparams = _hparams()
  if hparams is None:
    return None
  from tff_shift.learning.aggregators import server_optimizers

  return server_optimizers.build(_chosen_name(), **dataclasses.asdict(hparams))
