"""Examples and their classes as typed arrays, and their validation on entry.

Choices:
  * Values beyond 1.8e19, whose square overflows float32, are refused in
    training examples and weights: norms, variances and gradients contain
    squares. Examples to predict can be as large as float32 allows.
"""

import hashlib
import math
import unicodedata
import warnings
from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Sequence
from typing import Any
from typing import NamedTuple
from typing import Protocol

import numpy as np

# The maximum rounding error of a column, relative to its standard deviation.
_MAX_ERROR = 0.01
# Smaller relative deviations are rounding errors of the user's arithmetic.
_CONSTANT = 1e-12
# Larger features saturate a network with weights for inputs near 1; where
# standard deviations differ by this factor, the smaller feature has no effect.
_LARGE = 100
# Numbers in a block of examples, of which 8 MiB are intermediate results.
_BLOCK = 2**20


class DataWarning(UserWarning):
  """Data that can be used but may be a mistake; the message is one line."""


def warn(message: str) -> None:
  """Issues a `DataWarning`."""
  warnings.warn(message, DataWarning, stacklevel=3)


def check_names(
  names: Iterable[object],
  what: str,
  at: Callable[[int], str],
  *,
  warns_of_case: bool = False,
) -> None:
  """Refuses equal names, and names that look equal.

  Args:
    names: The names of classes, clients, domains or features.
    what: The argument or column that has them, for messages.
    at: Returns the location of a name by its number, for messages.
    warns_of_case: Whether to warn of names that differ only in case.

  Raises:
    ValueError: If two names are equal, or differ only in blanks or in their
      Unicode form; one line that has both.
  """
  numbers: dict[str, int] = {}
  cases: dict[str, str] = {}
  texts = list(map(str, names))
  for index, name in enumerate(texts):
    composed = unicodedata.normalize("NFC", name)
    key = " ".join(composed.split())
    first = numbers.setdefault(key, index)
    if first != index:
      earlier = texts[first]
      if earlier == name:
        raise ValueError(
          f"{what}: {name!r} is there twice ({at(first)} and {at(index)})"
        )
      # Unicode forms look alike, and are shown as code points.
      is_form = composed == unicodedata.normalize("NFC", earlier)
      show = ascii if is_form else repr
      raise ValueError(
        f"{what}: {show(earlier)} ({at(first)}) and {show(name)} ({at(index)})"
        f" differ only in {'their Unicode form' if is_form else 'blanks'};"
        " make them equal"
      )
    same_case = cases.setdefault(key.casefold(), name)
    if warns_of_case and same_case != name:
      warn(f"{what}: {same_case!r} and {name!r} differ only in case")


def check_precision(
  parts: Iterable[np.ndarray], what: str, names: Sequence[str] | None = None
) -> None:
  """Refuses columns whose values float32 cannot represent apart.

  Times in UNIX seconds become multiples of 128, for example. A column is
  refused if its largest rounding error exceeds 1 % of its standard deviation.

  Args:
    parts: The x of all examples, in arrays `[n, ...]`. Only floating-point
      types of more than 32 bits are checked.
    what: The name of x in messages.
    names: The names of the columns. None: their positions.

  Raises:
    ValueError: If a column is refused; one line that names it.
  """
  parts = [
    part.reshape(len(part), -1)
    for part in parts
    if len(part) and part.dtype.kind == "f" and part.dtype.itemsize > 4
  ]
  if not parts:
    return
  num_rows = sum(map(len, parts))
  # Numbers beyond float32 have other messages.
  with np.errstate(over="ignore", invalid="ignore"):
    errors = [part - part.astype(np.float32) for part in parts]
    error = np.max([np.abs(part).max(axis=0) for part in errors], axis=0)
    size = np.max([np.abs(part).max(axis=0) for part in parts], axis=0)
    centre = parts[0][0].astype(np.float64)
    total = sum((part - centre).sum(axis=0) for part in parts)
    mean = centre + total / num_rows
    deviation = np.sqrt(
      sum(((part - mean) ** 2).sum(axis=0) for part in parts) / num_rows
    )
    is_lost = (error > _MAX_ERROR * deviation) & (deviation > _CONSTANT * size)
  if not is_lost.any():
    return
  column = int(np.argmax(is_lost))
  values = np.unique(np.concatenate([part[:, column] for part in parts]))
  called = f"column {column}" if names is None else repr(names[column])
  raise ValueError(
    f"{what}: float32 cannot tell the values of {called} apart"
    f" ({len(values):,} values, {len(np.unique(values.astype(np.float32))):,}"
    f" left); subtract a constant, such as its minimum {values[0]:.15g}"
  )


