"""Which runs a table of a paper is made of: a TOML file for each table.

A file may start from another (`base`, a path beside it without .toml), whose
keys it overrides one by one; that is where the methods, data sets and settings
of a paper stand that its tables share. Keys:

    name             "<paper>/<table>"; the cells are those of `papers`
    title            what the table shows
    binary           the binary of `experiments` that makes the runs
    select           the binary's rule of selection, "" if it has none
    seeds, selection_seeds
    flags            flags of all runs
    grid             by hyper-parameter, the values of which `select` chooses
                     one; each method gets those that it has
    datasets.<name>  label, preset, flags, grid, needs (folders of the data
                     directory that there must be), methods.<name> (flags of a
                     method there), absent (why there are no runs)
    methods.<name>   label, algorithm, flags, absent, absent_metrics.<metric>;
                     job (the method whose run folder it shares, instead of
                     algorithm), reads (the algorithm of summary.json, where a
                     run folder has several)
    settings.<name>  label (with {}), labels.<value>; flag (its value is that of
                     a flag) or flags.<value>, or entry (runs with all values;
                     the setting of summary.json that tells them apart;
                     values.<value> is what a value is called there), or
                     neither: it only names a metric
    metrics.<name>   label, reads (the metric of summary.json; {<setting>} in it
                     is replaced), unit, divided_by, higher_is_better,
                     orderings, absent
    rows_by          settings that make rows instead of columns
    also             methods that the paper's table has not, run like its own
    extras           the same, run only if they are asked for
    ours             cells that the paper does not print: datasets, methods,
                     metrics, settings.<name>, lists whose product is made
    computed         how cells are computed from the runs of the table `of`
    decisions        headings of BUILD_NOTES.md
    silent           flags about which the paper says nothing
    differs          list of {name, paper, ours, reason}
    rungs            what `--budget` reduces, in order, each as in `--reduce`
"""

import dataclasses
import itertools
import pathlib
import tomllib
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

from experiments.reproduction import papers
from tff_shift import arguments

_FOLDER = pathlib.Path(__file__).parents[1] / "tables"

BINARIES = (
  "dynamic_personalization",
  "evolving",
  "guidance",
  "online_adaptation",
)
COMPUTED = ("paired_t",)


