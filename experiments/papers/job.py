"""Plans the jobs of a table, one call of a binary and one run folder each.

A job is a method under one setting of a column on one data set, with all values
of its hyper-parameters and all seeds. Its folder is
`<data set>_<setting>/<method>`.

Choices:
  * Smaller jobs (a seed, a rate) would need selection outside of the binaries;
    larger ones (a column) would lose more when they fail, and could not be
    distributed over machines. More seeds or rates are another run, in another
    folder. `done.json` marks the end of a job, and the command line in its
    `config.json` must have the flags of the job.
"""

import dataclasses
import os
import pathlib
import re
import sys
from collections.abc import Callable
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

from experiments.papers import binary_flags
from experiments.papers import reductions as reductions_lib
from experiments.papers import specification
from experiments.papers import templates
from tff_shift import algorithms
from tff_shift.data import dataset as dataset_lib

# Models are not saved: they take time and space, and tables do not need them.
_ALWAYS = {"save_model": False, "progress": False}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Job:
  """A run folder to produce.

  Attributes:
    folder: The path, relative to the folder of the reproduction.
    binary: The binary.
    dataset: The name of the data set.
    method: The name of the method.
    flags: The flags of the binary by name, without output folder and executor.
    of_paper: The same flags with the values of the paper.
    compared: The hyper-parameters with several values in the paper or in
      `flags`.
  """

  folder: str
  binary: str
  dataset: str
  method: str
  flags: Mapping[str, Any]
  of_paper: Mapping[str, Any]
  compared: Sequence[str]

  @property
  def arguments(self) -> list[str]:
    """The flags as arguments, in alphabetical order."""
    return [
      binary_flags.argument(name, value)
      for name, value in sorted(self.flags.items())
    ]


@dataclasses.dataclass(frozen=True, kw_only=True)
class PlannedCell:
  """A cell and the source of its value.

  Attributes:
    wanted: The cell.
    row: Its row.
    column: Its column.
    job: The job that computes it, or None.
    entry: Settings, and the algorithm if there are several, that identify the
      entry of summary.json, besides selection.
    reads: The metric in the entry.
    absent: The reason why there is no job or no such metric.
  """

  wanted: specification.WantedCell
  row: str
  column: tuple[str, ...]
  job: Job | None
  entry: Mapping[str, str]
  reads: str
  absent: str


def plan(
  spec: specification.Specification,
  reductions: reductions_lib.Reductions,
  *,
  more_flags: Mapping[str, Any] | None = None,
  data_dir: str | None = None,
  has_runs: Callable[[str], bool] = lambda dataset: False,
) -> list[PlannedCell]:
  """Plans all cells of a table.

  Args:
    spec: The table.
    reductions: The reductions.
    more_flags: Flags that override those of the table in all jobs.
    data_dir: The folder of the data sets.
    has_runs: Returns whether there are runs on a data set. Then its cells are
      planned even if the data set is missing.

  Returns:
    The cells. Cells of one run folder share their job.

  Raises:
    ValueError: If a reduction or a flag does not fit the table.
  """
  made = {}
  cells = spec.cells()
  several = len({each.dataset for each in cells}) > 1
  metrics = {each.metric for each in cells}
  planned = []
  for cell in cells:
    settings = [
      (name, spec.settings[name], value) for name, value in cell.setting
    ]
    method, metric = spec.methods[cell.method], spec.metrics[cell.metric]
    reads = templates.fill(metric.reads, dict(cell.setting))
    dataset = spec.datasets[cell.dataset]
    missing = ""
    if not has_runs(cell.dataset):
      missing = _missing_data(dataset, data_dir)
    reason = (
      dataset.absent
      or missing
      or method.absent
      or metric.absent
      or method.absent_metrics.get(reads, "")
    )
    job = None
    if not (reason or spec.computed):
      made_job = _job(spec, cell, reductions, more_flags or {})
      job = made.setdefault(made_job.folder, made_job)
      if job != made_job:
        raise ValueError(
          f"{spec.name}: two jobs with different flags have one folder,"
          f" {job.folder}; rename data sets or settings, or change values"
        )
    headings = [dataset.label] * several
    headings += [
      setting.shown(value)
      for name, setting, value in settings
      if name not in spec.rows_by
    ]
    headings += [metric.label] * (len(metrics) > 1 or not headings)
    row = [method.label or cell.method]
    row += [s.shown(v) for name, s, v in settings if name in spec.rows_by]
    planned.append(
      PlannedCell(
        wanted=cell,
        row=", ".join(row),
        column=tuple(headings),
        job=job,
        entry={
          **{
            s.entry: s.values.get(str(v), str(v))
            for _, s, v in settings
            if s.entry
          },
          **({"algorithm": method.reads} if method.reads else {}),
        },
        reads=reads,
        absent=f"paper only: {reason}" if reason else "",
      )
    )
  return planned