class Examples(NamedTuple):
  """Examples x [n, ...] and their classes y [n] int32."""

  x: np.ndarray
  y: np.ndarray


class Pool(Protocol):
  """Anything with the arrays of `Examples`, such as a `Dataset`."""

  @property
  def x(self) -> np.ndarray:
    """The examples, [n, ...]."""

  @property
  def y(self) -> np.ndarray:
    """Their classes, [n] int32."""


def read_only(array: np.ndarray) -> np.ndarray:
  """Copies an array into memory that nothing can write to.

  Arrays that cannot change are packed only once.

  Args:
    array: The array.

  Returns:
    The copy, whose flag `writeable` cannot be set.
  """
  return np.ndarray(array.shape, array.dtype, array.tobytes())


def check_pool(pool: Pool, what: str = "the pool") -> None:
  """Refuses a pool whose x [N, ...] and y [N] differ in length.

  Args:
    pool: The pool.
    what: Its name in error messages.

  Raises:
    ValueError: If they differ in length, or a value is masked.
  """
  for name in Examples._fields:
    as_array(getattr(pool, name), f"{name} of {what}")
  if len(pool.x) != len(pool.y):
    raise ValueError(
      f"{what} must have a class for each example, got"
      f" {len(pool.x)} examples and {len(pool.y)} classes"
    )


def take(source: Pool, positions: np.ndarray) -> Examples:
  """Copies examples.

  Args:
    source: Where they are.
    positions: The indices of the examples, [n] integers.

  Returns:
    The examples; x is read-only.
  """
  return Examples(read_only(source.x[positions]), source.y[positions])


def copies(*arrays: np.ndarray) -> np.ndarray:
  """Returns for each example the index of its first exact copy.

  Args:
    *arrays: Each `[n, ...]`, such as the x of the examples, and their y.

  Returns:
    `[n]` int64: equal for examples that are equal bit for bit.
  """
  first = {}
  return np.array(
    [first.setdefault(key, row) for row, key in enumerate(_keys(*arrays))],
    np.int64,
  )


def num_trained_on(
  train: Iterable[np.ndarray], test: Iterable[np.ndarray]
) -> int:
  """Counts test examples that are also training examples, bit for bit.

  Args:
    train: The x of training examples, each `[n, ...]`.
    test: The x of test examples, each `[n, ...]`.
  """
  trained = {key for x in train for key in _keys(x)}
  return sum(key in trained for x in test for key in _keys(x))


def _keys(*arrays: np.ndarray) -> Iterator[bytes]:
  """Yields a digest of each example, short even if examples are large."""
  for rows in zip(*map(np.ascontiguousarray, arrays), strict=True):
    digest = hashlib.blake2b(digest_size=16)
    for row in rows:
      digest.update(row.tobytes())
    yield digest.digest()


def input_type(is_image: bool) -> type[np.generic]:
  """Returns the type of x: uint8 for images, otherwise float32."""
  if is_image:
    return np.uint8
  return np.float32


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
  """Validates and casts arrays from outside.

  A cast loses nothing except the precision of wider floating-point numbers.
  Integers are cast if all of them fit, and never to floating point, because 0
  to 255 and 0 to 1 would mean the same image. The result needs no more checks.

  Args:
    x: `[n, *shape]`, of the kind of `dtype`.
    y: `[n]` integers.
    what: The name of both in error messages.
    shape: The shape of an example.
    dtype: The type of the result's x, such as `np.uint8` or `np.float32`.
    num_classes: The number of classes.
    allow_empty: Whether there may be no examples.

  Returns:
    The examples, at least one unless `allow_empty`: x of `dtype`, finite with
    finite squares; y int32, from 0 to `num_classes` - 1. Arrays that already
    have the right type are not copied.

  Raises:
    ValueError: If an array is not valid; one line that names it.
  """
  x, y = as_array(x, f"x of {what}"), as_array(y, f"y of {what}")
  _check_shape(x, (None, *shape), f"x of {what}")
  if not len(x) and not allow_empty:
    raise ValueError(f"x of {what}: there must be at least one example")
  # Norms, distances, variances and gradients use squares.
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


def check_feature_names(
  names: Sequence[str], shape: Sequence[int | None], what: str
) -> None:
  """Refuses names of features unless there is a different one per column.

  Args:
    names: The names.
    shape: The shape of x.
    what: Their name in error messages.

  Raises:
    ValueError: If they do not fit; one line.
  """
  if len(shape) != 2 or len(names) != shape[1]:
    raise ValueError(
      f"{what}: a name for each column of x {list(shape)} wanted, got"
      f" {len(names)}"
    )
  check_names(names, what, lambda column: f"feature {column}")


