"""Lists rows of results/ whose method lost a published value to a common flag.

  python -m experiments.papers.replaced_defaults

Reads the archives in results/raw. A row is listed if a hyper-parameter that the
method sets itself (its class declares it, or has another default than
`LocalHParams`) has another value in the archive, and neither a selection nor
the method's own row of the table chose this value.
"""

import collections
import functools
import itertools
import json
import pathlib
import shlex
import tarfile
from collections.abc import Iterator
from collections.abc import Mapping
from typing import Any
from typing import NamedTuple

from tff_shift import algorithms
from tff_shift.learning import hyperparameters

_RAW = pathlib.Path(__file__).parents[2] / "results" / "raw"
_SHARED = hyperparameters.LocalHParams()


class Replaced(NamedTuple):
  """A replaced default.

  Attributes:
    archive: The name of the archive.
    row: The folder of the method in it.
    method: The algorithm.
    name: The hyper-parameter.
    published: The method's default.
    value: The value of the row.
    num_rows: The number of rows of the archive with the same argument.
  """

  archive: str
  row: str
  method: str
  name: str
  published: Any
  value: Any
  num_rows: int


@functools.cache
def published(method: str) -> Mapping[str, Any]:
  """Returns the hyper-parameters that a method sets itself."""
  if method not in algorithms.names():
    return {}  # An ablation, such as `fix_lr_mean`.
  defaults = vars(algorithms.get(method).HParams())
  missing = object()
  return {
    name: value
    for name, value in defaults.items()
    if getattr(_SHARED, name, missing) != value
  }


def replaced(archive: pathlib.Path) -> Iterator[Replaced]:
  """Yields the replaced defaults of an archive."""
  commands, summaries = {}, {}
  with tarfile.open(archive) as packed:
    for member in packed:
      row, _, name = member.name.rpartition("/")
      if name == "config.json":
        config = json.load(packed.extractfile(member))
        commands[row] = shlex.split(config["command_line"])
      elif name == "summary.json":
        summaries[row] = json.load(packed.extractfile(member))["runs"]
  counts = collections.Counter(itertools.chain(*commands.values()))
  for row, runs in summaries.items():
    arguments = dict(
      argument.lstrip("-").partition("=")[::2] for argument in commands[row]
    )
    for method in dict.fromkeys(run["algorithm"] for run in runs):
      for name, default in published(method).items():
        text = arguments.get(name)
        # Lists are selected from.
        if text is None or "," in text or _is_equal(text, default):
          continue
        count = counts[f"--{name}={text}"]
        if count > 1:
          yield Replaced(
            archive.name.removesuffix(".tar.xz"),
            row.removeprefix("./"),
            method,
            name,
            default,
            text,
            count,
          )


def _is_equal(text: str, default: Any) -> bool:
  if isinstance(default, int | float) and not isinstance(default, bool):
    return float(text) == default
  return text == str(default)


def main() -> None:
  """Prints the list as a table."""
  rows = [
    row for path in sorted(_RAW.glob("*.tar.xz")) for row in replaced(path)
  ]
  print("| archive | row | hyper-parameter | published | in the row |")
  print("| --- | --- | --- | --- | --- |")
  for row in rows:
    print(
      f"| {row.archive} | {row.row} | {row.name} | {row.published} |"
      f" {row.value} ({row.num_rows} rows) |"
    )


if __name__ == "__main__":
  main()
