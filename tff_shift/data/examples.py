"""Examples and their classes as typed arrays, and the check at the entrance."""

import hashlib
import math
import warnings
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Sequence
from typing import Any
from typing import NamedTuple

import numpy as np

# Of classes that never occur, so many are named.
_NUM_LISTED = 5


class DataWarning(UserWarning):
  """Data can be used, but may not be what is meant; the message is one line."""


def warn(message: str) -> None:
  """Issues a `DataWarning`."""
  warnings.warn(message, DataWarning, stacklevel=3)


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


def check_pool(pool: Examples, what: str = "the pool") -> None:
  """Refuses a pool, x [N, ...] and y [N], of which the two differ in length.

  Args:
    pool: Whatever has the arrays `x` and `y`.
    what: What error messages call it.

  Raises:
    ValueError: The two differ in length, or a value is masked.
  """
  for name in Examples._fields:
    as_array(getattr(pool, name), f"{name} of {what}")
  if len(pool.x) != len(pool.y):
    raise ValueError(
      f"{what} must have a class for each example, got"
      f" {len(pool.x)} examples and {len(pool.y)} classes"
    )


def take(source: Examples, positions: np.ndarray) -> Examples:
  """Copies examples.

  Args:
    source: Whatever has the arrays `x` and `y`.
    positions: The places of the examples, [n] integers.

  Returns:
    The examples; x is read only.
  """
  return Examples(read_only(source.x[positions]), source.y[positions])


def copies(*arrays: np.ndarray) -> np.ndarray:
  """Returns for each example the place of the first that is the same.

  Args:
    *arrays: Each `[n, ...]`, such as the x of the examples, and their y.

  Returns:
    `[n]` int64: examples are the same bit for bit where it is equal.
  """
  first = {}
  return np.array(
    [first.setdefault(key, place) for place, key in enumerate(_keys(*arrays))],
    np.int64,
  )


def num_trained_on(
  train: Iterable[np.ndarray], test: Iterable[np.ndarray]
) -> int:
  """Counts test examples that stand among the training examples, bit for bit.

  Args:
    train: The x of training examples, each `[n, ...]`.
    test: Likewise of test examples.

  Returns:
    The number.
  """
  trained = {key for x in train for key in _keys(x)}
  return sum(key in trained for x in test for key in _keys(x))


def _keys(*arrays: np.ndarray) -> Iterator[bytes]:
  """Yields a digest of each example: short, however large examples are."""
  for rows in zip(*map(np.ascontiguousarray, arrays), strict=True):
    digest = hashlib.blake2b(digest_size=16)
    for row in rows:
      digest.update(row.tobytes())
    yield digest.digest()


