"""Converts run folders of the binaries to the contents of a page.

Each metric of a summary entry is a cell. Its row is the algorithm, with the
settings in which the entries of the algorithm differ. Its column is the metric
of runs that agree in everything but their methods and what is declared to have
no effect; the heading says in what columns differ.
"""

import os
import pathlib
import shlex
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any
from typing import NamedTuple

from tff_shift._util import records
from tff_shift._util import shown_names
from tff_shift.data import table
from tff_shift.reporting import read_run
from tff_shift.reporting import run_folders
from tff_shift.reporting import summary
from tff_shift.reporting.pages import contents as contents_lib
from tff_shift.simulation.storage import run_records

# Settings of an entry that describe its method, or what was recorded, and are
# no flags. Flags declare so themselves, see `RunConfig.not_compared`.
_NOT_COMPARED = frozenset(
  {
    *("selection", summary.METRICS),
    *(summary.NOT_PROTECTED, summary.CLIENT_VALUES, *summary.GUARANTEE),
  }
)
# The maximum number of characters of a value in a heading.
_LONGEST_VALUE = 40
_NO_SELECTION = "none"
# The algorithms that are floors: no client learns from others, none adapts, or
# all predict the most frequent class.
_FLOORS = (
  *("local", "source", "majority_class"),
  *("local_logistic_regression", "pooled_logistic_regression"),
)
# The algorithms against which a client can be harmed.
_REFERENCES = ("local", "fed_avg", "source")


def _words(name: str) -> str:
  return name.replace("_", " ").strip()


class _Row(NamedTuple):
  """An entry, its run folder, and its identity.

  Attributes:
    folder: The run folder.
    entry: The entry.
    identity: The values of all flags and settings, as texts by name, but those
      of the method and those that are declared to have no effect. Methods are
      compared between entries with equal identities.
  """

  folder: read_run.RunData
  entry: run_records.Entry
  identity: Mapping[str, str]


def _row(folder: read_run.RunData, entry: run_records.Entry) -> _Row:
  """Returns an entry with its identity."""
  left_out = {*folder.config.not_compared, "seeds", "algorithm"}
  # A setting is the resolved value of the flag of its name.
  values = folder.config.flags | entry.setting
  identity = {
    name: _text(value)
    for name, value in values.items()
    if name not in left_out | _NOT_COMPARED
  }
  return _Row(folder, entry, {"data set": entry.dataset, **identity})


def _text(value: Any) -> str:
  if isinstance(value, list):
    return ",".join(map(_text, value))
  return run_folders.text(value)


def _differing(rows: Sequence[_Row]) -> list[str]:
  """Returns the names in which the identities of rows differ.

  A name that a row lacks belongs to other scenarios, and does not count.
  """
  names = dict.fromkeys(name for row in rows for name in row.entry.setting)
  names |= dict.fromkeys(sorted(name for row in rows for name in row.identity))
  return [
    name
    for name in names
    if len({row.identity[name] for row in rows if name in row.identity}) > 1
  ]


def _differing_settings(rows: Sequence[_Row]) -> list[str]:
  """Returns the settings of methods in which entries differ."""
  names = dict.fromkeys(name for row in rows for name in row.entry.setting)
  return [
    name
    for name in names
    if name not in _NOT_COMPARED
    and not any(name in row.identity for row in rows)
    and len({run_folders.text(row.entry.setting.get(name)) for row in rows}) > 1
  ]


