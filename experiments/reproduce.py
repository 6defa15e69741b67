r"""Runs a table of a paper and writes a page with the paper's and our values.

  python -m experiments.reproduce --list
  python -m experiments.reproduce fed_evolve/1 --budget=2h \
      --output_dir=runs/fed_evolve_1
  python -m experiments.reproduce fed_evolve/1 --full --print_jobs \
      --output_dir=runs/fed_evolve_1 > jobs.txt

Each method under each setting of a column is a job: a run of one of the other
binaries with all values of the grid and all seeds, in the run folder
`<output_dir>/<data set>_<setting>/<method>`. Finished jobs are not repeated.
The page, report.html, shows all available results, also partial ones. Exit code
3: a job failed; the other jobs completed.

Set one of --full, --budget and --reduce. --budget measures a few rounds and
estimates the total time. If it is too long, reductions are applied in the order
of the table's `rungs`: two seeds, two values of each hyper-parameter, smaller
cohorts, fewer rounds, examples and local steps. The page marks all reductions.
The plan is stored in plan.json and is used by --resume.
"""

import os
import pathlib
import shlex
import sys
import tempfile
from collections.abc import Sequence

import markupsafe
from absl import flags

from experiments.papers import binary_flags
from experiments.papers import budget
from experiments.papers import checks
from experiments.papers import costs
from experiments.papers import job as job_lib
from experiments.papers import job_folder
from experiments.papers import plan_file
from experiments.papers import reductions
from experiments.papers import running
from experiments.papers import specification
from experiments.papers import table
from tff_shift import execution
from tff_shift._util import files
from tff_shift._util import shown_names
from tff_shift.command_line import common_flags
from tff_shift.command_line import configuration
from tff_shift.command_line import output_folder
from tff_shift.command_line import program
from tff_shift.command_line.flags import worker_flags
from tff_shift.reporting import summary
from tff_shift.reporting.pages import contents

FLAGS = flags.FLAGS

_PAGE = "report.html"
_HOW_MUCH = ("full", "budget", "reduce")


def define_flags() -> None:
  """Defines the flags."""
  # Before the flags of this binary, some of which have the same names.
  for binary in specification.BINARIES:
    binary_flags.of(binary)
  flags.DEFINE_bool("list", False, "Prints the names of all tables.")
  flags.DEFINE_string("output_dir", None, "Folder of the reproduction.")
  flags.DEFINE_bool("full", False, "Runs the table without reductions.")
  flags.DEFINE_string(
    "reduce",
    None,
    "Runs less: comma-separated name=value. num_seeds=2; seeds=0:1;"
    " num_settings=2 (the middle values of each selected hyper-parameter);"
    " learning_rate=1e-2:1e-1 (these of the paper's values); rounds=20 (at"
    " most) or rounds=50% (of the paper's), and the same for every numeric flag"
    " of the binary; evaluate_every=20 (at least); model=cnn.",
  )
  flags.DEFINE_string(
    "budget",
    None,
    "Runs as much as fits in a time such as 30m or 2h, by estimate; see above"
    " for the order of reductions.",
  )
  flags.DEFINE_bool(
    "print_jobs",
    False,
    "Prints the command of each job, one line each, and runs nothing. The lines"
    " can run in any order, on any machines and repeatedly; --resume then"
    " collects the results.",
  )
  flags.DEFINE_integer(
    "jobs", 1, "Number of lines of --print_jobs that run in parallel."
  )
  output_folder.define_resume(
    "Resumes the reproduction in --output_dir with its stored plan."
  )
  flags.DEFINE_list("only", [], "Comma-separated methods. Default: all.")
  flags.DEFINE_list(
    "columns",
    [],
    "Comma-separated parts of folder names, such as dirichlet_1.0, that select"
    " columns. Default: all columns.",
  )
  flags.DEFINE_bool(
    "page_only", False, "Writes the page of available results; runs nothing."
  )
  flags.DEFINE_string(
    "flags",
    None,
    "Further flags for the binaries, separated by blanks. The page marks them.",
  )
  flags.DEFINE_string(
    "data_dir", None, "Folder of the data sets. Default: TFDS_DATA_DIR."
  )
  flags.DEFINE_string(
    "executor",
    None,
    "Passed to the binaries, together with the flags of remote workers.",
  )
  configuration.define(worker_flags.Configuration)


def _passed_on() -> list[str]:
  """Returns the flags to pass to the binaries; they do not change results."""
  names = ["executor", *execution.RemoteWorkers.__dataclass_fields__]
  return [
    binary_flags.argument(name, FLAGS[name].value)
    for name in names
    if FLAGS[name].value is not None
  ]


