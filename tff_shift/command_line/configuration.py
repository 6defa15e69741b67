"""Configurations: frozen dataclasses whose fields are the flags of a binary.

A field declares a flag once: type, default, help text and valid values.
`define` makes the flags of a class, and `chosen` returns an instance with their
values, checked. absl parses the command line.
"""

import dataclasses
import math
import sys
import types
import typing
from collections.abc import Callable
from collections.abc import Collection
from collections.abc import Sequence
from typing import Any

from absl import flags

from tff_shift._util import arguments
from tff_shift._util import shown_names

# The upper limit of every count: a larger number looks like a run that hangs.
MOST = 10_000_000
# The length of a value in a message.
_LONGEST_VALUE = 100
# The groups of `--help`, in its order.
GROUPS = (
  *("data", "model", "training", "evaluation", "selection", "privacy"),
  *("execution", "output"),
)
_PARSERS = {
  int: flags.IntegerParser,
  float: flags.FloatParser,
  str: flags.ArgumentParser,
}
# The modules whose classes were defined.
_modules: set[str] = set()
# The flags of these classes in which compared runs may differ.
_not_compared: set[str] = set()
# The groups of flags that declare one.
_groups: dict[str, str] = {}
# The modules whose flags describe methods.
_modules_of_methods: set[str] = set()


@dataclasses.dataclass(frozen=True)
class Configuration:
  """The values of flags; subclasses declare their fields with `setting`.

  Raises:
    ValueError: If a value is not allowed.
  """

  def check_together(self) -> None:
    """Refuses values that are allowed individually but not together.

    Raises:
      ValueError: One line that names a flag.
    """


def setting(
  default: Any,
  help: str | Callable[[Any], str],
  *,
  choices: Sequence[str] | Callable[[Any], Sequence[str]] | None = None,
  minimum: float | None = None,
  maximum: float | None = None,
  above: float | None = None,
  below: float | None = None,
  unit: str = "",
  infinite: bool = False,
  convert: Callable[[Any], Any] | None = None,
  requirement: str | None = None,
  is_compared: bool = True,
  group: str | None = None,
) -> Any:
  """Declares a field of a `Configuration`.

  Args:
    default: The default value. Lists are tuples.
    help: The meaning of the flag; `{choices}` in it is replaced. Or a function
      of the class, which may be a subclass.
    choices: The valid values of a text; of a list, those of its parts, at least
      one and all different. Or a function of the class.
    minimum: The smallest valid value. Integers above `MOST` are never valid.
    maximum: The largest valid value.
    above: A number below all valid values.
    below: A number above all valid values.
    unit: The unit of the limits, for messages.
    infinite: Whether inf is valid.
    convert: Takes the value of the flag and returns the value of the field;
      raises a ValueError if it is not valid.
    requirement: Describes the valid values, if `convert` is given.
    is_compared: Whether pages compare methods only between runs with equal
      values. False: the flag describes the method, or has no effect on its
      results.
    group: The group of the flag in `--help`, one of `GROUPS`. None: that of its
      module, see `groups`.

  Returns:
    A dataclass field.
  """
  return dataclasses.field(
    default=default,
    metadata={
      "group": group,
      "help": help,
      "choices": choices,
      "limits": (minimum, above, maximum, below),
      "unit": unit,
      "infinite": infinite,
      "convert": convert,
      "requirement": requirement,
      "is_compared": is_compared,
    },
  )


def changed(
  kind: type[Configuration],
  name: str,
  default: Any = dataclasses.MISSING,
  help: str | None = None,
  more_help: str = "",
) -> Any:
  """Declares a field of a base class again.

  Args:
    kind: The base class.
    name: The name of the field.
    default: The new default. Missing: as before.
    help: The new help text. None: as before.
    more_help: What follows the help text.

  Returns:
    A dataclass field.
  """
  field = kind.__dataclass_fields__[name]
  metadata = dict(field.metadata)
  if help is not None:
    metadata["help"] = help
  if more_help:
    metadata["help"] += f" {more_help}"
  if default is dataclasses.MISSING:
    default = field.default
  return dataclasses.field(default=default, metadata=metadata)