def _headings(rows: Sequence[_Row]) -> list[tuple[str, ...]]:
  """Returns what the headings of each row's columns say before the metric.

  Equal identities have equal headings, and others have others.
  """
  about = [name for name in _differing(rows) if name != "data set"]
  datasets = {row.entry.dataset for row in rows}
  named = {(row.entry.dataset, row.identity.get("dataset")) for row in rows}
  if len(named) == len(datasets):
    # The names of the data sets say what this flag says.
    about = [name for name in about if name != "dataset"]
  by_identity = {}
  for row in rows:
    settings = [
      f"{_words(name)} {_shortened(row.identity[name])}"
      for name in about
      if name in row.identity
    ]
    heading = (*([row.entry.dataset] * (len(datasets) > 1)), *settings)
    taken = [*by_identity.values()]
    identity = frozenset(row.identity.items())
    if identity not in by_identity and heading in taken:
      number = sum(each[: len(heading)] == heading for each in taken)
      heading = (*heading, f"other settings {number}")
    by_identity.setdefault(identity, heading)
  return [by_identity[frozenset(row.identity.items())] for row in rows]


def _shortened(value: str) -> str:
  return shown_names.shortened(value or "none", _LONGEST_VALUE)


def _elsewhere(command_line: str) -> str:
  """Returns a command without the path of its Python."""
  words = shlex.split(command_line)
  return shlex.join([pathlib.Path(word).name for word in words[:1]] + words[1:])


def _row_names(rows: Sequence[_Row]) -> list[str]:
  """Returns the row name of each entry.

  The name has the settings of an algorithm that has several on the same data.
  Settings that were selected per data set do not make different methods.
  """
  names = []
  for row in rows:
    same = [
      other
      for other in rows
      if other.entry.algorithm == row.entry.algorithm
      and other.identity == row.identity
    ]
    names.append(
      ", ".join(
        [
          row.entry.algorithm,
          *_settings(row.entry, _differing_settings(same)),
        ]
      )
    )
  return names


def _settings(entry: run_records.Entry, names: Sequence[str]) -> list[str]:
  """Returns settings of an entry as texts, each with its name."""
  return [
    f"{_words(name)} {run_folders.text(entry.setting.get(name)) or 'none'}"
    for name in names
  ]


def _is_selected(entry: run_records.Entry) -> bool:
  return entry.setting.get("selection") not in (None, _NO_SELECTION)


def _of_same_selection(row: _Row) -> list[_Row]:
  """Returns the entries of all settings that a selection compared."""
  return [
    other
    for other in _rows(row.folder)
    if other.entry.algorithm == row.entry.algorithm
    and other.entry.scores.keys() == row.entry.scores.keys()
    and other.identity == row.identity
  ]


def _rows(folder: read_run.RunData) -> list[_Row]:
  return [_row(folder, entry) for entry in folder.summary]


def _shown(folder: read_run.RunData) -> list[_Row]:
  """Returns the entries that are rows: not those that a selection rejected."""
  return [
    row
    for row in _rows(folder)
    if not row.entry.scores
    or _is_selected(row.entry)
    or not any(_is_selected(other.entry) for other in _of_same_selection(row))
  ]


def _trials(row: _Row, metric: str) -> list[contents_lib.Trial]:
  """Returns the values of an entry at all settings of its selection.

  Empty if nothing was selected, or if a setting did not run on the test data.
  """
  if not _is_selected(row.entry):
    return []
  same = _of_same_selection(row)
  if len(same) < len(row.entry.scores) or len(same) < 2:
    return []
  names = _differing_settings(same)
  return [
    contents_lib.Trial(
      label=", ".join(_settings(other.entry, names)),
      by_seed=_by_seed(other.folder, other.entry, metric),
      is_selected=other.entry is row.entry,
    )
    for other in same
    if metric in other.entry.metrics
  ]


def _by_seed(folder, entry, metric) -> dict[int, float]:
  return dict(zip(folder.seeds, entry.metrics[metric].values, strict=True))


def budget(entry: run_records.Entry) -> contents_lib.Budget:
  """Returns what a client and a selection spend, as an entry records it."""
  participation = entry.setting.get("participation")
  return contents_lib.Budget(
    num_settings=max(1, len(entry.scores)),
    num_rounds=entry.rounds,
    num_gradients=entry.gradients,
    bytes_down=entry.bytes_down,
    bytes_up=entry.bytes_up,
    seconds_per_round=records.to_float(entry.seconds_per_round),
    participation=participation
    if isinstance(participation, int | float)
    else None,
    # 0: epochs, whose steps depend on the client.
    fine_tuning_steps=entry.setting.get("fine_tuning_steps") or None,
  )