def checked(
  x: np.ndarray,
  y: np.ndarray,
  what: str,
  *,
  shape: tuple[int, ...],
  dtype: type[np.generic],
  num_classes: int,
  allow_empty: bool = False,
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
    allow_empty: Whether there may be no example.

  Returns:
    The examples, at least one unless `allow_empty`: x of `dtype`, finite, and
    its squares as well; y int32, from 0 to `num_classes` - 1. An array that has
    its type already is not copied.

  Raises:
    ValueError: An array is something else; the message is one line that names
      it.
  """
  x, y = as_array(x, f"x of {what}"), as_array(y, f"y of {what}")
  _check_shape(x, (None, *shape), f"x of {what}")
  if not len(x) and not allow_empty:
    raise ValueError(f"x of {what}: there must be at least one example")
  # Norms, distances, variances and gradients have squares.
  largest = largest_root(dtype) if issubclass(dtype, np.floating) else None
  x = _cast(x, dtype, f"x of {what}", largest)
  if y.shape != x.shape[:1]:
    raise ValueError(
      f"y of {what}: the shape must be [{len(x)}], a class for each example,"
      f" got {list(y.shape)}"
    )
  y = _cast(y, np.int32, f"y of {what}")
  if y.size and (y.min() < 0 or y.max() >= num_classes):
    wrong = np.flatnonzero((y < 0) | (y >= num_classes))
    raise ValueError(
      f"y of {what}: classes must lie in 0..{num_classes - 1}, got"
      f" {y[wrong[0]]} for example {wrong[0]}"
    )
  return Examples(x, y)


def num_classes_of(labels: Sequence[np.ndarray], names: Sequence[str]) -> int:
  """Infers the number of classes: the greatest label and one.

  Labels of which fewer than half occur are taken for identifiers. Where others
  do not occur, a warning says so.

  Args:
    labels: Each `[n]` integers.
    names: What error messages call each.

  Returns:
    The number, at least 1.

  Raises:
    ValueError: Something is no vector of integers, a number is negative, or
      fewer than half of the classes occur.
  """
  occurring, highest, where = [], 0, names[0]
  for array, what in zip(labels, names, strict=True):
    # Identifiers may be greater than any int32.
    array = checked_array(array, what, shape=(None,), dtype=np.int64)
    if array.size and array.min() < 0:
      wrong = int(np.argmax(array < 0))
      raise ValueError(
        f"{what}: classes must count from 0, got {array[wrong]} for example"
        f" {wrong}"
      )
    occurring.append(np.unique(array))
    if array.max(initial=0) > highest:
      highest, where = int(array.max()), what
  occurring = np.unique(np.concatenate(occurring))
  _check_classes_occur(occurring, highest + 1, where)
  return highest + 1


def _check_classes_occur(
  occurring: np.ndarray, num_classes: int, what: str
) -> None:
  """Refuses classes most of which never occur; warns of others.

  Args:
    occurring: The classes that occur, ascending.
    num_classes: The number of classes.
    what: What messages call the labels.

  Raises:
    ValueError: Fewer than half of the classes occur.
  """
  num_absent = num_classes - len(occurring)
  if not len(occurring) or not num_absent:
    return
  found = (
    f"{what}: the greatest label is {num_classes - 1}, and"
    f" {len(occurring)} of the {num_classes} classes 0..{num_classes - 1} occur"
  )
  if 2 * len(occurring) < num_classes:
    raise ValueError(
      f"{found}; if labels are identifiers, number them from 0 to"
      f" {len(occurring) - 1} (y = numpy.unique(y, return_inverse=True)[1]),"
      f" and if there are {num_classes} classes, say so (class_names of a file,"
      " num_classes in Python)"
    )
  # No larger than the labels themselves.
  absent = np.setdiff1d(np.arange(num_classes), occurring)[:_NUM_LISTED]
  warn(
    f"{found}; classes without an example:"
    f" {', '.join(map(str, absent))}{', ...' * (num_absent > len(absent))}"
  )


def checked_sizes(
  sizes: np.ndarray, num_examples: int, what: str, num_domains: int | None
) -> np.ndarray:
  """Checks how many examples belong to each domain.

  Args:
    sizes: `[num_domains]` integers.
    num_examples: What they add up to.
    what: What error messages call the client.
    num_domains: The number of domains. None: any.

  Returns:
    The sizes as int32; not copied if they are.

  Raises:
    ValueError: They are something else; the message is one line.
  """
  what = f"domain_sizes of {what}"
  sizes = checked_array(sizes, what, shape=(num_domains,), dtype=np.int32)
  # In 64 bits: a sum that wraps around could be right by chance.
  is_right = sizes.sum(dtype=np.int64) == num_examples
  if not is_right or (sizes.size and sizes.min() < 0):
    raise ValueError(
      f"{what}: numbers of at least 0 wanted that add up to {num_examples}, the"
      f" number of examples, got {sizes.tolist()}"
    )
  return sizes


def checked_array(
  array: np.ndarray,
  what: str,
  *,
  shape: tuple[int | None, ...],
  dtype: type[np.generic],
) -> np.ndarray:
  """Checks an array that comes from outside, and casts it as `checked` does.

  Args:
    array: The array, of the kind of `dtype`.
    what: What error messages call it.
    shape: Its shape; None is any size.
    dtype: What it becomes.

  Returns:
    The array; not copied if it has its type. Floating-point numbers are finite.

  Raises:
    ValueError: It is something else; the message is one line that names it.
  """
  array = as_array(array, what)
  _check_shape(array, shape, what)
  return _cast(array, dtype, what)


def as_array(value: Any, what: str) -> np.ndarray | np.generic:
  """Returns what is an array or can become one, without a mask.

  Args:
    value: An array, or numbers in nested sequences.
    what: What error messages call it.

  Returns:
    The array; the same object unless it is a masked one, whose data are
    returned where it masks nothing.

  Raises:
    ValueError: It is no array, or a value is masked: what lies below a mask is
      a fill value, which nobody measured.
  """
  if not isinstance(value, np.ndarray | np.generic):
    for each in _masked_arrays(value):
      as_array(each, what)
    try:
      return np.asarray(value)
    except (TypeError, ValueError) as error:
      raise ValueError(
        f"{what}: an array is wanted, got {type(value).__name__}"
      ) from error
  if not isinstance(value, np.ma.MaskedArray):
    return value
  if np.ma.is_masked(value):
    mask = np.ma.getmaskarray(value)
    first = [int(each) for each in np.argwhere(mask)[0]]
    raise ValueError(
      f"{what}: {np.count_nonzero(mask)} of {mask.size} values are masked, the"
      f" first at {first}; leave these examples out, or fill them in (filled)"
    )
  return np.ma.getdata(value)


def _masked_arrays(value: Any) -> Iterator[np.ma.MaskedArray]:
  """Yields the masked arrays in nested sequences, of which one makes an array.

  NumPy would stack what lies below their masks.
  """
  if isinstance(value, np.ma.MaskedArray):
    yield value
  elif isinstance(value, list | tuple):
    for each in value:
      yield from _masked_arrays(each)


def _check_shape(
  array: np.ndarray, shape: tuple[int | None, ...], what: str
) -> None:
  """Refuses another shape."""
  if array.ndim != len(shape) or any(
    size not in (None, found)
    for size, found in zip(shape, array.shape, strict=True)
  ):
    wanted = ", ".join("n" if size is None else str(size) for size in shape)
    raise ValueError(
      f"{what}: the shape must be [{wanted}], got {list(array.shape)}"
    )


def _cast(
  array: np.ndarray,
  dtype: type[np.generic],
  what: str,
  largest: float | None = None,
) -> np.ndarray:
  """Casts an array; refuses what does not fit.

  Args:
    array: The array.
    dtype: What it becomes.
    what: What error messages call it.
    largest: How far from 0 floating-point numbers may be. None: all are right
      that are finite.

  Returns:
    The array.
  """
  is_float = issubclass(dtype, np.floating)
  if array.dtype != dtype:
    kind = np.floating if is_float else np.integer
    if not np.issubdtype(array.dtype, kind):
      wanted = "floating-point numbers" if is_float else "integers"
      raise ValueError(
        f"{what}: {wanted} wanted, to become {np.dtype(dtype)}, got"
        f" {array.dtype}"
      )
    if not is_float:
      _check_range(array, dtype, what)
    with np.errstate(over="ignore"):  # What overflows is refused below.
      array = array.astype(dtype)
  if is_float:
    _check_size(array, largest or float(np.finfo(dtype).max), what)
  return array


def _check_range(array: np.ndarray, dtype: type[np.generic], what: str) -> None:
  """Refuses integers that another type of integers does not have."""
  limits = np.iinfo(dtype)
  if array.size and (array.min() < limits.min or array.max() > limits.max):
    raise ValueError(
      f"{what}: integers must lie in {limits.min}..{limits.max}, the range of"
      f" {np.dtype(dtype)}, got {array.min()}..{array.max()}"
    )


def largest_root(dtype: type[np.generic]) -> float:
  """Returns the largest number whose square is a finite one of a type."""
  return math.sqrt(np.finfo(dtype).max)


def first_beyond(array: np.ndarray, largest: float) -> tuple[int, ...] | None:
  """Returns the place of the first number that is further from 0, or none.

  Args:
    array: Floating-point numbers.
    largest: How far from 0 they may be.

  Returns:
    The place; None where there is no such number.
  """
  # Comparisons with what is no number are false.
  if not array.size or (-largest <= array.min() and array.max() <= largest):
    return None
  wrong = np.argmin((array >= -largest) & (array <= largest))
  return tuple(map(int, np.unravel_index(wrong, array.shape)))


def _check_size(array: np.ndarray, largest: float, what: str) -> None:
  """Refuses numbers that are not finite, or are too far from 0."""
  place = first_beyond(array, largest)
  if place is None:
    return
  found = array[place]
  if not np.isfinite(found):
    raise ValueError(
      f"{what}: all numbers must be finite as {array.dtype}"
      + (
        f", those of example {place[0]} are not" if place else f", got {found}"
      )
    )
  column = f"column {place[1]} of " if len(place) == 2 else ""
  raise ValueError(
    f"{what}: numbers must lie between -{largest:.2g} and {largest:.2g}, so"
    f" that their squares are finite as {array.dtype}, got {found:g} in"
    f" {column}example {place[0]}"
  )
