"""A run folder as pandas' data frames, also while the run is active."""

from __future__ import annotations

import dataclasses
import functools
import io
import os
import pathlib
from collections.abc import Mapping
from collections.abc import Sequence
from typing import TYPE_CHECKING

from tff_shift._util import files
from tff_shift.reporting import clients as clients_lib
from tff_shift.reporting import run_folders
from tff_shift.simulation.engine import frames
from tff_shift.simulation.storage import client_values
from tff_shift.simulation.storage import results
from tff_shift.simulation.storage import run_file
from tff_shift.simulation.storage import run_records

if TYPE_CHECKING:
  import numpy as np
  import pandas as pd


@dataclasses.dataclass(frozen=True)
class RunData:
  """The content of a run folder.

  Attributes:
    path: The folder.
    config: The content of `config.json`.
    summary: The entries of `summary.json`; empty for an unfinished run.
    rows: The rows of `metrics.csv`, as texts.
    seeds: The seeds, in the order of the values of a summary.
  """

  path: pathlib.Path
  config: run_records.RunConfig
  summary: Sequence[run_records.Entry]
  rows: Sequence[Mapping[str, str]]
  seeds: Sequence[int]

  def __repr__(self):
    return f"RunData({str(self.path)!r}, {len(self.rows)} rows)"

  @property
  def unfinished(self) -> list[str]:
    """The requested algorithms that have no entry."""
    requested = self.config.flags.get("algorithm") or []
    found = {entry.algorithm for entry in self.summary}
    return [name for name in requested if name not in found]

  @functools.cached_property
  def metrics(self) -> pd.DataFrame:
    """The rows of `metrics.csv`.

    Raises:
      ValueError: If the file is damaged.
    """
    import pandas as pd

    if not self.rows:
      return pd.DataFrame()
    text = files.read_text(self.path / run_folders.METRICS)
    return pd.read_csv(
      # Without an incomplete last line.
      io.StringIO(text[: text.rfind("\n") + 1]),
      float_precision="round_trip",
    )

  @functools.cached_property
  def has_clients(self) -> bool:
    """Whether there are values of single clients.

    Raises:
      ValueError: If a file is damaged.
    """
    return bool(self._saved)

  @functools.cached_property
  def _saved(self) -> list[run_file.SavedValues]:
    folder = results.RunFolder(self.path).checkpoints
    found = map(run_file.read_clients, sorted(folder.glob("*.sqlite")))
    return [each for each in found if each is not None and each.values]

  @functools.cached_property
  def clients(self) -> pd.DataFrame:
    """A row per evaluation and client, of all runs in the folder.

    The columns are those of the run (algorithm, hyper-parameters, seed), those
    of the evaluation, `client` (the position), `client_name` if names are
    known, and the metrics.

    Raises:
      ValueError: If there are no values of clients, or a file is damaged.
    """
    import pandas as pd

    order = list(self.config.flags.get("algorithm") or [])
    if not self.has_clients:
      raise ValueError(
        f"{self.path}: there are no values of clients: the run has saved no"
        " checkpoint yet (or has --checkpoint_every=0), or has more than"
        f" {client_values.MAX_CLIENTS:,} clients"
      )

    def place(each):
      name = each.labels.get("algorithm")
      position = order.index(name) if name in order else len(order)
      return position, each.labels.get("seed", 0)

    found, columns = [], {}
    for each in sorted(self._saved, key=place):
      frame = frames.of_clients(each.values, each.client_names)
      columns |= dict.fromkeys(each.labels)
      found.append(frame.assign(**each.labels))
    # The seed comes last, after the hyper-parameters of all algorithms.
    labels = [name for name in columns if name != "seed"] + ["seed"]
    whole = pd.concat(found, ignore_index=True)
    return whole[[*labels, *(name for name in whole if name not in labels)]]


def final_client_values(
  run: RunData, entry: run_records.Entry, metric: str
) -> dict[int, np.ndarray]:
  """Returns the final values of the clients of a summary entry.

  Args:
    run: The run folder.
    entry: An entry of its summary. A curve belongs to it if all common settings
      are equal.
    metric: The metric.

  Returns:
    [num_clients] float64 by seed; NaN: the client has no value. Empty if the
    folder has no values of single clients, or not this metric.

  Raises:
    ValueError: If a file is damaged; one line that names it.
  """
  if not run.has_clients or metric not in run.clients:
    return {}
  num_last = entry.setting.get("final_rounds") or 1
  final = clients_lib.final(run.clients, metric, num_last)
  known = run_folders.settings(entry)
  for name in final.columns.intersection(list(known)):
    wanted = run_folders.text(known[name])
    final = final[final[name].map(run_folders.text) == wanted]
  size = int(run.clients["client"].max()) + 1
  return {
    # The mean over targets, if there are several.
    int(seed): own.groupby("client")[metric]
    .mean()
    .reindex(range(size))
    .to_numpy()
    for seed, own in final.groupby("seed")
  }


def read(folder: str | os.PathLike[str]) -> RunData:
  """Reads a run folder of a binary; changes nothing.

  Args:
    folder: The `--output_dir` of the run.

  Returns:
    Its content. That of an unfinished run is incomplete.

  Raises:
    ValueError: If it is not a run folder, or a file is damaged; one line that
      names the folder or file.

  Examples:
    >>> run = ts.read_run(folder)  # Of FedAvg with two seeds.
    >>> run.config.flags["algorithm"], list(run.seeds), run.unfinished
    (['fed_avg'], [0, 1], [])
    >>> run.metrics.groupby("seed")["round"].max().tolist()
    [15, 15]
  """
  path = pathlib.Path(folder)
  if not path.is_dir():
    raise ValueError(f"{path}: there is no such folder")
  config = run_folders.read_config(path)
  if config is None:
    raise ValueError(
      f"{path}: not a run folder, because it has no {run_records.CONFIG}"
    )
  seeds = run_folders.seeds(path, config)
  entries = run_folders.read_entries(path)
  for number, entry in enumerate(entries):
    run_folders.check_seeds(path, number, entry, len(seeds))
  return RunData(path, config, entries, run_folders.read_rows(path), seeds)