def metric_names(folders: Sequence[read_run.RunData]) -> list[str]:
  """Returns the metrics in run folders, in alphabetical order."""
  return sorted(
    {name for f in folders for entry in f.summary for name in entry.metrics}
  )


def main_metrics(folders: Sequence[read_run.RunData]) -> list[str]:
  """Returns the main metrics: accuracies averaged over clients, or else all."""
  names = metric_names(folders)
  accuracies = [
    name
    for name in names
    if name.endswith("accuracy")
    and not any(
      part in name for part in ("mean_of_last", "pooled", "validation")
    )
  ]
  return accuracies or names


def _curves(folder, entry, row, column, metric):
  """Returns the curves of an entry, one per seed."""
  step, by_seed = run_folders.curves(folder.path, folder.rows, entry, metric)
  return [
    contents_lib.Curve(
      row=row, column=column, seed=seed, step=step, points=points
    )
    for seed, points in by_seed.items()
  ]


def _run(
  folder: read_run.RunData, entry, start: pathlib.Path
) -> contents_lib.Run:
  flags, setting = folder.config.flags, entry.setting
  chosen = {}
  if _is_selected(entry):
    chosen = {
      _words(name): run_folders.text(setting[name])
      for name, values in flags.items()
      if name in setting and isinstance(values, list) and len(values) > 1
    }
  # The time of runs for selection is not known.
  seconds = None
  if not chosen:
    seconds = len(folder.seeds) * sum(
      each.rounds * records.to_float(each.seconds_per_round)
      for each in folder.summary
    )
  return contents_lib.Run(
    folder=os.path.relpath(folder.path, start),
    command=_elsewhere(folder.config.command_line),
    chosen=chosen,
    scores={k: records.to_float(v) for k, v in entry.scores.items()},
    seconds=seconds,
    is_finished=not folder.unfinished,
    num_diverged=sum(sum(each.num_diverged) for each in folder.summary),
    risen=entry.risen,
  )


def _machine(folders) -> str:
  """Returns the cores and software versions of runs, without duplicates."""
  found = dict.fromkeys(
    ", ".join(
      [
        f"{folder.config.cores} cores",
        *(
          f"{name} {version}"
          for name, version in folder.config.versions.items()
        ),
      ]
    )
    for folder in folders
  )
  return "; ".join(found)