def _kinds(kind: type[Configuration]) -> dict[str, tuple[type, bool]]:
  """Returns the type of each field, and whether it is a list."""
  found = {}
  for name, hint in typing.get_type_hints(kind).items():
    if typing.get_origin(hint) is typing.ClassVar:
      continue
    if isinstance(hint, types.UnionType):
      hint = next(each for each in hint.__args__ if each is not type(None))
    is_list = typing.get_origin(hint) is tuple
    found[name] = (typing.get_args(hint)[0] if is_list else hint), is_list
  return found


def _module(kind: type[Configuration], name: str) -> str:
  """Returns the module that declares a field first; it is its group in help."""
  return next(
    each.__module__
    for each in reversed(kind.__mro__)
    if name in each.__dict__.get("__annotations__", ())
  )


def define(kind: type[Configuration]) -> None:
  """Defines the flags of a class.

  Args:
    kind: The class.
  """
  kinds = _kinds(kind)
  for field in dataclasses.fields(kind):
    if not field.metadata["is_compared"]:
      _not_compared.add(field.name)
    if field.metadata["group"]:
      _groups[field.name] = field.metadata["group"]
    value_type, is_list = kinds[field.name]
    text = field.metadata["help"]
    if callable(text):
      text = text(kind)
    named = _choices(field, kind) or ()
    if not all(choice in text for choice in named) and "{choices}" not in text:
      text += " One of {choices}."
    text = text.replace("{choices}", ", ".join(named))
    default: Any = field.default
    # A value that is converted is a text on the command line.
    if field.metadata["convert"] and not is_list:
      value_type = str
      default = default if default is None else f"{default}"
    module = _module(kind, field.name)
    _modules.add(module)
    if is_list:
      flag = flags.Flag(
        flags.ListParser(),
        flags.CsvListSerializer(","),
        field.name,
        default if default is None else list(map(str, default)),
        text,
      )
    elif value_type is bool:
      flag = flags.BooleanFlag(field.name, default, text)
    else:
      flag = flags.Flag(
        _PARSERS[value_type](),
        flags.ArgumentSerializer(),
        field.name,
        default,
        text,
      )
    flags.DEFINE_flag(flag, module_name=module)


def is_own(module: str) -> bool:
  """Returns whether a module defines flags of binaries, not of a library."""
  return module in _modules or module.startswith("tff_shift.")


def groups() -> dict[str, list[str]]:
  """Returns the names of the flags of the binary by their group in `--help`.

  A module names the group of its flags as `GROUP`; otherwise it is `data`.
  """
  names_of: dict[str, list[str]] = {group: [] for group in GROUPS}
  for module, defined in flags.FLAGS.flags_by_module_dict().items():
    if is_own(module):
      group = getattr(sys.modules.get(module), "GROUP", GROUPS[0])
      for flag in defined:
        names_of[_groups.get(flag.name, group)].append(flag.name)
  return {group: names for group, names in names_of.items() if names}


def own_flags() -> list[flags.Flag]:
  """Returns the flags of the binary, not those of libraries."""
  found = []
  for module, defined in flags.FLAGS.flags_by_module_dict().items():
    if is_own(module):
      found.extend(defined)
  return found


def not_compared() -> set[str]:
  """Returns the flags in which compared runs may differ.

  These are the flags of methods, and those without effect on results.
  """
  of_modules = flags.FLAGS.flags_by_module_dict()
  return _not_compared.union(
    flag.name
    for module in _modules_of_methods
    for flag in of_modules.get(module, ())
  )


def declare_of_methods(module: str) -> None:
  """Declares that all flags that a module defines describe methods."""
  _modules_of_methods.add(module)


def refusal(flag: str, requirement: str) -> str:
  """Returns the line that refuses the value of a flag.

  Args:
    flag: The name of the flag.
    requirement: Describes the valid values.
  """
  value = flags.FLAGS[flag].value
  shown = ",".join(map(str, value)) if isinstance(value, list) else str(value)
  shown = shown_names.shortened(shown_names.printable(shown), _LONGEST_VALUE)
  return f"--{flag}={shown}: it must be {requirement}"


