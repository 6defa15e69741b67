"""How a binary begins and ends.

Exit codes: 0 done, or there was nothing to do (`--resume=auto`); 2 a flag or a
file is wrong, also a folder that cannot be written, before the run has begun.
With what was written kept: 3 a run has diverged; 4 a remote worker is not
there, was lost (`--on_worker_failure`) or answers with an error; 5 a file can
no longer be written, as on a full disk; 130 stopped by Ctrl-C; 143 stopped by
SIGTERM; all these are said in one line. 141: nobody reads what is printed any
more, as behind `| head`.
"""

import contextlib
import gc
import inspect
import os
import pathlib
import select
import signal
import sys
import warnings
from collections.abc import Callable
from collections.abc import Iterator

from absl import app
from absl import flags
from absl import logging

from tff_shift import errors
from tff_shift import execution
from tff_shift import files
from tff_shift import shown_names
from tff_shift import user_modules
from tff_shift.command_line import common_flags
from tff_shift.command_line import output_folder
from tff_shift.command_line.flags import preset_flag
from tff_shift.data import examples

_OWN_WARNINGS = (examples.DataWarning, errors.NoiseWarning)
# Those of absl know the flags of one module only.
_HELP = frozenset({"-h", "--help", "-help", "--helpshort", "-helpshort"})


def _name(main: Callable[..., None]) -> str:
  """Returns the name of a binary, its file's, however it was started."""
  return pathlib.Path(inspect.getfile(main)).stem


def _help(main: Callable[..., None], define_flags: Callable[[], None]) -> str:
  """Returns what a binary is for, and its flags: first those of its own."""
  own = define_flags.__module__
  modules = [
    name
    for name in flags.FLAGS.flags_by_module_dict()
    if name.startswith(f"{__package__}.") and name != own
  ]
  parts = [inspect.getdoc(sys.modules[main.__module__])]
  for name in (own, *modules):
    heading, _, listed = flags.FLAGS.module_help(name).partition(":\n")
    if listed:
      purpose, _, _ = inspect.getdoc(sys.modules[name]).partition("\n\n")
      purpose = " ".join(purpose.split())
      parts.append(f"{purpose} ({heading.strip()})\n{listed}")
  parts.append(
    "--flagfile=FILE reads flags from a file, one in a line. --helpfull lists"
    " those of the libraries as well."
  )
  parts.append(preset_flag.help_text(_name(main)))
  return "\n\n".join(filter(None, parts))


def _collect_seldom() -> None:
  """Lets Python look for garbage less often.

  Graphs are built of very many small objects, and by default each 700 of them
  are a reason to look again: a tenth of the time of a small run.
  """
  gc.set_threshold(50_000, 10, 10)


def _print_any_text() -> None:
  """Lets what an encoding lacks be printed with escapes, as errors are."""
  if hasattr(sys.stdout, "reconfigure"):
    sys.stdout.reconfigure(errors="backslashreplace")


@contextlib.contextmanager
def _warnings_in_one_line() -> Iterator[None]:
  """Prints each warning of the package as a line of the binary, and once."""
  with warnings.catch_warnings():
    for each in _OWN_WARNINGS:
      warnings.simplefilter("default", each)
    show = warnings.showwarning

    def show_line(message, category, *where, **options):
      if issubclass(category, _OWN_WARNINGS):
        output_folder.warn(str(message))
      else:
        show(message, category, *where, **options)

    warnings.showwarning = show_line
    yield


class Terminated(KeyboardInterrupt):
  """SIGTERM, which ends a binary as Ctrl-C does."""


@contextlib.contextmanager
def _ended_by_sigterm() -> Iterator[None]:
  """Makes SIGTERM a `Terminated`, once: the next one ends the process."""

  def terminate(signal_number, _):
    signal.signal(signal_number, signal.SIG_DFL)
    raise Terminated

  if signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
    # As `nohup` and others have it ignored.
    yield
    return
  signal.signal(signal.SIGTERM, terminate)
  try:
    yield
  finally:
    signal.signal(signal.SIGTERM, signal.SIG_DFL)


@contextlib.contextmanager
def _blamed() -> Iterator[None]:
  """Makes what a module of the user raises the user's to mend, naming it."""
  try:
    yield
  except BaseException as error:
    told = user_modules.blame(error)
    if told is None:
      raise
    if isinstance(error, KeyboardInterrupt):
      # Ctrl-C or SIGTERM.
      raise type(error)(told) from error
    raise common_flags.UsageError(told) from error


