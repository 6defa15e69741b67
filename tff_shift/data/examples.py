"""Examples and their classes as typed arrays, and the check at the entrance."""

from typing import NamedTuple

import numpy as np


class Examples(NamedTuple):
  """Examples x [n, ...] and their classes y [n] int32."""

  x: np.ndarray
  y: np.ndarray


def read_only(array: np.ndarray) -> np.ndarray:
  """Closes an array to writing: what never changes is packed for clients once.

  Args:
    array: An array that nobody else writes to.

  Returns:
    The same array.
  """
  array.flags.writeable = False
  return array


def take(source: Examples, positions: np.ndarray) -> Examples:
  """Copies examples.

  Args:
    source: Whatever has the arrays `x` and `y`.
    positions: The places of the examples, [n] integers.

  Returns:
    The examples; x is read only.
  """
  return Examples(read_only(source.x[positions]), source.y[positions])


def checked(
  x: np.ndarray,
  y: np.ndarray,
  what: str,
  *,
  shape: tuple[int, ...],
  dtype: type[np.generic],
  num_classes: int,
) -> Examples:
  """Checks arrays that come from outside, and casts them.

  A cast loses nothing but the precision of wider floating-point numbers:
  integers are cast where all of them fit, and never to floating point, for 0 to
  255 and 0 to 1 mean the same image. Whoever is given the result can trust it.

  Args:
    x: `[n, *shape]`, of the kind of `dtype`.
    y: `[n]` integers.
    what: What error messages call the two.
    shape: The shape of an example.
    dtype: What the examples become, such as `np.uint8` or `np.float32`.
    num_classes: The number of classes.

  Returns:
    The examples, at least one: x of `dtype`, finite; y int32, from 0 to
    `num_classes` - 1. An array that has its type already is not copied.

  Raises:
    ValueError: An array is something else; the message is one line that names
      it.
  """
  x, y = np.asarray(x), np.asarray(y)
  if x.shape[1:] != tuple(shape) or not x.ndim:
    wanted = ", ".join(["n", *map(str, shape)])
    raise ValueError(
      f"x of {what}: the shape must be [{wanted}], got {list(x.shape)}"
    )
  if not len(x):
    raise ValueError(f"x of {what}: there must be at least one example")
  x = _cast(x, dtype, f"x of {what}")
  if y.shape != x.shape[:1]:
    raise ValueError(
      f"y of {what}: the shape must be [{len(x)}], a class for each example,"
      f" got {list(y.shape)}"
    )
  y = _cast(y, np.int32, f"y of {what}")
  wrong = np.flatnonzero((y < 0) | (y >= num_classes))
  if wrong.size:
    raise ValueError(
      f"y of {what}: classes must lie in 0..{num_classes - 1}, got"
      f" {y[wrong[0]]} for example {wrong[0]}"
    )
  return Examples(x, y)


def _cast(array: np.ndarray, dtype: type[np.generic], what: str) -> np.ndarray:
  """Casts an array with at least one number; refuses what does not fit."""
  is_float = np.issubdtype(dtype, np.floating)
  kind = np.floating if is_float else np.integer
  if not np.issubdtype(array.dtype, kind):
    wanted = "floating-point numbers" if is_float else "integers"
    raise ValueError(
      f"{what}: {wanted} wanted, to become {np.dtype(dtype)}, got {array.dtype}"
    )
  if is_float:
    with np.errstate(over="ignore"):  # What overflows is refused below.
      array = array.astype(dtype, copy=False)
    if not np.isfinite(array).all():
      axes = tuple(range(1, array.ndim))
      wrong = np.flatnonzero(~np.isfinite(array).all(axis=axes))
      raise ValueError(
        f"{what}: all numbers must be finite as {np.dtype(dtype)}, those of"
        f" example {wrong[0]} are not"
      )
    return array
  limits = np.iinfo(dtype)
  if array.dtype != dtype and (
    array.min() < limits.min or array.max() > limits.max
  ):
    raise ValueError(
      f"{what}: integers must lie in {limits.min}..{limits.max}, the range of"
      f" {np.dtype(dtype)}, got {array.min()}..{array.max()}"
    )
  return array.astype(dtype, copy=False)
