r"""Runs a table of a paper, and makes a page of it: the paper beside ours.

  python -m experiments.reproduce --list
  python -m experiments.reproduce fed_evolve/1 --budget=2h \
      --output_dir=runs/fed_evolve_1
  python -m experiments.reproduce fed_evolve/1 --full --jobs=4 --shard=1/3 \
      --resume --output_dir=runs/fed_evolve_1
  python -m experiments.reproduce fed_evolve/3 --merge=runs/a,runs/b \
      --output_dir=runs/whole

Each method under each setting of a column is a job: a run folder of an ordinary
binary, `<output_dir>/<data set>_<setting>/<method>`, with all rates of the grid
and all seeds. What is finished is not run again. The page, report.html, shows
what there is, also of a part. Exit code 3: a job has failed; the others ran on.

With --reduce less is run: fewer seeds, values of the grid, clients in a round,
rounds, examples, local steps. The page marks all of it.
"""

import contextlib
import os
import pathlib
import shlex
import sys
from collections.abc import Sequence

from absl import flags

from experiments import command_line
from experiments import program
from experiments import worker_flags
from experiments.pages import contents
from experiments.reproduction import binary_flags
from experiments.reproduction import collect
from experiments.reproduction import jobs as jobs_lib
from experiments.reproduction import plan_file
from experiments.reproduction import protocol
from experiments.reproduction import reductions
from experiments.reproduction import running
from experiments.reproduction import specification
from experiments.reproduction import telling
from tff_shift import execution

FLAGS = flags.FLAGS


def define_flags() -> None:
  """Defines the flags."""
  # Before those of this binary, some of which have the same names.
  for binary in specification.BINARIES:
    binary_flags.of(binary)
  flags.DEFINE_bool("list", False, "Names all tables.")
  flags.DEFINE_string("output_dir", None, "The folder of the reproduction.")
  flags.DEFINE_bool("full", False, "Runs all that the paper says.")
  flags.DEFINE_string(
    "reduce",
    None,
    "Runs less of it: comma-separated name=value. num_seeds=2,"
    " seeds=0:1, num_settings=2 (the middle values of each hyper-parameter that"
    " is chosen), learning_rate=1e-2:1e-1 (these of the paper's), rounds=20 (at"
    " most), rounds=50% (of the paper's); so for every flag of the binary that"
    " is a number; evaluate_every=20 (at least); model=cnn.",
  )
  flags.DEFINE_integer("jobs", 1, "Jobs that run at the same time.")
  flags.DEFINE_bool(
    "resume", False, "Goes on in --output_dir by the plan that is kept there."
  )
  flags.DEFINE_list("only", [], "Comma-separated methods; default: all.")
  flags.DEFINE_list(
    "columns",
    [],
    "Comma-separated parts of the names of folders, such as dirichlet_1.0;"
    " default: all columns.",
  )
  flags.DEFINE_bool(
    "page_only", False, "Runs nothing; makes the page of what there is."
  )
  flags.DEFINE_string(
    "flags",
    None,
    "Further flags of the binaries, blank-separated; the page marks them.",
  )
  flags.DEFINE_string(
    "data_dir", None, "Folder of the data sets. Default: TFDS_DATA_DIR."
  )
  flags.DEFINE_string(
    "executor", None, "Passed on to the binaries, as the flags of its workers."
  )
  worker_flags.define_flags()


def _passed_on() -> list[str]:
  """Returns the flags of this binary that change no result of the others."""
  names = ["executor", *execution.RemoteWorkers.__dataclass_fields__]
  return [
    binary_flags.argument(name, FLAGS[name].value)
    for name in names
    if FLAGS[name].value is not None
  ]


