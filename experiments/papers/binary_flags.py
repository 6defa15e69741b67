"""The flags of the binaries: lookup, parsing and checks."""

import contextlib
import dataclasses
import functools
import importlib
import types
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

from absl import flags
from absl.testing import flagsaver

from tff_shift import algorithms
from tff_shift import scenarios
from tff_shift.command_line.flags import hparam_flags
from tff_shift.command_line.flags import preset_flag


def _planning(binary: str) -> types.ModuleType:
  """Returns the module that defines and checks the flags of a binary."""
  return importlib.import_module(f"{scenarios.__name__}.{binary}.configuration")


@functools.cache
def of(binary: str) -> Mapping[str, flags.Flag]:
  """Returns the flags of a binary by name.

  Defines the flags and removes them again. Call it before this process defines
  the flags of another binary, which have the same names.
  """
  planning = _planning(binary)
  with flagsaver.flagsaver():
    before = set(flags.FLAGS)
    planning.Configuration.define_flags()
    return {name: flags.FLAGS[name] for name in set(flags.FLAGS) - before}


def shown(value: Any) -> str:
  """Formats a value as after the "=" of a flag."""
  if isinstance(value, list | tuple):
    return ",".join(map(shown, value))
  if isinstance(value, float):
    return f"{value:g}" if float(f"{value:g}") == value else repr(value)
  return str(value)


def argument(name: str, value: Any) -> str:
  """Formats a flag and its value as a command-line argument."""
  if isinstance(value, bool):
    return f"--{name}" if value else f"--no{name}"
  return f"--{name}={shown(value)}"


def parsed(arguments: list[str], binary: str) -> dict[str, str | bool]:
  """Parses and checks flags.

  Args:
    arguments: Each is "--name=value", "--name" or "--noname".
    binary: The binary.

  Returns:
    Values by name: text or bool.

  Raises:
    ValueError: If the binary has no such flag, or a value is wrong.
  """
  found: dict[str, str | bool] = {}
  for each in arguments:
    name, equals, text = each.lstrip("-").partition("=")
    if not each.startswith("--"):
      raise ValueError(f"{each!r}: it must be --name=value")
    value: str | bool = text
    if not equals:
      value = name in of(binary) or not name.startswith("no")
      name = name if value else name[2:]
    check(name, value, binary)
    found[name] = value
  return found


def check(name: str, value: Any, binary: str) -> None:
  """Checks that a binary has a flag and accepts its value.

  Raises:
    ValueError: If it does not.
  """
  known = of(binary)
  if name not in known:
    raise ValueError(f"experiments.{binary} has no flag --{name}")
  flag = known[name]
  if isinstance(value, bool) != flag.boolean:
    wanted = "be true or false" if flag.boolean else "have a value"
    raise ValueError(f"--{name}: it must {wanted}")
  try:
    if not flag.boolean:
      flag.parser.parse(shown(value))
  except (ValueError, TypeError) as error:
    raise ValueError(f"--{name}={shown(value)}: {error}") from error


@functools.cache
def preset(binary: str, name: str) -> dict[str, str | bool]:
  """Returns the flags of a preset.

  Raises:
    ValueError: If the binary has no such preset.
  """
  if name not in preset_flag.names(binary):
    raise ValueError(f"experiments.{binary} has no preset {name!r}")
  lines = preset_flag.path(binary, name).read_text(encoding="utf-8")
  return parsed(
    [
      line
      for line in lines.splitlines()
      if line.strip() and not line.startswith("#")
    ],
    binary,
  )


@functools.cache
def is_hparam(name: str, binary: str) -> bool:
  """Returns whether a flag is a hyper-parameter of algorithms."""
  return name in hparam_flags.owners(binary)


@functools.cache
def has(algorithm: str, name: str) -> bool:
  """Returns whether an algorithm has a hyper-parameter."""
  kind = algorithms.describe(algorithm).hparams
  return name in {field.name for field in dataclasses.fields(kind)}


def check_arguments(arguments: Sequence[str], binary: str) -> None:
  """Runs the flag checks of a binary.

  Args:
    arguments: The arguments, as in `parsed`.
    binary: The binary.

  Raises:
    ValueError: If a flag is wrong.
  """
  planning = _planning(binary)
  with _alone(of(binary)):
    try:
      flags.FLAGS([binary, *arguments])
      planning.check_flags()
    except flags.Error as error:
      raise ValueError(" ".join(str(error).split())) from error


@contextlib.contextmanager
def _alone(known: Mapping[str, flags.Flag]) -> Iterator[None]:
  """Temporarily replaces flags of this process that have the same names."""
  hidden = {name: flags.FLAGS[name] for name in known if name in flags.FLAGS}
  for name in hidden:
    delattr(flags.FLAGS, name)
  try:
    for name, flag in known.items():
      flags.FLAGS[name] = flag
    yield
  finally:
    for name, flag in known.items():
      flag.unparse()
      delattr(flags.FLAGS, name)
    for name, flag in hidden.items():
      flags.FLAGS[name] = flag
