"""Renamed flags: command lines, flag files and records may have the old names.

The old names are not defined as flags: neither `--help` nor config.json has
them.
"""

import re
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

from absl import flags

# By the old name.
RENAMED = {"input_deviation": "input_std"}

_OLD = re.compile(rf"--?({'|'.join(RENAMED)})(=.*)?", re.DOTALL)


def rewrite_arguments(arguments: Sequence[str]) -> list[str]:
  """Replaces old names on a command line and in its flag files.

  Args:
    arguments: The command line, the program first.

  Returns:
    The command line. If a flag file has an old name, its lines stand in its
    place.

  Raises:
    flags.Error: If a flag file cannot be read.
  """
  program, *given = arguments
  read = flags.FLAGS.read_flags_from_files(given, force_gnu=False)
  if not any(map(_OLD.fullmatch, read)):
    return [program, *given]
  return [
    program,
    *(
      _OLD.sub(lambda m: f"--{RENAMED[m[1]]}{m[2] or ''}", each)
      for each in read
    ),
  ]


def rewrite_config(fields: Mapping[str, Any]) -> dict[str, Any]:
  """Replaces old names in the field `flags` of a record."""
  values = fields.get("flags")
  if not isinstance(values, dict):
    return dict(fields)  # A damaged file, which its reader refuses.
  values = {RENAMED.get(name, name): value for name, value in values.items()}
  return {**fields, "flags": values}
