"""The records of a run folder: `config.json` and `summary.json`.

Reading them does not import TensorFlow.
"""

import math
import statistics
from typing import Annotated
from typing import Any
from typing import Literal

import msgspec

from tff_shift._util import records
from tff_shift.data import table

CONFIG = "config.json"
SUMMARY = "summary.json"

# Increase it with every change of the random numbers that a run draws.
DRAWS = 2

_Name = Annotated[str, msgspec.Meta(min_length=1)]


class Resumption(records.Record, omit_defaults=True):
  """The time and command of a resumption.

  Attributes:
    time: The time.
    command_line: The command.
    before: The earlier values of the flags that have grown.
  """

  time: records.Time
  command_line: str
  before: dict[str, Any] = msgspec.field(default_factory=dict)


class RunConfig(records.Record, omit_defaults=True):
  """Everything that the results of a run depend on: `config.json`.

  Attributes:
    flags: The flags of the binary, in JSON types.
    versions: Versions of Python and the libraries, by name.
    git_commit: The commit of the code, with `-dirty` if it was changed.
    start_time: The time when the run started.
    command_line: The command that started it.
    cores: The number of available cores.
    machine: The cores, memory and GPUs of the machine, for readers.
    schema: The names of the data. None: unknown.
    draws: The version of the random numbers, see `DRAWS`.
    identity: A unique id of the run. None: an archive of `results/raw`.
    not_compared: The flags that describe methods, or have no effect on results.
      Methods are compared between runs that agree in all others.
    batch_memory: What the clients of a device may take in batches, in bytes. It
      determines last bits. None: clients do not run in batches.
    batch_convolutions: How the clients of a batch convolve float32: `groups` or
      `patches`, see `execution.in_process.convolutions`.
    replaced: The identities that it had before it was continued with more
      rounds, time steps or seeds.
    resumed: The resumptions of the run.
  """

  FORMAT = 2

  flags: dict[str, Any]
  versions: dict[str, str | None]
  git_commit: str | None
  start_time: records.Time
  command_line: str
  cores: records.PositiveInt
  machine: str = ""
  schema: table.Schema | None = None
  draws: records.PositiveInt = 1
  identity: _Name | None = None
  not_compared: tuple[str, ...] = ()
  batch_memory: records.PositiveInt | None = None
  batch_convolutions: Literal["groups", "patches"] | None = None
  replaced: tuple[_Name, ...] = ()
  resumed: tuple[Resumption, ...] = ()


class Metric(records.Record):
  """A final metric: its mean, standard deviation and value for each seed."""

  mean: records.Number
  std: records.Magnitude
  seeds: Annotated[tuple[records.Number, ...], msgspec.Meta(min_length=1)]

  @property
  def values(self) -> list[float]:
    """The value for each seed."""
    return list(map(records.to_float, self.seeds))


class LeftOut(records.Record):
  """The clients that a part of a run leaves out."""

  num_clients: records.PositiveInt
  clients: tuple[str, ...]


class Entry(records.Record, omit_defaults=True):
  """The final metrics of an algorithm in a setting.

  Attributes:
    algorithm: The name of the algorithm.
    dataset: The name of the data set.
    setting: Other values that distinguish the run, in JSON types.
    metrics: By name; all have the same seeds.
    rounds: The number of rounds of each seed.
    seconds_per_round: Wall-clock seconds per round, mean over the seeds.
    num_diverged: For each seed, the number of client updates that were left out
      because they were not finite; empty if not counted.
    risen: The seeds whose training loss ended far above its least value.
    scores: Scores of the settings in the hyper-parameter search, by label.
    left_out: The clients that are left out, by part of the run.
    lower_is_better: The metrics of predictions whose lower values are better.
    bytes_down: The bytes that a client receives in a round. None: not known.
    bytes_up: The bytes that a client sends in a round. None: not known.
    gradients: The gradients that a client computes in the first round, the mean
      over clients. None: not known.
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
  risen: tuple[records.Count, ...] = ()
  lower_is_better: tuple[str, ...] = ()
  bytes_down: records.Count | None = None
  bytes_up: records.Count | None = None
  gradients: Annotated[float, msgspec.Meta(ge=0)] | None = None


class Summary(records.Record):
  """The final metrics of all runs of a folder: `summary.json`."""

  FORMAT = 1

  runs: tuple[Entry, ...]


def mean(values: list[float]) -> float:
  """Returns the mean; NaN or infinity if a value is not finite."""
  finite = all(map(math.isfinite, values))
  return statistics.mean(values) if finite else sum(values)