def _missing_data(dataset: specification.Dataset, data_dir: str | None) -> str:
  """Returns what is missing of a data set; empty if it is complete."""
  folder = dataset_lib.data_folder(data_dir)
  for name in dataset.needs:
    if not (folder / name).is_dir():
      return f"{dataset.label} is not available (no folder {name})"
  return ""


def _job(
  spec: specification.Specification,
  cell: specification.WantedCell,
  reductions: reductions_lib.Reductions,
  more_flags: Mapping[str, Any],
) -> Job:
  dataset = spec.datasets[cell.dataset]
  name_of_job = spec.methods[cell.method].job or cell.method
  method = spec.methods[name_of_job]
  of_setting, cut = {}, []
  for name, value in cell.setting:
    found = spec.settings[name].flags_of(value)
    of_setting |= found
    cut += [f"{name}_{value}"] * bool(found)
  given: dict[str, Any] = {"dataset": cell.dataset}
  if dataset.preset:
    given |= binary_flags.preset(spec.binary, dataset.preset)
  given |= {
    **spec.flags,
    **dataset.flags,
    **of_setting,
    **spec.grid,
    **dataset.grid,
  }
  given = {
    name: value
    for name, value in given.items()
    if binary_flags.has(method.algorithm, name)
    or not binary_flags.is_hparam(name, spec.binary)
  }
  given |= {**method.flags, **dataset.methods.get(name_of_job, {})}
  of_paper = given | {"algorithm": method.algorithm, "seeds": list(spec.seeds)}
  reduced = _reduced(of_paper, method.algorithm, spec, reductions)
  compared = [name for name in of_paper if _is_grid(name, of_paper, spec)]
  for name, value in more_flags.items():
    if binary_flags.has(method.algorithm, name) or not binary_flags.is_hparam(
      name, spec.binary
    ):
      reduced[name] = value
      if _is_grid(name, reduced, spec):
        compared.append(name)
  if any(_is_grid(name, reduced, spec) for name in compared):
    if not spec.select:
      raise ValueError(
        f"experiments.{spec.binary} has no criterion to select among several"
        f" values of --{compared[0]}"
      )
    chosen_with = [s for s in spec.selection_seeds if s in reduced["seeds"]]
    reduced["select"] = spec.select
    reduced["selection_seeds"] = chosen_with or reduced["seeds"][:1]
  folder = "_".join([cell.dataset, *cut])
  return Job(
    folder=f"{re.sub(r'[^a-zA-Z0-9.]+', '_', folder)}/{name_of_job}",
    binary=spec.binary,
    dataset=cell.dataset,
    method=name_of_job,
    flags=_ALWAYS | reduced,
    of_paper=of_paper,
    compared=list(dict.fromkeys(compared)),
  )


def _values(value: Any) -> list[Any]:
  """Returns the values of a flag, which may be comma-separated text."""
  if isinstance(value, list | tuple):
    return list(value)
  return value.split(",") if isinstance(value, str) else [value]


def _is_grid(
  name: str, given: Mapping[str, Any], spec: specification.Specification
) -> bool:
  """Returns whether a flag is a hyper-parameter with several values."""
  return (
    binary_flags.is_hparam(name, spec.binary) and len(_values(given[name])) > 1
  )


