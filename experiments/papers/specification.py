"""Specifications of tables, one TOML file per table.

A file may extend another (`base`, a relative path without .toml) and override
its keys one by one. The base file has the methods, data sets and settings that
the tables of a paper share. Keys (names of data sets, methods, settings and
metrics consist of letters, digits and `_ . + -`):

    name             "<paper>/<table>"; its cells are read from `papers`
    title            describes the table
    binary           the binary of `experiments` for the runs
    select           the selection criterion of the binary, "" without one
    seeds, selection_seeds
    flags            flags of all runs
    grid             values of each hyper-parameter from which `select` selects;
                     methods ignore hyper-parameters that they lack
    datasets.<name>  label, preset, flags, grid, needs (required folders in the
                     data directory), methods.<name> (flags of a method on this
                     data set), absent (reason for no runs)
    methods.<name>   label, algorithm, flags, absent, absent_metrics.<metric>;
                     job (the method whose run folder it shares, instead of
                     algorithm), reads (the algorithm in summary.json, if a run
                     folder has several)
    settings.<name>  label (with {}), labels.<value>; flag (the flag with this
                     value) or flags.<value>, or entry (one run has all values,
                     and this setting in summary.json distinguishes them;
                     values.<value> is the name of a value there), or neither:
                     the setting only selects a metric
    metrics.<name>   label, reads (the metric in summary.json; {<setting>} is
                     replaced by its value), unit, divided_by, higher_is_better,
                     orderings, absent
    rows_by          settings that are rows instead of columns
    also             methods that every column has, in the paper's table or not
    extras           the same, but only run if requested
    ours             cells that are not in the paper: the product of the lists
                     datasets, methods, metrics and settings.<name>
    computed         how cells are computed from the runs of the table `of`
    decisions        files whose choices the page shows, before those of the
                     methods' files
    silent           flags that the paper does not state
    differs          list of {name, paper, ours, reason}; program: the same in
                     the authors' program, with a reason
    programs         list of {dataset, method, metric, settings.<name>, mean,
                     spread, num_seeds, note}: the value of the authors' program
                     for a cell, and why it differs
    floors           methods that show what is reached without learning from
                     others or without adaptation
    ceilings         methods that show what is reached with data or labels that
                     the others do not have
    references       methods against which a client can be harmed
    rungs            reductions for `--budget`, in order, each as in `--reduce`

Choices:
  * Learning rates: the FedEvolve paper states a list for each data set (its
    Table 10), which every method gets. It does not state the selection; here it
    is by the last source domain with the first seed. Fed-ADE states its bounds
    and the three fixed rates, and none for the other methods, which have their
    defaults. FedDRM states 0.01 for all. Fed-3DA states none: 0.03 and 0.1, and
    for hypernetworks 0.01 and 0.03, selected on validation periods.
  * Seeds are 0, 1, 2: the FedEvolve paper has three without naming them, the
    others do not state them.
  * Evaluations are every tenth round, and only at the end for T3A, MEMO and
    FedTHE, whose evaluation takes as long as many rounds.
  * FedEvolve, Table 7 (weights, transmission) has no runs. Table 11 is computed
    from Table 1, as a paired two-sided t-test over its six means, which
    reproduces all 28 of the paper's p-values from its own means.
  * In the Fed-ADE tables CIFAR-10-C is computed from CIFAR-10, so that the
    archive is not needed (`--flags=--corrupted_images=archive` reads it). The
    model without adaptation is always run in Table 1, the two ablations if
    `--only` names them (they share a run folder).
  * FedAvg's own vote, which the FedDRM paper does not have, is always run.
    FedPAC, FedALA, FedAS and ConFREE are as in its authors' program, as
    published if `--only` names them.
  * 131 cells have another value in another table of the same paper for the same
    setting, 110 of them in Fed-ADE (Tables 2, 9 and 10); each has a note.
"""

import dataclasses
import functools
import itertools
import pathlib
import re
from collections.abc import Iterable
from collections.abc import Mapping
from typing import Annotated
from typing import Any

import msgspec

from experiments.papers import choices
from experiments.papers import papers
from experiments.papers import templates
from tff_shift._util import arguments
from tff_shift._util import records

_FOLDER = pathlib.Path(__file__).parents[1] / "tables"

BINARIES = (
  "dynamic_personalization",
  "evolving",
  "guidance",
  "online_adaptation",
)
COMPUTED = ("paired_t",)
# The keys of a file that map names to tables.
_NAMED = ("datasets", "methods", "settings", "metrics")
# Names become parts of paths or of templates.
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+-]*")

