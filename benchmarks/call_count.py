"""Counts calls between files of the project in a tiny run.

  python -m benchmarks.call_count

Readers of the code have to follow each call from one file of the project to
another. The run is `experiments.evolving` on scikit-learn's digits: 3 domains,
3 clients, 2 rounds of FedAvg, in this process. Prints the number of calls and
the pairs of files with the most calls.
"""

import collections
import contextlib
import io
import pathlib
import sys
import tempfile

from absl import flags

_ROOT = pathlib.Path(__file__).resolve().parents[1]
_OURS = tuple(f"{_ROOT / name}/" for name in ("tff_shift", "experiments"))
_ARGUMENTS = (
  "--dataset=rotated_digits",
  "--num_domains=3",
  "--max_examples_per_domain=30",
  "--num_clients=3",
  "--algorithm=fed_avg",
  "--model=mlp",
  "--rounds=2",
  "--local_steps=1",
  "--batch_size=4",
  "--noprogress",
)
_SHOWN = 12


class _Counter:
  """Counts calls by the files of caller and callee.

  Attributes:
    pairs: The number of calls by `(caller's file, callee's file)`.
  """

  def __init__(self):
    self.pairs = collections.Counter()

  def __call__(self, frame, event, argument):
    """Counts a call; see `sys.setprofile`."""
    del argument
    caller = frame.f_back
    if event != "call" or caller is None:
      return
    files = caller.f_code.co_filename, frame.f_code.co_filename
    if files[0] != files[1] and all(each.startswith(_OURS) for each in files):
      self.pairs[files] += 1


def main(argv):
  """Runs and counts."""
  del argv
  from tff_shift.binaries import evolving
  from tff_shift.command_line import program
  from tff_shift.scenarios.evolving import configuration as evolving_plan

  counter = _Counter()
  with tempfile.TemporaryDirectory() as folder:
    sys.argv = ["evolving", *_ARGUMENTS, f"--output_dir={folder}/run"]
    flags.FLAGS.unparse_flags()
    sys.setprofile(counter)
    try:
      with contextlib.redirect_stdout(io.StringIO()):
        program.run(evolving.main, evolving_plan.Configuration.define_flags)
    except SystemExit as end:
      code = end.code
    finally:
      sys.setprofile(None)
  if code:
    sys.exit(f"the run ended with {code}")
  print(f"calls between files: {sum(counter.pairs.values())}")
  for (caller, callee), number in counter.pairs.most_common(_SHOWN):
    names = (
      str(pathlib.Path(each).relative_to(_ROOT)) for each in (caller, callee)
    )
    print(f"{number:6d}  {' -> '.join(names)}")


if __name__ == "__main__":
  main(sys.argv)
