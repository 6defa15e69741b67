"""What a page of results shows, without a word on how it looks.

`experiments.reproduce` makes it of a paper's table and `experiments.report` of
any run folders; the writers of HTML, CSV, TeX and Markdown read nothing else.
"""

import dataclasses
from collections.abc import Mapping
from collections.abc import Sequence


@dataclasses.dataclass(frozen=True, kw_only=True)
class PaperValue:
  """A cell as a paper prints it.

  Attributes:
    mean: The value, in the unit of the column.
    spread: What stands behind its "±", or None.
    num_seeds: Over how many runs, or None where the paper is silent.
    note: What contradicts it inside the paper, or is doubtful about it.
  """

  mean: float
  spread: float | None = None
  num_seeds: int | None = None
  note: str = ""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Run:
  """A run folder that cells come from.

  Attributes:
    folder: Its path, relative to the page's own folder.
    command: What makes it, to be pasted into a shell.
    chosen: The setting that selection has chosen, by hyper-parameter.
    scores: Setting, in words, to its score by the rule of selection.
    seconds: Wall-clock seconds of all that ran there, or None.
    is_finished: Whether nothing is left to run.
    num_diverged: How often the work of a client was left out as not finite.
  """

  folder: str
  command: str
  chosen: Mapping[str, str] = dataclasses.field(default_factory=dict)
  scores: Mapping[str, float] = dataclasses.field(default_factory=dict)
  seconds: float | None = None
  is_finished: bool = True
  num_diverged: int = 0


@dataclasses.dataclass(frozen=True, kw_only=True)
class Cell:
  """One cell of a table: what the paper has, what we have, or why not.

  Attributes:
    row: The method, in words.
    column: What the column is about, from the outermost heading to the
      innermost, for example ("Dir = 1.0", "client").
    metric: Its name in the run folders, with its unit in `Column`.
    paper: The paper's value, or None where the paper has none.
    by_seed: Our values by seed, in the unit of the column; empty if there are
      none.
    run: Where they come from.
    absent: Why there is no value of ours: "paper only: ...", "failed: ...",
      "not run". Empty if there is one.
  """

  row: str
  column: tuple[str, ...]
  paper: PaperValue | None = None
  by_seed: Mapping[int, float] = dataclasses.field(default_factory=dict)
  run: Run | None = None
  absent: str = ""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Column:
  """What is measured in a column.

  Attributes:
    heading: As in `Cell.column`.
    metric: The name of the metric in words.
    unit: "%" or "".
    higher_is_better: Whether more is better.
    orderings: Whether the methods of this column are compared with each other.
  """

  heading: tuple[str, ...]
  metric: str
  unit: str = "%"
  higher_is_better: bool = True
  orderings: bool = True


@dataclasses.dataclass(frozen=True, kw_only=True)
class Setting:
  """A line of the protocol.

  Attributes:
    name: What is set, in words.
    paper: What the paper says, or "" where it is silent.
    ours: What was run.
    is_reduced: Whether what was run is less than what the paper says.
    reason: Why it differs, if it does.
  """

  name: str
  paper: str
  ours: str
  is_reduced: bool = False
  reason: str = ""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Curve:
  """A metric over the rounds or time steps of a run.

  Attributes:
    row: The method.
    column: The column whose runs it shows.
    seed: The seed.
    step: What is counted, "round" or "timestep".
    points: (step, value) in order.
  """

  row: str
  column: tuple[str, ...]
  seed: int
  step: str
  points: Sequence[tuple[float, float]]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Contents:
  """All that a page shows.

  Attributes:
    name: Of the table, for example "fed_evolve/1".
    title: In words.
    source: The paper, or "" for run folders of one's own.
    command: What makes the page.
    machine: Cores, memory, accelerator, versions.
    date: ISO day of the last run.
    is_full: Whether nothing was reduced.
    rows: Methods in the order of the paper.
    columns: In the order of the paper.
    cells: All of them, in any order.
    protocol: The settings.
    curves: Of our runs.
    decisions: Paragraphs of BUILD_NOTES.md that concern the table, as
      (heading, Markdown).
    problems: What failed, in one line each.
  """

  name: str
  title: str
  source: str = ""
  command: str = ""
  machine: str = ""
  date: str = ""
  is_full: bool = True
  rows: Sequence[str] = ()
  columns: Sequence[Column] = ()
  cells: Sequence[Cell] = ()
  protocol: Sequence[Setting] = ()
  curves: Sequence[Curve] = ()
  decisions: Sequence[tuple[str, str]] = ()
  problems: Sequence[str] = ()
