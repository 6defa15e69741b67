"""The flag `--preset`: flag files that are shipped with the binaries."""

import pathlib
from collections.abc import Sequence

from tff_shift import shipped
from tff_shift.command_line import common_flags

_FLAG = "preset"
_FOLDER = shipped.folder("presets")


def names(binary: str) -> list[str]:
  """Returns the names of a binary's presets, in alphabetical order."""
  return sorted(file.stem for file in (_FOLDER / binary).glob("*.flags"))


def path(binary: str, name: str) -> pathlib.Path:
  """Returns the file of a preset, one of `names`."""
  return _FOLDER / binary / f"{name}.flags"


def expand(arguments: Sequence[str], binary: str) -> list[str]:
  """Replaces `--preset=NAME` by `--flagfile=FILE`.

  Later flags on the command line override the preset, as with `--flagfile`.

  Args:
    arguments: A command line.
    binary: The name of the binary, and of its folder of presets.

  Returns:
    The command line without presets.

  Raises:
    UsageError: If the binary has no such preset. The message lists its presets.
  """
  expanded, rest = [], iter(arguments)
  for argument in rest:
    flag, equals, name = argument.partition("=")
    if flag not in (f"--{_FLAG}", f"-{_FLAG}"):
      expanded.append(argument)
      continue
    if not equals:
      name = next(rest, "")
    known = names(binary)
    if name not in known:
      raise common_flags.UsageError(
        f"--{_FLAG}: {binary} has no preset {name!r}; its presets:"
        f" {', '.join(known) or 'none'}"
      )
    expanded.append(f"--flagfile={path(binary, name)}")
  return expanded


def help_text(binary: str) -> str:
  """Returns the help text of the presets of a binary; empty without presets."""
  known = ", ".join(names(binary))
  return f"--{_FLAG}=NAME reads the flags of a preset: {known}." * bool(known)
