"""Hyper-parameters (comma-separated values are separate trials): the flags.

Each hyper-parameter of each algorithm has a flag. The user's algorithms and
metrics (`--import`) are imported before the flags are defined.

Choices:
  * Flags have the names of the hyper-parameters. An algorithm's file adds its
    own, and a flag that no chosen algorithm has is refused.
  * `--shot.momentum` is for one algorithm. In a comparison, one value of a flag
    without the name leaves algorithms as published (`hparam(published=True)`);
    several values are a comparison of values, which all algorithms have.
"""

import dataclasses
import functools
import re
import sys
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

from absl import flags

from tff_shift import algorithms
from tff_shift._util import arguments as arguments_lib
from tff_shift._util import user_modules
from tff_shift.command_line import configuration
from tff_shift.command_line.flags import config_file
from tff_shift.command_line.tuning import search
from tff_shift.data import datasets
from tff_shift.learning import hyperparameters
from tff_shift.learning import metrics

GROUP = "training"

_PARSERS = {
  bool: flags.BooleanParser(),
  int: flags.IntegerParser(),
  float: flags.FloatParser(),
  str: flags.ArgumentParser(),
}


_IMPORT = "import"


def _define_import(values: flags.FlagValues = flags.FLAGS) -> None:
  flags.DEFINE_list(
    _IMPORT,
    None,
    "Comma-separated algorithms, metrics and data sets of your own: files"
    " (my_algorithm.py) or modules (my_package.my_algorithm). The file name is"
    " the name of the algorithm, whose hyper-parameters become flags, of the"
    " metric, or of the data set (a function load() -> table.Table).",
    flag_values=values,
  )


def import_files(arguments: Sequence[str]) -> None:
  """Imports the files of `--import`, before any flag is defined.

  Args:
    arguments: The command line, which may name flag files.

  Raises:
    ValueError: If a file cannot be imported or used.
    flags.Error: If a flag file cannot be read.
  """
  values = flags.FlagValues()
  # Flags that are not defined yet may have a value after a blank.
  values.set_gnu_getopt(True)
  _define_import(values)
  values(arguments, known_only=True)
  for name in values[_IMPORT].value or ():
    try:
      module = user_modules.load(name)
      if metrics.is_metric(module):
        metrics.load(name)
      elif datasets.is_dataset(module):
        datasets.load_file(name)
      else:
        algorithms.load(name)
    except ValueError as error:
      raise ValueError(f"--{_IMPORT}: {error}") from error


def digests_of_imports() -> list[str]:
  """Returns the SHA-256 of each file of `--import`."""
  if _IMPORT not in flags.FLAGS:
    return []  # A binary without algorithms.
  return [
    user_modules.digest(user_modules.load(name))
    for name in flags.FLAGS[_IMPORT].value or ()
  ]


class _ListParser(flags.ArgumentParser):
  """Parses the values of a hyper-parameter, one or several."""

  def __init__(self, field: dataclasses.Field):
    super().__init__()
    self._parser = _PARSERS[type(field.default)]
    self._limits = hyperparameters.describe_limits(field)
    self.syntactic_help = self._limits

  def parse(self, argument: str) -> list[Any]:
    """Returns the comma-separated values.

    Args:
      argument: The text after the `=` of the flag.

    Raises:
      ValueError: If a value has the wrong type or is a duplicate.
    """
    requirement = f"it must be {self._limits}, or several, comma-separated"
    try:
      values = [self._parse_one(part) for part in argument.split(",")]
    except ValueError as error:
      raise ValueError(requirement) from error
    if len(set(values)) != len(values):
      raise ValueError(f"{requirement}, without duplicates")
    return values

  def _parse_one(self, text: str) -> Any:
    """Returns a value; of a range of positive numbers, its text."""
    ends = search.ends(text)
    if ends is None or not isinstance(
      self._parser, flags.IntegerParser | flags.FloatParser
    ):
      return self._parser.parse(text)
    low, high = map(self._parser.parse, ends)
    if not 0 < low < high:
      raise ValueError(text)
    return text


def define_flags(scenario: str, defaults: Mapping[str, str]) -> None:
  """Defines a flag for each hyper-parameter of a scenario's algorithms.

  The value of a flag is the list of values to compare, or None.

  Args:
    scenario: The scenario.
    defaults: The help text for the default of a hyper-parameter, where it
      differs from the algorithm's own default.

  Raises:
    ValueError: If a hyper-parameter has the name of another flag, or if two
      algorithms declare it with different types.
  """
  configuration.declare_of_methods(__name__)
  _define_import()
  names = algorithms.names(scenario)
  declared = _declared(names)
  fields = {}
  for hparam, by_owner in declared.items():
    (owner, first), *others = by_owner.items()
    fields[hparam] = first
    for name, field in others:
      if type(first.default) is not type(field.default):
        raise ValueError(
          f"the hyper-parameter {hparam!r} of {name} is of type"
          f" {type(field.default).__name__}, but of {owner} of type"
          f" {type(first.default).__name__}; rename it"
        )
  for name, hparam in _named(names):
    field = declared.get(hparam, {}).get(name)
    if field is None:
      known = [key for key, by_owner in declared.items() if name in by_owner]
      raise ValueError(
        f"--{name}.{hparam}: {name} has no such"
        f" hyper-parameter{arguments_lib.did_you_mean(hparam, known)}"
      )
    _define(f"{name}.{hparam}", field, f"{hparam} of {name} alone.")
  for field in fields.values():
    owners = [*declared[field.name]]
    scope = "" if len(owners) == len(names) else f" ({', '.join(owners)})"
    default = defaults.get(field.name) or _own_defaults(declared[field.name])
    if field.name in flags.FLAGS:
      raise ValueError(
        f"the hyper-parameter {field.name!r} of {owners[0]} has the name of"
        " another flag; rename it"
      )
    meaning = _meanings(declared[field.name])
    _define(field.name, field, f"{meaning} Default: {default}.{scope}")


