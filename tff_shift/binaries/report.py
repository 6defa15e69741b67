r"""Writes a report page of run folders.

  python -m experiments.report runs/a runs/b --output_dir=runs/page

Reads the results in run folders, of finished and unfinished runs, writes
report.html (one file for any browser, offline), table.csv, table.tex and
table.md, and prints for each column whether the best method is ahead of the
others. The page has means and standard deviations over seeds, paired tests of
the best method of each column against the others, curves, commands and run
times. Your own algorithms and data sets are supported.
"""

import pathlib
import shlex
import sys
from collections.abc import Sequence

from absl import flags

from tff_shift._util import files
from tff_shift._util import shown_names
from tff_shift.command_line import common_flags
from tff_shift.command_line import output_folder
from tff_shift.command_line import program
from tff_shift.reporting import read_run
from tff_shift.reporting import run_contents

FLAGS = flags.FLAGS

_PAGE = "report.html"


def define_flags() -> None:
  """Defines the flags of this binary."""
  flags.DEFINE_string("output_dir", None, "Folder of the page.")
  flags.DEFINE_bool("overwrite", False, "Replaces an earlier page there.")
  flags.DEFINE_list(
    "metrics",
    None,
    "Comma-separated metrics of the summaries. Default: accuracies, except"
    " those of single examples and means over the last evaluations; all metrics"
    " if there are no accuracies.",
  )
  flags.DEFINE_string("title", "Run folders", "Title of the page.")


def _check_output() -> pathlib.Path:
  if not FLAGS.output_dir:
    raise common_flags.UsageError(
      "--output_dir: it must be set to the folder of the page"
    )
  folder = pathlib.Path(FLAGS.output_dir)
  common_flags.require(
    "output_dir", folder.is_dir() or not folder.exists(), "a folder"
  )
  if (folder / _PAGE).exists() and not FLAGS.overwrite:
    raise common_flags.UsageError(
      f"--output_dir={folder}: it already has a {_PAGE}; name another folder or"
      " pass --overwrite"
    )
  with (
    common_flags.usage_errors(),
    output_folder.unwritable_refused("output_dir"),
  ):
    files.check_writable(folder)
  return folder


def _chosen_metrics(folders: Sequence[read_run.RunData]) -> list[str]:
  known = run_contents.metric_names(folders)
  if FLAGS.metrics is None:
    return run_contents.main_metrics(folders)
  common_flags.require(
    "metrics",
    bool(FLAGS.metrics)
    and set(FLAGS.metrics) <= set(known)
    and len(set(FLAGS.metrics)) == len(FLAGS.metrics),
    f"one or more of {', '.join(known) or 'none (no run has finished)'},"
    " without duplicates",
  )
  return FLAGS.metrics


def main(arguments: Sequence[str]) -> None:
  """Reads the folders and writes the page."""
  if not arguments:
    raise common_flags.UsageError(
      "name the run folders, as in `runs/a runs/b --output_dir=runs/page`"
    )
  output = _check_output()
  paths = [pathlib.Path(each) for each in arguments]
  if len({path.absolute() for path in paths}) < len(paths):
    raise common_flags.UsageError("a run folder is named twice")
  with common_flags.usage_errors():
    folders = [read_run.read(path) for path in paths]
    contents = run_contents.to_contents(
      folders,
      metrics=_chosen_metrics(folders),
      title=FLAGS.title,
      command=shlex.join(["python", "-m", "experiments.report", *sys.argv[1:]]),
      start=output,
    )
  # Imports Matplotlib, so it comes after the flag checks.
  from tff_shift.reporting.pages import page
  from tff_shift.reporting.pages import statistics

  page.write(contents, output)
  for sentence in statistics.sentences(contents):
    print(shown_names.printable(sentence))
  print(shown_names.printable(f"page: {output / _PAGE}"))


def run() -> None:
  """Runs this binary with the command line and ends the process."""
  program.run(main, define_flags, takes_arguments=True)


if __name__ == "__main__":
  run()
