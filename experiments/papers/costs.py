"""Guesses of the seconds that jobs take, which measurements calibrate."""

import functools
import math
import pathlib
from typing import Annotated
from typing import Any

import msgspec

from experiments.papers import binary_flags
from experiments.papers import job as job_lib
from tff_shift._util import records

# The time of imports, data loading and graph building of each job.
STARTUP_SECONDS = 25.0

_ByName = dict[str, Annotated[float, msgspec.Meta(gt=0, le=1e9)]]


class _Guesses(records.Record):
  """The relative costs in costs.toml."""

  datasets: _ByName
  training: _ByName
  evaluation: _ByName

  def __post_init__(self):
    if not {"default", "of_a_period"} <= set(self.evaluation):
      raise ValueError("evaluation: it needs default and of_a_period")


@functools.cache
def _guesses() -> _Guesses:
  return records.read(pathlib.Path(__file__).with_name("costs.toml"), _Guesses)


def _number(job: job_lib.Job, name: str) -> float:
  """Returns the numeric value of a job's flag, or the binary's default."""
  flag = binary_flags.of(job.binary)[name]
  if name not in job.flags:
    return flag.default
  return flag.parser.parse(binary_flags.shown(job.flags[name]))


def _count(value: Any) -> int:
  """Returns the number of values of a flag."""
  return len(binary_flags.shown(value).split(","))


def _largest(value: Any) -> float:
  """Returns the largest of a flag's values."""
  return max(map(float, binary_flags.shown(value).split(",")))


def num_runs(job: job_lib.Job) -> int:
  """Returns the number of runs of a job, including those for selection."""
  seeds = _count(job.flags["seeds"])
  if "select" not in job.flags:
    return seeds
  settings = math.prod(_count(job.flags[name]) for name in job.compared)
  num_judged = settings if job.flags.get("all_settings") else 1
  return settings * _count(job.flags["selection_seeds"]) + num_judged * seeds


def num_evaluations(job: job_lib.Job) -> int:
  """Returns the approximate number of rows in metrics.csv of a run."""
  if job.binary == "online_adaptation":
    return int(_number(job, "timesteps"))
  if job.binary == "dynamic_personalization":
    known = binary_flags.of(job.binary)
    streams = job.flags.get(
      "test_distributions", known["test_distributions"].default
    )
    return int(_number(job, "periods")) * _count(streams)
  final = 1
  if "final_rounds" in job.flags:
    final = int(_number(job, "final_rounds"))
  evaluations = _number(job, "rounds") / _number(job, "evaluate_every")
  return math.ceil(evaluations) + final - 1


def training_seconds(job: job_lib.Job) -> float:
  """Guesses the training seconds of one run."""
  if job.binary == "online_adaptation":
    rounds = _number(job, "timesteps") * _number(job, "rounds_per_step")
  else:
    rounds = _number(job, "rounds")
  work = 1.0
  for name in ("local_steps", "local_epochs"):
    paper = _largest(job.of_paper.get(name, 0))
    if name in job.flags and paper > 0:
      work = _largest(job.flags[name]) / paper
  factor = _guesses().training.get(job.flags["algorithm"], 1.0)
  return (
    rounds * _per_round(job) * _number(job, "participation") * work * factor
  )


def _per_round(job: job_lib.Job) -> float:
  """Guesses the seconds of a FedAvg round with full participation."""
  per_client_values = _guesses().datasets.get(job.dataset, 1.0)
  return _number(job, "num_clients") * per_client_values


def seconds(job: job_lib.Job) -> float:
  """Guesses the seconds of a job on two cores."""
  guesses = _guesses().evaluation
  share = guesses.get(job.flags["algorithm"], guesses["default"])
  if job.binary in ("online_adaptation", "dynamic_personalization"):
    share = guesses["of_a_period"]
  evaluation = (
    num_evaluations(job) * _per_round(job) * share * _share_of_examples(job)
  )
  return STARTUP_SECONDS + num_runs(job) * (training_seconds(job) + evaluation)


def _share_of_examples(job: job_lib.Job) -> float:
  """Returns the approximate fraction of the examples that is used."""
  whole = {"max_examples_per_domain": 5800, "max_examples": 60000}
  for name, all_examples in whole.items():
    if name in job.flags:
      return min(1.0, _number(job, name) / all_examples)
  return 1.0
