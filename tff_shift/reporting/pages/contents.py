"""The contents of a page of results, independent of its format.

`experiments.reproduce` makes them from a paper's table, `experiments.report`
from any run folders. They are the only input of the writers of HTML, CSV, TeX
and Markdown.
"""

import dataclasses
from collections.abc import Mapping
from collections.abc import Sequence


@dataclasses.dataclass(frozen=True, kw_only=True)
class PaperValue:
  """A cell as printed in a paper, or as a run of the authors' program gives it.

  Attributes:
    mean: The value, in the unit of the column.
    spread: The number after "±", or None.
    num_seeds: The number of runs. None if it is not known.
    note: Doubts about a paper's value, or contradictions within the paper; the
      reason why a program's value differs.
  """

  mean: float
  spread: float | None = None
  num_seeds: int | None = None
  note: str = ""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Run:
  """A run folder, the source of cells.

  Attributes:
    folder: The path, relative to the folder of the page.
    command: The command of the run, for a shell.
    chosen: The selected setting, by hyper-parameter.
    scores: The selection score of each setting, by label.
    seconds: Wall-clock seconds of all runs in the folder, or None.
    is_finished: Whether all runs are finished.
    num_diverged: The number of client updates that were dropped as not finite.
    risen: The seeds whose training loss ended far above its least value.
  """

  folder: str
  command: str
  chosen: Mapping[str, str] = dataclasses.field(default_factory=dict)
  scores: Mapping[str, float] = dataclasses.field(default_factory=dict)
  seconds: float | None = None
  is_finished: bool = True
  num_diverged: int = 0
  risen: Sequence[int] = ()


@dataclasses.dataclass(frozen=True, kw_only=True)
class Budget:
  """What a method spends. None: not known.

  Attributes:
    num_settings: The number of settings that the selection compares; 1 without
      selection.
    num_rounds: The number of rounds of a run.
    num_gradients: The gradients that a client computes in a round, the mean
      over clients.
    bytes_down: Bytes that a client receives in a round.
    bytes_up: Bytes that a client sends in a round.
    seconds_per_round: Wall-clock seconds per round.
    participation: The fraction of the clients in a round.
    fine_tuning_steps: The steps of a client's fine-tuning before an evaluation,
      if their number is set. `num_gradients` does not count them.
  """

  num_settings: int = 1
  num_rounds: int | None = None
  num_gradients: float | None = None
  bytes_down: int | None = None
  bytes_up: int | None = None
  seconds_per_round: float | None = None
  participation: float | None = None
  fine_tuning_steps: int | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Trial:
  """The values of a method at one setting of its hyper-parameters.

  Attributes:
    label: The setting, for example "learning rate 0.1".
    by_seed: The values on the test data by seed.
    is_selected: Whether the selection criterion has selected the setting.
  """

  label: str
  by_seed: Mapping[int, float]
  is_selected: bool = False


@dataclasses.dataclass(frozen=True, kw_only=True)
class Cell:
  """A cell of a table: the paper's value, and our values or their absence.

  Attributes:
    row: The name of the method.
    column: The headings of the column, from the outermost to the innermost, for
      example ("Dir = 1.0", "client").
    paper: The value in the paper, or None.
    by_seed: Our values by seed, in the unit of the column; may be empty.
    run: The run folder of our values.
    absent: The reason why there is no value of ours: "paper only: ...",
      "failed: ...", "not run". Empty if there is a value.
    program: The value of the authors' program, or None.
    trials: Our values at all settings, also at those that were not selected.
      Empty if these did not run on the test data.
    budget: What the method spends. None: not known.
  """

  row: str
  column: tuple[str, ...]
  paper: PaperValue | None = None
  by_seed: Mapping[int, float] = dataclasses.field(default_factory=dict)
  run: Run | None = None
  absent: str = ""
  program: PaperValue | None = None
  trials: Sequence[Trial] = ()
  budget: Budget | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Column:
  """A column of a table.

  Attributes:
    heading: The headings, as in `Cell.column`.
    metric: The name of the metric.
    unit: "%" or "".
    higher_is_better: Whether higher is better.
    orderings: Whether the methods in this column are compared.
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
    name: The name of the setting.
    paper: The value in the paper, or "" if it does not state one.
    ours: The value in our runs.
    is_reduced: Whether our value is a reduction.
    reason: The reason for a difference.
    program: The value in the authors' program, or "" if it is not known.
  """

  name: str
  paper: str
  ours: str
  is_reduced: bool = False
  reason: str = ""
  program: str = ""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Curve:
  """A metric over the rounds or time steps of a run.

  Attributes:
    row: The method.
    column: The column of the runs.
    seed: The seed.
    step: The name of the step, "round" or "timestep".
    points: (step, value) pairs in order.
  """

  row: str
  column: tuple[str, ...]
  seed: int
  step: str
  points: Sequence[tuple[float, float]]


@dataclasses.dataclass(frozen=True, kw_only=True)
class ClientValues:
  """The values of single clients in a column.

  Attributes:
    column: The column.
    by_method: For each method and seed, the values of the clients, in the same
      order for all methods of a seed; NaN for a client without a value.
  """

  column: tuple[str, ...]
  by_method: Mapping[str, Mapping[int, Sequence[float]]]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Guarantee:
  """The privacy guarantee of a method, as texts.

  Attributes:
    row: The method.
    column: The first headings of the columns that it is for.
    epsilon: The epsilon that holds for the cohorts of the run.
    delta: Its delta.
    relation: What two runs differ in that epsilon compares.
    sampling: How the clients of a round are sampled.
    others: The other values of epsilon, with their names.
  """

  row: str
  column: tuple[str, ...]
  epsilon: str
  delta: str
  relation: str
  sampling: str
  others: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class Contents:
  """The contents of a page.

  Attributes:
    name: The name of the table, for example "fed_evolve/1".
    title: The title.
    source: The paper, or "" for other run folders.
    command: The command that writes the page.
    machine: Cores, memory, accelerator, versions.
    date: ISO date of the last run.
    is_full: Whether nothing was reduced.
    rows: The methods, in the order of the paper.
    columns: The columns, in the order of the paper.
    cells: All cells, in any order.
    protocol: The settings.
    guarantees: The privacy guarantees of the methods that have one.
    curves: The curves of our runs.
    decisions: Choices about the table and its methods, as pairs of heading and
      Markdown.
    problems: Failures, one line each.
    floors: The rows that show what is reached without learning from others or
      without adaptation.
    ceilings: The rows that show what is reached with data or labels that the
      methods do not have.
    references: The rows against which a client can be harmed.
    clients: The values of single clients, for the columns that have them.
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
  guarantees: Sequence[Guarantee] = ()
  curves: Sequence[Curve] = ()
  decisions: Sequence[tuple[str, str]] = ()
  problems: Sequence[str] = ()
  floors: Sequence[str] = ()
  ceilings: Sequence[str] = ()
  references: Sequence[str] = ()
  clients: Sequence[ClientValues] = ()
