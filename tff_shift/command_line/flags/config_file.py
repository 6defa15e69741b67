"""The flag `--config`: files of flags in YAML, or the config.json of a run."""

from collections.abc import Callable
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

import yaml
from absl import flags

from tff_shift import arguments as arguments_lib
from tff_shift import renamed_flags

_FLAG = "config"
# The flags of a run in its config.json, and those of them that name its folder.
_FLAGS_OF_RUN = "flags"
_OF_FOLDER = frozenset({"output_dir", "overwrite", "resume"})
_DIGEST = " (SHA-256)"
_DIGEST_OF_DATASET = f"dataset{_DIGEST}"

# The flags of the run whose config.json was read.
_of_run: dict[str, Any] = {}

HELP = (
  f"--{_FLAG}=FILE reads flags from a YAML file, a line NAME: VALUE for each"
  " flag, or from the config.json of a run, whose folder is not used."
)


def expand(arguments: Sequence[str], known: Sequence[str] = ()) -> list[str]:
  """Replaces `--config=FILE` by the flags of the file.

  Later flags on the command line override those of the file. In a config.json,
  flags that name the folder of the run are left out.

  Args:
    arguments: A command line.
    known: The names of all flags, for a message. Empty: names are not checked.

  Returns:
    The command line without `--config`.

  Raises:
    ValueError: If a file cannot be read, or a name or value in it cannot be a
      flag.
  """

  def flags_of(path):
    found = []
    for name, value in _read(path).items():
      if known and name not in known:
        raise ValueError(
          f"--{_FLAG}={path}: {name} is not a flag"
          f"{arguments_lib.did_you_mean(name, known)}"
        )
      found.extend(_flag(path, name, value))
    return found

  return replaced(arguments, _FLAG, flags_of)


def replaced(
  arguments: Sequence[str],
  flag: str,
  flags_of: Callable[[str], Sequence[str]],
) -> list[str]:
  """Replaces a flag on a command line by other flags, in its place.

  Args:
    arguments: The command line.
    flag: The name of the flag.
    flags_of: Takes the value of the flag and returns the others.

  Returns:
    The command line without the flag.
  """
  expanded, rest = [], iter(arguments)
  for argument in rest:
    name, equals, value = argument.partition("=")
    if name not in (f"--{flag}", f"-{flag}"):
      expanded.append(argument)
      continue
    expanded.extend(flags_of(value if equals else next(rest, "")))
  return expanded


def is_of_run(name: str, value: Any) -> bool:
  """Returns whether a config.json gave a flag this value.

  Data can have set it in the run, so that it does not count as the user's.
  """
  return name in _of_run and _of_run[name] == value


def _read(path: str) -> dict[str, Any]:
  """Returns the flags of a file by name."""
  try:
    with open(path, encoding="utf-8") as file:
      # JSON is YAML.
      values = yaml.safe_load(file)
  except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
    reason = " ".join(str(error).split())
    raise ValueError(
      f"--{_FLAG}={path}: it cannot be read: {reason}"
    ) from error
  if not isinstance(values, Mapping):
    raise ValueError(
      f"--{_FLAG}={path}: it must have a line NAME: VALUE for each flag"
    )
  if isinstance(values.get(_FLAGS_OF_RUN), Mapping):
    values = renamed_flags.rewrite_config(values)[_FLAGS_OF_RUN]
    digest = values.get(_DIGEST_OF_DATASET)
    values = {
      name: value
      for name, value in values.items()
      if name not in _OF_FOLDER
      and not name.endswith(_DIGEST)
      # A flag with its default counts as not set.
      and not (name in flags.FLAGS and flags.FLAGS[name].default == value)
    }
    _of_run.clear()
    _of_run.update(values)
    if digest is not None:
      values["dataset_sha256"] = digest
  return dict(values)


def _flag(path: str, name: Any, value: Any) -> list[str]:
  """Returns a flag as an argument; none if its value is null."""
  if value is None:
    return []
  if isinstance(value, bool):
    return [f"--{name}" if value else f"--no{name}"]
  values = value if isinstance(value, list) else [value]
  for each in values:
    if not isinstance(each, str | int | float) or (
      isinstance(value, list) and isinstance(each, str) and "," in each
    ):
      raise ValueError(
        f"--{_FLAG}={path}: {name} has the value {each!r}; it must be a text, a"
        " number, true, false, or a list of these without commas"
      )
  return [f"--{name}={','.join(map(str, values))}"]
