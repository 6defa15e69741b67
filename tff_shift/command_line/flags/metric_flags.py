"""Metrics: `--metrics`, measured besides accuracy and loss."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING

from absl import flags

from tff_shift.command_line import configuration
from tff_shift.learning import metrics as metrics_lib
from tff_shift.learning.aggregators import aggregator_hparams

if TYPE_CHECKING:
  from tff_shift.learning import metric as metric_lib

GROUP = "evaluation"

FLAGS = flags.FLAGS

_FLAG = "metrics"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Configuration(configuration.Configuration):
  """The flag of metrics."""

  metrics: tuple[str, ...] | None = configuration.setting(
    None,
    lambda kind: (
      "Comma-separated metrics besides accuracy and loss: "
      f"{', '.join(metrics_lib.names())}; mean_<name> is the mean over clients,"
      " each with the value of its own examples."
    ),
    is_compared=False,
  )


def names() -> list[str]:
  """Returns the names of the flag."""
  return FLAGS.metrics or []


def check() -> None:
  """Checks the names.

  Raises:
    ValueError: If a name is no metric.
  """
  for name in names():
    try:
      metrics_lib.check_name(name)
    except ValueError as error:
      raise ValueError(f"--{_FLAG}: {error}") from error


def chosen(
  num_classes: int, class_names: Sequence[str] | None = None
) -> metric_lib.Chosen:
  """Returns the metrics of the flag.

  Raises:
    ValueError: If they cannot be measured together.
  """
  try:
    return metrics_lib.choose(names(), num_classes, class_names)
  except ValueError as error:
    raise ValueError(
      f"--{_FLAG}: {str(error).removeprefix(f'{_FLAG}: ')}"
    ) from error


def refuse_single_clients(reason: str) -> None:
  """Refuses metrics if the aggregator hides clients, and they would show them.

  Args:
    reason: Why the server would see the sums of single clients.

  Raises:
    ValueError: If metrics and such an aggregator are set.
  """
  if names() and FLAGS.aggregator in aggregator_hparams.HIDING:
    raise ValueError(
      f"--{_FLAG}={','.join(names())} is not allowed with"
      f" --aggregator={FLAGS.aggregator}: {reason}, so the server would see the"
      " sums of each client"
    )
