"""The protocol table of a page: settings of the paper and of our runs."""

from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

from experiments.papers import binary_flags
from experiments.papers import job as job_lib
from experiments.papers import specification
from tff_shift.reporting.pages import contents

# Flags that distinguish jobs, or have a line of their own.
_NOT_TOLD = frozenset(
  {"algorithm", "all_settings", "dataset", "progress", "save_model", "select"}
)


def _text(value: Any) -> str:
  """Formats a flag value; equal values have equal texts."""
  if value is None:
    return "not set"
  parts = []
  for part in binary_flags.shown(value).split(","):
    try:
      parts.append(f"{float(part):g}")
    except ValueError:
      parts.append(part)
  return ", ".join(parts)


def lines(
  spec: specification.Specification,
  jobs: Sequence[job_lib.Job],
  more_flags: Mapping[str, Any],
) -> list[contents.Setting]:
  """Returns the protocol of jobs.

  Args:
    spec: The table.
    jobs: Its jobs.
    more_flags: The flags of `--flags`.

  Returns:
    Lines for the settings that all jobs of a data set share and for reduced
    settings; then for settings of single methods, for hyper-parameter
    selection, and for other differences.
  """
  rows = []
  datasets = dict.fromkeys(job.dataset for job in jobs)
  of_methods = {
    name for method in spec.methods.values() for name in method.flags
  }
  for dataset in datasets:
    of_dataset = [job for job in jobs if job.dataset == dataset]
    of_columns = _varied(of_dataset)
    where = f"{spec.datasets[dataset].label}: " if len(datasets) > 1 else ""
    names = {name for job in of_dataset for name in job.flags} - _NOT_TOLD
    for name in sorted(names):
      pairs = {
        (_text(job.of_paper.get(name)), _text(job.flags.get(name)))
        for job in of_dataset
        if name in job.flags
      }
      differs = any(paper != ours for paper, ours in pairs)
      if not differs and (name in of_methods or name in of_columns):
        continue
      rows += [
        _line(spec, f"{where}{name.replace('_', ' ')}", name, *pair, more_flags)
        for pair in sorted(pairs)
        if len(pairs) == 1 or pair[0] != pair[1]
      ]
  for name, method in spec.methods.items():
    if method.flags and any(job.method == name for job in jobs):
      text = ", ".join(
        binary_flags.argument(flag, value)
        for flag, value in method.flags.items()
      )
      rows.append(
        contents.Setting(name=method.label or name, paper="", ours=text)
      )
  if spec.select:
    rows.append(
      contents.Setting(
        name="hyper-parameter selection",
        paper="",
        ours=f"--select={spec.select}: the same values for every method; see"
        " the decisions",
      )
    )
  return rows + [contents.Setting(**each.to_fields()) for each in spec.differs]


def _varied(jobs: Sequence[job_lib.Job]) -> set[str]:
  """Returns the flags that differ between columns according to the paper."""
  names = {name for job in jobs for name in job.of_paper}
  return {
    name
    for name in names
    if len({_text(job.of_paper.get(name)) for job in jobs}) > 1
  }


def _line(
  spec: specification.Specification,
  shown: str,
  name: str,
  paper: str,
  ours: str,
  more_flags: Mapping[str, Any],
) -> contents.Setting:
  """Returns the protocol line of a flag."""
  is_silent = name in spec.silent or paper == "not set"
  is_reduced = paper != ours and name not in ("evaluate_every", "select")
  if name == "selection_seeds":
    is_reduced, is_silent = False, True
  reason = ""
  if name in more_flags:
    reason = "set by --flags"
  elif is_reduced:
    reason = "reduced"
  return contents.Setting(
    name=shown,
    paper="" if is_silent else paper,
    ours=ours,
    is_reduced=is_reduced or name in more_flags,
    reason=reason,
  )