def _plan(
  spec: specification.Specification, folder: pathlib.Path
) -> plan_file.Plan:
  """Returns the plan: the one that is kept, or that of the flags.

  Raises:
    ValueError: If neither is right, or both are and differ.
  """
  given = [name for name in ("full", "reduce") if FLAGS[name].value]
  if len(given) > 1:
    raise ValueError(" and ".join(f"--{n}" for n in given) + ": choose one")
  kept = plan_file.read(folder)
  asked = None
  if given or FLAGS.flags:
    asked = plan_file.Plan(
      reduce=reductions.parse(FLAGS.reduce or "", spec.binary).items,
      more_flags=shlex.split(FLAGS.flags or ""),
    )
  if kept is None:
    if not given:
      raise ValueError("give --full or --reduce, how much is to be run")
    return asked
  if not (FLAGS.resume or FLAGS.page_only):
    raise ValueError(
      f"--output_dir={folder}: it holds a reproduction; add --resume to go on,"
      " or name another"
    )
  if asked is not None and (asked.reduce, list(asked.more_flags)) != (
    kept.reduce,
    list(kept.more_flags),
  ):
    raise ValueError(
      f"--output_dir={folder}: {plan_file.NAME} says otherwise; leave out"
      f" --{(given or ['flags'])[0]} to go on, or name another folder"
    )
  return kept


def _print_list() -> None:
  for name in specification.names():
    spec = specification.load(name)
    cells = spec.cells()
    printed = sum(cell.printed is not None for cell in cells)
    print(f"{name:<18} {printed:>4} cells  {spec.title}")


def _write_page(made: contents.Contents, folder: pathlib.Path) -> None:
  try:
    # Here, because it imports what draws, which takes time.
    from experiments.pages import page
  except ImportError:
    print("no page: experiments.pages.page is missing", file=sys.stderr)
    return
  page.write(made, folder)
  print(f"page: {folder / 'report.html'}")


def reproduce(name: str) -> int:
  """Runs a table as the flags say, and makes its page.

  Args:
    name: The table.

  Returns:
    The exit code, 0 or 3.

  Raises:
    UsageError: If a flag or a file is wrong.
  """
  command_line.require_at_least_one("jobs")
  if not FLAGS.output_dir:
    raise command_line.UsageError("--output_dir: name the folder of results")
  folder = pathlib.Path(FLAGS.output_dir)
  with command_line.usage_errors():
    spec = specification.load(name)
    binary_flags.check_specification(spec)
    plan = _plan(spec, folder)
    more_flags = binary_flags.parsed(list(plan.more_flags), spec.binary)
    planned = jobs_lib.plan(
      spec,
      reductions.Reductions(plan.reduce),
      more_flags=more_flags,
      data_dir=FLAGS.data_dir,
    )
    jobs = jobs_lib.chosen(planned, FLAGS.only, FLAGS.columns, spec.extras)
  failures = []
  if not FLAGS.page_only:
    with command_line.usage_errors():
      failures = _run(jobs, plan, folder)
  made = collect.collect(
    spec,
    planned,
    folder,
    chosen=jobs,
    settings=protocol.lines(spec, jobs, more_flags),
    command=shlex.join(
      ["python", "-m", "experiments.reproduce", *sys.argv[1:]]
    ),
    is_full=not (plan.reduce or plan.more_flags),
    failures=failures,
  )
  _write_page(made, folder)
  for line in failures:
    print(f"{pathlib.Path(sys.argv[0]).stem}: {line}", file=sys.stderr)
  return 3 if failures else 0


def _run(jobs, plan: plan_file.Plan, folder: pathlib.Path) -> list[str]:
  """Runs jobs; returns what failed."""
  environment = {}
  if FLAGS.data_dir:
    environment["TFDS_DATA_DIR"] = os.path.abspath(FLAGS.data_dir)
  options = running.Options(
    output_dir=folder,
    num_jobs=FLAGS.jobs,
    more=_passed_on(),
    environment=environment,
  )
  teller = telling.Teller(len(jobs), FLAGS.jobs)
  runner = running.Runner(options, teller)
  with contextlib.closing(teller):
    runner.check(jobs)
    plan_file.write(folder, plan)
    return runner.run(jobs)


def main(names: Sequence[str]) -> None:
  """Does what the flags ask for.

  Args:
    names: Of the table to run.
  """
  if FLAGS.list:
    _print_list()
    return
  if len(names) != 1:
    raise command_line.UsageError(
      "name one table, such as fed_evolve/1; --list names all"
    )
  sys.exit(reproduce(names[0]))


def run() -> None:
  """Reads the command line and runs this binary, to the end of the process."""
  program.run(main, define_flags, takes_arguments=True)


if __name__ == "__main__":
  run()
