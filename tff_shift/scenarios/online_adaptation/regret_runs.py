"""Runs the measurement of `experiments.dynamic_regret`."""

import functools
import itertools
import time
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any
from typing import NamedTuple

import numpy as np
from absl import flags

from tff_shift import shown_names
from tff_shift.command_line import common_flags
from tff_shift.command_line import output_folder
from tff_shift.data import partition
from tff_shift.data.shifts import schedules
from tff_shift.reporting import summary
from tff_shift.scenarios.online_adaptation import (
  figures as online_adaptation_figures,
)
from tff_shift.scenarios.online_adaptation import regret
from tff_shift.simulation.storage import results

FLAGS = flags.FLAGS

_FED_ADE = "fed_ade"
_FIXED_RATES = {"fix_low": 0.03, "fix_mid": 0.3, "fix_high": 3.0}
# eta* = 3 (V / T)^(1/3). The theorem leaves the constant open; with 1, learning
# rates are too low to follow the growing schedules at the default T.
_RATE_SCALE = 3.0
_ETA_MIN, _ETA_MAX = 0.5, 10.0  # In units of eta*.
_SAMPLES_PER_STEP = 50
_DIRICHLET = 0.1
_UNIFORM_SHARE = 0.5
_TOTAL_SHIFTS = ("fixed", "growing")


class _Case(NamedTuple):
  """A stream and its settings.

  Attributes:
    total_shift: One of `_TOTAL_SHIFTS`.
    shift: The schedule.
    seed: The seed.
    timesteps: T.
    stream: The stream.
  """

  total_shift: str
  shift: str
  seed: int
  timesteps: int
  stream: regret.Stream


