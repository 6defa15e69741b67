"""What tests share: a context for TFF, plain graphs, and a new data set."""

# First: gRPC reads on its import what the package sets.
import tff_shift  # noqa: F401, I001

import contextlib
import ctypes
import functools
import gc
import pathlib
import resource
import signal
import sys
import textwrap
import types
import typing

import hypothesis
import numpy as np
import psutil
import pytest
import scipy.optimize
import tensorflow as tf
import tensorflow_federated as tff
from tensorflow.python.util import tf_contextlib
from tensorflow.python.util import tf_stack

from tff_shift.data import datasets
from tff_shift.reporting import summary

# Before they are imported.
pytest.register_assert_rewrite("tff_shift.testing")

# After the package, which says what gRPC logs.
from tensorflow_federated.python.core.impl.types import (  # noqa: E402
  type_serialization,
)

from tff_shift.testing import graphs  # noqa: E402

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


# Most of the time of the tests goes into tracing graphs. What follows leaves
# out work whose result no test sees, or is the same each time.
#
# Each operation keeps the Python stack that has made it, for TensorFlow's own
# messages.
_STACK = tf_stack.extract_stack()
tf_stack.extract_stack = lambda stacklevel=1: _STACK

# TensorFlow decorates functions for each operation, and records the signatures
# of those that it decorates.
tf_contextlib.contextmanager = contextlib.contextmanager

# Python 3.12 has both from the definition of a protocol.
for _name in ("_get_protocol_attrs", "_is_callable_members_only"):
  setattr(typing, _name, functools.cache(getattr(typing, _name)))

_TYPES = {}
_deserialize_type = type_serialization.deserialize_type


def _known_type(proto):
  """Returns the type of a protocol buffer; types do not change."""
  key = proto.SerializeToString(deterministic=True)
  if key not in _TYPES:
    _TYPES[key] = _deserialize_type(proto)
  return _TYPES[key]


type_serialization.deserialize_type = _known_type


# Of each process, the most memory that it had, in bytes.
_PEAKS = pytest.StashKey[dict[str, int]]()


def pytest_sessionfinish(session):
  """Notes the most memory that this process had."""
  peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
  # Linux counts in KiB.
  peak *= 1 if sys.platform == "darwin" else 1024
  config = session.config
  if hasattr(config, "workeroutput"):
    # What a process of pytest-xdist tells the one that has started it.
    config.workeroutput["peak"] = peak
  elif _PEAKS not in config.stash:
    config.stash[_PEAKS] = {"tests": peak}


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node):
  """Takes what a process tells; one that has died tells nothing."""
  peaks = node.config.stash.setdefault(_PEAKS, {})
  told = getattr(node, "workeroutput", {})
  if "peak" in told:
    peaks[node.gateway.id] = told["peak"]


def pytest_terminal_summary(terminalreporter, config):
  """Prints the memory: it shows where something leaks."""
  peaks = sorted(config.stash.get(_PEAKS, {}).items())
  told = [f"{name} {peak / 1e9:.1f} GB" for name, peak in peaks]
  terminalreporter.write_line(f"memory: {', '.join(told)}")


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
    _TYPES.clear()
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


def _command(process):
  """The command line of a process; "" if it has ended."""
  with contextlib.suppress(psutil.NoSuchProcess):
    return " ".join(process.cmdline())
  return ""