def _define(name: str, field: dataclasses.Field, text: str) -> None:
  """Defines a flag of the values of a hyper-parameter."""
  flags.DEFINE_flag(
    flags.Flag(
      _ListParser(field),
      flags.CsvListSerializer(","),
      name,
      None,
      text,
      boolean=isinstance(field.default, bool),
    )
  )


def _named(names: Sequence[str]) -> list[tuple[str, str]]:
  """Returns the algorithms and hyper-parameters of the named flags in use.

  There are too many to define them all.
  """
  arguments = flags.FLAGS.read_flags_from_files(
    config_file.expand(sys.argv[1:])
  )
  matches = [re.match(r"--?(?:no)?(\w+)\.(\w+)", flag) for flag in arguments]
  pairs = dict.fromkeys((match[1], match[2]) for match in matches if match)
  return [pair for pair in pairs if pair[0] in names]


def flag_of(algorithm: str, hparam: str) -> str | None:
  """Returns the flag that sets a hyper-parameter of a chosen algorithm.

  None: it keeps its default.
  """
  if (algorithm, hparam) in named_flags():
    return f"{algorithm}.{hparam}"
  is_set = flags.FLAGS[hparam].value is not None
  return hparam if is_set and not keeps_published(algorithm, hparam) else None


def keeps_published(algorithm: str, hparam: str) -> bool:
  """Returns whether an algorithm keeps a default that a common flag would set.

  It does beside other algorithms that have the hyper-parameter.
  """
  setting = flags.FLAGS[hparam].value
  # Explicit steps replace epochs, see `trials`.
  replaced = {hparam, "local_epochs"} if hparam == "local_steps" else {hparam}
  return (
    setting is not None
    and len(setting) == 1
    and not search.is_range(setting[0])
    and len(_reached(hparam)) > 1
    and any(
      field.name in replaced and field.metadata["published"]
      for field in dataclasses.fields(algorithms.describe(algorithm).hparams)
    )
  )


def _reached(hparam: str) -> list[str]:
  """Returns the chosen algorithms that a flag without a name could set."""
  return [
    name
    for name in flags.FLAGS.algorithm or ()
    if hparam in algorithms.describe(name).hparams.__dataclass_fields__
    and (name, hparam) not in named_flags()
  ]


def origins() -> list[str]:
  """Returns a line for each hyper-parameter in which algorithms differ.

  It has the value of each algorithm, and where the value comes from.
  """
  lines = []
  for hparam, owners in _declared(tuple(flags.FLAGS.algorithm)).items():
    shown: dict[str, list[str]] = {}
    for name, field in owners.items():
      flag = flag_of(name, hparam)
      chosen = [field.default] if flag is None else flags.FLAGS[flag].value
      origin = "published" if field.metadata["published"] else "default"
      if flag is not None:
        origin = f"--{flag}"
      texts = ", ".join(map(str, chosen))
      shown.setdefault(f"{texts} ({origin})", []).append(name)
    if len(shown) > 1:
      parts = [f"{text} for {', '.join(of)}" for text, of in shown.items()]
      lines.append(f"{hparam}: {'; '.join(parts)}")
  return lines


def _meanings(by_owner: Mapping[str, dataclasses.Field]) -> str:
  """Describes a hyper-parameter: what most algorithms mean, then the others.

  Args:
    by_owner: Its declaration in each algorithm that has it.
  """
  owners_of = {}
  for name, field in by_owner.items():
    owners_of.setdefault(field.metadata["help"], []).append(name)
  main, *others = sorted(owners_of, key=lambda text: -len(owners_of[text]))
  apart = [f" For {', '.join(owners_of[text])}: {text}" for text in others]
  return main + "".join(apart)


def _own_defaults(by_owner: Mapping[str, dataclasses.Field]) -> str:
  """Describes the default of a hyper-parameter, and deviating algorithms.

  Args:
    by_owner: Its declaration in each algorithm that has it.
  """
  first, *others = ((name, field.default) for name, field in by_owner.items())
  apart = [f"; {name}: {value}" for name, value in others if value != first[1]]
  return f"{first[1]}{''.join(apart)}"


def named_flags() -> list[tuple[str, str]]:
  """Returns the algorithm and hyper-parameter of each set named flag."""
  return [
    (algorithm, hparam)
    for name in flags.FLAGS
    for algorithm, dot, hparam in [name.partition(".")]
    if dot and flags.FLAGS[name].value is not None
  ]


def without(names: Sequence[str]) -> set[str]:
  """Returns the hyper-parameters of algorithms that none of some has."""
  chosen = _declared(tuple(set(names) & {*algorithms.names()}))
  return {*_declared(algorithms.names())} - {*chosen}


def owners(scenario: str) -> dict[str, list[str]]:
  """Returns the algorithms of a scenario that have each hyper-parameter."""
  declared = _declared(algorithms.names(scenario))
  return {name: [*by_owner] for name, by_owner in declared.items()}


def _declared(
  names: tuple[str, ...],
) -> Mapping[str, Mapping[str, dataclasses.Field]]:
  """Returns the declarations of each hyper-parameter by algorithm."""
  # A file of the user may be registered again.
  return _declarations(
    tuple((name, algorithms.describe(name).hparams) for name in names)
  )


@functools.cache
def _declarations(
  kinds: Sequence[tuple[str, type]],
) -> Mapping[str, Mapping[str, dataclasses.Field]]:
  found = {}
  for name, kind in kinds:
    for field in dataclasses.fields(kind):
      found.setdefault(field.name, {})[name] = field
  return found
