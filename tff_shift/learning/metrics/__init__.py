"""The metrics of predictions besides accuracy and loss, found by file name.

To add a metric, add a file with a `METRIC`, a `metric.Metric`; there is no list
to edit. With the prefix `mean_`, a metric is the mean over clients, each with
the value of its own examples. Without it, it is the value of the examples of
all clients.

Importing this package is cheap.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib
import os
import pkgutil
import re
import types
from collections.abc import Sequence
from typing import TYPE_CHECKING

from tff_shift._util import arguments
from tff_shift._util import user_modules

if TYPE_CHECKING:
  from tff_shift.learning import metric as metric_lib

# The prefix of the means over clients.
_MEAN = "mean_"
# The name in a metric's file.
_NAME = "METRIC"
_ALWAYS = "is always measured"
# Names in use, and what they are.
_RESERVED = {
  "accuracy": _ALWAYS,
  "pooled_accuracy": _ALWAYS,
  "loss": _ALWAYS,
  "not_finite": _ALWAYS,
  "nll": "is the column loss, which is always measured",
}

# The metrics given to `register`, by name, with their modules.
_registered: dict[str, types.ModuleType] = {}


@functools.cache
def _own_names() -> tuple[str, ...]:
  return tuple(sorted(m.name for m in pkgutil.iter_modules(__path__)))


def names() -> tuple[str, ...]:
  """Returns the names of the metrics, in alphabetical order.

  Examples:
    >>> {"brier", "ece", "macro_f1"} <= set(ts.metric_names())
    True
  """
  return tuple(sorted((*_own_names(), *_registered)))


def check_name(name: str) -> None:
  """Raises a ValueError unless a name, maybe with its prefix, is a metric."""
  if name in _RESERVED:
    raise ValueError(f"metric {name!r} {_RESERVED[name]}; leave it out")
  if name.removeprefix(_MEAN) not in names():
    raise ValueError(
      f"no metric {name!r}; there are {', '.join(names())}, each also with the"
      f" prefix {_MEAN}{arguments.did_you_mean(name, names())}"
    )


def get(name: str) -> metric_lib.Metric:
  """Returns a metric.

  Args:
    name: The name, maybe with the prefix `mean_`.

  Raises:
    ValueError: If there is no such metric.
  """
  check_name(name)
  base = name.removeprefix(_MEAN)
  module = _registered.get(base) or importlib.import_module(
    f"{__name__}.{base}"
  )
  found = getattr(module, _NAME)
  if base == name:
    return found
  if found.is_table:
    raise ValueError(
      f"no metric {name!r}: {base} is a table of counts, which has no mean"
    )
  return dataclasses.replace(
    found,
    counts_clients=True,
    by_class=found.by_class and f"{_MEAN}{found.by_class}",
  )


def higher_is_better(column: str) -> bool:
  """Returns whether higher values of a column are better, as declared.

  Args:
    column: The name of a metric, or that of its column, such as `client_brier`,
      `mean_of_last_server_loss` or `client_recall_cat`.

  Raises:
    ValueError: If the name does not end in that of a metric.
  """
  from tff_shift.learning import evaluation

  directions = {
    name: metric.higher_is_better for name, metric in evaluation.METRICS.items()
  }
  by_class = {}
  for name in names():
    metric = get(name)
    group = by_class if metric.by_class else directions
    group[metric.by_class or name] = metric.higher_is_better
  # The longest part of the column that is a metric: a class may be called loss.
  matches = {
    match[1]: direction
    for pattern, group in (("({})$", directions), ("({}_.*)$", by_class))
    for name, direction in group.items()
    if (match := re.search(f"(?:^|_){pattern.format(re.escape(name))}", column))
  }
  if not matches:
    raise ValueError(
      f"metric {column!r}: it is unknown whether higher values are better; pass"
      " higher_is_better"
    )
  return matches[max(matches, key=len)]


def is_metric(module: types.ModuleType) -> bool:
  """Returns whether a module of the user has a metric."""
  return hasattr(module, _NAME)


def load(name: str | os.PathLike[str]) -> types.ModuleType:
  """Imports a metric's file from any path and registers it.

  Args:
    name: The path of the file, or the dotted name of a module that Python can
      import from here.

  Returns:
    The module.

  Raises:
    ValueError: If it cannot be imported, or has no metric: see `register`.

  Examples:
    >>> path = folder / "my_accuracy.py"
    >>> _ = path.write_text(
    ...   "from tff_shift.learning.metrics.balanced_accuracy import METRIC"
    ... )
    >>> metric = ts.load_metric(path).METRIC
    >>> "my_accuracy" in ts.metric_names(), metric.higher_is_better
    (True, True)
  """
  return user_modules.load_and_register(name, register)


def register(module: types.ModuleType) -> str:
  """Registers a metric by the name of its file.

  Args:
    module: A module with `METRIC`. It replaces an earlier registration.

  Returns:
    The metric's name, the last part of the module's.

  Raises:
    ValueError: If there is no `METRIC`, or the name is not allowed.
  """
  from tff_shift.learning import metric as metric_lib

  name = module.__name__.rpartition(".")[2]
  if not re.fullmatch(r"[a-z][a-z0-9_]*", name) or name.startswith(_MEAN):
    raise ValueError(
      f"{name!r} is not a valid name of a metric: it must be lower-case"
      " letters, digits and underscores, starting with a letter, without the"
      f" prefix {_MEAN}"
    )
  if name in (*_own_names(), *_RESERVED):
    raise ValueError(
      f"there is a metric {name!r} already; give the file another name"
    )
  if not isinstance(getattr(module, _NAME, None), metric_lib.Metric):
    raise ValueError(f"there must be {_NAME}, a metric.Metric")
  _registered[name] = module
  return name


def choose(
  chosen: Sequence[str],
  num_classes: int,
  class_names: Sequence[str] | None = None,
) -> metric_lib.Chosen:
  """Returns metrics by name, with their columns.

  Args:
    chosen: The names.
    num_classes: The number of classes of the model.
    class_names: The names of the classes. None: their numbers.

  Raises:
    ValueError: If there is no such metric, a name or a column is repeated, or a
      metric of the user does not keep the contract of `metric.Metric`.
  """
  from tff_shift.learning import metric as metric_lib

  if not chosen:
    return metric_lib.NONE
  if isinstance(chosen, str):
    raise ValueError(f"metrics={chosen!r}: it must be a list of names")
  found, columns = {}, {}
  for name in chosen:
    if name in found:
      raise ValueError(f"metrics: {name} is repeated")
    found[name] = get(name)
    if name.removeprefix(_MEAN) in _registered:
      _check(name, found[name], num_classes)
    if found[name].by_class:
      columns[name] = tuple(
        f"{found[name].by_class}_{each}"
        for each in _labels(class_names, num_classes)
      )
    else:
      columns[name] = () if found[name].is_table else (name,)
  every = [each for own in columns.values() for each in own]
  for column in every:
    if every.count(column) > 1 or column in _RESERVED:
      raise ValueError(f"metrics: two columns have the name {column}")
  return metric_lib.Chosen(found, columns, num_classes)


def _labels(
  class_names: Sequence[str] | None, num_classes: int
) -> Sequence[str]:
  """Returns the names of classes as parts of columns; all differ."""
  if class_names is not None:
    # Trackers do not accept all characters.
    shown = [re.sub(r"[^\w.-]+", "_", str(each)) for each in class_names]
    if len(set(shown)) == num_classes:
      return shown
  return [str(each) for each in range(num_classes)]


def _check(name: str, metric: metric_lib.Metric, num_classes: int) -> None:
  """Refuses a metric whose functions do not keep their contract."""
  import numpy as np
  import tensorflow as tf

  rng = np.random.default_rng(0)
  logits = tf.constant(rng.normal(size=[7, num_classes]), tf.float32)
  y = tf.constant(rng.integers(num_classes, size=7), tf.int32)

  def require(is_right, requirement):
    if not is_right:
      raise ValueError(f"metric {name}: {requirement}")

  found = metric.per_example(logits, y)
  require(
    tf.is_tensor(found)
    and found.dtype == tf.float32
    and found.shape.rank
    and found.shape[0] == 7,
    "per_example must return a float32 tensor [n, ...], an array per example;"
    f" it returned {_shown(found)} for 7 examples",
  )
  require(
    np.isfinite(found).all(), "per_example must be finite for finite logits"
  )
  require(
    np.array_equal(found, metric.per_example(logits, y)),
    "per_example must be pure: a second call returned other values",
  )
  for part in (slice(0), slice(3), slice(3, 7)):
    alone = metric.per_example(logits[part], y[part])
    require(
      alone.shape == found[part].shape
      and np.allclose(alone, found[part], rtol=1e-4, atol=1e-6),
      "per_example must not depend on the other examples; it returned other"
      f" values for {len(y[part])} of 7 examples",
    )
  sums = tf.stack([tf.reduce_sum(found, axis=0), tf.zeros(found.shape[1:])])
  value = metric.value(sums, tf.constant([7.0, 0.0]))
  shape = [2, num_classes] if metric.by_class else [2]
  kind = "[num_domains, num_classes]" if metric.by_class else "[num_domains]"
  if metric.is_table:
    shape, kind = [2, None, None], "[num_domains, rows, columns]"
  require(
    tf.is_tensor(value)
    and value.dtype == tf.float32
    and value.shape.is_compatible_with(shape),
    f"value must return a float32 tensor {kind}; it returned {_shown(value)}"
    " for 2 domains",
  )


def _shown(value: object) -> str:
  """Describes a result by its dtype and shape."""
  if hasattr(value, "dtype") and hasattr(value, "shape"):
    dtype = getattr(value.dtype, "name", value.dtype)
    return f"{dtype} {list(value.shape)}"
  return f"a {type(value).__name__}"
