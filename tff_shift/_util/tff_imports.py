"""Lets TFF 0.87 be imported beside packages that are absent or too new for it.

Imported before `tensorflow_federated`, this module adds an import hook. No
module is faked: TensorFlow, POT and SciPy look for JAX themselves, and would
take an empty module of its name for it. Instead, the two modules of TFF that
need JAX or Vizier are executed as they are, and if this fails, the one name
that the rest of TFF takes from them is a function that says why.

`tensorflow_privacy` 0.9.0 imports TensorFlow's estimators, which TensorFlow
2.16 and later do not have. It imports nothing if `sys.skip_tf_privacy_import`
exists; what TFF uses of it is then imported when it is first asked for.

TensorFlow 2.21 writes on import what it finds, such as no CUDA drivers, before
it reads TF_CPP_MIN_LOG_LEVEL (its issue 100442): these lines are left out of
what the import writes to standard error.

The default context that TFF makes when it is imported ends its worker in a
destructor. At the end of a program the modules that it needs may be gone; and
it sends SIGINT and waits, for ever if the program runs in the background of a
script: the worker then ignores this signal.
"""

import atexit
import contextlib
import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import os
import pathlib
import re
import signal
import sys
import tempfile
import types
from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Sequence
from typing import Any
from typing import NoReturn

_TFF = "tensorflow_federated.python"
# Modules of TFF: the name that others import, its public name, what it needs.
_NEEDING = {
  f"{_TFF}.core.environments.jax_frontend.jax_computation": (
    "jax_computation",
    "tff.jax.computation",
    "jax and jaxlib from 0.4.14 to 0.5.3",
  ),
  f"{_TFF}.learning.programs.vizier_program_logic": (
    "train_model_with_vizier",
    "tff.learning.programs.train_model_with_vizier",
    "google-vizier",
  ),
}
_TENSORFLOW = "tensorflow"
_STDERR = 2
_NOISE = re.compile(
  rb"WARNING: All log messages before absl::InitializeLog\(\).*\n"
  rb"|I0000 .*\n"
)
_PRIVACY = "tensorflow_privacy"
# What TFF and its users take from `tensorflow_privacy`, by module.
_OF_PRIVACY = {
  "dp_query.distributed_discrete_gaussian_query": (
    "DistributedDiscreteGaussianSumQuery",
  ),
  "dp_query.distributed_skellam_query": ("DistributedSkellamSumQuery",),
  "dp_query.dp_query": ("DPQuery", "SumAggregationDPQuery"),
  "dp_query.gaussian_query": ("GaussianSumQuery",),
  "dp_query.no_privacy_query": ("NoPrivacySumQuery",),
  "dp_query.normalized_query": ("NormalizedQuery",),
  "dp_query.quantile_adaptive_clip_sum_query": (
    "QuantileAdaptiveClipSumQuery",
  ),
  "dp_query.quantile_adaptive_clip_tree_query": ("QAdaClipTreeResSumQuery",),
  "dp_query.quantile_estimator_query": (
    "NoPrivacyQuantileEstimatorQuery",
    "QuantileEstimatorQuery",
  ),
  "dp_query.restart_query": ("RestartQuery",),
  "dp_query.tree_aggregation": (),
  "dp_query.tree_aggregation_query": ("TreeResidualSumQuery",),
  "dp_query.tree_range_query": ("TreeRangeSumQuery",),
  "analysis.tree_aggregation_accountant": (
    "compute_rdp_single_tree",
    "compute_rdp_tree_restart",
    "compute_zcdp_single_tree",
  ),
}


def _of_privacy(name: str) -> Any:
  """Returns a name of `tensorflow_privacy` that its `__init__` left out."""
  for module, names in _OF_PRIVACY.items():
    if name in names or name == module.rpartition(".")[-1]:
      imported = importlib.import_module(f"{_PRIVACY}.privacy.{module}")
      return getattr(imported, name) if name in names else imported
  raise AttributeError(
    f"tensorflow_privacy.{name} is not available beside this TensorFlow; its"
    " query classes are"
  )