def _requested(binary: str) -> plan_file.Plan | None:
  """Returns the plan of the flags, before reductions for a budget.

  Returns None if no flag of the plan is set.

  Raises:
    ValueError: If a flag is wrong.
  """
  given = [name for name in _HOW_MUCH if FLAGS[name].value]
  if len(given) > 1:
    raise ValueError(
      " and ".join(f"--{n}" for n in given) + ": set only one of them"
    )
  if FLAGS.budget:
    budget.parse(FLAGS.budget)
  more_flags = shlex.split(FLAGS.flags or "")
  for name, value in binary_flags.parsed(more_flags, binary).items():
    checks.check_flag(name, value, binary)
  if not given and not more_flags:
    return None
  return plan_file.Plan(
    reduce=dict(reductions.parse(FLAGS.reduce or "", binary).items),
    more_flags=tuple(more_flags),
    budget=FLAGS.budget or "",
  )


def _plan(wanted: table.Table, folder: pathlib.Path) -> plan_file.Plan:
  """Returns the stored plan, or else the plan of the flags.

  Raises:
    ValueError: If there is no valid plan, or the flags contradict the stored
      plan.
  """
  requested, kept = (
    _requested(wanted.of.binary),
    plan_file.read(folder),
  )
  if kept is None:
    if not any(FLAGS[name].value for name in _HOW_MUCH):
      raise ValueError("one of --full, --budget and --reduce must be set")
    _check_empty(folder)
    return _within_budget(wanted, requested) if requested.budget else requested
  if not (FLAGS.resume or FLAGS.page_only or FLAGS.print_jobs):
    raise ValueError(
      f"--output_dir={folder}: it contains a reproduction; add --resume to"
      " continue it, or name another folder"
    )
  if requested is not None and not requested.is_of(kept):
    raise ValueError(
      f"--output_dir={folder}: its {plan_file.NAME} contradicts the flags; omit"
      " --full, --budget, --reduce and --flags to continue it, or name another"
      " folder"
    )
  kept.check(wanted.of.binary)
  return kept


def _check_empty(folder: pathlib.Path) -> None:
  """Refuses a folder with other files."""
  if folder.exists() and not folder.is_dir():
    raise ValueError(f"--output_dir={folder}: it is a file; name a folder")
  if folder.exists() and any(folder.iterdir()):
    raise ValueError(
      f"--output_dir={folder}: it has files but no {plan_file.NAME}; name"
      " another folder"
    )


def _within_budget(
  wanted: table.Table, requested: plan_file.Plan
) -> plan_file.Plan:
  """Returns the plan, reduced to the budget.

  Raises:
    ValueError: If the smallest plan exceeds the budget, or the measurement
      fails.
  """
  more_flags = binary_flags.parsed(list(requested.more_flags), wanted.of.binary)

  def jobs_of(reduced):
    return wanted.chosen(wanted.planned(reduced, more_flags))

  whole = jobs_of(reductions.Reductions())
  if not whole:
    return requested
  checks.check_jobs(whole, wanted.of.name, FLAGS.data_dir)
  line = f"measuring    {whole[0].folder}, a few rounds"
  # Standard output is for the lines of --print_jobs.
  print(shown_names.printable(line), file=sys.stderr, flush=True)
  with tempfile.TemporaryDirectory(prefix="tff-shift-") as temporary:
    speed = budget.measure(
      whole[0],
      lambda reduced: next(
        job for job in jobs_of(reduced) if job.folder == whole[0].folder
      ),
      pathlib.Path(temporary),
      FLAGS.data_dir,
    )
  reduced, estimate = budget.fit(
    [reductions.parse(rung, wanted.of.binary) for rung in wanted.of.rungs],
    lambda reduced: speed.estimate(jobs_of(reduced), FLAGS.jobs),
    budget.parse(requested.budget),
  )
  return requested.replace(reduce=dict(reduced.items), estimate=estimate)


def _print_list() -> None:
  for name in specification.names():
    spec = specification.load(name)
    cells = spec.cells()
    printed = sum(cell.printed is not None for cell in cells)
    print(f"{name:<18} {printed:>4} cells  {spec.title}")


def _write_page(made: contents.Contents, folder: pathlib.Path) -> None:
  # Imported here because plotting libraries take time to import.
  from tff_shift.reporting.pages import page

  page.write(made, folder)
  print(shown_names.printable(f"page: {folder / _PAGE}"))