class SpecificationError(ValueError):
  """A specification is wrong; the message names the file and the key."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Dataset:
  """See the module, `datasets`."""

  label: str = ""
  preset: str = ""
  flags: Mapping[str, Any] = dataclasses.field(default_factory=dict)
  grid: Mapping[str, Sequence[Any]] | None = None
  needs: Sequence[str] = ()
  methods: Mapping[str, Mapping[str, Any]] = dataclasses.field(
    default_factory=dict
  )
  absent: str = ""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Method:
  """See the module, `methods`."""

  label: str = ""
  algorithm: str = ""
  flags: Mapping[str, Any] = dataclasses.field(default_factory=dict)
  absent: str = ""
  absent_metrics: Mapping[str, str] = dataclasses.field(default_factory=dict)
  job: str = ""
  reads: str = ""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Setting:
  """See the module, `settings`."""

  label: str = "{}"
  labels: Mapping[str, str] = dataclasses.field(default_factory=dict)
  flag: str = ""
  flags: Mapping[str, Mapping[str, Any]] = dataclasses.field(
    default_factory=dict
  )
  entry: str = ""
  values: Mapping[str, str] = dataclasses.field(default_factory=dict)

  def shown(self, value: Any) -> str:
    """Returns what a heading calls a value."""
    return self.labels.get(str(value)) or self.label.format(value)

  def flags_of(self, value: Any) -> Mapping[str, Any]:
    """Returns the flags of a value; none if it only names a metric."""
    return {self.flag: value} if self.flag else self.flags.get(str(value), {})


@dataclasses.dataclass(frozen=True, kw_only=True)
class Metric:
  """See the module, `metrics`."""

  label: str = ""
  reads: str = ""
  unit: str = "%"
  divided_by: float = 1.0
  higher_is_better: bool = True
  orderings: bool = True
  absent: str = ""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Ours:
  """See the module, `ours`."""

  datasets: Sequence[str]
  methods: Sequence[str]
  metrics: Sequence[str]
  settings: Mapping[str, Sequence[Any]] = dataclasses.field(
    default_factory=dict
  )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Specification:
  """A table; see the module for what the fields are."""

  name: str
  title: str
  binary: str
  select: str = ""
  seeds: Sequence[int] = (0,)
  selection_seeds: Sequence[int] = (0,)
  flags: Mapping[str, Any] = dataclasses.field(default_factory=dict)
  grid: Mapping[str, Sequence[Any]] = dataclasses.field(default_factory=dict)
  datasets: Mapping[str, Dataset]
  methods: Mapping[str, Method]
  settings: Mapping[str, Setting] = dataclasses.field(default_factory=dict)
  metrics: Mapping[str, Metric]
  rows_by: Sequence[str] = ()
  also: Sequence[str] = ()
  extras: Sequence[str] = ()
  ours: Ours | None = None
  computed: str = ""
  of: str = ""
  decisions: Sequence[str] = ()
  silent: Sequence[str] = ()
  differs: Sequence[Mapping[str, str]] = ()
  rungs: Sequence[str] = ()

  @property
  def paper(self) -> papers.Paper | None:
    """The paper; None for a table of our own."""
    paper = self.name.partition("/")[0]
    return papers.get(paper) if paper in papers.names() else None

  def cells(self) -> list["WantedCell"]:
    """Returns all cells: the paper's, then those of `also` and what follows."""
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
    places = list(
      dict.fromkeys((c.dataset, c.setting, c.metric) for c in wanted)
    )
    wanted += [
      WantedCell(dataset, setting, method, metric, None)
      for method in (*self.also, *self.extras)
      for dataset, setting, metric in places
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
    return wanted


@dataclasses.dataclass(frozen=True)
class WantedCell:
  """A cell that a table has, whether the paper prints it or not.

  Attributes:
    dataset: The data set.
    setting: Pairs of name and value.
    method: The method.
    metric: The metric.
    printed: What the paper prints, or None.
  """

  dataset: str
  setting: tuple[tuple[str, Any], ...]
  method: str
  metric: str
  printed: papers.Cell | None


def names() -> list[str]:
  """Returns the names of all tables, paper by paper."""
  found = []
  for path in _FOLDER.glob("*.toml"):
    name = tomllib.loads(path.read_text(encoding="utf-8")).get("name")
    if name:
      found.append(name)
  return sorted(found, key=_in_order)


def _in_order(name: str) -> tuple[Any, ...]:
  paper, _, table = name.partition("/")
  return paper, int(table) if table.isdigit() else 1000, table


def load(name: str) -> Specification:
  """Reads the specification of a table, checked.

  Args:
    name: One of `names`, or the path of a TOML file.

  Returns:
    The specification. That flags are those of the binary is checked where the
    binary is at hand, see `binary_flags`.

  Raises:
    SpecificationError: If there is none, or it is wrong.
  """
  path = pathlib.Path(name)
  if path.suffix != ".toml":
    path = _FOLDER / f"{name.replace('/', '_')}.toml"
    if name not in names():
      raise SpecificationError(
        f"{name}: there is no such table; --list names all"
        f"{arguments.did_you_mean(name, names())}"
      )
  values = _read_with_bases(path)
  spec = _record(Specification, values, path, "")
  _check(spec, path)
  return spec


def _read_with_bases(
  path: pathlib.Path, started_from: tuple[pathlib.Path, ...] = ()
) -> dict[str, Any]:
  """Returns the keys of a file over those of the files that it starts from."""
  if path.resolve() in started_from:
    raise SpecificationError(f"{path}: base: the file starts from itself")
  values = _read(path)
  base = values.pop("base", None)
  if base is None:
    return values
  below = _read_with_bases(
    path.parent / f"{base}.toml", (*started_from, path.resolve())
  )
  return _merged(below, values)


def _read(path: pathlib.Path) -> dict[str, Any]:
  try:
    return tomllib.loads(path.read_text(encoding="utf-8"))
  except FileNotFoundError as error:
    raise SpecificationError(f"{path}: there is no such file") from error
  except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
    raise SpecificationError(f"{path}: {error}") from error


def _merged(below: Mapping, above: Mapping) -> dict[str, Any]:
  """Returns tables of tables joined; what is above counts."""
  merged = dict(below)
  for key, value in above.items():
    both = isinstance(value, dict) and isinstance(merged.get(key), dict)
    merged[key] = _merged(merged[key], value) if both else value
  return merged


_PARTS = {
  "datasets": Dataset,
  "methods": Method,
  "settings": Setting,
  "metrics": Metric,
}


def _record(kind: type, values: Any, path: pathlib.Path, where: str) -> Any:
  """Makes a record of a table of a file; unknown keys are refused."""
  if not isinstance(values, dict):
    raise SpecificationError(f"{path}: {where}: it must be a table")
  fields = {field.name: field for field in dataclasses.fields(kind)}
  for key, value in values.items():
    if key not in fields:
      raise SpecificationError(
        f"{path}: {where}{key}: there is no such key; there are"
        f" {', '.join(fields)}"
      )
    _check_type(fields[key].type, value, path, f"{where}{key}")
  given = dict(values)
  if kind is Specification:
    for key, part in _PARTS.items():
      given[key] = {
        name: _record(part, each, path, f"{key}.{name}.")
        for name, each in given.get(key, {}).items()
      }
    if "ours" in given:
      given["ours"] = _record(Ours, given["ours"], path, "ours.")
  try:
    return kind(**given)
  except TypeError as error:
    missing = str(error).rpartition(": ")[2]
    raise SpecificationError(f"{path}: {where}{missing} is missing") from error


def _check_type(kind: Any, value: Any, path: pathlib.Path, where: str) -> None:
  """Refuses text where a number is wanted, and the like."""
  wanted = (
    (str, str, "text"),
    (bool, bool, "true or false"),
    (float, int | float, "a number"),
  )
  for of_field, allowed, what in wanted:
    if kind is of_field and not isinstance(value, allowed):
      raise SpecificationError(f"{path}: {where}: it must be {what}")
  described = str(kind)
  if "Mapping" in described and not described.startswith(
    "collections.abc.Sequence"
  ):
    if not isinstance(value, dict):
      raise SpecificationError(f"{path}: {where}: it must be a table")
  elif "Sequence" in described and not isinstance(value, list):
    raise SpecificationError(f"{path}: {where}: it must be a list")


def _check(spec: Specification, path: pathlib.Path) -> None:
  """Refuses names that lead nowhere."""

  def refuse(key, message):
    raise SpecificationError(f"{path}: {key}: {message}")

  if spec.binary not in BINARIES:
    refuse("binary", f"it must be one of {', '.join(BINARIES)}")
  if spec.computed and spec.computed not in COMPUTED:
    refuse("computed", f"it must be one of {', '.join(COMPUTED)}")
  if bool(spec.computed) != bool(spec.of):
    refuse("of", "it names the table from which cells are computed")
  if spec.of and spec.of not in names():
    refuse("of", f"there is no table {spec.of}")
  if not spec.seeds or not set(spec.selection_seeds) <= set(spec.seeds):
    refuse("selection_seeds", "they must be a part of seeds")
  if not spec.cells():
    refuse("ours", f"{spec.name} has no cell: neither the paper's nor ours")
  for name in (*spec.rows_by,):
    if name not in spec.settings:
      refuse("rows_by", f"there is no setting {name!r}")
  for name, method in spec.methods.items():
    num_given = sum(map(bool, (method.algorithm, method.absent, method.job)))
    if num_given != 1 and not spec.computed:
      refuse(f"methods.{name}", "it needs one of algorithm, absent and job")
    if method.job and not spec.methods.get(method.job, Method()).algorithm:
      refuse(f"methods.{name}.job", f"{method.job!r} has no run folder")
  for name, dataset in spec.datasets.items():
    for method in dataset.methods:
      if method not in spec.methods:
        refuse(f"datasets.{name}.methods.{method}", "there is no such method")
  for name, metric in spec.metrics.items():
    if not (metric.reads or metric.absent or spec.computed):
      refuse(f"metrics.{name}", "it needs either reads or absent")
  for cell in spec.cells():
    for key, found, known in (
      ("datasets", cell.dataset, spec.datasets),
      ("methods", cell.method, spec.methods),
      ("metrics", cell.metric, spec.metrics),
      *(("settings", name, spec.settings) for name, _ in cell.setting),
    ):
      if found not in known:
        refuse(key, f"nothing is said of {found!r}, which a cell has")
    for name, value in cell.setting:
      setting = spec.settings[name]
      if setting.flags and str(value) not in setting.flags:
        refuse(f"settings.{name}.flags", f"nothing is said of {value!r}")
