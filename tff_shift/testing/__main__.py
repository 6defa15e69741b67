"""Runs the contract for an algorithm's file.

  python -m tff_shift.testing my_algorithm.py [arguments of pytest]

The file may also be a module that Python can import. The exit code is 0 if the
algorithm keeps the contract, 1 if it does not, 2 if there is no such algorithm
or pytest is missing.
"""

import importlib.util
import os
import pathlib
import sys
from collections.abc import Sequence

_MODULES = (
  "contract_exports",
  "contract_file",
  "contract_form",
  "contract_rounds",
  "contract_absent_clients",
  "contract_aggregators",
  "contract_privacy",
)
_USAGE = "python -m tff_shift.testing my_algorithm.py [arguments of pytest]"
_FOLDER = pathlib.Path(__file__).parent


def _fail(message: str) -> int:
  print(f"tff_shift.testing: {message}", file=sys.stderr, flush=True)
  return 2


def main(arguments: Sequence[str]) -> int:
  """Runs the contract.

  Args:
    arguments: The file or module of the algorithm, and arguments for pytest.

  Returns:
    The exit code, see above.
  """
  if not arguments or arguments[0].startswith("-"):
    return _fail(f"name the file of an algorithm: {_USAGE}")
  if importlib.util.find_spec("pytest") is None:
    return _fail("the contract's tests need pytest: pip install pytest")
  # Imported here because importing TFF takes seconds.
  import pytest

  from tff_shift import algorithms

  try:
    name = algorithms.name_of(algorithms.load(arguments[0]))
  except ValueError as error:
    return _fail(" ".join(str(error).split()))
  # Before these modules are imported.
  pytest.register_assert_rewrite("tff_shift.testing")
  from tff_shift.testing import applicability
  from tff_shift.testing import clients
  from tff_shift.testing import fixtures
  from tff_shift.testing import graphs
  from tff_shift.testing import type_walk

  class _Plugin:
    """Runs the tests for this algorithm only."""

    def pytest_configure(self, config):
      for marker in ("slow", "cpp", "every_algorithm"):
        config.addinivalue_line("markers", marker)

    def pytest_generate_tests(self, metafunc):
      fixtures.parametrize(metafunc, [name])

    def pytest_collection_modifyitems(self, config, items):
      applicability.leave_out(config, items)

  code = pytest.main(
    [
      # Ignores settings of the current folder.
      "-c",
      os.devnull,
      "--noconftest",
      f"--rootdir={_FOLDER}",
      "--import-mode=importlib",
      "-p",
      "no:cacheprovider",
      "-W",
      "ignore::DeprecationWarning",
      *(str(_FOLDER / f"{module}.py") for module in _MODULES),
      *arguments[1:],
    ],
    plugins=[clients, fixtures, graphs, type_walk, _Plugin()],
  )
  return 0 if code == pytest.ExitCode.OK else 1


if __name__ == "__main__":
  sys.exit(main(sys.argv[1:]))
