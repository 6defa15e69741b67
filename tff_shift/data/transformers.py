"""A user's scikit-learn transformer: fitted to training examples, and stored.

skops writes the objects of scikit-learn without code, and reads no other types
than those that it trusts. Any other type is refused before training.

Choices:
  * `numpy.dtype` is trusted, too: `SimpleImputer` and `OneHotEncoder` have one,
    which skops reads from an empty array without pickles.
"""

import functools
from typing import Any
from typing import TYPE_CHECKING

import numpy as np

from tff_shift._util import installed
from tff_shift.data import array_files
from tff_shift.data import examples

if TYPE_CHECKING:
  import pandas

_TRUSTED = ("numpy.dtype",)
# Fitted transformers of several seeds are applied in turn.
_MOST_LOADED = 16


def dumped(transformer: Any) -> bytes:
  """Returns the content of a file of skops.

  Args:
    transformer: A transformer of scikit-learn, such as a `ColumnTransformer` or
      a `Pipeline` of transformers.

  Raises:
    ValueError: If it is no transformer, has a type that skops does not trust,
      or skops is missing; one line.
  """
  skops = installed.require_skops()
  for method in ("fit", "transform", "get_params"):
    if isinstance(transformer, type) or not hasattr(transformer, method):
      raise ValueError(
        f"preprocessing: {transformer!r:.60} has no {method}; it must be a"
        " transformer of scikit-learn, such as a ColumnTransformer"
      )
  try:
    content = skops.dumps(transformer)
    untrusted = {*skops.get_untrusted_types(data=content)} - {*_TRUSTED}
  except Exception as error:  # Of many types, for example for a lambda.
    raise ValueError(
      f"preprocessing: skops cannot write it ({array_files.first_line(error)})"
    ) from error
  if untrusted:
    raise ValueError(
      "preprocessing has types that skops does not trust, and a saved model"
      f" could not be loaded: {', '.join(sorted(untrusted))}"
    )
  return content


@functools.lru_cache(maxsize=_MOST_LOADED)
def _loaded(content: bytes) -> Any:
  """Returns the transformer of a content; of types that skops trusts alone."""
  skops = installed.require_skops()
  try:
    return skops.loads(content, trusted=_TRUSTED)
  except Exception as error:  # Of a damaged file, or of untrusted types.
    raise ValueError(
      f"preprocessing: skops cannot read it ({array_files.first_line(error)})"
    ) from error


def fitted(
  content: bytes, frame: "pandas.DataFrame"
) -> tuple[bytes, tuple[str, ...]]:
  """Fits a copy of a transformer.

  Args:
    content: The transformer, see `dumped`.
    frame: The columns of the training examples.

  Returns:
    The fitted transformer, and the names of its features.

  Raises:
    ValueError: If it cannot be fitted; one line.
  """
  from sklearn import base

  transformer = base.clone(_loaded(content))
  try:
    transformer.fit(frame)
    try:
      names = transformer.get_feature_names_out()
    except AttributeError:  # Some transformers do not name their features.
      size = transformer.transform(frame).shape[1]
      names = [f"feature {at}" for at in range(size)]
  except Exception as error:
    raise _refusal(error) from error
  return dumped(transformer), tuple(map(str, names))


def features(
  content: bytes, frame: "pandas.DataFrame", names: tuple[str, ...]
) -> np.ndarray:
  """Returns the features of examples, [n, features] float32.

  Args:
    content: The fitted transformer.
    frame: The columns of the examples.
    names: The names of the features.

  Raises:
    ValueError: If it refuses the examples, or a feature is not a finite number;
      one line.
  """
  if not len(frame):
    return np.zeros((0, len(names)), np.float32)
  transformer = _loaded(content)
  try:
    values = transformer.transform(frame)
    values = values.toarray() if hasattr(values, "toarray") else values
    values = np.asarray(values, np.float64)
  except Exception as error:
    raise _refusal(error) from error
  beyond = examples.first_beyond(values, examples.largest_root(np.float32))
  if beyond is not None:
    raise ValueError(
      f"preprocessing: feature {names[beyond[1]]!r} has {values[beyond]:g}, not"
      " a finite number with a finite square; a SimpleImputer fills missing"
      " values"
    )
  return values.astype(np.float32)


def _refusal(error: Exception) -> ValueError:
  return ValueError(f"preprocessing: {array_files.first_line(error)}")
