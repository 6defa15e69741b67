"""Checks a table against its binary, before the first job starts.

Choices:
  * A table is checked completely: its types, then its flags by the binary's own
    parser and checks. Templates allow plain names only: no table needs
    attributes, indices or formats.
"""

from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

from experiments.papers import binary_flags
from experiments.papers import job as job_lib
from experiments.papers import reductions
from experiments.papers import specification
from tff_shift import algorithms

# Tables have separate keys for these flags, or the job folder sets them.
_NOT_IN_FLAGS = (
  "algorithm",
  "output_dir",
  "overwrite",
  "resume",
  "seeds",
  "select",
  "selection_seeds",
)


def check(spec: specification.Specification) -> None:
  """Checks flags, presets, algorithms and rungs of a table.

  Args:
    spec: The specification of a table that is not computed.

  Raises:
    SpecificationError: If one is wrong; names the table and the key.
  """
  for key, check_it, *arguments in _each(spec):
    try:
      check_it(*arguments)
    except ValueError as error:
      raise specification.SpecificationError(
        f"{spec.name}: {key}: {error}"
      ) from error


def _each(spec: specification.Specification):
  """Yields tuples of a key, its check and the arguments of the check."""
  binary = spec.binary
  named = [("flags", spec.flags), ("grid", spec.grid)]
  for name, dataset in spec.datasets.items():
    key = f"datasets.{name}"
    named += [(f"{key}.flags", dataset.flags), (f"{key}.grid", dataset.grid)]
    named += [
      (f"{key}.methods.{method}", flags_there)
      for method, flags_there in dataset.methods.items()
    ]
    if dataset.preset:
      yield f"{key}.preset", binary_flags.preset, binary, dataset.preset
  for name, setting in spec.settings.items():
    if setting.flag:
      yield f"settings.{name}.flag", _check_name, setting.flag, binary
    named += [
      (f"settings.{name}.flags.{value}", flags_there)
      for value, flags_there in setting.flags.items()
    ]
  for name, method in spec.methods.items():
    key = f"methods.{name}"
    if method.algorithm:
      yield f"{key}.algorithm", _check_algorithm, method.algorithm, binary
    named.append((f"{key}.flags", method.flags))
  for key, flags_there in named:
    for flag, value in flags_there.items():
      yield f"{key}.{flag}", check_flag, flag, value, binary
  for cell in spec.cells():
    for name, value in cell.setting:
      for flag, given in spec.settings[name].flags_of(value).items():
        yield f"settings.{name}", check_flag, flag, given, binary
  # One value of each: planning the jobs checks whether selection is possible.
  reduced = reductions.Reductions({reductions.NUM_SETTINGS: "1"})
  yield "the plan", _check_plan, spec, reduced
  for number, rung in enumerate(spec.rungs):
    key = f"rungs[{number}]"
    yield key, reductions.parse, rung, binary
    reduced = reduced.then(reductions.parse(rung, binary))
    yield key, _check_plan, spec, reduced


def check_flag(name: str, value: Any, binary: str) -> None:
  """Checks that a table may set a flag to a value.

  Raises:
    ValueError: If it may not.
  """
  _check_name(name, binary)
  binary_flags.check(name, value, binary)


def _check_name(name: str, binary: str) -> None:
  if name in _NOT_IN_FLAGS:
    raise ValueError(f"--{name} is not allowed here: the table itself sets it")
  if name not in binary_flags.of(binary):
    raise ValueError(f"experiments.{binary} has no flag --{name}")


def _check_algorithm(name: str, binary: str) -> None:
  if name not in algorithms.names(binary):
    raise ValueError(f"experiments.{binary} has no algorithm {name!r}")


def _check_plan(
  spec: specification.Specification, reduced: reductions.Reductions
) -> None:
  """Refuses tables that cannot be planned or have two cells in one place.

  Plans all data sets, including those that are missing on this machine.
  """
  found = {}
  for each in job_lib.plan(spec, reduced, has_runs=lambda dataset: True):
    other = found.setdefault((each.row, each.column), each)
    if other is not each:
      raise ValueError(
        f"two cells have the row {each.row!r} and the column"
        f" {', '.join(each.column)!r}; change their labels"
      )


def check_jobs(
  jobs: Sequence[job_lib.Job], name: str, data_dir: str | None
) -> None:
  """Runs the flag checks of the binary for each job.

  Args:
    jobs: The jobs.
    name: The name of their table.
    data_dir: The folder of the data sets.

  Raises:
    SpecificationError: If a flag is wrong; names the table and the job.
  """
  more = [binary_flags.argument("data_dir", data_dir)] if data_dir else []
  for job in jobs:
    try:
      binary_flags.check_arguments([*more, *job.arguments], job.binary)
    except ValueError as error:
      raise specification.SpecificationError(
        f"{name}: {job.folder}: {error}"
      ) from error


def check_computed(
  spec: specification.Specification, of: specification.Specification
) -> None:
  """Checks that a table can be computed from the cells of another.

  Args:
    spec: The table.
    of: The other table.

  Raises:
    SpecificationError: If not; names the table and the key.
  """
  reason = ""
  if of.computed:
    reason = f"of: {of.name} is a computed table itself"
  for cell in spec.cells():
    versus: Mapping[str, Any] = dict(cell.setting)
    for method in (cell.method, str(versus.get("versus", ""))):
      if method not in {each.method for each in of.cells()}:
        reason = f"of: {of.name} has no method {method!r}, which a cell has"
  if reason:
    raise specification.SpecificationError(f"{spec.name}: {reason}")
