"""Measures what the start of a binary is made of, in CPU seconds.

  python -m benchmarks.start

CPU seconds are user and system time of a process: other work on the machine
changes them less than the seconds of a clock. The rows are

*   imports, each in a process of its own;
*   a wrong flag and `--help`, which end without TensorFlow;
*   the parts of `make demo` until its first method has finished a round and
    written its first row of metrics, in the order of the run.

The numbers are medians over repetitions, with the smallest and the largest.
"""

import collections
import contextlib
import io
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile

from absl import app
from absl import flags

FLAGS = flags.FLAGS
flags.DEFINE_integer("repetitions", 3, "Processes of each.", lower_bound=1)
flags.DEFINE_bool("until_first_row", False, "Run the demo; for this script.")

_ROOT = pathlib.Path(__file__).resolve().parents[1]
_DEMO = _ROOT / "experiments/presets/evolving/demo.flags"
_ENDING = {
  "python": ["-c", "pass"],
  "import numpy": ["-c", "import numpy"],
  "import tensorflow": ["-c", "import tensorflow"],
  "import tensorflow_federated": ["-c", "import tensorflow_federated"],
  "import tff_shift": ["-c", "import tff_shift"],
  "--algoritm=fed_avg": ["-m", "experiments.evolving", "--algoritm=fed_avg"],
  "--help": ["-m", "experiments.evolving", "--help"],
}


def _seconds(arguments: list[str]) -> float:
  """Returns the CPU seconds of a process that ends by itself."""
  before = os.times()
  subprocess.run([sys.executable, *arguments], capture_output=True, cwd=_ROOT)
  after = os.times()
  return (
    after.children_user
    + after.children_system
    - before.children_user
    - before.children_system
  )


def _parts() -> dict[str, float]:
  """Returns the CPU seconds of each part of the demo, in its own process."""
  found = subprocess.run(
    [sys.executable, "-m", "benchmarks.start", "--until_first_row"],
    stdout=subprocess.PIPE,
    text=True,
    check=True,
    cwd=_ROOT,
  ).stdout
  parts, last = {}, 0.0
  for line in found.splitlines():
    seconds, part = line.split(maxsplit=1)
    parts[part] = float(seconds) - last
    last = float(seconds)
  return parts


def _run_until_first_row() -> None:
  """Runs the demo; prints the CPU seconds at the end of each part."""
  from tff_shift.binaries import evolving
  from tff_shift.command_line import program
  from tff_shift.scenarios.evolving import configuration

  out = sys.stdout

  def mark(part):
    used = os.times()
    print(f"{used.user + used.system} {part}", file=out, flush=True)

  def after(owner, name, part):
    """Marks the end of the first call of a function."""
    function = getattr(owner, name)

    def marked(*arguments, **options):
      setattr(owner, name, function)
      result = function(*arguments, **options)
      mark(part)
      return result

    setattr(owner, name, marked)

  def check_flags():
    mark("flags")
    result = check()
    mark("TensorFlow, TFF and the algorithms")
    watch()
    return result

  def watch():
    from tff_shift.command_line import common_flags
    from tff_shift.command_line import comparison
    from tff_shift.scenarios.evolving import runs
    from tff_shift.simulation.engine import rounds

    mark("the rest of the package, and Matplotlib")
    after(common_flags, "built_model", "data and model")
    after(runs.Evolving, "begin", "folder and figures of the data")
    after(comparison.Comparison, "build", "building the algorithm")
    after(comparison, "spending", "what a client spends")
    after(rounds.Rounds, "step", "first round: compiling, tracing, running")
    written = comparison.Run.on_step

    def on_step(self, step, loss, measured):
      written(self, step, loss, measured)
      if measured is not None:
        mark("nine rounds, first evaluation, first row")
        raise KeyboardInterrupt

    comparison.Run.on_step = on_step

  check, configuration.check_flags = configuration.check_flags, check_flags
  with (
    tempfile.TemporaryDirectory() as folder,
    contextlib.redirect_stdout(io.StringIO()),
    contextlib.redirect_stderr(io.StringIO()),
  ):
    sys.argv = ["evolving", f"--flagfile={_DEMO}", f"--output_dir={folder}/run"]
    flags.FLAGS.unparse_flags()
    # Ended by an interrupt, with its exit code.
    with contextlib.suppress(SystemExit):
      program.run(evolving.main, configuration.Configuration.define_flags)


def main(argv) -> None:
  """Prints the tables."""
  del argv
  if FLAGS.until_first_row:
    _run_until_first_row()
    return
  seconds = collections.defaultdict(list)
  for _ in range(FLAGS.repetitions):
    for name, arguments in _ENDING.items():
      seconds[name].append(_seconds(arguments))
    total = 0.0
    for name, each in _parts().items():
      seconds[name].append(each)
      total += each
      if name.startswith("first round"):
        seconds["until the first round is done"].append(total)
    seconds["until the first row is written"].append(total)
  print("| part | CPU s | range |")
  print("| --- | --- | --- |")
  for name, found in seconds.items():
    print(
      f"| {name} | {statistics.median(found):.2f} |"
      f" {min(found):.2f}-{max(found):.2f} |"
    )


if __name__ == "__main__":
  app.run(main)
