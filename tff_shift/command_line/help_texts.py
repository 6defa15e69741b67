"""What a binary tells of itself: help, version, configuration, completion.

--help               the flags that most runs set, on one screen
--help=GROUP         all flags of a group; all: of every group
--version            the version of the package
--print_config       the flags of the command line as a file for --config
--completion=SHELL   a script for bash or zsh: source <(...)
"""

import inspect
import json
import pathlib
import re
import sys
from collections.abc import Callable
from collections.abc import Mapping
from collections.abc import Sequence

from absl import flags

from tff_shift._util import arguments as arguments_lib
from tff_shift._util import installed
from tff_shift.command_line import configuration
from tff_shift.command_line.flags import config_file
from tff_shift.command_line.flags import hparam_flags
from tff_shift.command_line.flags import preset_flag

SHELLS = ("bash", "zsh")

# What most runs set, in the order of a command.
_EVERYDAY = {
  "algorithm": "algorithms to compare, comma-separated",
  "dataset": "a name, or a path to your own data",
  "label": "of a table: the column of the class",
  "client": "of a table: the column of the client",
  "time": "of a table: the column of the domain, time step or period",
  "features": "of a table: the columns of the inputs",
  "num_clients": "number of clients",
  "rounds": "number of rounds",
  "timesteps": "number of time steps",
  "model": "a name, your own function, or a file of a Keras model",
  "learning_rate": "the clients' learning rate; several values are compared",
  "batch_size": "examples per batch",
  "select": "how a setting of each algorithm is selected",
  "metrics": "further metrics of predictions",
  "seeds": "one run per seed, comma-separated",
  "output_dir": "folder of the results",
  "resume": "goes on with an interrupted run",
  "executor": "where computations run",
}
# More flags need groups.
_ON_A_SCREEN = 30
_HELP = re.compile("--?h(?:elp(?:short)?)?(?:=(.*))?")
_ALL = "all"


def answer(
  arguments: Sequence[str],
  main: Callable[..., None],
  define_flags: Callable[[], None],
  binary: str,
) -> str | None:
  """Returns what a command line asks instead of a run; None: it is a run.

  Args:
    arguments: The command line. Flags are defined.
    main: The binary.
    define_flags: Defines its flags.
    binary: The name of the binary.

  Raises:
    ValueError: If it asks for something that does not exist.
  """
  for argument in arguments[1:]:
    match = _HELP.fullmatch(argument)
    if match:
      return _help(main, define_flags, binary, match[1], arguments)
    name, _, value = argument.lstrip("-").partition("=")
    if argument.startswith("-") and name == "version":
      return f"tff_shift {installed.version('tff_shift')}"
    if argument.startswith("--") and name == "completion":
      arguments_lib.choice("--completion", value, SHELLS)
      return _completion(binary, value)
  return None


def as_config() -> str:
  """Returns the flags that are set, as a YAML file for `--config`."""
  lines = [
    f"{flag.name}: {json.dumps(flag.value, ensure_ascii=False)}"
    for flag in sorted(configuration.own_flags(), key=lambda flag: flag.name)
    if flag.value is not None and flag.value != flag.default
  ]
  return "\n".join(lines)


def _help(
  main: Callable[..., None],
  define_flags: Callable[[], None],
  binary: str,
  group: str | None,
  arguments: Sequence[str],
) -> str:
  """Returns the text of `--help`, or of a group of flags."""
  groups = configuration.groups()
  hidden = _of_others(arguments)
  groups = {
    name: [flag for flag in names if flag not in hidden]
    for name, names in groups.items()
  }
  first = getattr(define_flags, "__self__", define_flags).__module__
  if group is not None:
    arguments_lib.choice("--help", group, (*groups, _ALL))
    return _listed(first, main, groups, group)
  parts = [inspect.getdoc(sys.modules[main.__module__])]
  if sum(map(len, groups.values())) <= _ON_A_SCREEN:
    parts.append(_listed(first, main, groups, _ALL))
  else:
    numbers = [f"{name} ({len(groups[name])})" for name in groups]
    parts += [
      _everyday(),
      _wrapped(
        f"--help=GROUP lists all flags of {', '.join(numbers)}, or of {_ALL}.",
        "--algorithm=NAMES --help=training leaves out the flags of others.",
      ),
    ]
  parts.append(
    _wrapped(
      "--flagfile=FILE reads flags from a file, one per line.",
      config_file.HELP,
      "--print_config prints the flags of a command as such a file.",
      f"--version; --completion={'|'.join(SHELLS)}; --helpfull: also flags of"
      " libraries.",
      preset_flag.help_text(binary),
    )
  )
  return "\n\n".join(filter(None, parts))


