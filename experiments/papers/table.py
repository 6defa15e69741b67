"""Turns the specification of a table into jobs and page contents."""

import dataclasses
import pathlib
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

from experiments.papers import binary_flags
from experiments.papers import checks
from experiments.papers import collect
from experiments.papers import computed
from experiments.papers import job as job_lib
from experiments.papers import plan_file
from experiments.papers import protocol
from experiments.papers import reductions as reductions_lib
from experiments.papers import specification
from tff_shift.reporting.pages import contents
from tff_shift.reporting.pages import shown


class Table:
  """A table and its requested part.

  Attributes:
    spec: The specification.
    of: The specification of the runs: `spec`, or the table from whose cells
      `spec` is computed.
  """

  def __init__(
    self,
    name: str,
    *,
    only: Sequence[str] = (),
    columns: Sequence[str] = (),
    data_dir: str | None = None,
    runs_in: Sequence[pathlib.Path] = (),
  ):
    """Reads the specification.

    Args:
      name: The name or path of the table, see `specification.load`.
      only: The requested methods; empty: all.
      columns: The requested columns, see `job.chosen`.
      data_dir: The folder of the data sets.
      runs_in: Folders whose runs are shown even if their data set is missing.

    Raises:
      SpecificationError: If the specification is wrong.
    """
    self.spec = specification.load(name)
    self.of = specification.load(self.spec.of) if self.spec.of else self.spec
    checks.check(self.of)
    if self.of is not self.spec:
      checks.check_computed(self.spec, self.of)
    self._only, self._columns, self._data_dir = only, columns, data_dir
    self._runs_in = runs_in

  def planned(
    self,
    reductions: reductions_lib.Reductions,
    more_flags: Mapping[str, Any],
  ) -> list[job_lib.PlannedCell]:
    """Returns the planned cells of the table `of`, see `job.plan`."""
    return job_lib.plan(
      self.of,
      reductions,
      more_flags=more_flags,
      data_dir=self._data_dir,
      has_runs=self._has_runs,
    )

  def _has_runs(self, dataset: str) -> bool:
    folders = {
      path.parent.name
      for folder in self._runs_in
      for path in folder.glob("*/*")
    }
    return any(self._dataset_of(folder) == dataset for folder in folders)

  def _dataset_of(self, folder: str) -> str:
    # "cifar10_corrupted_shift_linear" does not belong to "cifar10".
    fitting = (
      name for name in self.of.datasets if f"{folder}_".startswith(f"{name}_")
    )
    return max(fitting, key=len, default="")

  def chosen(self, planned: Sequence[job_lib.PlannedCell]) -> list[job_lib.Job]:
    """Returns the requested jobs, see `job.chosen`."""
    only = set(self._only)
    if self.spec.computed and not only:
      wanted = self.spec.cells()
      only = {each.method for each in wanted}
      only |= {str(dict(each.setting)["versus"]) for each in wanted}
    return job_lib.chosen(planned, sorted(only), self._columns, self.of.extras)

  def contents(
    self,
    plan: plan_file.Plan,
    planned: Sequence[job_lib.PlannedCell],
    folder: pathlib.Path,
    command: str,
    failures: Mapping[str, str],
  ) -> contents.Contents:
    """Returns the page contents for the results in a folder.

    Args:
      plan: The plan of the folder.
      planned: The cells of that plan, see `planned`.
      folder: The folder of the reproduction.
      command: The command that writes the page.
      failures: What went wrong, by the folder of the failed job.
    """
    jobs = self.chosen(planned)
    more_flags = binary_flags.parsed(list(plan.more_flags), self.of.binary)
    settings = protocol.lines(self.of, jobs, more_flags)
    if plan.budget:
      settings.append(_of_budget(plan))
    made = collect.collect(
      self.of,
      planned,
      folder,
      chosen=jobs,
      settings=settings,
      command=command,
      # More settings on the test data do not change the selected one.
      is_full=not (plan.reduce or more_flags.keys() - {"all_settings"}),
      failures=failures,
      all_columns=not self._columns,
    )
    if not self.spec.computed:
      return made
    cells = self.planned_of_computed()
    differs = [
      contents.Setting(**each.to_fields()) for each in self.spec.differs
    ]
    return dataclasses.replace(
      made,
      name=self.spec.name,
      title=self.spec.title,
      rows=list(dict.fromkeys(each.row for each in cells)),
      columns=collect.columns(self.spec, cells),
      cells=computed.paired_t(self.spec, cells, planned, made),
      protocol=[*made.protocol, *differs],
      curves=(),
    )

  def planned_of_computed(self) -> list[job_lib.PlannedCell]:
    """Returns the cells of a computed table, which has no jobs."""
    return job_lib.plan(
      self.spec, reductions_lib.Reductions(), data_dir=self._data_dir
    )


def _of_budget(plan: plan_file.Plan) -> contents.Setting:
  """Returns the protocol line of the budget and its reductions."""
  steps = ", ".join(f"{name}={text}" for name, text in plan.reduce.items())
  return contents.Setting(
    name="budget",
    paper="",
    ours=f"{plan.budget}, estimated {shown.duration(plan.estimate)}:"
    f" {steps or 'nothing reduced'}",
    is_reduced=bool(plan.reduce),
    reason="reduced in the order of the table's rungs until it fits",
  )
