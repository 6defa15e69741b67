r"""Draws which method is ahead at which budget, from reproduced tables.

  python -m experiments.papers.budget_curves \
      demo/mnist_5k=runs/mnist_5k demo/mnist_5k_guidance=runs/guidance \
      --output_dir=runs/curves

Each argument is a table and the folder of `experiments.reproduce`, or an
unpacked archive of results/raw. Written are

- a figure of each table, `<table>.png`: the mean over seeds with one standard
  deviation, against the gradient steps of a client;
- `profile.png`: performance profiles over the tables, at the common budget;
- `curves.md`: for each table, the best method from which step on; the profiles;
  the gradient steps of a round.

A client's gradient steps after r rounds are r x participation x gradients, with
the gradients that a client of the cohort computes in the first round, in all
phases of a round. Epochs of fine-tuning before an evaluation do not count, and
methods with a number of such steps (`fine_tuning_steps`) are left out. Columns
that differ in the number of rounds alone are the points of one curve. In a
stream, time is no budget: the axis is the time step, and the value is the mean
accuracy up to this step. Values between two evaluations are interpolated. The
common budget is the last step that all methods reach.

Choices:
  * Bytes and seconds as budgets would give other orders; both are on report
    pages. Personal models that are trained beside the shared one (Ditto, APFL)
    count. 100 steps of FedAvg with fine-tuning are more than some whole runs,
    so it has no curve.
  * Values are interpolated for each seed: methods are evaluated at different
    steps, and with the last value the best would change with each evaluation.
    Nothing is extrapolated: a comparison starts where all methods have a value,
    and ends where the first method ends.
  * Selection is not repeated at each step: a curve has the setting that is
    selected at its end. In dynamic personalization each number of rounds is a
    run with its own.
"""

import dataclasses
import itertools
import math
import pathlib
import re
from collections.abc import Mapping
from collections.abc import Sequence

import numpy as np
from absl import flags

from experiments.papers import binary_flags
from experiments.papers import claims
from experiments.papers import specification
from tff_shift._util import files
from tff_shift.command_line import common_flags
from tff_shift.command_line import output_folder
from tff_shift.command_line import program
from tff_shift.reporting.figures import drawing
from tff_shift.reporting.figures import figures
from tff_shift.reporting.pages import contents as contents_lib
from tff_shift.reporting.pages import profiles as profiles_lib
from tff_shift.reporting.pages import statistics
from tff_shift.reporting.pages import text_tables

FLAGS = flags.FLAGS

_PAGE = "curves.md"
_GRADIENTS, _TIME = "gradient steps of a client", "time step"
# A column that differs from others in its rounds alone.
_ROUNDS = re.compile(r"\d+ rounds")
# A method of one table says nothing about others.
_LEAST_TABLES = 2
_LEAST_METHODS = 2


@dataclasses.dataclass(frozen=True, kw_only=True)
class Curves:
  """The curves of a table's methods.

  Attributes:
    name: The table.
    metric: The name of the metric.
    axis: What the positions are.
    by_row: `[points]` positions and `[seeds, points]` values of each method.
    seeds: The seeds.
    gradients: The gradients of a client in a round by method.
    left_out: The methods without a curve, and why.
  """

  name: str
  metric: str
  axis: str
  by_row: Mapping[str, drawing.Curve]
  seeds: Sequence[int]
  gradients: Mapping[str, float]
  left_out: Mapping[str, str]

  @property
  def common(self) -> float:
    """The last step that all methods have reached."""
    return min(curve.rounds[-1] for curve in self.by_row.values())

  def at(self, step: float) -> dict[str, np.ndarray]:
    """Returns the `[seeds]` values of each method at a step.

    They are interpolated between evaluations. Methods that have not been
    evaluated until the step, or that end before it, are missing.
    """
    return {
      row: np.array([np.interp(step, steps, values) for values in by_seed])
      for row, (steps, by_seed) in self.by_row.items()
      if steps[0] <= step <= steps[-1]
    }


@dataclasses.dataclass(frozen=True, kw_only=True)
class Lead:
  """The best method from a step on.

  Attributes:
    step: The step.
    best: The method with the highest mean.
    second: The method with the second highest mean.
    values: `[seeds]` values of the best.
    lead: By how much it is ahead of the second, on average.
    interval: The 95 % confidence interval of the lead over common seeds. None
      if it cannot be computed.
  """

  step: float
  best: str
  second: str
  values: Sequence[float]
  lead: float
  interval: tuple[float, float] | None


def of_table(made: contents_lib.Contents) -> list[Curves]:
  """Returns the curves of a table, one object per column.

  Columns that differ in the number of rounds alone share one.

  Args:
    made: The contents of the table.

  Raises:
    ValueError: If fewer than two methods have a curve, or seeds differ.
  """
  measured = {cell.column for cell in made.cells if cell.by_seed}
  groups = {}
  for column in made.columns:
    if column.higher_is_better and column.heading in measured:
      key = tuple(h for h in column.heading if not _ROUNDS.fullmatch(h))
      groups.setdefault(key, []).append(column)
  found = [
    _of_columns(
      made.name if len(groups) == 1 else f"{made.name}, {', '.join(heading)}",
      made,
      columns,
    )
    for heading, columns in groups.items()
  ]
  if not found:
    raise ValueError(f"{made.name}: no run has finished")
  for each in found:
    if len(each.by_row) < _LEAST_METHODS:
      reasons = "".join(f"; {r}: {why}" for r, why in each.left_out.items())
      raise ValueError(
        f"{each.name}: two methods or more must have a curve{reasons}"
      )
  return found


