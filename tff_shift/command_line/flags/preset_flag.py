"""The flag `--preset`: flag files that are shipped with the binaries."""

import pathlib
from collections.abc import Sequence

from tff_shift.command_line import common_flags
from tff_shift.command_line.flags import config_file

_FLAG = "preset"
_PACKAGE = pathlib.Path(__file__).parents[2]
_FOLDER = _PACKAGE / "presets"
if not _FOLDER.is_dir():
  # In a checkout they are beside the package.
  _FOLDER = _PACKAGE.parent / "experiments" / "presets"


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

  def flags_of(name):
    known = names(binary)
    if name not in known:
      raise common_flags.UsageError(
        f"--{_FLAG}: {binary} has no preset {name!r}; its presets:"
        f" {', '.join(known) or 'none'}"
      )
    return [f"--flagfile={path(binary, name)}"]

  return config_file.replaced(arguments, _FLAG, flags_of)


def help_text(binary: str) -> str:
  """Returns the help text of the presets of a binary; empty without presets."""
  known = ", ".join(names(binary))
  return f"--{_FLAG}=NAME reads the flags of a preset: {known}." * bool(known)
