"""The flag `--config`: files of flags in YAML, or the config.json of a run."""

import json
import re
from collections.abc import Callable
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

import yaml
from absl import flags

from tff_shift._util import arguments as arguments_lib
from tff_shift._util import files

_FLAG = "config"
# The flags of a run in its config.json, and those of them that name its folder.
_FLAGS_OF_RUN = "flags"
_OF_FOLDER = frozenset({"output_dir", "overwrite", "resume"})
_DIGEST = " (SHA-256)"
_DIGEST_OF_DATASET = f"dataset{_DIGEST}"

_WANTED = (
  "it must be a text, a number, true, false, or a list of texts and numbers"
  " without commas"
)
_MAX_BYTES = 2**24
_TAG = "tag:yaml.org,2002:"
# Plain values that all versions of YAML read alike, by their tags in YAML 1.1.
_PLAIN = {
  _TAG + "null": re.compile("|~|null|Null|NULL"),
  _TAG + "bool": re.compile("true|True|TRUE|false|False|FALSE"),
  _TAG + "int": re.compile(r"[-+]?(0|[1-9]\d*)"),
  _TAG + "float": re.compile(
    r"[-+]?(\d+\.\d*|\.\d+)([eE][-+]?\d+)?|[-+]?\.inf|\.nan"
  ),
  _TAG + "timestamp": re.compile(r"\d{4}-\d\d-\d\d"),
}

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
    text = files.read_text(path, max_bytes=_MAX_BYTES)
    if text.lstrip().startswith("{"):
      values = json.loads(
        text, object_pairs_hook=_unique, parse_constant=_refuse_constant
      )
    else:
      values = _parse_yaml(text)
  except (OSError, yaml.YAMLError, RecursionError) as error:
    reason = " ".join(str(error).split())
    raise ValueError(
      f"--{_FLAG}={path}: it cannot be read: {reason}"
    ) from error
  except ValueError as error:
    # Errors of opening a file begin with its path.
    reason = str(error).replace(f"{path} ", "it ", 1)
    raise ValueError(f"--{_FLAG}={path}: {reason}") from error
  if isinstance(values.get(_FLAGS_OF_RUN), Mapping):
    values = values[_FLAGS_OF_RUN]
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


def _unique(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
  """Returns the fields of a JSON object; refuses a name that is there twice."""
  fields = dict(pairs)
  if len(fields) < len(pairs):
    names = [name for name, _ in pairs]
    twice = next(name for name in names if names.count(name) > 1)
    raise ValueError(f"{twice!r} is there twice")
  return fields


def _refuse_constant(name: str) -> None:
  raise ValueError(f"{name} is not a JSON number")


def _parse_yaml(text: str) -> dict[str, Any]:
  """Returns the values of a YAML file by name: texts, bools, None and lists.

  Numbers and dates are returned as the texts of the file, because readers of
  YAML 1.1 and 1.2 differ in their values.

  Raises:
    ValueError: If a value has several meanings, is nested, or a name occurs
      twice; the message names it.
  """
  root = yaml.compose(text, yaml.SafeLoader)
  if not isinstance(root, yaml.MappingNode):
    raise ValueError("it must have a line NAME: VALUE for each flag")
  values: dict[str, Any] = {}
  lines: dict[str, int] = {}
  for key, node in root.value:
    name, line = key.value, key.start_mark.line + 1
    if not isinstance(name, str):
      raise ValueError(f"line {line}: the name of a flag is wanted")
    if name in lines:
      raise ValueError(f"{name} is there twice, in lines {lines[name]}, {line}")
    lines[name] = line
    if isinstance(node, yaml.SequenceNode):
      values[name] = [
        _scalar(item, f"line {line}: {name}") for item in node.value
      ]
    else:
      values[name] = _scalar(node, f"line {line}: {name}")
  return values


def _scalar(node: yaml.Node, what: str) -> str | bool | None:
  """Returns the value of a node that has one meaning."""
  if not isinstance(node, yaml.ScalarNode):
    raise ValueError(f"{what} is nested; {_WANTED}")
  text = node.value
  if node.tag == _TAG + "str":
    return text
  if node.style is not None or node.tag not in _PLAIN:
    raise ValueError(f"{what} has the tag {node.tag}; {_WANTED}")
  if not _PLAIN[node.tag].fullmatch(text):
    raise ValueError(
      f"{what}: {text} has several meanings in YAML; write a decimal number,"
      f" true or false, or a text in quotes ({text!r})"
    )
  if node.tag == _TAG + "null":
    return None
  if node.tag == _TAG + "bool":
    return text.lower() == "true"
  return text.replace(".inf", "inf").replace(".nan", "nan")


def _flag(path: str, name: Any, value: Any) -> list[str]:
  """Returns a flag as an argument; none if its value is null."""
  if value is None:
    return []
  if isinstance(value, bool):
    return [f"--{name}" if value else f"--no{name}"]
  values = value if isinstance(value, list) else [value]
  for item in values:
    if (
      not isinstance(item, str | int | float)
      or (isinstance(value, list) and isinstance(item, str) and "," in item)
      or isinstance(item, bool)
    ):
      raise ValueError(
        f"--{_FLAG}={path}: {name} has the value {item!r}; {_WANTED}"
      )
  return [f"--{name}={','.join(map(str, values))}"]
