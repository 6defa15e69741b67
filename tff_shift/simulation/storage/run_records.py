"""`config.json` and `summary.json`: what a run folder says of its run.

Nothing of TensorFlow is needed to read them.
"""

import math
import shlex
import statistics
from typing import Annotated
from typing import Any
from typing import ClassVar

import msgspec

from tff_shift import records
from tff_shift import renamed_flags

CONFIG = "config.json"
SUMMARY = "summary.json"

_Name = Annotated[str, msgspec.Meta(min_length=1)]


class Resumption(records.Record, omit_defaults=True):
  """When a run went on, and by which command.

  Attributes:
    time: When it did.
    command_line: The command.
    before: The values of before of the flags that it was given more of.
  """

  time: records.Time
  command_line: str
  before: dict[str, Any] = msgspec.field(default_factory=dict)


class RunConfig(records.Record, omit_defaults=True):
  """What the results of a run depend on: `config.json`.

  Attributes:
    flags: The flags of the binary, made of JSON types.
    versions: Of Python and the libraries, by name.
    git_commit: The commit of the code, `-dirty` behind it if it was changed.
    start_time: When the run started.
    command_line: The command that started it.
    cores: The number of cores that it had.
    identity: Tells the run from all others. None: an earlier version ran it.
    replaced: The identities that it had before it took more rounds, time steps
      or seeds.
    resumed: When the run went on.
  """

  FORMAT = 2
  # Files without a format have the same fields.
  UPGRADES: ClassVar = {0: dict, 1: renamed_flags.rewrite_config}

  flags: dict[str, Any]
  versions: dict[str, str | None]
  git_commit: str | None
  start_time: records.Time
  command_line: str
  cores: records.PositiveInt
  identity: _Name | None = None
  replaced: tuple[_Name, ...] = ()
  resumed: tuple[Resumption, ...] = ()

  def __post_init__(self):
    try:
      shlex.split(self.command_line)
    except ValueError as error:
      raise ValueError(f"command_line is none of a shell: {error}") from error


class Metric(records.Record):
  """A final metric: its mean, standard deviation and value of each seed."""

  mean: records.Number
  std: records.Magnitude
  seeds: Annotated[tuple[records.Number, ...], msgspec.Meta(min_length=1)]

  def __post_init__(self):
    found, values = records.to_float(self.mean), self.values
    if not math.isclose(found, mean(values), rel_tol=1e-6, abs_tol=1e-12) and (
      math.isfinite(found) or math.isfinite(mean(values))
    ):
      raise ValueError(
        f"the mean {self.mean} is not that of the seeds, {mean(values)}"
      )

  @property
  def values(self) -> list[float]:
    """The value of each seed."""
    return list(map(records.to_float, self.seeds))


class LeftOut(records.Record):
  """The clients that take no part in something."""

  num_clients: records.PositiveInt
  clients: tuple[str, ...]

  def __post_init__(self):
    if self.num_clients != len(self.clients):
      raise ValueError(
        f"num_clients is {self.num_clients}, and there are"
        f" {len(self.clients)} clients"
      )


class Entry(records.Record, omit_defaults=True):
  """The final metrics of an algorithm in a setting.

  Attributes:
    algorithm: The name of the algorithm.
    dataset: The name of the data set.
    setting: What else distinguishes the run, made of JSON types.
    metrics: By name; all have the same seeds.
    rounds: The number of rounds of each seed.
    seconds_per_round: Wall-clock seconds per round, mean over the seeds.
    num_diverged: For each seed, how often the work of a client was left out
      because it was not finite; nothing where that is not counted.
    scores: Of the settings that there were to choose from, by their labels.
    left_out: By what they take no part in, the clients.
  """

  algorithm: _Name
  dataset: _Name
  setting: dict[str, Any]
  metrics: dict[str, Metric]
  rounds: records.Count
  seconds_per_round: records.Magnitude
  num_diverged: tuple[records.Count, ...]
  scores: dict[str, records.Number]
  left_out: dict[str, LeftOut] = msgspec.field(default_factory=dict)

  def __post_init__(self):
    numbers = {name: len(each.seeds) for name, each in self.metrics.items()}
    for name, number in numbers.items():
      first = next(iter(numbers))
      if number != numbers[first]:
        raise ValueError(
          f"metrics.{name} has {number} seeds, and metrics.{first} has"
          f" {numbers[first]}"
        )
      if len(self.num_diverged) not in (0, number):
        raise ValueError(
          f"num_diverged has {len(self.num_diverged)} numbers, and"
          f" metrics.{name} has {number} seeds"
        )


def _from_format_0(fields: dict[str, Any]) -> dict[str, Any]:
  """Adds what the first versions did not count, and did not choose by."""
  runs = fields.get("runs")
  if not isinstance(runs, list):
    return fields
  added = {"num_diverged": [], "scores": {}}
  return fields | {
    "runs": [added | each if isinstance(each, dict) else each for each in runs]
  }


class Summary(records.Record):
  """The final metrics of all runs of a folder: `summary.json`."""

  FORMAT = 1
  UPGRADES: ClassVar = {0: _from_format_0}

  runs: tuple[Entry, ...]


def mean(values: list[float]) -> float:
  """Returns the mean; NaN or infinity where a value is not finite."""
  finite = all(map(math.isfinite, values))
  return statistics.mean(values) if finite else sum(values)