_Scalar = bool | int | float | str
_Value = _Scalar | tuple[_Scalar, ...]
_Flags = dict[str, _Value]
_Names = tuple[str, ...]
_SomeNames = Annotated[_Names, msgspec.Meta(min_length=1)]
_Seeds = Annotated[
  tuple[Annotated[int, msgspec.Meta(ge=0, lt=2**31)], ...],
  msgspec.Meta(min_length=1),
]


class SpecificationError(ValueError):
  """A specification is wrong; the message names the file and the key."""


class Dataset(records.Record):
  """A data set of a table, the key `datasets.<name>`."""

  label: str = ""
  preset: str = ""
  flags: _Flags = msgspec.field(default_factory=dict)
  grid: _Flags = msgspec.field(default_factory=dict)
  needs: _Names = ()
  methods: dict[str, _Flags] = msgspec.field(default_factory=dict)
  absent: str = ""


class Method(records.Record):
  """A method of a table, the key `methods.<name>`."""

  label: str = ""
  algorithm: str = ""
  flags: _Flags = msgspec.field(default_factory=dict)
  absent: str = ""
  absent_metrics: dict[str, str] = msgspec.field(default_factory=dict)
  job: str = ""
  reads: str = ""


class Setting(records.Record):
  """A setting of a table, the key `settings.<name>`."""

  label: str = "{}"
  labels: dict[str, str] = msgspec.field(default_factory=dict)
  flag: str = ""
  flags: dict[str, _Flags] = msgspec.field(default_factory=dict)
  entry: str = ""
  values: dict[str, str] = msgspec.field(default_factory=dict)

  def __post_init__(self):
    templates.check(self.label, {""})
    if sum(map(bool, (self.flag, self.flags, self.entry))) > 1:
      raise ValueError("only one of flag, flags and entry may be set")
    if self.values and not self.entry:
      raise ValueError("values needs entry, which is missing")

  def shown(self, value: Any) -> str:
    """Formats a value for headings."""
    return self.labels.get(str(value)) or templates.fill(
      self.label, {"": value}
    )

  def flags_of(self, value: Any) -> _Flags:
    """Returns the flags of a value; none if it only selects a metric."""
    return {self.flag: value} if self.flag else self.flags.get(str(value), {})


class Metric(records.Record):
  """A metric of a table, the key `metrics.<name>`."""

  label: str = ""
  reads: str = ""
  unit: str = "%"
  divided_by: Annotated[float, msgspec.Meta(gt=0, le=1e300)] = 1.0
  higher_is_better: bool = True
  orderings: bool = True
  absent: str = ""


class Ours(records.Record):
  """Cells that are not in the paper, the key `ours`."""

  datasets: _SomeNames
  methods: _SomeNames
  metrics: _SomeNames
  settings: dict[
    str, Annotated[tuple[_Scalar, ...], msgspec.Meta(min_length=1)]
  ] = msgspec.field(default_factory=dict)


class Difference(records.Record):
  """A difference from the paper, an item of the key `differs`."""

  name: str
  paper: str
  ours: str
  reason: str = ""
  program: str = ""

  def __post_init__(self):
    if self.program and not self.reason:
      raise ValueError(
        "program needs reason, a sentence that says why the values differ"
      )


class ProgramValue(records.Record):
  """A value of the authors' program, an item of the key `programs`."""

  dataset: str
  method: str
  metric: str
  mean: float
  note: Annotated[str, msgspec.Meta(min_length=1)]
  settings: dict[str, _Scalar] = msgspec.field(default_factory=dict)
  spread: Annotated[float, msgspec.Meta(ge=0)] | None = None
  num_seeds: records.PositiveInt | None = None

  def is_of(self, cell: "WantedCell") -> bool:
    """Returns whether it is the value of a cell."""
    return (self.dataset, self.method, self.metric, self.settings) == (
      cell.dataset,
      cell.method,
      cell.metric,
      dict(cell.setting),
    )