def _wrapped(*lines: str) -> str:
  return "\n".join(
    flags.text_wrap(line, indent="  ", firstline_indent="")
    for line in lines
    if line
  )


def _of_others(arguments: Sequence[str]) -> set[str]:
  """Returns the hyper-parameters that no algorithm of a command line has."""
  for argument in arguments:
    name, _, value = argument.lstrip("-").partition("=")
    if name == "algorithm" and value and name in flags.FLAGS:
      return hparam_flags.without(value.split(","))
  return set()


def _everyday() -> str:
  """Returns a line for each of the flags that most runs set."""
  lines = ["Everyday flags:"]
  for name, meaning in _EVERYDAY.items():
    if name in flags.FLAGS:
      default = (flags.FLAGS[name].default_as_str or "").strip("'")
      shown = f" (default: {default})" if default else ""
      lines.append(f"  --{name:15}{meaning}{shown}")
  return "\n".join(lines)


def _listed(
  first: str,
  main: Callable[..., None],
  groups: Mapping[str, Sequence[str]],
  group: str,
) -> str:
  """Returns the flags of a group by module, those of one module first.

  The heading of a module's flags is its docstring up to the first colon.
  """
  wanted = {
    name
    for key, names in groups.items()
    if group in (_ALL, key)
    for name in names
  }
  of_modules = flags.FLAGS.flags_by_module_dict()
  modules = [first, *(module for module in of_modules if module != first)]
  parts = []
  for module in modules:
    listed = [
      flag for flag in of_modules.get(module, ()) if flag.name in wanted
    ]
    if not listed or not configuration.is_own(module):
      continue
    heading, _, _ = inspect.getdoc(sys.modules[module]).partition(":")
    if module == main.__module__:
      heading = "Flags"
    texts = map(_described, sorted(listed, key=lambda flag: flag.name))
    parts.append("\n".join([f"{' '.join(heading.split())}:", *texts]))
  return "\n\n".join(parts)


def _described(flag: flags.Flag) -> str:
  """Returns name, meaning, default and type of a flag."""
  name = f"--{'[no]' * bool(flag.boolean)}{flag.name}"
  text = flags.text_wrap(
    f"{name}: {flag.help}", indent=" " * 4, firstline_indent=" " * 2
  )
  for more in (
    flag.default_as_str and f"default: {flag.default_as_str}",
    flag.parser.syntactic_help,
  ):
    if more:
      text += f"\n{flags.text_wrap(f'({more})', indent=' ' * 4)}"
  return text


_SCRIPT = """\
_tff_shift_{binary}="{words}"
_tff_shift() {{
  local name="_tff_shift_${{COMP_WORDS[1]//-/_}}" words="{binaries}"
  [ "$COMP_CWORD" -gt 1 ] && words="${{!name}}"
  COMPREPLY=($(compgen -W "$words" -- "${{COMP_WORDS[COMP_CWORD]}}"))
}}
complete -o default -F _tff_shift tff-shift"""
# In zsh, bashcompinit has compgen and complete.
_ZSH = "autoload -U +X bashcompinit && bashcompinit\nsetopt KSH_ARRAYS\n"


def _completion(binary: str, shell: str) -> str:
  """Returns a script that completes the flags of `tff-shift BINARY`."""
  folder = pathlib.Path(__file__).parents[1] / "binaries"
  names = sorted(file.stem for file in folder.glob("[a-z]*.py"))
  script = _SCRIPT.format(
    binary=binary,
    words=" ".join(f"--{flag.name}" for flag in configuration.own_flags()),
    binaries=" ".join(name.replace("_", "-") for name in names),
  )
  return _ZSH + script if shell == "zsh" else script