def checked_sizes(
  sizes: np.ndarray, num_examples: int, what: str, num_domains: int | None
) -> np.ndarray:
  """Validates the number of examples of each domain.

  Args:
    sizes: `[num_domains]` integers.
    num_examples: Their required sum.
    what: The client's name in error messages.
    num_domains: The number of domains. None: any.

  Returns:
    The sizes as int32; not copied if they are int32.

  Raises:
    ValueError: If they are not valid; one line.
  """
  what = f"domain_sizes of {what}"
  sizes = checked_array(sizes, what, shape=(num_domains,), dtype=np.int32)
  # In 64 bits: a sum that overflows could be right by chance.
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
  """Validates and casts an array from outside, as `checked` does.

  Args:
    array: The array, of the kind of `dtype`.
    what: Its name in error messages.
    shape: Its shape; None is any size.
    dtype: The type of the result.

  Returns:
    The array, not copied if it has the type. Floating-point numbers are finite.

  Raises:
    ValueError: If it is not valid; one line that names it.
  """
  array = as_array(array, what)
  _check_shape(array, shape, what)
  return _cast(array, dtype, what)


def as_array(value: Any, what: str) -> np.ndarray:
  """Converts a value to an array without a mask.

  Args:
    value: An array, or numbers in nested sequences.
    what: Its name in error messages.

  Returns:
    The array, the same object unless it has a mask. If nothing is masked, the
    data of the masked array. A NumPy scalar stays one: it has the attributes of
    an array of shape [].

  Raises:
    ValueError: If it is not an array, or a value is masked: masked values are
      fill values, not measurements.
  """
  is_array = isinstance(value, np.ndarray | np.generic)
  if not is_array:
    for array in _masked_arrays(value):
      as_array(array, what)
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
    first = [int(index) for index in np.argwhere(mask)[0]]
    raise ValueError(
      f"{what}: {np.count_nonzero(mask)} of {mask.size} values are masked, the"
      f" first at {first}; leave these examples out, or fill them in (filled)"
    )
  return np.ma.getdata(value)


def _masked_arrays(value: Any) -> Iterator[np.ma.MaskedArray]:
  """Yields the masked arrays in nested sequences.

  NumPy would stack the values below their masks.
  """
  if isinstance(value, np.ma.MaskedArray):
    yield value
  elif isinstance(value, list | tuple):
    for item in value:
      yield from _masked_arrays(item)