def to_contents(
  folders: Sequence[read_run.RunData],
  *,
  metrics: Sequence[str],
  title: str,
  command: str,
  start: pathlib.Path,
) -> contents_lib.Contents:
  """Returns the contents of a page of run folders.

  Args:
    folders: The folders.
    metrics: The metrics to show, in order.
    title: The title of the page.
    command: The command that writes it.
    start: The folder of the page, to which links are relative.

  Returns:
    The contents.
  """
  rows = [row for folder in folders for row in _shown(folder)]
  columns, cells, curves, algorithms = {}, {}, [], {}
  clients, guarantees = {}, {}
  for row, row_name, about in zip(
    rows, _row_names(rows), _headings(rows), strict=True
  ):
    folder, entry, _ = row
    for metric in metrics:
      if metric not in entry.metrics:
        continue
      heading = (*about, _words(metric))
      columns.setdefault(
        heading,
        contents_lib.Column(
          heading=heading,
          metric=_words(metric),
          unit="%" if metric.endswith("accuracy") else "",
          higher_is_better=metric not in entry.lower_is_better,
        ),
      )
      # The same method in two folders counts as two methods.
      name = row_name
      if (name, heading) in cells:
        name = f"{row_name} ({folder.path})"
      algorithms[name] = entry.algorithm
      if "epsilon" in entry.setting:
        guarantees[name, about] = _guarantee(name, about, entry.setting)
      cells[name, heading] = (
        folder,
        contents_lib.Cell(
          row=name,
          column=heading,
          by_seed=_by_seed(folder, entry, metric),
          run=_run(folder, entry, start),
          trials=_trials(row, metric),
          budget=budget(entry),
        ),
      )
      curves += _curves(folder, entry, name, heading, metric)
      found = read_run.final_client_values(folder, entry, metric)
      if found:
        clients.setdefault(heading, {})[name] = {
          seed: tuple(values) for seed, values in found.items()
        }
  groups = list(dict.fromkeys(heading[:-1] for heading in columns))
  return contents_lib.Contents(
    name="run folders",
    title=title,
    command=command,
    machine=_machine(folders),
    date=max((f.config.start_time[:10] for f in folders), default=""),
    # Metrics on the same data and settings are adjacent.
    columns=sorted(
      columns.values(), key=lambda column: groups.index(column.heading[:-1])
    ),
    cells=[*(cell for _, cell in cells.values()), *_missing(folders, cells)],
    protocol=[*_data(folders), *_common([row.entry for row in rows])],
    guarantees=[*guarantees.values()],
    curves=curves,
    problems=[
      f"{folder.path}: {', '.join(folder.unfinished)} did not finish; if it is"
      " not running, continue with --resume"
      for folder in folders
      if folder.unfinished
    ],
    floors=_rows_of(algorithms, _FLOORS),
    ceilings=_rows_of(algorithms, summary.CEILINGS),
    references=_rows_of(algorithms, _REFERENCES),
    clients=[
      contents_lib.ClientValues(column=heading, by_method=by_method)
      for heading, by_method in clients.items()
    ],
  )


def _guarantee(
  row: str, about: tuple[str, ...], setting: Mapping[str, Any]
) -> contents_lib.Guarantee:
  """Returns the privacy guarantee in the settings of an entry."""
  numbers = {
    name: f"{value:.4g}" if isinstance(value, float) else str(value)
    for name, value in setting.items()
    if name in summary.GUARANTEE
  }
  return contents_lib.Guarantee(
    row=row,
    column=about,
    epsilon=numbers.pop("epsilon"),
    delta=numbers.pop("epsilon_delta"),
    relation=numbers.pop("epsilon_relation"),
    sampling=numbers.pop("epsilon_sampling"),
    others=", ".join(
      f"{_words(name.removeprefix('epsilon'))} {number}"
      for name, number in numbers.items()
    ),
  )


def _rows_of(algorithms, names) -> list[str]:
  """Returns the rows of the given algorithms."""
  return [row for row, each in algorithms.items() if each in names]


def _missing(folders, cells):
  """Yields the cells of algorithms whose runs have not finished."""
  for folder in folders:
    columns = dict.fromkeys(
      heading for (_, heading), (owner, _) in cells.items() if owner is folder
    )
    for name in folder.unfinished:
      for heading in columns:
        if (name, heading) not in cells:
          yield contents_lib.Cell(
            row=name,
            column=heading,
            absent=f"not run: not finished in {folder.path}",
          )


def _data(
  folders: Sequence[read_run.RunData],
) -> Iterator[contents_lib.Setting]:
  """Yields the names of the data that are equal in all folders."""
  schemas = [folder.config.schema or table.Schema() for folder in folders]
  for field in ("features", "classes", "clients", "times", "dropped"):
    names = {getattr(schema, field) for schema in schemas}
    shown = summary.shortened(names.pop() or (), ", ")
    if shown and not names:
      yield contents_lib.Setting(name=f"data: {field}", paper="", ours=shown)


def _common(entries) -> list[contents_lib.Setting]:
  """Returns the settings that are equal in all entries."""
  if not entries:
    return []
  first = entries[0].setting
  return [
    contents_lib.Setting(
      name=_words(name), paper="", ours=run_folders.text(value)
    )
    for name, value in first.items()
    if value is not None
    and all(name in entry.setting for entry in entries)
    and len({run_folders.text(entry.setting[name]) for entry in entries}) == 1
  ]
