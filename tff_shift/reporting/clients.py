"""What a mean over clients hides: worst clients, spread, and who is harmed.

`spread` and `harmed` take the data frame `clients` of a run, see
`read_run.read`, or of several results:

    pd.concat(
      result.clients_to_dataframe().assign(algorithm=name, seed=0)
      for name, result in results.items()
    )
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from tff_shift._util import arguments
from tff_shift.learning import metrics
from tff_shift.reporting import run_folders

if TYPE_CHECKING:
  import pandas as pd

  from tff_shift.learning import metric as metric_lib

# Accuracies of scenarios, of which a frame has one.
_ACCURACIES = ("client_accuracy", "accuracy", "own_accuracy")
_CLIENT, _NAME = "client", "client_name"
# Columns that name the data of a run; two runs with equal ones are paired.
_PAIRED = ("dataset", "shift", "test_distribution", "target", "seed")
_RUN = ("algorithm", run_folders.HELD_OUT, *_PAIRED)

# Values of float32 in percent that should be equal differ by less.
_ROUNDING = 1e-4


def spread_of(
  values: np.ndarray, higher_is_better: bool = True
) -> dict[str, float]:
  """Returns how a value is spread over clients.

  Args:
    values: [num_clients]. NaN: the client has no value, and is left out.
    higher_is_better: Whether higher values are better.

  Returns:
    `worst`; `percentile_10`, the tenth percentile (linear between two clients),
    or `percentile_90` if lower values are better; and `std`, the standard
    deviation (divided by the number of clients, which are not a sample). NaN
    without clients.
  """
  values = np.asarray(values, np.float64)
  values = values[~np.isnan(values)]
  names = _spread_columns(higher_is_better)
  if not values.size:
    return dict.fromkeys(names, np.nan)
  worst, percent = (np.min, 10) if higher_is_better else (np.max, 90)
  numbers = worst(values), np.percentile(values, percent), np.std(values)
  return dict(zip(names, map(float, numbers), strict=True))


def _spread_columns(higher_is_better: bool) -> tuple[str, str, str]:
  return "worst", f"percentile_{10 if higher_is_better else 90}", "std"


def is_harmed(
  values: np.ndarray, reference: np.ndarray, higher_is_better: bool = True
) -> np.ndarray:
  """Returns which clients have a value worse than the reference's.

  A client is harmed if its value is worse by more than 0, up to the rounding of
  float32 (0.0001). A client without both values is not.

  Args:
    values: [num_clients]. NaN: the client has no value.
    reference: The values of the same clients with another method.
    higher_is_better: Whether higher values are better.
  """
  sign = 1 if higher_is_better else -1
  return sign * values < sign * reference - _ROUNDING


def harmed_share(
  values: np.ndarray, reference: np.ndarray, higher_is_better: bool = True
) -> float:
  """Returns the percentage of harmed clients, see `is_harmed`.

  Args:
    values: [num_clients].
    reference: The values of the same clients with another method.
    higher_is_better: Whether higher values are better.

  Returns:
    The percentage of the clients that have both values; NaN without any.
  """
  values, reference = (
    np.asarray(each, np.float64) for each in (values, reference)
  )
  if values.shape != reference.shape:
    raise ValueError(
      "values and reference must be of the same clients, got"
      f" {list(values.shape)} and {list(reference.shape)}"
    )
  have_both = ~(np.isnan(values) | np.isnan(reference))
  if not have_both.any():
    return float("nan")
  harmed_clients = is_harmed(values, reference, higher_is_better)
  return 100.0 * float(np.mean(harmed_clients[have_both]))


def final(
  clients: pd.DataFrame, metric: str | None = None, num_last: int = 1
) -> pd.DataFrame:
  """Returns the final value of each client of each run.

  Args:
    clients: A row per evaluation and client.
    metric: The metric. None: the accuracy of the scenario, `client_accuracy`,
      `accuracy` or `own_accuracy`.
    num_last: The number of last evaluated rounds that are averaged; guidance
      averages `--final_rounds`. In time steps and periods, all are averaged.

  Returns:
    The columns of the run, `client`, and the metric. Runs that only served
    selection are left out.

  Raises:
    ValueError: If there is no such column; one line.
  """
  num_last = arguments.integer("num_last", num_last)
  metric = _metric(clients, metric)
  step = next((name for name in run_folders.STEPS if name in clients), None)
  for name, found in (("round, timestep or period", step), (_CLIENT, _CLIENT)):
    if found not in clients:
      raise ValueError(f"clients: there is no column {name}")
  if run_folders.HELD_OUT in clients:
    clients = clients[clients[run_folders.HELD_OUT].isin(run_folders.JUDGED)]
  columns = list(clients)
  run = [
    name
    for place, name in enumerate(columns)
    if name in _RUN
    or (
      place < columns.index(step)
      and name not in (_CLIENT, _NAME, *run_folders.STEPS, metric)
    )
  ]
  clients = clients[clients[metric].notna()]
  if step == "round":
    rounds = clients[step]
    if run:
      rounds = clients.groupby(run, dropna=False)[step]
    ranks = rounds.rank(method="dense", ascending=False)
    clients = clients[ranks <= num_last]
  values = clients.assign(**{metric: clients[metric].astype(np.float64)})
  return values.groupby([*run, _CLIENT], dropna=False, as_index=False)[
    metric
  ].mean()


def spread(
  clients: pd.DataFrame,
  metric: str | None = None,
  num_last: int = 1,
  *,
  higher_is_better: bool | None = None,
) -> pd.DataFrame:
  """Returns how the final values of each run are spread over clients.

  Args:
    clients: A row per evaluation and client.
    metric: The metric, see `final`.
    num_last: See `final`.
    higher_is_better: Whether higher values are better. None: as the metric
      declares.

  Returns:
    A row per run: its columns, `num_clients`, and those of `spread_of`.

  Raises:
    ValueError: If there is no such column, or its direction is neither declared
      nor passed; one line.
  """
  import pandas as pd

  metric = _metric(clients, metric)
  values = final(clients, metric, num_last)
  run = _run_columns(values, metric)
  direction = _direction(metric, higher_is_better)
  rows = [
    {
      **labels,
      "num_clients": len(own),
      **spread_of(own[metric].to_numpy(), direction),
    }
    for labels, own in _runs(values, run)
  ]
  return pd.DataFrame(
    rows, columns=[*run, "num_clients", *_spread_columns(direction)]
  )


def harmed(
  clients: pd.DataFrame,
  of: str,
  against: str,
  metric: str | None = None,
  num_last: int = 1,
  *,
  higher_is_better: bool | None = None,
) -> pd.DataFrame:
  """Returns the percentage of clients that an algorithm harms.

  A client is harmed if its final value is worse than with the algorithm
  `against`, on the same data with the same seed, by more than 0 points.

  Args:
    clients: A row per evaluation and client of both algorithms, with the
      columns `algorithm` and `seed`.
    of: The algorithm.
    against: The algorithm that it is compared with, such as `local`.
    metric: The metric, see `final`.
    num_last: See `final`.
    higher_is_better: Whether higher values are better. None: as the metric
      declares.

  Returns:
    A row per run of `of`: its columns, `num_clients`, the number of clients
    with both values, and `harmed_share` in percent.

  Raises:
    ValueError: If there is no such column or algorithm, its direction is
      neither declared nor passed, or `against` has not exactly one run for a
      run of `of`; one line.
  """
  import pandas as pd

  for name in ("algorithm", "seed"):
    if name not in clients:
      raise ValueError(f"clients: there is no column {name}")
  if _NAME in clients and clients[_NAME].notna().all():
    # Runs on other files may number the same clients otherwise.
    clients = clients.assign(**{_CLIENT: clients[_NAME]})
  metric = _metric(clients, metric)
  values = final(clients, metric, num_last)
  run = _run_columns(values, metric)
  known = list(dict.fromkeys(values["algorithm"]))
  arguments.choice("of", of, known)
  arguments.choice("against", against, known)
  paired = [name for name in _PAIRED if name in run]
  direction = _direction(metric, higher_is_better)
  references = {}
  for labels, own in _runs(values[values["algorithm"] == against], run):
    references.setdefault(tuple(labels[name] for name in paired), []).append(
      own.set_index(_CLIENT)[metric]
    )
  rows = []
  for labels, own in _runs(values[values["algorithm"] == of], run):
    found = references.get(tuple(labels[name] for name in paired), [])
    if len(found) != 1:
      where = ", ".join(f"{name} {labels[name]}" for name in paired)
      raise ValueError(
        f"against={against}: it must have one run with {where}, got"
        f" {len(found)}; keep the rows of one setting"
      )
    own = own.set_index(_CLIENT)[metric]
    both = own.index.intersection(found[0].index)
    rows.append(
      {
        **labels,
        "num_clients": len(both),
        "harmed_share": harmed_share(
          own[both].to_numpy(), found[0][both].to_numpy(), direction
        ),
      }
    )
  return pd.DataFrame(rows, columns=[*run, "num_clients", "harmed_share"])


def undefined(
  clients: pd.DataFrame, chosen: Mapping[str, metric_lib.Metric]
) -> dict[str, list[str]]:
  """Returns the clients that a mean over clients leaves out.

  Args:
    clients: A row per evaluation and client of a run; the last round counts, or
      all time steps or periods.
    chosen: The metrics by name.

  Returns:
    For each column of such a mean the clients that have examples and at least
    once no value, for example because they lack classes.
  """
  if "round" in clients:
    clients = clients[clients["round"] == clients["round"].max()]
  names = clients[_NAME if _NAME in clients else _CLIENT].astype(str)
  found = {}
  for metric, definition in chosen.items():
    # In periods, all metrics are means over clients.
    if not definition.counts_clients and "period" not in clients:
      continue
    for column in clients:
      match = re.fullmatch(f"(|.*_){metric}(|_before)", column)
      accuracy = match and clients.get("accuracy".join(match.groups()))
      if accuracy is not None:
        is_lacking = clients[column].isna() & accuracy.notna()
        found[column] = list(dict.fromkeys(names[is_lacking]))
  return found


def _metric(clients: pd.DataFrame, metric: str | None) -> str:
  """Returns the metric, or the accuracy of the scenario."""
  wanted = _ACCURACIES if metric is None else (metric,)
  found = next((name for name in wanted if name in clients), None)
  if found is None:
    raise ValueError(
      f"clients: there is no column {' or '.join(wanted)}, only"
      f" {', '.join(map(str, clients))}"
    )
  return found


def _direction(metric: str, higher_is_better: bool | None) -> bool:
  """Returns whether higher values are better, by default as declared."""
  if higher_is_better is None:
    return metrics.higher_is_better(metric)
  return higher_is_better


def _run_columns(values: pd.DataFrame, metric: str) -> list[str]:
  """Returns the columns of the run in the result of `final`."""
  return [name for name in values if name not in (_CLIENT, metric)]


def _runs(values: pd.DataFrame, run: Sequence[str]):
  """Yields the columns of each run by name, and its rows."""
  if not run:
    yield {}, values
    return
  for labels, own in values.groupby(list(run), dropna=False, sort=False):
    yield dict(zip(run, labels, strict=True)), own
