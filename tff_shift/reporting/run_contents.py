"""Converts run folders of the binaries to the contents of a page.

Each metric of a summary entry is a cell. Its row is the algorithm, with the
settings in which the entries of the algorithm differ. Its column is the metric,
with data set and scenario settings.
"""

import os
import pathlib
import shlex
from collections.abc import Sequence

from tff_shift import records
from tff_shift.reporting import read_run
from tff_shift.reporting import run_folders
from tff_shift.reporting import summary
from tff_shift.reporting.pages import contents as contents_lib
from tff_shift.simulation.storage import run_records

# Scenario settings. All other settings of an entry belong to its method. A
# metric is compared between methods with equal scenario settings.
_ABOUT = (
  *("dirichlet", "num_clients", "num_domains", "participation"),
  *("availability_period", "availability_share"),
  *("dropout_rate", "report_deadline"),
  *("evaluation_clients", "mean_of_last", "angle_step"),
  *("target_rotation_degrees", "shift", "shift_kind", "corruption_levels"),
  *("rounds_per_step", "samples_per_step", "initial_examples"),
  *("pretraining_distribution", "partition", "intensity", "sharing"),
  *("final_rounds", "train_distributions", "test_distribution"),
  *("period_size", "periods", "periods_per_distribution", "rest"),
  *("representation", "distance_features", "apply_update"),
  *("distance_threshold", "model", "model_parameters", "input_scaling"),
)
_NO_SELECTION = "none"
# The algorithms that are floors: no client learns from others, none adapts, or
# all predict the most frequent class.
_FLOORS = ("local", "source", "majority_class")
# The algorithms against which a client can be harmed.
_REFERENCES = ("local", "fed_avg", "source")
# Parts of the names of metrics where lower is better, in runs of earlier
# versions and of dynamic_regret. Other runs list them.
_LESS_IS_BETTER = (
  *("loss", "variance", "not_finite", "low_accuracy", "false_positive"),
  *("request", "regret"),
)


def _words(name: str) -> str:
  return name.replace("_", " ").strip()


def _differing(entries: Sequence[run_records.Entry], names) -> list[str]:
  """Returns those of the given settings in which entries differ."""
  return [
    name
    for name in names
    if len({run_folders.text(entry.setting.get(name)) for entry in entries}) > 1
  ]


def _elsewhere(command_line: str) -> str:
  """Returns a command without the path of its Python."""
  words = shlex.split(command_line)
  return shlex.join([pathlib.Path(word).name for word in words[:1]] + words[1:])


def _own_names(entries):
  """Returns the names of method settings, in order."""
  names = dict.fromkeys(name for e in entries for name in e.setting)
  skipped = (
    *(*_ABOUT, "selection", summary.METRICS, summary.NOT_PROTECTED),
    summary.CLIENT_VALUES,
  )
  return [name for name in names if name not in skipped]


def _row_names(entries: Sequence[run_records.Entry]) -> list[str]:
  """Returns the row name of each entry.

  The name has the settings of an algorithm that has several on the same data.
  Settings that were selected per data set do not make different methods.
  """
  names = []
  for entry in entries:
    same = [
      other
      for other in entries
      if other.algorithm == entry.algorithm
      and (
        other.dataset == entry.dataset
        and not _differing([entry, other], _ABOUT)
      )
    ]
    settings = [
      f"{_words(name)} {run_folders.text(entry.setting.get(name)) or 'none'}"
      for name in _differing(same, _own_names(same))
    ]
    names.append(", ".join([entry.algorithm, *settings]))
  return names


def _is_selected(entry: run_records.Entry) -> bool:
  return entry.setting.get("selection") not in (None, _NO_SELECTION)


def _of_same_selection(entry, entries) -> list[run_records.Entry]:
  """Returns the entries of all settings that a selection compared."""
  return [
    each
    for each in entries
    if (each.algorithm, each.dataset) == (entry.algorithm, entry.dataset)
    and each.scores.keys() == entry.scores.keys()
    and not _differing([entry, each], _ABOUT)
  ]