def reproduce(name: str) -> int:
  """Runs a table as the flags define, and writes its page.

  Returns:
    The exit code, 0 or 3.

  Raises:
    UsageError: If a flag or a file is wrong.
  """
  common_flags.require("jobs", FLAGS.jobs >= 1, "at least 1")
  if not FLAGS.output_dir:
    raise common_flags.UsageError(
      "--output_dir: it must be set to the folder of results"
    )
  folder = pathlib.Path(FLAGS.output_dir)
  failures = {}
  with common_flags.usage_errors():
    if FLAGS.print_jobs and FLAGS.page_only:
      raise ValueError("--print_jobs and --page_only: set only one of them")
    requested = table.Table(
      name,
      only=FLAGS.only,
      columns=FLAGS.columns,
      data_dir=FLAGS.data_dir,
      runs_in=[folder],
    )
    plan = _plan(requested, folder)
    more_flags = binary_flags.parsed(list(plan.more_flags), requested.of.binary)
    planned = requested.planned(reductions.Reductions(plan.reduce), more_flags)
    jobs = requested.chosen(planned)
    if not FLAGS.page_only:
      checks.check_jobs(jobs, requested.of.name, FLAGS.data_dir)
    for job in jobs:
      job_folder.JobFolder(folder, job).check_same()
    command = shlex.join(
      ["python", "-m", "experiments.reproduce", *sys.argv[1:]]
    )
    if output_folder.is_auto() and not (FLAGS.print_jobs or FLAGS.page_only):
      _check_something_to_do(jobs, folder, command)
    # The longest first, so that no long job runs alone at the end.
    ordered = sorted(jobs, key=costs.seconds, reverse=True)
    commands = [
      job_lib.resuming_command(job, folder, _passed_on(), FLAGS.data_dir)
      for job in ordered
    ]
    lines = ""
    if FLAGS.print_jobs:
      _check_something_to_print(jobs, planned)
      lines = _shell_lines(commands)
    with output_folder.unwritable_refused("output_dir"):
      plan_file.write(folder, plan)
    if FLAGS.print_jobs:
      # Not escaped for a terminal: a shell reads them.
      sys.stdout.buffer.write(os.fsencode(lines))
      return 0
    if not FLAGS.page_only:
      failures = _run(ordered, commands, folder)
    made = requested.contents(plan, planned, folder, command, failures)
  _write_page(made, folder)
  for name, line in failures.items():
    log = f"{folder / name}.log"
    output_folder.warn(f"{name}: {line}; log: {log}")
  return 3 if failures else 0


def _check_something_to_do(
  jobs: Sequence[job_lib.Job], folder: pathlib.Path, command: str
) -> None:
  """Ends the binary if there is nothing to do.

  Args:
    jobs: The jobs.
    folder: The folder of the reproduction.
    command: The command, which the page shows.

  Raises:
    NothingToDoError: If all jobs are finished and the page is newer.
  """
  page = folder / _PAGE
  places = [job_folder.JobFolder(folder, job) for job in jobs]
  if (
    page.is_file()
    and all(place.is_finished() for place in places)
    and all(place.ended_before(page) for place in places)
    and f">{markupsafe.escape(command)}<" in page.read_text(encoding="utf-8")
  ):
    raise output_folder.NothingToDoError(
      f"nothing to do: all jobs are done; page: {page}"
    )


def _check_something_to_print(
  jobs: Sequence[job_lib.Job], planned: Sequence[job_lib.PlannedCell]
) -> None:
  """Says which data sets have no jobs.

  Args:
    jobs: The requested jobs.
    planned: The cells of the table.

  Raises:
    ValueError: If there are no jobs.
  """
  if not jobs:
    reasons = dict.fromkeys(each.absent for each in planned if each.absent)
    raise ValueError(
      f"--print_jobs: there are no jobs: {summary.shortened(reasons)}"
    )
  have_jobs = {each.wanted.dataset for each in planned if each.job}
  absent = (x for x in planned if x.wanted.dataset not in have_jobs)
  for reason in dict.fromkeys(each.absent for each in absent):
    output_folder.warn(f"no jobs are printed for a data set: {reason}")


def _shell_lines(commands: Sequence[Sequence[str]]) -> str:
  """Returns commands for a shell, one line each."""
  lines = [shlex.join(command) for command in commands]
  for line in lines:
    if "\n" in line:
      raise ValueError(f"--print_jobs: a flag has a line break: {line}")
  return "".join(f"{line}\n" for line in lines)


def _run(
  jobs: Sequence[job_lib.Job],
  commands: Sequence[Sequence[str]],
  folder: pathlib.Path,
) -> dict[str, str]:
  """Runs jobs and returns the failures by folder."""
  try:
    return running.run(jobs, commands, folder, FLAGS.jobs)
  except (KeyboardInterrupt, files.WriteError):
    how = f"continue with --resume --output_dir={FLAGS.output_dir}"
    print(shown_names.printable(how), flush=True)
    raise


def main(names: Sequence[str]) -> None:
  """Lists tables or reproduces one.

  Args:
    names: The positional arguments: the name of the table.
  """
  if FLAGS.list:
    _print_list()
    return
  if len(names) != 1:
    raise common_flags.UsageError(
      "name one table, such as fed_evolve/1; --list prints all"
    )
  sys.exit(reproduce(names[0]))


def run() -> None:
  """Runs this binary with the command line and ends the process."""
  program.run(main, define_flags, takes_arguments=True)


if __name__ == "__main__":
  run()
