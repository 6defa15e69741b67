r"""Makes a page of run folders, to be read, sorted and printed.

  python -m experiments.report runs/a runs/b --output_dir=runs/page

reads what binaries have left in the folders, finished or not, and writes
report.html (one file, for any browser, without a network), table.csv, table.tex
and table.md: means and spreads over seeds, the best method of each column
against the others with paired tests, curves, commands, what it took. Algorithms
and data sets of your own are read like all others.
"""

import pathlib
import shlex
import sys
from collections.abc import Sequence

from absl import flags

from tff_shift import files
from tff_shift import shown_names
from tff_shift.command_line import common_flags
from tff_shift.command_line import output_folder
from tff_shift.command_line import program
from tff_shift.reporting import run_contents
from tff_shift.reporting import run_folders

FLAGS = flags.FLAGS

_PAGE = "report.html"


def define_flags() -> None:
  """Defines the flags of this binary."""
  flags.DEFINE_string("output_dir", None, "Folder of the page.")
  flags.DEFINE_bool("overwrite", False, "Replaces an earlier page there.")
  flags.DEFINE_list(
    "metrics",
    None,
    "Comma-separated metrics of the summaries. Default: accuracies, those of"
    " single examples and means of the last evaluations left out; all metrics"
    " if there is none.",
  )
  flags.DEFINE_string("title", "Run folders", "What the page is called.")


def _check_output() -> pathlib.Path:
  if not FLAGS.output_dir:
    raise common_flags.UsageError("--output_dir: name the folder of the page")
  folder = pathlib.Path(FLAGS.output_dir)
  common_flags.require(
    "output_dir", folder.is_dir() or not folder.exists(), "a folder"
  )
  if (folder / _PAGE).exists() and not FLAGS.overwrite:
    raise common_flags.UsageError(
      f"--output_dir={folder}: there is a {_PAGE} already; name another folder"
      " or pass --overwrite"
    )
  with (
    common_flags.usage_errors(),
    output_folder.unwritable_refused("output_dir"),
  ):
    files.check_writable(folder)
  return folder


def _chosen_metrics(folders: Sequence[run_folders.RunFolder]) -> list[str]:
  known = run_contents.metric_names(folders)
  if FLAGS.metrics is None:
    return run_contents.main_metrics(folders)
  common_flags.require(
    "metrics",
    bool(FLAGS.metrics)
    and set(FLAGS.metrics) <= set(known)
    and len(set(FLAGS.metrics)) == len(FLAGS.metrics),
    f"some of {', '.join(known) or 'none, for no run has ended'}, none twice",
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
    folders = [run_folders.read(path) for path in paths]
    contents = run_contents.to_contents(
      folders,
      metrics=_chosen_metrics(folders),
      title=FLAGS.title,
      command=shlex.join(["python", "-m", "experiments.report", *sys.argv[1:]]),
      start=output,
    )
  # Imports Matplotlib, so it comes after the checks of the flags.
  from tff_shift.reporting.pages import page

  page.write(contents, output)
  print(shown_names.printable(f"page: {output / _PAGE}"))


def run() -> None:
  """Reads the command line and runs this binary, to the end of the process."""
  program.run(main, define_flags, takes_arguments=True)


if __name__ == "__main__":
  run()