def _shown(entries: Sequence[run_records.Entry]) -> list[run_records.Entry]:
  """Returns the entries that are rows: not those that a selection rejected."""
  return [
    entry
    for entry in entries
    if not entry.scores
    or _is_selected(entry)
    or not any(map(_is_selected, _of_same_selection(entry, entries)))
  ]


def _trials(
  folder: run_folders.RunFolder, entry: run_records.Entry, metric: str
) -> list[contents_lib.Trial]:
  """Returns the values of an entry at all settings of its selection.

  Empty if nothing was selected, or if a setting did not run on the test data.
  """
  if not _is_selected(entry):
    return []
  same = _of_same_selection(entry, folder.entries)
  if len(same) < len(entry.scores) or len(same) < 2:
    return []
  names = _differing(same, _own_names(same))
  return [
    contents_lib.Trial(
      label=", ".join(
        f"{_words(name)} {run_folders.text(each.setting.get(name)) or 'none'}"
        for name in names
      ),
      by_seed=_by_seed(folder, each, metric),
      is_selected=each is entry,
    )
    for each in same
    if metric in each.metrics
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


def metric_names(folders: Sequence[run_folders.RunFolder]) -> list[str]:
  """Returns the metrics in run folders, in alphabetical order."""
  return sorted(
    {name for f in folders for entry in f.entries for name in entry.metrics}
  )


def main_metrics(folders: Sequence[run_folders.RunFolder]) -> list[str]:
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


def _column(entry, about, with_dataset, metric) -> tuple[str, ...]:
  # Settings that an entry lacks belong to other scenarios.
  settings = [
    f"{_words(name)} {run_folders.text(entry.setting[name]) or 'none'}"
    for name in about
    if name in entry.setting
  ]
  return (*([entry.dataset] * with_dataset), *settings, _words(metric))


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
  folder: run_folders.RunFolder, entry, start: pathlib.Path
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
      for each in folder.entries
    )
  return contents_lib.Run(
    folder=os.path.relpath(folder.path, start),
    command=_elsewhere(folder.config.command_line),
    chosen=chosen,
    scores={k: records.to_float(v) for k, v in entry.scores.items()},
    seconds=seconds,
    is_finished=not folder.unfinished,
    num_diverged=sum(sum(each.num_diverged) for each in folder.entries),
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
  folders: Sequence[run_folders.RunFolder],
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
  entries = [(f, entry) for f in folders for entry in _shown(f.entries)]
  alone = [entry for _, entry in entries]
  about = _differing(alone, _ABOUT)
  with_dataset = len({entry.dataset for entry in alone}) > 1
  columns, cells, curves, algorithms = {}, {}, [], {}
  runs, clients = {}, {}
  for (folder, entry), row in zip(entries, _row_names(alone), strict=True):
    for metric in metrics:
      if metric not in entry.metrics:
        continue
      heading = _column(entry, about, with_dataset, metric)
      columns.setdefault(
        heading,
        contents_lib.Column(
          heading=heading,
          metric=_words(metric),
          unit="%" if metric.endswith("accuracy") else "",
          higher_is_better=metric not in entry.lower_is_better
          and (
            summary.METRICS in entry.setting
            or not any(part in metric for part in _LESS_IS_BETTER)
          ),
        ),
      )
      # The same method in two folders counts as two methods.
      name = row if (row, heading) not in cells else f"{row} ({folder.path})"
      algorithms[name] = entry.algorithm
      cells[name, heading] = (
        folder,
        contents_lib.Cell(
          row=name,
          column=heading,
          by_seed=_by_seed(folder, entry, metric),
          run=_run(folder, entry, start),
          trials=_trials(folder, entry, metric),
          budget=budget(entry),
        ),
      )
      curves += _curves(folder, entry, name, heading, metric)
      if folder.path not in runs:
        runs[folder.path] = read_run.read(folder.path)
      found = read_run.final_client_values(runs[folder.path], entry, metric)
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
    protocol=_common(alone),
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
    and not _differing(entries, [name])
  ]