class Specification(records.Record):
  """A table. The fields are the keys in the docstring of the module."""

  name: str
  title: str
  binary: str
  datasets: dict[str, Dataset]
  methods: dict[str, Method]
  metrics: dict[str, Metric]
  select: str = ""
  seeds: _Seeds = (0,)
  selection_seeds: _Seeds = (0,)
  flags: _Flags = msgspec.field(default_factory=dict)
  grid: _Flags = msgspec.field(default_factory=dict)
  settings: dict[str, Setting] = msgspec.field(default_factory=dict)
  rows_by: _Names = ()
  also: _Names = ()
  extras: _Names = ()
  ours: Ours | None = None
  computed: str = ""
  of: str = ""
  decisions: _Names = ()
  silent: _Names = ()
  differs: tuple[Difference, ...] = ()
  programs: tuple[ProgramValue, ...] = ()
  floors: _Names = ()
  ceilings: _Names = ()
  references: _Names = ()
  rungs: tuple[str, ...] = ()

  def __post_init__(self):
    _check(self)

  @property
  def paper(self) -> papers.Paper | None:
    """The paper; None for a table of our own."""
    paper = self.name.partition("/")[0]
    return papers.get(paper) if paper in papers.names() else None

  def cells(self) -> list["WantedCell"]:
    """Returns the cells of the paper, then of `ours`, `also` and `extras`."""
    printed = []
    if self.paper is not None:
      printed = self.paper.table(self.name.partition("/")[2])
    wanted = [
      WantedCell(
        each.dataset,
        tuple(each.setting.items()),
        each.method,
        each.metric,
        each,
      )
      for each in printed
    ]
    if self.ours is not None:
      of_settings = [
        [(name, value) for value in values]
        for name, values in self.ours.settings.items()
      ]
      wanted += [
        WantedCell(dataset, setting, method, metric, None)
        for dataset in self.ours.datasets
        for setting in itertools.product(*of_settings)
        for method in self.ours.methods
        for metric in self.ours.metrics
      ]
    columns = dict.fromkeys((c.dataset, c.setting, c.metric) for c in wanted)
    has = {(c.dataset, c.setting, c.metric, c.method) for c in wanted}
    wanted += [
      WantedCell(dataset, setting, method, metric, None)
      for method in dict.fromkeys((*self.also, *self.extras))
      for dataset, setting, metric in columns
      if (dataset, setting, metric, method) not in has
    ]
    return wanted


@dataclasses.dataclass(frozen=True)
class WantedCell:
  """A cell of a table, printed in the paper or not.

  Attributes:
    dataset: The data set.
    setting: Pairs of name and value.
    method: The method.
    metric: The metric.
    printed: The cell in the paper, or None.
  """

  dataset: str
  setting: tuple[tuple[str, Any], ...]
  method: str
  metric: str
  printed: papers.Cell | None


def names() -> list[str]:
  """Returns the names of all tables, paper by paper."""
  found = [
    records.read_toml(path).get("name") for path in _FOLDER.glob("*.toml")
  ]
  return sorted(filter(None, found), key=_in_order)


def _in_order(name: str) -> tuple[Any, ...]:
  paper, _, table = name.partition("/")
  return paper, int(table) if table.isdigit() else 1000, table


def load(name: str) -> Specification:
  """Reads and checks the specification of a table.

  Args:
    name: One of `names`, or the path of a TOML file.

  Returns:
    The specification. The module `checks` checks flags of the binary.

  Raises:
    SpecificationError: If it does not exist or is wrong.
  """
  path = pathlib.Path(name)
  if path.suffix != ".toml":
    path = _FOLDER / f"{name.replace('/', '_')}.toml"
    if name not in names():
      raise SpecificationError(
        f"{name}: unknown table; --list prints all"
        f"{arguments.did_you_mean(name, names())}"
      )
  layers = _layers(path)
  try:
    return _record(layers.values())
  except ValueError as error:
    raise SpecificationError(f"{_at_fault(layers, error)}: {error}") from error


def _layers(path: pathlib.Path) -> dict[pathlib.Path, dict[str, Any]]:
  """Reads a file and its base files; the lowest base comes first."""
  layers, where = {}, ""
  while path.resolve() not in {each.resolve() for each in layers}:
    try:
      fields = records.read_toml(path)
    except FileNotFoundError as error:
      raise SpecificationError(
        f"{where}: there is no file {path}"
        if where
        else f"{path}: there is no such file"
      ) from error
    except ValueError as error:
      raise SpecificationError(str(error)) from error
    base = fields.pop("base", None)
    layers = {path: fields} | layers
    if base is None:
      return layers
    where = f"{path}: base"
    if not isinstance(base, str):
      raise SpecificationError(f"{where}: it must be the path of a file")
    path = path.parent / f"{base}.toml"
  raise SpecificationError(f"{where}: the file extends itself")


def _merged(below: dict[str, Any], above: dict[str, Any]) -> dict[str, Any]:
  """Merges nested tables; values of `above` override those of `below`."""
  merged = dict(below)
  for key, value in above.items():
    both = isinstance(value, dict) and isinstance(merged.get(key), dict)
    merged[key] = _merged(merged[key], value) if both else value
  return merged