def _check_shape(
  array: np.ndarray, shape: tuple[int | None, ...], what: str
) -> None:
  """Refuses arrays of another shape."""
  if array.ndim != len(shape) or any(
    size not in (None, actual)
    for size, actual in zip(shape, array.shape, strict=True)
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
  """Casts an array; refuses values that do not fit.

  Args:
    array: The array.
    dtype: The type of the result.
    what: Its name in error messages.
    largest: The largest allowed absolute value of floating-point numbers. None:
      any finite value.

  Returns:
    The array.
  """
  is_float = issubclass(dtype, np.floating)
  original = array
  if array.dtype != dtype:
    kind = np.floating if is_float else np.integer
    if not np.issubdtype(array.dtype, kind):
      wanted = "floating-point numbers" if is_float else "integers"
      raise ValueError(
        f"{what}: {wanted} wanted, to become {np.dtype(dtype)}, got"
        f" {array.dtype}"
      )
    if issubclass(dtype, np.integer):
      _check_range(array, dtype, what)
    with np.errstate(over="ignore"):  # Overflows are refused below.
      array = array.astype(dtype)
  if issubclass(dtype, np.floating):
    _check_size(array, original, largest or float(np.finfo(dtype).max), what)
  return array


def _check_range(array: np.ndarray, dtype: type[np.integer], what: str) -> None:
  """Refuses integers outside of the range of another integer type."""
  limits = np.iinfo(dtype)
  if array.size and (array.min() < limits.min or array.max() > limits.max):
    raise ValueError(
      f"{what}: integers must lie in {limits.min}..{limits.max}, the range of"
      f" {np.dtype(dtype)}, got {array.min()}..{array.max()}"
    )


def largest_root(dtype: type[np.floating]) -> float:
  """Returns the largest number whose square is finite in a type."""
  return math.sqrt(np.finfo(dtype).max)


def first_beyond(array: np.ndarray, largest: float) -> tuple[int, ...] | None:
  """Returns the index of the first number with a larger absolute value.

  Args:
    array: Floating-point numbers.
    largest: The largest allowed absolute value.

  Returns:
    The index; None if there is no such number. NaN counts as larger.
  """
  # Comparisons with NaN are false.
  if not array.size or (-largest <= array.min() and array.max() <= largest):
    return None
  wrong = np.argmin((array >= -largest) & (array <= largest))
  return tuple(map(int, np.unravel_index(wrong, array.shape)))


def _check_size(
  array: np.ndarray, original: np.ndarray, largest: float, what: str
) -> None:
  """Refuses numbers that are not finite, or too large in absolute value.

  Args:
    array: The numbers.
    original: The same numbers before a cast, for the message.
    largest: The largest allowed absolute value.
    what: Their name in messages.
  """
  index = first_beyond(array, largest)
  if index is None:
    return
  value = array[index]
  column = f"column {index[1]} of " if len(index) == 2 else ""
  if not np.isfinite(value):
    raise ValueError(
      f"{what}: all numbers must be finite as {array.dtype}, got"
      f" {original[index]}"
      + (f" in {column}example {index[0]}" if index else "")
    )
  raise ValueError(
    f"{what}: numbers must lie between -{largest:.2g} and {largest:.2g}, so"
    f" that their squares are finite as {array.dtype}, got {value:g} in"
    f" {column}example {index[0]}"
  )


def unscaled(parts: Sequence[np.ndarray], names: Sequence[str] = ()) -> str:
  """Describes features that hinder training unless they are scaled.

  Args:
    parts: Examples, [n, ..., features].
    names: The names of the features. Empty: they have none.

  Returns:
    The end of a sentence about the features; "" for images, words, and features
    that are near 1 and vary alike.
  """
  # Intermediate results are as large as a block.
  rows = [
    block
    for part in feature_rows(parts)
    for block in np.array_split(part, part.size // _BLOCK + 1)
    if len(block)
  ]
  if not rows:
    return ""
  num_rows = sum(map(len, rows))
  largest = np.max([np.abs(part).max(axis=0) for part in rows], axis=0)
  top = int(np.argmax(largest))
  if largest[top] > _LARGE:
    return f"are as large as {largest[top]:.3g} ({feature_name(names, top)})"
  mean = sum(part.sum(axis=0, dtype=np.float64) for part in rows) / num_rows
  deviation = np.sqrt(
    sum(np.square(part - mean).sum(axis=0) for part in rows) / num_rows
  )
  # A constant has no scale.
  varied = np.flatnonzero(deviation > np.spacing(largest.astype(np.float32)))
  if len(varied) < 2:
    return ""
  small, large = (
    int(varied[pick(deviation[varied])]) for pick in (np.argmin, np.argmax)
  )
  if deviation[large] <= _LARGE * deviation[small]:
    return ""
  return (
    f"differ in magnitude: {feature_name(names, large)} has standard"
    f" deviation {deviation[large]:.3g}, {feature_name(names, small)}"
    f" {deviation[small]:.3g}"
  )


def warn_of_unscaled(
  parts: Sequence[np.ndarray], names: Sequence[str] = ()
) -> None:
  """Warns of a user's features that hinder training unless they are scaled.

  Args:
    parts: Examples, [n, ..., features].
    names: The names of the features. Empty: they have none.
  """
  problem = unscaled(parts, names)
  if problem:
    warn(
      f"features {problem}; a model that does not scale them may stay at chance"
      " accuracy: pass build_model(input_scaling=...), computed by"
      " models.input_scaling.standardized from the examples that train"
    )


def feature_rows(parts: Sequence[np.ndarray]) -> list[np.ndarray]:
  """Returns features as [n, features]; none of images and words."""
  return [
    part.reshape(-1, part.shape[-1])
    for part in parts
    if part.size and part.dtype.kind == "f"
  ]


def feature_name(names: Sequence[str], column: int) -> str:
  """Returns the name of a feature, or its number."""
  return names[column] if names else f"feature {column}"


def is_rounding(deviation: np.ndarray, mean: np.ndarray) -> np.ndarray:
  """Returns whether standard deviations are rounding, [features] bool.

  The mean of equal numbers is rounded, which must not give a standard
  deviation. Features are float32: what is at most a step of the mean is
  rounding, and a number below float32's range cannot be a divisor.
  """
  rounding = np.spacing(np.abs(mean).astype(np.float32))
  return deviation <= np.maximum(rounding, np.finfo(np.float32).tiny)
