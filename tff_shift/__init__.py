"""Federated learning under distribution shift, as TFF computations.

The names below are the public API of the package. They keep their meaning from
release to release (CHANGELOG.md names each change). They are imported when they
are first used, so `import tff_shift` is fast.
"""

from __future__ import annotations

import importlib
import os
from typing import Any

from tff_shift._util import tff_imports
from tff_shift._util.public_names import NAMES as _NAMES

# TensorFlow reads it on import. Its messages about startup and graph
# optimization do not help users. An existing value is kept.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
# TensorFlow reads it when its runtime starts, which building a model does. By
# default it reserves all memory of a GPU, and a second process fails.
os.environ.setdefault("TF_FORCE_GPU_ALLOW_GROWTH", "true")
# gRPC reads it on import. Failed connections, for example because of a refused
# certificate, also raise errors.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")
# TensorFlow from 2.16 on reads it when `tf.keras` is first used: TFF and the
# models of this package take the Keras 2 of `tf_keras`.
os.environ["TF_USE_LEGACY_KERAS"] = "1"
tff_imports.add_hook()

__all__ = sorted(_NAMES)


def __getattr__(name: str) -> Any:
  """Imports a public name when it is first used (PEP 562)."""
  if name not in _NAMES:
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
  module, attribute = _NAMES[name]
  found = importlib.import_module(module)
  if attribute is not None:
    found = getattr(found, attribute)
  globals()[name] = found
  return found


def __dir__() -> list[str]:
  return sorted({*globals(), *_NAMES})
