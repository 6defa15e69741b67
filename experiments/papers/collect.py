"""Collects the contents of a page from run folders and the paper."""

import functools
import math
import pathlib
import shlex
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence

import numpy as np

from experiments.papers import binary_flags
from experiments.papers import choices
from experiments.papers import job as job_lib
from experiments.papers import job_folder
from experiments.papers import papers
from experiments.papers import specification
from tff_shift._util import records as records_lib
from tff_shift.reporting import read_run
from tff_shift.reporting import run_contents
from tff_shift.reporting import run_folders
from tff_shift.reporting.pages import contents
from tff_shift.simulation.storage import run_records


class JobResult:
  """The results in the run folder of a job, read once.

  Attributes:
    job: The job.
    files: The files of the job.
    record: The state of the job. None if there is no run.
    failure: What went wrong in this reproduction, or "".
    is_same: Whether the folder was written with the flags of the job.
  """

  def __init__(
    self, job: job_lib.Job, output_dir: pathlib.Path, failure: str = ""
  ):
    self.job = job
    self.files = job_folder.JobFolder(output_dir, job)
    self.record = self.files.read()
    self.failure = failure
    self.is_same = self.record is not None and self.files.is_same(self.record)
    self._entries = self.files.summary() if self.is_same else ()
    for number, entry in enumerate(self._entries):
      run_folders.check_seeds(
        self.files.folder, number, entry, len(job.flags["seeds"])
      )
    self._command = [
      "python",
      "-m",
      *job_lib.command(job, output_dir),
    ]

  def entry(self, of: Mapping[str, str]) -> run_records.Entry | None:
    """Returns the matching (selected) entry of summary.json, or None.

    Args:
      of: Settings that distinguish the entries of a run, or the algorithm.
    """
    rule = self.job.flags.get("select")
    for each in self._entries_of(of):
      # A bound is not selected itself: it belongs to the selected setting.
      is_trial = each.algorithm == self.job.flags["algorithm"]
      if not is_trial or rule in (None, each.setting.get("selection")):
        return each
    return None

  def _entries_of(self, of: Mapping[str, str]) -> list[run_records.Entry]:
    """Returns the entries of all settings that ran on the test data."""
    return [
      each
      for each in self._entries
      if all(
        str((each.setting | {"algorithm": each.algorithm}).get(k)) == v
        for k, v in of.items()
      )
    ]

  def trials(self, of: Mapping[str, str], metric: str) -> list[contents.Trial]:
    """Returns the values at all settings of the selection.

    Args:
      of: As for `entry`.
      metric: The metric.

    Returns:
      The values; empty without a selection, or if only the selected setting ran
      on the test data.
    """
    entries = self._entries_of(of)
    rule = self.job.flags.get("select")
    if rule is None or not 1 < len(entries) >= len(entries[0].scores):
      return []
    return [
      contents.Trial(
        label=", ".join(
          f"{name.replace('_', ' ')} {binary_flags.shown(value)}"
          for name in self.job.compared
          if (value := each.setting.get(name)) is not None
        ),
        by_seed=self.by_seed(each, metric) or {},
        is_selected=each.setting.get("selection") == rule,
      )
      for each in entries
    ]

  def absence(self) -> str:
    """Returns the reason why there is no entry."""
    if self.failure:
      return f"failed: {self.failure}"
    if self.record is None:
      return "not run"
    if not self.is_same:
      return "not run: the folder holds a run with other flags"
    return "not run: started, but not finished"

  def run(self, entry: run_records.Entry) -> contents.Run:
    """Returns the run of an entry, for the page."""
    return contents.Run(
      folder=self.job.folder,
      command=shlex.join(self._command),
      chosen={
        name: binary_flags.shown(entry.setting.get(name))
        for name in self.job.compared
        if "select" in self.job.flags
      },
      scores={
        label: records_lib.to_float(score)
        for label, score in entry.scores.items()
      },
      seconds=self.record.seconds,
      is_finished=self.files.is_finished(),
      num_diverged=sum(entry.num_diverged),
    )

  def by_seed(
    self, entry: run_records.Entry, metric: str
  ) -> dict[int, float] | None:
    """Returns the values of a metric by seed, or None if not measured."""
    if metric not in entry.metrics:
      return None
    values = entry.metrics[metric].values
    # Values that are not finite are excluded from means.
    return {
      int(seed): value
      for seed, value in zip(self.job.flags["seeds"], values, strict=True)
      if math.isfinite(value)
    }

  def curves(
    self, entry: run_records.Entry, metric: str
  ) -> Iterator[tuple[int, str, list[tuple[float, float]]]]:
    """Yields seed, step name and (step, value) pairs of each final run."""
    step, by_seed = run_folders.curves(
      self.files.folder, self._rows(), entry, metric
    )
    for seed, points in by_seed.items():
      yield seed, step, points

  def client_values(
    self, entry: run_records.Entry, metric: str
  ) -> dict[int, np.ndarray]:
    """Returns the final values of the clients by seed; empty if unknown."""
    # Archives of results have no checkpoints.
    if not (self.files.folder / "checkpoints").is_dir():
      return {}
    return read_run.final_client_values(self._run_data(), entry, metric)

  @functools.cache  # noqa: B019 (only lives while a page is written)
  def _run_data(self) -> read_run.RunData:
    return read_run.read(self.files.folder)

  @functools.cache  # noqa: B019 (only lives while a page is written)
  def _rows(self) -> Sequence[Mapping[str, str]]:
    return run_folders.read_rows(self.files.folder)