def _refusal(
  name: str, needed: str, reason: Exception
) -> Callable[..., NoReturn]:
  def refuse(*arguments, **options):
    del arguments, options
    raise ImportError(f"{name} needs {needed} ({reason})") from reason

  return refuse


@contextlib.contextmanager
def _without_noise() -> Iterator[None]:
  """Leaves TensorFlow's lines out of what a block writes to standard error."""
  try:
    stderr = os.dup(_STDERR)
  except OSError:
    # It is closed.
    yield
    return
  with tempfile.TemporaryFile() as file:
    os.dup2(file.fileno(), _STDERR)
    try:
      yield
    finally:
      os.dup2(stderr, _STDERR)
      file.seek(0)
      text = _NOISE.sub(b"", file.read())
      with contextlib.suppress(OSError), open(stderr, "wb") as real:
        real.write(text)


class _Loader(importlib.abc.Loader):
  """Executes a module by its loader, and mends what is absent."""

  def __init__(self, loader: importlib.abc.Loader):
    self._loader = loader

  def __getattr__(self, name: str) -> Any:
    return getattr(self._loader, name)

  def create_module(self, spec):
    return self._loader.create_module(spec)

  def exec_module(self, module: types.ModuleType) -> None:
    if module.__name__ == _TENSORFLOW:
      with _without_noise():
        self._loader.exec_module(module)
      return
    if module.__name__ == _PRIVACY:
      sys.skip_tf_privacy_import = True  # type: ignore[attr-defined]
      try:
        self._loader.exec_module(module)
      finally:
        del sys.skip_tf_privacy_import  # type: ignore[attr-defined]
      module.__getattr__ = _of_privacy  # type: ignore[method-assign]
      return
    try:
      self._loader.exec_module(module)
    # A JAX that is too new lacks attributes, not modules.
    except (ImportError, AttributeError) as error:
      name, public_name, needed = _NEEDING[module.__name__]
      setattr(module, name, _refusal(public_name, needed, error))


class _Finder(importlib.abc.MetaPathFinder):
  """Finds the modules that may need what is absent."""

  def find_spec(
    self,
    fullname: str,
    path: Sequence[str] | None,
    target: types.ModuleType | None = None,
  ) -> importlib.machinery.ModuleSpec | None:
    if fullname == _PRIVACY:
      if importlib.util.find_spec("tensorflow_estimator"):
        return None
    elif fullname == _TENSORFLOW:
      if os.environ.get("TF_CPP_MIN_LOG_LEVEL", "0") == "0":
        return None
    elif fullname not in _NEEDING:
      return None
    spec = importlib.machinery.PathFinder.find_spec(fullname, path, target)
    if spec is not None and spec.loader is not None:
      spec.loader = _Loader(spec.loader)
    return spec


def _end_default_context() -> None:
  tff = sys.modules.get("tensorflow_federated")
  if tff is None:
    return
  for worker in _workers():
    with contextlib.suppress(ProcessLookupError):
      os.kill(worker, signal.SIGTERM)
  contexts = importlib.import_module(
    f"{_TFF}.core.impl.context_stack.runtime_error_context"
  )
  tff.framework.get_context_stack().set_default_context(
    contexts.create_runtime_error_context()
  )


def _workers() -> Iterator[int]:
  """Yields the ids of this process's workers: TFF has them on Linux alone."""
  for path in pathlib.Path("/proc/self/task").glob("*/children"):
    for child in path.read_text(encoding="ascii").split():
      with contextlib.suppress(OSError):
        if os.readlink(f"/proc/{child}/exe").endswith("/worker_binary"):
          yield int(child)


def add_hook() -> None:
  """Adds the hook, once."""
  if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
    sys.meta_path.insert(0, _Finder())
    atexit.register(_end_default_context)