def _omega(
  total_shift: str, shift: str, seed: int, timesteps: int, smallest: int
) -> np.ndarray:
  """Computes the weight of Q_T at the steps 0 to T, [timesteps + 1]."""
  if total_shift == "growing":
    return schedules.omega(shift, timesteps, seed=seed)
  first, *others = schedules.omega(shift, smallest, seed=seed)
  return np.array([first, *np.repeat(others, timesteps // smallest)])


def _draw_cases(
  problem: regret.Problem, seeds: Sequence[int], timesteps: Sequence[int]
) -> list[_Case]:
  """Draws the streams of all schedules, seeds and numbers of steps."""
  cases = []
  for total_shift, shift, seed, num_steps in itertools.product(
    _TOTAL_SHIFTS, schedules.names(), seeds, timesteps
  ):
    [drawn] = partition.dirichlet_proportions(
      1, problem.num_classes, _DIRICHLET, seed
    )
    uniform = 1 / problem.num_classes
    stream = regret.draw_stream(
      problem,
      _omega(total_shift, shift, seed, num_steps, min(timesteps)),
      _UNIFORM_SHARE * uniform + (1 - _UNIFORM_SHARE) * drawn,
      _SAMPLES_PER_STEP,
      (seed, num_steps),
    )
    cases.append(_Case(total_shift, shift, seed, num_steps, stream))
  return cases


def _optimal_risks(
  problem: regret.Problem, cases: Sequence[_Case]
) -> list[np.ndarray]:
  """Computes min F^t of the steps 1 to T of each stream."""
  # In one call: the streams of a seed share many distributions.
  distributions = [case.stream.distributions[1:] for case in cases]
  risks = problem.optimal_risks(np.concatenate(distributions))
  ends = np.cumsum([case.timesteps for case in cases])
  return np.split(risks, ends[:-1])


def _largest_rate(algorithm: str, case: _Case) -> float:
  """Returns eta_max, or the rate itself if it is constant."""
  if algorithm in _FIXED_RATES:
    return _FIXED_RATES[algorithm]
  # (V / T)^(1/3), or 1 / sqrt(T) if that is larger.
  optimal = regret.bound(case.stream.cumulative_shift, case.timesteps)
  return _ETA_MAX * _RATE_SCALE * optimal / case.timesteps


class _Runner:
  """Runs algorithms on all streams and writes their results."""

  def __init__(self, problem, cases, folder):
    self._problem = problem
    # The constant rates share one build, which takes seconds.
    self._adapting = functools.cache(functools.partial(regret.build, problem))
    self._cases = cases
    self._optimal_risks = _optimal_risks(problem, cases)
    self._folder = folder

  def run(self, algorithm: str) -> list[dict[str, Any]]:
    """Returns the rows of metrics.csv of an algorithm."""
    ratio = 1.0 if algorithm in _FIXED_RATES else _ETA_MIN / _ETA_MAX
    adapt = self._adapting(ratio)
    rows = []
    # All streams of one length in one call.
    for timesteps in dict.fromkeys(case.timesteps for case in self._cases):
      chosen = [
        (case, risks)
        for case, risks in zip(self._cases, self._optimal_risks, strict=True)
        if case.timesteps == timesteps
      ]
      found = adapt(
        [case.stream for case, _ in chosen],
        [_largest_rate(algorithm, case) for case, _ in chosen],
      )
      for index, (case, risks) in enumerate(chosen):
        by_step = regret.regrets(
          self._problem,
          found.theta[index],
          case.stream.distributions[1:],
          risks,
        )
        rows.append(
          {
            "algorithm": algorithm,
            "total_shift": case.total_shift,
            "shift": case.shift,
            "seed": case.seed,
            "timesteps": timesteps,
            "regret": float(by_step.sum()),
            "cumulative_shift": case.stream.cumulative_shift,
            "measured_shift": float(found.signals[index].sum()),
            "mean_learning_rate": float(found.learning_rates[index].mean()),
          }
        )
        self._folder.write_metrics(rows[-1])
    return rows


def _of(rows: Sequence[Mapping[str, Any]], **values: Any) -> list:
  """Returns the rows with these values, sorted by the number of steps."""
  return sorted(
    (row for row in rows if values.items() <= row.items()),
    key=lambda row: row["timesteps"],
  )


def _bound(row: Mapping[str, Any]) -> float:
  return regret.bound(row["cumulative_shift"], row["timesteps"])


def _exponent(rows: Sequence[Mapping[str, Any]], values: list[float]) -> float:
  """Fits values to T^p by least squares of logarithms and returns p."""
  steps = [row["timesteps"] for row in rows]
  # Rounded, so that equal exponents have standard deviation 0.
  return round(np.polyfit(np.log(steps), np.log(values), 1)[0], 6)


def _summarize(
  rows: Sequence[Mapping[str, Any]],
  setting: Mapping[str, str],
  seconds: float,
) -> summary.RunSummary:
  """Returns the entry of summary.json for an algorithm in a setting."""
  metrics_by_seed = {}
  for seed in dict.fromkeys(row["seed"] for row in rows):
    by_steps = _of(rows, seed=seed, **setting)
    metrics_by_seed[seed] = {
      "regret_exponent": _exponent(
        by_steps, [row["regret"] for row in by_steps]
      ),
      "bound_exponent": _exponent(by_steps, list(map(_bound, by_steps))),
      **{
        name: by_steps[-1][name]
        for name in ("regret", "cumulative_shift", "measured_shift")
      },
    }
  return summary.RunSummary(
    algorithm=rows[0]["algorithm"],
    dataset="convex",
    setting=setting,
    metrics_by_seed=metrics_by_seed,
    rounds=by_steps[-1]["timesteps"],
    directions={"regret": False, "regret_exponent": False},
    seconds_per_round=seconds / sum(row["timesteps"] for row in rows),
  )


def _draw(
  rows_by_algorithm: Mapping[str, Sequence[Mapping[str, Any]]],
  timesteps: Sequence[int],
  folder: results.RunFolder,
) -> None:
  """Plots regret over T: Fed-ADE on all schedules, and all on each."""
  x = np.sort(timesteps)

  def values(algorithm, value, **setting):
    rows = _of(rows_by_algorithm[algorithm], **setting)
    # Rows of a seed are sorted by the number of steps.
    return np.array(
      [
        [value(row) for row in _of(rows, seed=seed)]
        for seed in dict.fromkeys(row["seed"] for row in rows)
      ]
    )

  def draw(name, series, references):
    # References start at the first value of the first curve.
    first = next(iter(series.values())).mean(axis=0)[0]
    online_adaptation_figures.lines_with_slopes(
      x,
      series,
      {
        label: first * reference / reference[0]
        for label, reference in references.items()
      },
      folder.figure_path(name),
      xlabel="Time steps T",
      ylabel="Dynamic regret",
    )

  def of_regret(row):
    return row["regret"]

  powers = {"T^(2/3)": x ** (2 / 3), "T^(5/6)": x ** (5 / 6)}
  for total_shift in _TOTAL_SHIFTS:
    by_shift = {
      shift: {
        algorithm: values(
          algorithm, of_regret, total_shift=total_shift, shift=shift
        )
        for algorithm in rows_by_algorithm
      }
      for shift in schedules.names()
    }
    draw(
      f"regret_{total_shift}",
      {shift: found[_FED_ADE] for shift, found in by_shift.items()},
      powers,
    )
    for shift, found in by_shift.items():
      bounds = values(_FED_ADE, _bound, total_shift=total_shift, shift=shift)
      draw(
        f"regret_{total_shift}_{shift}",
        found,
        {"V^(1/3) T^(2/3)": bounds.mean(axis=0)},
      )


def run(seeds: Sequence[int], timesteps: Sequence[int]) -> None:
  """Runs the measurement.

  Args:
    seeds: The seeds of the streams.
    timesteps: The numbers of time steps T.

  Raises:
    UsageError: If the folder cannot be used.
  """
  with (
    common_flags.usage_errors(),
    output_folder.unwritable_refused("output_dir"),
  ):
    folder = results.RunFolder.create(
      common_flags.output_dir("dynamic_regret"),
      overwrite=FLAGS.overwrite,
    )
    with folder.beginning():
      folder.not_compared = ("output_dir", "overwrite")
      folder.write_config(
        {
          name: FLAGS[name].value
          for name in ("seeds", "timesteps", "output_dir", "overwrite")
        }
      )
  problem = regret.Problem()
  cases = _draw_cases(problem, seeds, timesteps)
  runner = _Runner(problem, cases, folder)
  settings: list[Mapping[str, Any]] = [
    {"total_shift": total_shift, "shift": shift}
    for total_shift in _TOTAL_SHIFTS
    for shift in schedules.names()
  ]
  rows_by_algorithm, summaries = {}, []
  for algorithm in (_FED_ADE, *_FIXED_RATES):
    start = time.perf_counter()
    rows = runner.run(algorithm)
    seconds = time.perf_counter() - start
    rows_by_algorithm[algorithm] = rows
    summaries += [_summarize(rows, setting, seconds) for setting in settings]
    folder.write_summary(each.to_record() for each in summaries)
  _draw(rows_by_algorithm, timesteps, folder)
  table = summary.comparison_table(
    sorted(summaries, key=lambda run: settings.index(run.setting)),
    metrics=(
      "regret_exponent",
      "bound_exponent",
      "regret",
      "cumulative_shift",
      "measured_shift",
    ),
  )
  print(table)
  print(shown_names.printable(f"results: {folder.path}"))