def collect(
  spec: specification.Specification,
  planned: Sequence[job_lib.PlannedCell],
  output_dir: pathlib.Path,
  *,
  chosen: Sequence[job_lib.Job],
  settings: Sequence[contents.Setting],
  command: str,
  is_full: bool,
  failures: Mapping[str, str],
  all_columns: bool = True,
) -> contents.Contents:
  """Returns the contents of a page for the results in a folder.

  Args:
    spec: The table.
    planned: Its cells.
    output_dir: The folder of the reproduction.
    chosen: The requested jobs.
    settings: The lines of the protocol, see `protocol`.
    command: The command that writes the page.
    is_full: Whether nothing was reduced.
    failures: What went wrong, by the folder of the failed job.
    all_columns: Whether to show the paper's values in columns that have no run
      and were not requested.

  Returns:
    The contents.
  """
  requested = {job.folder for job in chosen}
  requested_methods = {job.method for job in chosen}
  found = {}
  for each in planned:
    if each.job is not None and each.job.folder not in found:
      found[each.job.folder] = JobResult(
        each.job, output_dir, failures.get(each.job.folder, "")
      )
  shown = {
    each.column
    for each in planned
    if all_columns
    or (
      each.job is not None
      and (each.job.folder in requested or found[each.job.folder].record)
    )
  }
  cells, curves, listed, clients = [], [], [], {}
  for each in planned:
    if each.column not in shown:
      continue
    of_job = found[each.job.folder] if each.job is not None else None
    cell = _cell(spec, each, of_job)
    is_requested = each.wanted.method in requested_methods and (
      each.job is None or each.job.folder in requested
    )
    if each.wanted.printed is None and not (cell.by_seed or is_requested):
      continue  # A method or column of ours that was not requested.
    cells.append(cell)
    listed.append(each)
    if cell.by_seed:
      entry = of_job.entry(each.entry)
      divided_by = spec.metrics[each.wanted.metric].divided_by
      curves += [
        contents.Curve(
          row=each.row,
          column=each.column,
          seed=seed,
          step=step,
          points=[(x, y / divided_by) for x, y in points],
        )
        for seed, step, points in of_job.curves(entry, each.reads)
      ]
      values = {
        seed: tuple(values / divided_by)
        for seed, values in of_job.client_values(entry, each.reads).items()
      }
      if values:
        clients.setdefault(each.column, {})[each.row] = values
  done = [each for each in found.values() if each.record is not None]
  return contents.Contents(
    name=spec.name,
    title=spec.title,
    source=spec.paper.title if spec.paper else "",
    command=command,
    machine=_machine(done),
    date=max((each.record.ended for each in done), default="")[:10],
    is_full=is_full,
    rows=list(dict.fromkeys(each.row for each in listed)),
    columns=columns(spec, listed),
    cells=cells,
    protocol=list(settings),
    curves=curves,
    decisions=_decisions(spec, listed),
    problems=_problems(found.values()),
    floors=_rows_of(listed, spec.floors),
    ceilings=_rows_of(listed, spec.ceilings),
    references=_rows_of(listed, spec.references),
    clients=[
      contents.ClientValues(column=column, by_method=by_method)
      for column, by_method in clients.items()
    ],
  )


