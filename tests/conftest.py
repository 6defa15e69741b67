"""What all tests share: a context for TFF, plain graphs, and bounds."""

# First: gRPC reads on its import what the package sets.
import tff_shift  # noqa: F401, I001

import contextlib
import ctypes
import gc
import pathlib
import resource
import signal

import hypothesis
import psutil
import pytest


# Before they are imported.
pytest.register_assert_rewrite("tff_shift.testing")

from tff_shift.testing import graphs  # noqa: E402

pytest_plugins = [
  f"tests.fixtures.{name}"
  for name in ("algorithms", "datasets", "memory", "served", "summaries")
]

# The fixtures that all tests share.
context = graphs.context
compile_in_graph = graphs.compile_in_graph
run_in_graph = graphs.run_in_graph
run_for_each = graphs.run_for_each

# What a machine does else decides how long an example takes.
hypothesis.settings.register_profile(
  "tests",
  deadline=None,
  suppress_health_check=[hypothesis.HealthCheck.too_slow],
)
hypothesis.settings.load_profile("tests")

# In the background of a script it is ignored, by children too.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
  signal.signal(signal.SIGINT, signal.default_int_handler)


# How much a process may grow until it looks for garbage everywhere, in bytes.
_GROWTH = 2e8
_STATM = pathlib.Path("/proc/self/statm")
# The memory of this process after it has looked for garbage last.
_settled = [0]


def _resident():
  """Returns the memory of this process in bytes; 0 where nothing tells it."""
  if not _STATM.exists():
    return 0
  return int(_STATM.read_text().split()[1]) * resource.getpagesize()


def pytest_collection_finish():
  """Spares what was imported most looks for garbage.

  Graphs are built of very many small objects, and TensorFlow keeps many.
  """
  gc.set_threshold(100_000, 20, 50)
  gc.collect()
  gc.freeze()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item, nextitem):
  """After tests that took much, lets go all that nothing refers to.

  Not before their fixtures are gone, in a fixture: then these refer to it.
  """
  outcome = yield
  if nextitem is None or nextitem.module is not item.module:
    graphs.forget()
  if _resident() > _settled[0] + _GROWTH:
    gc.unfreeze()
    gc.collect()
    gc.freeze()
    # What was freed goes back to the system.
    with contextlib.suppress(AttributeError, OSError):
      ctypes.CDLL(None).malloc_trim(0)
    _settled[0] = _resident()
  return outcome


# How long a process that was told to end may take, in seconds.
_ENDING = 5
_shared_pids = set()


@pytest.fixture(scope="session")
def shared_processes():
  """The ids of processes that may outlive a file, not the session."""
  return _shared_pids


def _command(process):
  """The command line of a process; "" if it has ended."""
  with contextlib.suppress(psutil.NoSuchProcess):
    return " ".join(process.cmdline())
  return ""


def _end_children(excluded_pids):
  """Ends the processes that this one has started, and returns what they are."""
  commands = {
    child: _command(child)
    for child in psutil.Process().children(recursive=True)
    if child.pid not in excluded_pids
  }
  # Python's tracker of shared memory ends with this process.
  own = [k for k, v in commands.items() if "resource_tracker" not in v]
  _, left = psutil.wait_procs(own, _ENDING)
  for child in left:
    child.kill()
  return [f"{child.pid} {commands[child]}" for child in left]


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_teardown(item, nextitem):
  """Fails the last test of a file if a process of the file is left.

  TFF's default context, for example, starts a worker that nothing ends.
  """
  outcome = yield
  if nextitem is None or nextitem.path != item.path:
    left = _end_children(_shared_pids if nextitem else ())
    assert not left, f"{item.location[0]} left processes: {left}"
  return outcome


def _refusal(function, *arguments, **options):
  with pytest.raises(ValueError) as error:
    function(*arguments, **options)
  assert "\n" not in str(error.value)
  return str(error.value)


@pytest.fixture(scope="session")
def refusal():
  """Returns `refusal(function, *arguments, **options)`: the one line of it."""
  return _refusal


@contextlib.contextmanager
def _no_file_above(size):
  old = resource.getrlimit(resource.RLIMIT_FSIZE)
  assert signal.getsignal(signal.SIGXFSZ) is signal.SIG_IGN
  resource.setrlimit(resource.RLIMIT_FSIZE, (size, old[1]))
  try:
    yield
  finally:
    resource.setrlimit(resource.RLIMIT_FSIZE, old)


@pytest.fixture(scope="session")
def no_file_above():
  """Returns `no_file_above(size)`: in its `with`, larger files fail (EFBIG).

  As on a disk that is nearly full, for this process alone.
  """
  return _no_file_above


@pytest.fixture
def asked(monkeypatch):
  """Returns `asked(module, *names)`: arguments and options by a figure's name.

  The figures are not drawn.
  """

  def record(module, *names):
    found = {}

    def note(name):
      return lambda *arguments, **options: found.update(
        {name: (arguments, options)}
      )

    for name in names:
      monkeypatch.setattr(module, name, note(name))
    return found

  return record