def chosen(kind: type[Configuration], unchecked: Collection[str] = ()) -> Any:
  """Returns the values of the flags of a class.

  A flag that the user has not set is not checked.

  Args:
    kind: The class.
    unchecked: The names of flags that the data determine.

  Returns:
    An instance of the class.

  Raises:
    ValueError: If a value is not valid.
  """
  values = {}
  for field in dataclasses.fields(kind):
    flag = flags.FLAGS[field.name]
    value, convert = flag.value, field.metadata["convert"]
    if isinstance(value, list):
      value = tuple(value)
    if convert is not None and value is not None:
      try:
        value = convert(value)
      except ValueError as error:
        raise ValueError(
          refusal(field.name, field.metadata["requirement"])
        ) from error
    elif not (
      value is None or flag.using_default_value or field.name in unchecked
    ):
      requirement = _requirement(field, _choices(field, kind), value)
      if requirement:
        raise ValueError(refusal(field.name, requirement))
    values[field.name] = value
  found = kind(**values)
  found.check_together()
  return found


def _choices(
  field: dataclasses.Field, kind: type[Configuration]
) -> Sequence[str] | None:
  choices = field.metadata["choices"]
  return choices(kind) if callable(choices) else choices


def _requirement(
  field: dataclasses.Field, choices: Sequence[str] | None, value: Any
) -> str:
  """Describes the valid values of a field; "": the value is one of them."""
  if choices is not None:
    return _choice(choices, value)
  if isinstance(value, bool | str | tuple):
    return ""
  minimum, above, maximum, below = field.metadata["limits"]
  limits = [
    f"{words} {limit}"
    for words, limit in (
      ("at least", minimum),
      ("above", above),
      ("at most", maximum),
      ("below", below),
    )
    if limit is not None
  ]
  described = " ".join([" and ".join(limits), field.metadata["unit"]]).strip()
  if value in (math.inf, -math.inf) and not field.metadata["infinite"]:
    return f"a finite number {described}".strip()
  is_nan = isinstance(value, float) and math.isnan(value)
  if is_nan or not (
    (minimum is None or value >= minimum)
    and (above is None or value > above)
    and (maximum is None or value <= maximum)
    and (below is None or value < below)
  ):
    if field.metadata["infinite"]:
      described = f"a number {described}, or inf"
    return described or "a number"
  if isinstance(value, int) and value > MOST and maximum is None:
    return f"at most {MOST}"
  return ""


def _choice(choices: Sequence[str], value: Any) -> str:
  """As `_requirement`, for one text or several."""
  several = isinstance(value, tuple)
  values = value if several else (value,)
  wrong = [each for each in values if each not in choices]
  if values and not wrong and len(set(values)) == len(values):
    return ""
  start = "one or more of " if several else "one of "
  return (
    start
    + ", ".join(choices)
    + (", without duplicates" if several else "")
    + "".join(arguments.did_you_mean(each, choices) for each in wrong)
  )


# How fields of some kinds are converted.


def _positive(text: Any) -> float:
  value = float(text)
  if not value > 0:
    raise ValueError(text)
  return value


def positive_or_infinite(default: float, help: str) -> Any:
  """Declares a number above 0, possibly inf."""
  return setting(
    default,
    help,
    convert=_positive,
    requirement="a number above 0, or inf",
  )


def _seeds(texts: Sequence[str]) -> tuple[int, ...]:
  seeds = tuple(map(int, texts))
  if not seeds or len(set(seeds)) < len(seeds):
    raise ValueError(texts)
  if not all(0 <= seed < 2**31 for seed in seeds):
    raise ValueError(texts)
  return seeds


def seeds(default: tuple[int, ...] | None, help: Any) -> Any:
  """Declares a list of seeds."""
  return setting(
    default,
    help,
    convert=_seeds,
    requirement="integers from 0 to 2147483647, at least one and no duplicates",
    # Values have their seeds; those of selection belong to the method.
    is_compared=False,
  )


def seed(help: str, *, is_compared: bool = True) -> Any:
  """Declares a seed, 0 by default."""
  return setting(0, help, minimum=0, maximum=2**31 - 1, is_compared=is_compared)
