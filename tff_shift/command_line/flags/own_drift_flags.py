"""Own drift: data with domains, for which no flag draws a drift."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from absl import flags

from tff_shift.command_line import common_flags
from tff_shift.command_line import output_folder
from tff_shift.command_line.flags import config_file
from tff_shift.command_line.flags import dataset_flags
from tff_shift.data.shifts import own_drift
from tff_shift.learning.aggregators import aggregator_hparams
from tff_shift.reporting import summary

FLAGS = flags.FLAGS


def time_names(scenario: str) -> tuple[str, ...]:
  """Returns the names of the domains of `--dataset`; empty if it has none."""
  with common_flags.usage_errors():
    return own_drift.time_names(FLAGS.dataset, scenario, FLAGS.data_dir)


def chosen(
  kind: type[common_flags.Configuration], drawing: Sequence[str]
) -> tuple[Any, tuple[str, ...]]:
  """Returns the values of the flags, and the names of the data's domains.

  Args:
    kind: The configuration of the scenario.
    drawing: The names of the flags that draw a drift.

  Raises:
    UsageError: If a flag is wrong, or draws a drift although the data have one.
  """
  found = common_flags.chosen(
    kind, lambda: drawing if time_names(kind.scenario) else ()
  )
  names = time_names(kind.scenario)
  if names:
    _refuse(drawing)
  return found, names


def _refuse(drawing: Sequence[str]) -> None:
  """Refuses flags that draw a drift, for data that have their own."""
  for flag in drawing:
    if not FLAGS[flag].using_default_value and not config_file.is_of_run(
      flag, FLAGS[flag].value
    ):
      value = FLAGS[flag].value
      shown = ",".join(value) if isinstance(value, list) else value
      raise common_flags.UsageError(
        f"--{flag}={shown} does not apply to --dataset={dataset_flags.shown()},"
        " whose domains are the drift; leave it out"
      )


def set_default(flag: str, value: Any) -> None:
  """Sets a flag that the user has not set to the value of the data.

  `config.json` records it. The flag still counts as not set.
  """
  if FLAGS[flag].using_default_value:
    FLAGS[flag].value = value


def check_absent(
  sizes: Sequence[Sequence[int]] | np.ndarray, names: Sequence[str], what: str
) -> None:
  """Warns of clients that are absent at some times; refuses `dp` with them.

  Args:
    sizes: The number of examples by client and time.
    names: The names of the times.
    what: What a time is, in the plural.

  Raises:
    UsageError: If the aggregator needs all clients.
  """
  clients = dataset_flags.client_names() or tuple(map(str, range(len(sizes))))
  lacking = {
    client: [names[time] for time, size in enumerate(own) if not size]
    for client, own in zip(clients, sizes, strict=True)
  }
  lacking = {client: times for client, times in lacking.items() if times}
  if not lacking:
    return
  if FLAGS.aggregator in aggregator_hparams.PRIVATE:
    raise common_flags.UsageError(
      f"--aggregator={FLAGS.aggregator} is not allowed with"
      f" --dataset={dataset_flags.shown()}: epsilon is computed for cohorts of"
      f" all clients, and {len(lacking)} of {len(sizes)} clients are absent in"
      f" some {what}"
    )
  output_folder.warn(
    f"{len(lacking)} of {len(sizes)} clients of {dataset_flags.shown()} lack"
    f" {what}, in which they are absent: "
    + summary.shortened(
      f"{client} lacks {summary.shortened(times, ', ')}"
      for client, times in lacking.items()
    )
  )
