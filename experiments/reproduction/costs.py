"""What jobs cost, in seconds of a machine: guessed at first, then measured."""

import functools
import math
import pathlib
import tomllib
from collections.abc import Mapping
from typing import Any

from experiments.reproduction import jobs as jobs_lib

# Of each start: imports, data, graphs.
STARTUP_SECONDS = 25.0


@functools.cache
def _guesses() -> Mapping[str, Mapping[str, float]]:
  path = pathlib.Path(__file__).with_name("costs.toml")
  return tomllib.loads(path.read_text(encoding="utf-8"))


def _count(value: Any) -> int:
  """Returns how many values a flag has."""
  if isinstance(value, list | tuple):
    return len(value)
  return len(str(value).split(","))


def num_runs(job: jobs_lib.Job) -> int:
  """Returns the runs of a job: those that choose a setting, and the seeds."""
  seeds = _count(job.flags["seeds"])
  if "select" not in job.flags:
    return seeds
  settings = math.prod(_count(job.flags[name]) for name in job.compared)
  return settings * _count(job.flags["selection_seeds"]) + seeds


def num_evaluations(job: jobs_lib.Job) -> int:
  """Returns the rows of metrics.csv that a run leaves, about."""
  flags = job.flags
  if job.binary == "online_adaptation":
    return int(flags["timesteps"])
  if job.binary == "dynamic_personalization":
    return int(flags["periods"]) * _count(flags["test_distributions"])
  rounds = int(flags["rounds"])
  final = int(flags.get("final_rounds", 1))
  return math.ceil(rounds / int(flags["evaluate_every"])) + final - 1


def training_seconds(job: jobs_lib.Job) -> float:
  """Returns a guess of the seconds that all rounds of one run take."""
  guesses, flags = _guesses(), job.flags
  rounds = int(flags.get("rounds", 0))
  if job.binary == "online_adaptation":
    rounds = int(flags["timesteps"]) * int(flags.get("rounds_per_step", 1))
  work = 1.0
  for name in ("local_steps", "local_epochs"):
    if name in flags and float(job.of_paper.get(name, 0)) > 0:
      work = float(flags[name]) / float(job.of_paper[name])
  share = float(flags.get("participation", 1.0))
  factor = guesses["training"].get(flags["algorithm"], 1.0)
  return rounds * _per_round(job) * share * work * factor


def _per_round(job: jobs_lib.Job) -> float:
  """Returns a guess for FedAvg with all clients and all of their steps."""
  per_client = _guesses()["datasets"].get(job.dataset, 1.0)
  return int(job.flags["num_clients"]) * per_client


def seconds(job: jobs_lib.Job) -> float:
  """Returns a guess of the seconds that a job takes on two cores."""
  guesses = _guesses()["evaluation"]
  share = guesses.get(job.flags["algorithm"], guesses["default"])
  if job.binary in ("online_adaptation", "dynamic_personalization"):
    share = guesses["of_a_period"]
  evaluation = (
    num_evaluations(job) * _per_round(job) * share * _share_of_examples(job)
  )
  return STARTUP_SECONDS + num_runs(job) * (training_seconds(job) + evaluation)


def _share_of_examples(job: jobs_lib.Job) -> float:
  """Returns which part of the examples is left, about."""
  whole = {"max_examples_per_domain": 5800, "max_examples": 60000}
  for name, all_examples in whole.items():
    if name in job.flags:
      return min(1.0, float(job.flags[name]) / all_examples)
  return 1.0