def _reduced(
  of_paper: Mapping[str, Any],
  algorithm: str,
  spec: specification.Specification,
  reductions: reductions_lib.Reductions,
) -> dict[str, Any]:
  """Returns the flags with reductions."""
  reduced = dict(of_paper)
  reduced["seeds"] = reductions.seeds(spec.seeds)
  for name, value in of_paper.items():
    if _is_grid(name, of_paper, spec):
      reduced[name] = reductions.values(name, _values(value))
  known = binary_flags.of(spec.binary)
  for name in reductions.items:
    is_number = name in known and name != reductions_lib.SEEDS
    if not is_number or (name in of_paper and _is_grid(name, of_paper, spec)):
      continue
    if binary_flags.is_hparam(name, spec.binary) and not binary_flags.has(
      algorithm, name
    ):
      continue
    number = reductions.number(name, of_paper.get(name))
    if number is not None:
      reduced[name] = number
  # There are at most as many head steps as body steps.
  # A fraction of steps that the table does not set reduces nothing.
  steps = reduced.get("local_steps")
  is_reduced = steps is not None and "local_steps" in reductions.items
  if is_reduced and "head_steps" not in reductions.items:
    default = getattr(
      algorithms.describe(algorithm).hparams, "head_steps", None
    )
    if default is not None:
      of_head = int(reduced.get("head_steps", default))
      reduced["head_steps"] = min(of_head, int(steps))
  # Final metrics cannot average over more rounds than there are.
  rounds = int(reduced.get("rounds", 0))
  if int(reduced.get("final_rounds", 0)) > rounds:
    reduced["final_rounds"] = 1
  return reduced


def chosen(
  planned: Sequence[PlannedCell],
  only: Sequence[str] = (),
  columns: Sequence[str] = (),
  left_out: Sequence[str] = (),
) -> list[Job]:
  """Returns the requested jobs, without duplicates, in table order.

  Args:
    planned: The cells.
    only: The requested methods; empty: all except `left_out`.
    columns: Parts of folder names, such as "dirichlet_1.0", or headings; empty:
      all columns.
    left_out: Methods that only run if `only` names them.

  Raises:
    ValueError: If the table has no such method or column.
  """
  methods = dict.fromkeys(each.wanted.method for each in planned)
  unknown = [name for name in only if name not in methods]
  if unknown:
    raise ValueError(
      f"--only={unknown[0]}: it must be one of {', '.join(methods)}"
    )
  for part in columns:
    if not any(_is_of(each, part) for each in planned):
      shown = dict.fromkeys(
        each.job.folder.partition("/")[0] for each in planned if each.job
      )
      if not shown:
        reasons = dict.fromkeys(each.absent for each in planned if each.absent)
        why = "; ".join(reasons) or "no cells"
        raise ValueError(
          f"--columns={part}: there are no columns to run: {why}"
        )
      raise ValueError(
        f"--columns={part}: it must be part of one of {', '.join(shown)}"
      )
  found = {}
  for each in planned:
    is_wanted = each.wanted.method in (only or methods)
    if not only and each.wanted.method in left_out:
      is_wanted = False
    if columns and not any(_is_of(each, part) for part in columns):
      is_wanted = False
    if each.job is not None and is_wanted:
      found.setdefault(each.job.folder, each.job)
  return list(found.values())


def _is_of(cell: PlannedCell, part: str) -> bool:
  group = cell.job.folder.partition("/")[0] if cell.job else ""
  return part in group or part in cell.column


def command(
  job: Job, output_dir: pathlib.Path, more: Sequence[str] = ()
) -> list[str]:
  """Returns the command of a job after `python -m`."""
  return [
    f"experiments.{job.binary}",
    *job.arguments,
    *more,
    f"--output_dir={os.fspath(output_dir / job.folder)}",
  ]


def resuming_command(
  job: Job,
  output_dir: pathlib.Path,
  more: Sequence[str] = (),
  data_dir: str | None = None,
) -> list[str]:
  """Returns the command that starts a job, resumes it, or does nothing."""
  module, *arguments = command(job, output_dir, more)
  start = [sys.executable, "-m", module]
  if data_dir:
    # Not a flag: a run may resume with the same data in another folder.
    start = ["env", f"TFDS_DATA_DIR={os.path.abspath(data_dir)}", *start]
  return [*start, *arguments, "--resume=auto"]
