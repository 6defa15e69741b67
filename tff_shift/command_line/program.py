"""Starts and ends a binary: flags, signals, error messages and exit codes.

Each error is one line. Exit codes:

- 0: success, or nothing was left to do (`--resume=auto`).
- 2: a flag or a file is wrong, or a folder is not writable. Raised before the
  run starts, except what `--batch_clients=true` finds at the first call.
- 3: a run diverged.
- 4: a remote worker is unreachable, was lost (`--on_worker_failure`) or
  returned an error.
- 5: a file can no longer be written, for example on a full disk.
- 130: interrupted by Ctrl-C. 143: terminated by SIGTERM.
- 141: standard output was closed by its reader, for example `| head`. No
  message.

After 3, 4, 5, 130 and 143 the results written so far are kept.

Choices:
  * 5 is for a run that has begun. A folder that cannot be written before that
    is a wrong flag, 2, also with `--resume`. In `reproduce`, a job that ends
    with 5 has failed like any other, 3.
"""

import contextlib
import gc
import inspect
import os
import pathlib
import select
import sys
import warnings
from collections.abc import Callable
from collections.abc import Iterator

from absl import app
from absl import flags
from absl import logging

from tff_shift import execution
from tff_shift._util import errors
from tff_shift._util import files
from tff_shift._util import shown_names
from tff_shift._util import signals
from tff_shift._util import user_modules
from tff_shift.command_line import common_flags
from tff_shift.command_line import help_texts
from tff_shift.command_line import output_folder
from tff_shift.command_line.flags import config_file
from tff_shift.command_line.flags import preset_flag
from tff_shift.data import examples

_OWN_WARNINGS = (
  examples.DataWarning,
  errors.NoiseWarning,
  errors.PrivacyWarning,
)
_PRINT_CONFIG = "--print_config"


def _name(main: Callable[..., None]) -> str:
  """Returns the name of a binary: the name of its file."""
  return pathlib.Path(inspect.getfile(main)).stem


def _collect_seldom() -> None:
  """Makes Python collect garbage less often.

  Graphs consist of many small objects. With the default threshold of 700
  objects, garbage collection takes a tenth of the time of a small run.
  """
  gc.set_threshold(100_000, 10, 10)


def _print_any_text() -> None:
  """Escapes characters that the encoding of standard output lacks."""
  if hasattr(sys.stdout, "reconfigure"):
    sys.stdout.reconfigure(errors="backslashreplace")


@contextlib.contextmanager
def _warnings_in_one_line() -> Iterator[None]:
  """Prints each warning of the package once, as one line of the binary."""
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


@contextlib.contextmanager
def _blamed() -> Iterator[None]:
  """Turns exceptions of the user's modules into usage errors that name them."""
  try:
    yield
  except BaseException as error:
    message = user_modules.blame(error)
    if message is None:
      raise
    if isinstance(error, KeyboardInterrupt):
      # Interrupted by Ctrl-C or SIGTERM.
      raise type(error)(message) from error
    raise common_flags.UsageError(message) from error


@contextlib.contextmanager
def _output_may_end() -> Iterator[None]:
  """Ends the process silently when the reader of its output has gone.

  Raises:
    files.WriteError: If standard output is a file on a full disk.
  """

  def discard():
    # Python flushes standard output again on exit; that must not fail.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())

  try:
    yield
    sys.stdout.flush()
  except BrokenPipeError:
    poll = select.poll()
    poll.register(sys.stdout.fileno(), 0)
    # Another pipe broke, for example to a worker: an ordinary error.
    if not any(event & select.POLLERR for _, event in poll.poll(0)):
      raise
    discard()
    # The exit code of a program that SIGPIPE ends.
    sys.exit(141)
  except OSError as error:
    # Errors of all other files have a file name.
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
    main: The binary. A `common_flags.UsageError` is reported in one line.
    define_flags: Defines the binary's flags. A `ValueError` is reported in one
      line. Called here and not on import, so that one process can import
      several binaries.
    takes_arguments: Whether `main` takes the positional arguments, a list of
      strings. If not, positional arguments are an error.
  """
  _collect_seldom()
  _print_any_text()
  binary = pathlib.Path(sys.argv[0]).stem

  def fail(message: object, code: int):
    # Standard error may be on the same full disk.
    with contextlib.suppress(OSError):
      line = shown_names.line(f"{binary}: {message}")
      print(line, file=sys.stderr, flush=True)
    sys.exit(code)

  try:
    # Imports the user's algorithms and defines their flags.
    with _blamed():
      define_flags()
  except (ValueError, flags.Error) as error:
    fail(error, 2)
  except KeyboardInterrupt as error:
    fail(f"{str(error) or 'interrupted'} before anything was written", 130)

  def tell(text):
    with guarded(), _output_may_end():
      print(shown_names.lines(text))
    sys.exit(0)

  def parse(arguments):
    try:
      with common_flags.usage_errors():
        text = help_texts.answer(arguments, main, define_flags, _name(main))
      if text is not None:
        tell(text)
      prints_config = _PRINT_CONFIG in arguments
      arguments = [flag for flag in arguments if flag != _PRINT_CONFIG]
      with common_flags.usage_errors():
        expanded = config_file.expand(arguments, [*flags.FLAGS])
      expanded = preset_flag.expand(expanded, _name(main))
      rest = flags.FLAGS(expanded)
      common_flags.check_texts()
      if prints_config:
        tell(help_texts.as_config())
    except (flags.Error, common_flags.UsageError) as error:
      fail(error, 2)
    if len(rest) > 1 and not takes_arguments:
      fail(f"unexpected positional argument {rest[1]!r}", 2)
    return rest

  @contextlib.contextmanager
  def guarded():
    try:
      with _blamed():
        yield
    except common_flags.UsageError as error:
      fail(error, 2)
    except execution.NotBatchedError as error:
      fail(f"--batch_clients=true: {error}", 2)
    except errors.DivergedError as error:
      fail(f"{error}; partial results were saved", 3)
    except execution.WorkerError as error:
      fail(f"{error}; {output_folder.what_is_kept()}", 4)
    except OSError as error:
      if not output_folder.is_full(error):
        raise
      fail(f"{error}; {output_folder.what_is_kept()}", 5)
    except KeyboardInterrupt as error:
      reason = str(error) or _how(error)
      fail(f"{reason}; {output_folder.what_is_kept()}", _code(error))

  def guarded_main(rest):
    # TFF logs each compilation at INFO.
    logging.set_verbosity(logging.WARNING)
    with guarded(), _warnings_in_one_line(), _output_may_end():
      try:
        main(*[rest[1:]] * takes_arguments)
      except output_folder.NothingToDoError as done:
        print(shown_names.line(str(done)))
      except Exception:
        # TensorFlow's C++ code may take a signal's exception for its own.
        signals.check()
        raise

  try:
    with signals.raised():
      app.run(guarded_main, flags_parser=parse)
  except KeyboardInterrupt as error:
    # Interrupted after flag parsing, before the binary's first line.
    fail(f"{_how(error)} before anything was written", _code(error))


def _how(error: KeyboardInterrupt) -> str:
  if isinstance(error, signals.Terminated):
    return "terminated"
  return "interrupted"


def _code(error: KeyboardInterrupt) -> int:
  return 143 if isinstance(error, signals.Terminated) else 130