def _end_children():
  """Ends the processes that this one has started, and returns what they are."""
  commands = {
    child: _command(child)
    for child in psutil.Process().children(recursive=True)
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
    left = _end_children()
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


def _solve_with_scipy(matrix, slope):
  size = len(slope)
  return scipy.optimize.minimize(
    lambda a: a @ matrix @ a / 2 + slope @ a,
    np.full(size, 1 / size),
    jac=lambda a: matrix @ a + slope,
    method="SLSQP",
    bounds=[(0, 1)] * size,
    constraints={
      "type": "eq",
      "fun": lambda a: a.sum() - 1,
      "jac": np.ones_like,
    },
    options={"maxiter": 1000, "ftol": 1e-15},
  )


@pytest.fixture(scope="session")
def solve_with_scipy():
  """Returns `solve(matrix, slope)`: SLSQP's minimum on the simplex.

  The objective is a @ matrix @ a / 2 + slope @ a.
  """
  return _solve_with_scipy


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


def _make_summary(algorithm="fed_avg", **changes):
  values = {
    "algorithm": algorithm,
    "dataset": "circle",
    "setting": {"dirichlet": "inf"},
    "metrics_by_seed": {
      0: {"client_accuracy": 70.0, "server_accuracy": 60.0},
      1: {"client_accuracy": 72.0, "server_accuracy": 60.0},
      2: {"client_accuracy": 77.0, "server_accuracy": 60.0},
    },
    "rounds": 50,
    "seconds_per_round": 0.25,
  }
  return summary.RunSummary(**(values | changes))


@pytest.fixture(scope="session")
def make_summary():
  """Returns `make(algorithm, **changes)`, which gives a `RunSummary`."""
  return _make_summary


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


_NEW_DATASET = textwrap.dedent(
  '''
  """scikit-learn's digits as they are, 8x8."""

  import numpy as np
  from sklearn import datasets

  from tff_shift.data import dataset


  def _load(folder):
    digits = datasets.load_digits()
    x = (digits.images * (255 / 16)).astype(np.uint8)[..., np.newaxis]
    return dataset.Dataset(x, digits.target, tuple("0123456789"))


  DATASET = dataset.DatasetInfo(
    shape=(8, 8, 1),
    dtype=np.uint8,
    num_classes=10,
    models={
      "evolving": "mlp",
      "online_adaptation": "mlp",
      "guidance": "mlp",
      "dynamic_personalization": "mlp",
    },
    load=_load,
    evolution=dataset.Evolution(num_domains=4, angle_step=90.0),
  )
  '''
)


@pytest.fixture
def small_digits(tmp_path, monkeypatch):
  """Puts the one file of a new data set where the package finds it.

  It gives the name: scikit-learn's digits at 8x8, for every scenario.
  """
  name = "small_digits"
  (tmp_path / f"{name}.py").write_text(_NEW_DATASET)
  monkeypatch.setattr(datasets, "__path__", [*datasets.__path__, str(tmp_path)])
  yield name
  # What the import has left.
  sys.modules.pop(f"{datasets.__name__}.{name}", None)
  vars(datasets).pop(name, None)


_SERVED = types.SimpleNamespace(
  shared=np.array([[1, 0, -1], [0, 2, 1]], np.float32),
  # Of clients 0 to 2.
  personal=np.array(
    [[[0, 1, 0]] * 2, [[3, 0, 0]] * 2, [[0, 0, 3]] * 2], np.float32
  ),
  guide=np.array([[1, 0, 0], [0, 1, 1]], np.float32),
  client_weights=np.array([1, 1, 2], np.float32),
)


@pytest.fixture(scope="session")
def served_folder(tmp_path_factory):
  """Returns `make(left_out=(), **changes)`, which gives a new folder.

  There is a federation of linear models in it. Of examples x, [n, 2] float32,
  the server's logits are x @ shared, those of a client x @ (shared + its
  personal), and those of the guide x @ guide; `make.values` has the matrices.
  Functions may be left out, and fields of the description changed.
  """
  # Imported here: most tests do without.
  from tff_shift.serving import description
  from tff_shift.serving import served
  from tff_shift.serving import tracing

  def two_of(x):
    return tf.cast(x[:, :2], tf.float32)

  def make(left_out=(), **changes):
    folder = tmp_path_factory.mktemp("served")
    tensors = served.Tensors(_SERVED.shared, (), _SERVED.personal, ())
    spec = tf.TensorSpec([2, 3], tf.float32)
    specs = served.Tensors(spec, (), spec, ())
    shape = changes.get("input_shape", [2])
    dtype = changes.get("input_dtype", "float32")
    x = tf.TensorSpec([None, *shape], tf.as_dtype(dtype), name="x")
    request = tf.TensorSpec([3], tf.float32, name="request")
    parts = served.Parts(
      tensors=tensors,
      predict=tracing.trace(
        lambda given, x: two_of(x) @ given.shared, specs, x
      ),
      predict_as=tracing.trace(
        lambda given, x: two_of(x) @ (given.shared + given.personal), specs, x
      ),
      guide=tracing.trace(
        lambda given, x: two_of(x) @ tf.constant(_SERVED.guide), specs, x
      ),
      predict_for=tracing.trace(
        lambda given, request, x: two_of(x) @ given.shared + request,
        specs,
        request,
        x,
      ),
      clients=(0, 1, 2),
      has_all_clients=True,
      client_weights=_SERVED.client_weights,
      num_classes=3,
      x=x,
      request=request,
    )._replace(**dict.fromkeys(left_out))
    parts = parts._replace(
      tensors=served.variables(parts, ["shared", "personal"])
    )
    functions = served.functions(parts)
    names = served.Names(("a", "b", "c"), ("north", "south", "west"))
    served.save(parts, functions, str(folder), names)
    fields = {
      "algorithm": "by_hand",
      "hparams": {},
      "model": "linear",
      "input_shape": (2,),
      "input_dtype": "float32",
      "num_classes": 3,
      "class_names": ("a", "b", "c"),
      "clients": (0, 1, 2),
      "functions": tuple(functions),
      "request_shape": (3,),
    }
    description.write(folder, description.Description(**fields | changes))
    return folder

  make.values = _SERVED
  return make


@pytest.fixture(scope="session")
def served_federation(served_folder):
  """A federation in a folder, see `served_folder`; it stays as it is."""
  return served_folder()


def _make_typed(model, data_type=None, num_domains=1):
  from tff_shift.learning import local_training

  return types.SimpleNamespace(
    name="typed",
    model=model,
    num_classes=model.num_classes,
    is_local=False,
    phases=(),
    evaluate_clients=types.SimpleNamespace(
      type_signature=types.SimpleNamespace(
        parameter=[
          None,
          None,
          tff.FederatedType(
            data_type or local_training.data_type(model), tff.CLIENTS
          ),
          tff.FederatedType(
            local_training.data_type(model, num_domains), tff.CLIENTS
          ),
        ]
      )
    ),
  )


@pytest.fixture(scope="session")
def typed_algorithm():
  """Returns `typed(model, data_type, num_domains)`.

  It gives what tells the types of an algorithm's data, and computes nothing.
  """
  return _make_typed