def _record(layers: Iterable[dict[str, Any]]) -> Specification:
  """Merges files, each overriding those before it, into a record."""
  try:
    merged = functools.reduce(_merged, layers)
  except RecursionError:
    raise ValueError("it is nested too deeply") from None
  return records.convert(merged, Specification)


def _at_fault(
  layers: dict[pathlib.Path, dict[str, Any]], error: ValueError
) -> pathlib.Path:
  """Returns the file that causes an error.

  This is the first file from which on the error stays the same, or the last
  file for a missing field.
  """
  *lower, at_fault = layers
  if re.fullmatch(r"Object missing required field `\w+`", str(error)):
    return at_fault
  for number in range(len(lower), 0, -1):
    try:
      _record(itertools.islice(layers.values(), number))
      break
    except ValueError as of_lower:
      if str(of_lower) != str(error):
        break
    at_fault = lower[number - 1]
  return at_fault


def _check(spec: Specification) -> None:
  """Refuses unknown names, and fields that contradict each other."""

  def refuse(key, message):
    raise ValueError(f"{key}: {message}")

  if spec.binary not in BINARIES:
    refuse("binary", f"it must be one of {', '.join(BINARIES)}")
  if spec.computed and spec.computed not in COMPUTED:
    refuse("computed", f"it must be one of {', '.join(COMPUTED)}")
  for key in ("seeds", "selection_seeds"):
    given = getattr(spec, key)
    if len(set(given)) != len(given):
      refuse(key, f"it must not have duplicates, got {list(given)}")
  if not set(spec.selection_seeds) <= set(spec.seeds):
    refuse("selection_seeds", "it must be a subset of seeds")
  for key in _NAMED:
    for name in getattr(spec, key):
      if not _NAME.fullmatch(name):
        refuse(key, f"{name!r} must consist of letters, digits and _ . + -")
  if bool(spec.computed) != bool(spec.of):
    refuse("of", "computed and of must be set together")
  if spec.of and spec.of not in names():
    refuse("of", f"there is no table {spec.of}")
  for path in spec.decisions:
    if path not in choices.of_all():
      refuse("decisions", f"no file {path!r} has choices")
  for name in spec.rows_by:
    if name not in spec.settings:
      refuse("rows_by", f"there is no setting {name!r}")
  for name, method in spec.methods.items():
    num_given = sum(map(bool, (method.algorithm, method.absent, method.job)))
    if num_given != 1 and not spec.computed:
      refuse(f"methods.{name}", "it needs one of algorithm, absent or job")
    if method.job and not spec.methods.get(method.job, Method()).algorithm:
      refuse(f"methods.{name}.job", f"{method.job!r} has no run folder")
    if method.job and method.flags:
      refuse(f"methods.{name}.flags", f"set them for {method.job!r} instead")
  for key in ("floors", "ceilings", "references"):
    for name in getattr(spec, key):
      if name not in spec.methods:
        refuse(key, f"there is no method {name!r}")
  for name, dataset in spec.datasets.items():
    for changed in dataset.methods:
      if changed not in spec.methods:
        refuse(f"datasets.{name}.methods.{changed}", "there is no such method")
  for name, metric in spec.metrics.items():
    if not (metric.reads or metric.absent or spec.computed):
      refuse(f"metrics.{name}", "it needs either reads or absent")
    try:
      templates.check(metric.reads, spec.settings)
    except ValueError as error:
      refuse(f"metrics.{name}.reads", error)
  cells = spec.cells()
  if not cells:
    refuse("ours", f"{spec.name} has no cells, of the paper or of ours")
  for number, value in enumerate(spec.programs):
    if not any(value.is_of(cell) for cell in cells):
      refuse(f"programs[{number}]", f"{spec.name} has no such cell")
  for cell in cells:
    named: list[tuple[str, str, Mapping[str, Any]]] = [
      ("datasets", cell.dataset, spec.datasets),
      ("methods", cell.method, spec.methods),
      ("metrics", cell.metric, spec.metrics),
      *(("settings", name, spec.settings) for name, _ in cell.setting),
    ]
    for key, found, known in named:
      if found not in known:
        refuse(key, f"{found!r}, which a cell has, is missing")
    try:
      templates.check(spec.metrics[cell.metric].reads, dict(cell.setting))
    except ValueError as error:
      refuse(f"metrics.{cell.metric}.reads", error)
    for name, value in cell.setting:
      setting = spec.settings[name]
      if setting.flags and str(value) not in setting.flags:
        refuse(f"settings.{name}.flags", f"{value!r} is missing")