def _decisions(
  spec: specification.Specification, planned: Sequence[job_lib.PlannedCell]
) -> list[tuple[str, str]]:
  """Returns the choices of a table and its methods, with their files."""
  methods = (spec.methods[cell.wanted.method] for cell in planned)
  paths = dict.fromkeys(spec.decisions)
  for method in methods:
    paths[f"tff_shift/algorithms/{method.algorithm}.py"] = None
  texts = choices.of_all()
  return [(path, texts[path]) for path in paths if path in texts]


def _rows_of(
  planned: Sequence[job_lib.PlannedCell], methods: Sequence[str]
) -> list[str]:
  """Returns the rows of methods."""
  rows = {each.row: each.wanted.method for each in planned}
  return [row for row, method in rows.items() if method in methods]


def columns(
  spec: specification.Specification,
  planned: Sequence[job_lib.PlannedCell],
) -> list[contents.Column]:
  """Returns the columns of cells, in their order."""
  found = {}
  for each in planned:
    metric = spec.metrics[each.wanted.metric]
    found[each.column] = contents.Column(
      heading=each.column,
      metric=metric.label or each.wanted.metric,
      unit=metric.unit,
      higher_is_better=metric.higher_is_better,
      orderings=metric.orderings,
    )
  return list(found.values())


def paper_value(
  spec: specification.Specification, printed: papers.Cell | None
) -> contents.PaperValue | None:
  """Returns the value of a paper, for the page."""
  if printed is None:
    return None
  return contents.PaperValue(
    mean=printed.mean,
    spread=printed.spread,
    num_seeds=spec.paper.num_seeds,
    note=printed.note,
  )


def _program_value(
  spec: specification.Specification, wanted: specification.WantedCell
) -> contents.PaperValue | None:
  """Returns the value of the authors' program, for the page."""
  for each in spec.programs:
    if each.is_of(wanted):
      return contents.PaperValue(
        mean=each.mean,
        spread=each.spread,
        num_seeds=each.num_seeds,
        note=each.note,
      )
  return None


def _cell(
  spec: specification.Specification,
  planned: job_lib.PlannedCell,
  found: JobResult | None,
) -> contents.Cell:
  """Returns a cell with its values, or the reason for their absence."""
  metric = spec.metrics[planned.wanted.metric]
  by_seed, run, absent = {}, None, planned.absent
  trials, budget = [], None
  if found is not None:
    entry = found.entry(planned.entry)
    if entry is None:
      absent = found.absence()
    else:
      run, budget = found.run(entry), run_contents.budget(entry)
      trials = [
        contents.Trial(
          label=each.label,
          by_seed={s: v / metric.divided_by for s, v in each.by_seed.items()},
          is_selected=each.is_selected,
        )
        for each in found.trials(planned.entry, planned.reads)
      ]
      values = found.by_seed(entry, planned.reads)
      by_seed = {s: v / metric.divided_by for s, v in (values or {}).items()}
      if values is None:
        absent = f"paper only: {planned.reads} is not measured for this method"
      elif not by_seed:
        absent = "failed: no value is a finite number"
  return contents.Cell(
    row=planned.row,
    column=planned.column,
    paper=paper_value(spec, planned.wanted.printed),
    by_seed=by_seed,
    run=run,
    absent=absent,
    program=_program_value(spec, planned.wanted),
    trials=trials,
    budget=budget,
  )


def _machine(found: Sequence[JobResult]) -> str:
  """Returns the machines and software versions of runs."""
  parts = {each.record.machine: None for each in found}
  for each in found:
    config = each.files.config()
    if config is None:
      continue
    for name, version in config.versions.items():
      if version:
        parts[f"{name} {version}"] = None
    if config.git_commit:
      parts[f"commit {config.git_commit[:12]}"] = None
  return ", ".join(parts)


def _problems(found: Iterable[JobResult]) -> list[str]:
  """Returns the failures, and folders with runs of other flags."""
  lines = []
  for each in found:
    reason = "" if each.files.is_finished() else each.absence()
    if reason.startswith("failed") or "other flags" in reason:
      lines.append(f"{each.job.folder}: {reason}")
  return lines