def _of_columns(name, made, columns) -> Curves:
  """Returns the curves of columns that differ in their rounds."""
  headings = [column.heading for column in columns]
  points, gradients, left_out = {}, {}, {}
  axis, seeds = _GRADIENTS, set()
  for cell in made.cells:
    if cell.column not in headings or not cell.by_seed:
      continue
    budget = cell.budget or contents_lib.Budget()
    by_seed = {
      each.seed: each
      for each in made.curves
      if (each.row, each.column) == (cell.row, cell.column)
    }
    step = next((each.step for each in by_seed.values()), "")
    spent = budget.num_gradients
    if step == "timestep":
      axis = _TIME
    elif budget.fine_tuning_steps:
      left_out[cell.row] = (
        f"{budget.fine_tuning_steps} steps of fine-tuning before each"
        " evaluation are not in its steps"
      )
      continue
    elif not spent:
      left_out[cell.row] = (
        "it computes no gradients"
        if spent == 0
        else "the number of its gradients is not known"
      )
      continue
    gradients[cell.row] = spent
    seeds.add(tuple(sorted(cell.by_seed)))
    per_round = (spent or 0.0) * (budget.participation or 1.0)
    for seed, last in cell.by_seed.items():
      series = {budget.num_rounds * per_round: last}
      if step == "round":
        series = {x * per_round: y for x, y in by_seed[seed].points}
      elif step == "timestep":
        values = [y for _, y in by_seed[seed].points]
        means = np.cumsum(values) / np.arange(1, len(values) + 1)
        times = [x for x, _ in by_seed[seed].points]
        series = dict(zip(times, means.tolist(), strict=True))
      points.setdefault(cell.row, {}).setdefault(seed, {}).update(series)
  if len(seeds) > 1:
    raise ValueError(f"{name}: all methods must have the same seeds")
  return Curves(
    name=name,
    metric=columns[0].metric,
    axis=axis,
    by_row={row: _curve(name, row, of) for row, of in points.items()},
    seeds=next(iter(seeds), ()),
    gradients=gradients,
    left_out=left_out,
  )


def _curve(
  name: str, row: str, by_seed: Mapping[int, Mapping[float, float]]
) -> drawing.Curve:
  steps = sorted(next(iter(by_seed.values())))
  if any(sorted(each) != steps for each in by_seed.values()):
    raise ValueError(f"{name}: {row}: its seeds have values at different steps")
  return drawing.Curve(
    np.array(steps),
    np.array([[by_seed[s][x] for x in steps] for s in sorted(by_seed)]),
  )


def leads(curves: Curves) -> list[Lead]:
  """Returns who is ahead from which step on, up to the common budget.

  Starts where every method has a value. The last one is at the common budget.
  """
  start = max(curve.rounds[0] for curve in curves.by_row.values())
  steps = sorted(
    {
      float(x)
      for curve in curves.by_row.values()
      for x in curve.rounds
      if start <= x <= curves.common
    }
  )
  found = [_lead(curves, step) for step in steps]
  return [
    each
    for each, before in zip(found, [None, *found], strict=False)
    if before is None or each.best != before.best or each is found[-1]
  ]


def _lead(curves: Curves, step: float) -> Lead:
  values = curves.at(step)
  best, second = sorted(values, key=lambda row: -float(np.mean(values[row])))[
    :2
  ]
  return Lead(
    step=step,
    best=best,
    second=second,
    values=values[best].tolist(),
    lead=float(np.mean(values[best] - values[second])),
    interval=_interval(values[best], values[second]),
  )


def _interval(better, worse) -> tuple[float, float] | None:
  """Returns the 95 % interval of a paired difference."""
  column = contents_lib.Column(heading=(), metric="")
  cells = [
    contents_lib.Cell(row="", column=(), by_seed=dict(enumerate(values)))
    for values in (better, worse)
  ]
  return statistics.paired_interval(column, *cells)


def visible(curves: Curves) -> float | None:
  """Returns the smallest difference that the seeds show, in points.

  This is the median half width of the 95 % confidence intervals of the
  differences of all pairs of methods at the common budget.
  """
  values = curves.at(curves.common).values()
  found = [_interval(*pair) for pair in itertools.combinations(values, 2)]
  halves = [(high - low) / 2 for low, high in filter(None, found)]
  return float(np.median(halves)) if halves else None