@contextlib.contextmanager
def _output_may_end() -> Iterator[None]:
  """Ends the process without a word where what it prints is read no more.

  Raises:
    files.WriteError: If what it prints goes to a disk that is full.
  """

  def discard():
    # What waits to be printed must not fail once more when Python ends.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())

  try:
    yield
    sys.stdout.flush()
  except BrokenPipeError:
    poll = select.poll()
    poll.register(sys.stdout.fileno(), 0)
    # Another pipe, as that to a worker: an error like any other.
    if not any(event & select.POLLERR for _, event in poll.poll(0)):
      raise
    discard()
    # As of a program that SIGPIPE ends.
    sys.exit(141)
  except OSError as error:
    # All else that is written to has a name.
    if isinstance(error, files.WriteError) or error.filename is not None:
      raise
    if not output_folder.is_full(error):
      raise
    discard()
    raise files.WriteError("standard output", error.strerror) from error


def run(
  main: Callable[..., None],
  define_flags: Callable[[], None],
  *,
  takes_arguments: bool = False,
) -> None:
  """Defines and parses the flags, runs a binary and ends the process.

  Args:
    main: The binary; a `common_flags.UsageError` of it is the user's to mend.
    define_flags: Defines the binary's flags; a `ValueError` of it is the user's
      to mend. Not done on import, so that several binaries can be imported into
      one process.
    takes_arguments: Whether `main` is called with those arguments that are no
      flags, a list of text. Else there must be none.
  """
  _collect_seldom()
  _print_any_text()
  binary = pathlib.Path(sys.argv[0]).stem

  def fail(message: object, code: int):
    # It may be on the same full disk.
    with contextlib.suppress(OSError):
      told = shown_names.line(f"{binary}: {message}")
      print(told, file=sys.stderr, flush=True)
    sys.exit(code)

  try:
    # Algorithms of the user are imported, and their flags defined.
    with _blamed():
      define_flags()
  except (ValueError, flags.Error) as error:
    fail(error, 2)
  except KeyboardInterrupt as error:
    fail(f"{str(error) or 'interrupted'} before anything was written", 130)

  def parse(arguments):
    if _HELP.intersection(arguments[1:]):
      with guarded(), _output_may_end():
        print(shown_names.lines(_help(main, define_flags)))
      sys.exit(0)
    try:
      rest = flags.FLAGS(preset_flag.expand(arguments, _name(main)))
      common_flags.check_texts()
    except (flags.Error, common_flags.UsageError) as error:
      fail(error, 2)
    if len(rest) > 1 and not takes_arguments:
      fail(f"what is {rest[1]!r}? All arguments are --flags", 2)
    return rest

  @contextlib.contextmanager
  def guarded():
    try:
      with _blamed():
        yield
    except common_flags.UsageError as error:
      fail(error, 2)
    except errors.DivergedError as error:
      fail(f"{error}; what was written is kept", 3)
    except execution.WorkerError as error:
      fail(f"{error}; {output_folder.what_is_kept()}", 4)
    except OSError as error:
      if not output_folder.is_full(error):
        raise
      fail(f"{error}; {output_folder.what_is_kept()}", 5)
    except KeyboardInterrupt as error:
      said = str(error) or _how(error)
      fail(f"{said}; {output_folder.what_is_kept()}", _code(error))

  def guarded_main(rest):
    # TFF logs each compilation at INFO.
    logging.set_verbosity(logging.WARNING)
    with guarded(), _warnings_in_one_line(), _output_may_end():
      try:
        main(*[rest[1:]] * takes_arguments)
      except output_folder.NothingToDoError as done:
        print(shown_names.line(str(done)))

  try:
    with _ended_by_sigterm():
      app.run(guarded_main, flags_parser=parse)
  except KeyboardInterrupt as error:
    # Between the parsing of flags and the binary's own first line.
    fail(f"{_how(error)} before anything was written", _code(error))


def _how(error: KeyboardInterrupt) -> str:
  return "terminated" if isinstance(error, Terminated) else "interrupted"


def _code(error: KeyboardInterrupt) -> int:
  return 143 if isinstance(error, Terminated) else 130
