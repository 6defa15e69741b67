"""A page of the repository that a program writes or checks."""

import pathlib
import sys
from collections.abc import Callable
from collections.abc import Sequence


def run(
  path: pathlib.Path, make: Callable[[], str], arguments: Sequence[str]
) -> int:
  """Writes the page; with `--check`, only compares it.

  Args:
    path: The page.
    make: Returns its text; raises OSError or ValueError if it cannot.
    arguments: `--check`, or nothing.

  Returns:
    The exit code: 2 for wrong arguments, a missing folder or an error of
    `make`, 1 if the page is out of date.
  """
  error = None
  if list(arguments) not in ([], ["--check"]):
    error = f"the only argument is --check; it is {arguments}"
  elif not path.parent.is_dir():
    error = f"there is no {path.parent}: run it in a checkout"
  else:
    try:
      text = make()
    except (OSError, ValueError) as reason:
      error = str(reason)
  if error is not None:
    print(f"{path.name}: {error}", file=sys.stderr)
    return 2
  if path.is_file() and path.read_text(encoding="utf-8") == text:
    return 0
  if arguments:
    print(f"{path.name} is not up to date: run make index", file=sys.stderr)
    return 1
  path.write_text(text, encoding="utf-8")
  return 0