def profiles(tables: Sequence[Curves]) -> list[profiles_lib.Profile]:
  """Returns profiles over tables, at the common budget of each table.

  Distances are to the best of all methods of a table. Methods of two tables or
  more have a profile, over the tables that have them: not every method fits
  every scenario, so a missing value is no failure.
  """
  found = profiles_lib.profiles(
    [
      {row: float(np.mean(v)) for row, v in each.at(each.common).items()}
      for each in tables
    ]
  )
  known = [
    dataclasses.replace(
      each, distances=[d for d in each.distances if math.isfinite(d)]
    )
    for each in found
    if each.num_values >= _LEAST_TABLES
  ]
  return sorted(known, key=lambda each: -each.area(profiles_lib.TAUS[-1]))


def _draw_profiles(found, path: pathlib.Path) -> None:
  """Draws profiles as steps."""
  figure, axes = drawing.new_figure(
    "", "tau (points)", "Tables within tau of the best (%)"
  )
  last = max(1.0, *(each.distances[-1] for each in found))
  for index, each in enumerate(found):
    taus = [0.0, *each.distances, last]
    axes.step(
      taus,
      [100 * each.share(tau) for tau in taus],
      where="post",
      label=drawing.label(f"{each.row} ({each.num_values})"),
      **drawing.line_style(index),
    )
  axes.set_ylim(-5, 105)
  drawing.add_legend(figure)
  drawing.save(figure, path)


def page(tables: Sequence[Curves]) -> str:
  """Returns the tables of leads, profiles and gradients, in Markdown."""
  parts = []
  for each in tables:
    rows = [
      [
        f"{lead.step:g}",
        lead.best,
        f"{np.mean(lead.values):.1f}",
        lead.second,
        f"{lead.lead:.1f}",
        "not known"
        if lead.interval is None
        else f"{lead.interval[0]:.1f} to {lead.interval[1]:.1f}",
      ]
      for lead in leads(each)
    ]
    head = (f"from {each.axis}", "best", each.metric, "second", "lead", "95 %")
    smallest = visible(each)
    parts += [
      f"## {each.name}",
      text_tables.to_markdown_table(head, rows),
      f"{len(each.by_row)} methods, {len(each.seeds)} seeds, up to the common"
      f" budget of {each.common:g}."
      + (f" Visible from {smallest:.1f} points." if smallest else "")
      + "".join(f" Without {r}: {why}." for r, why in each.left_out.items()),
      text_tables.to_markdown_table(
        ("method", "gradients of a round", each.metric),
        [
          [
            row,
            "not known"
            if each.gradients[row] is None
            else f"{each.gradients[row]:g}",
            " ± ".join(f"{v:.1f}" for v in _mean_and_spread(values)),
          ]
          for row, values in sorted(
            each.at(each.common).items(), key=lambda item: -np.mean(item[1])
          )
        ],
      ),
    ]
  found = profiles(tables)
  if found:
    parts += [
      "## Profiles",
      text_tables.to_markdown_table(
        ("method", "tables", *(f"{tau:g}" for tau in profiles_lib.TAUS)),
        [
          [
            each.row,
            f"{each.num_values}",
            *(f"{100 * each.share(tau):.0f} %" for tau in profiles_lib.TAUS),
          ]
          for each in found
        ],
      ),
    ]
  return "\n".join(f"{part.rstrip()}\n" for part in parts)


def _mean_and_spread(values: np.ndarray) -> list[float]:
  mean, spread = drawing.mean_and_spread(values)
  return [float(mean)] if spread is None else [float(mean), float(spread)]


def define_flags() -> None:
  """Defines the flags of this command."""
  # Reading a table needs those of its binary.
  for binary in specification.BINARIES:
    binary_flags.of(binary)
  flags.DEFINE_string("output_dir", None, "Folder of the figures and tables.")


def main(arguments: Sequence[str]) -> None:
  """Reads the folders, and writes figures and tables."""
  pairs = [each.partition("=") for each in arguments]
  if not pairs or not all(folder for _, _, folder in pairs):
    raise common_flags.UsageError(
      "name tables and their folders, as in `demo/digits=runs/report`"
    )
  if not FLAGS.output_dir:
    raise common_flags.UsageError(
      "--output_dir: it must be set to the folder of the figures"
    )
  output = pathlib.Path(FLAGS.output_dir)
  with (
    common_flags.usage_errors(),
    output_folder.unwritable_refused("output_dir"),
  ):
    files.check_writable(output)
    tables = []
    for name, _, folder in pairs:
      read = claims.read_folder(folder, name, pathlib.Path(folder))
      tables += of_table(read.made)
  output.mkdir(parents=True, exist_ok=True)
  for each in tables:
    figures.learning_curves(
      each.by_row,
      output / f"{re.sub(r'[^a-z0-9_]+', '_', each.name.lower())}.png",
      f"{each.metric} (%)",
      title=each.name,
      xlabel=each.axis,
    )
  found = profiles(tables)
  if found:
    _draw_profiles(found, output / "profile.png")
  files.write_atomically(output / _PAGE, page(tables))
  print(f"tables: {output / _PAGE}")


def run() -> None:
  """Runs this command with the command line and ends the process."""
  program.run(main, define_flags, takes_arguments=True)


if __name__ == "__main__":
  run()
