"""Arrays in Python: a pair (x, y) for each client, or client and time.

x is `[n, ...]`, uint8 images or floating-point numbers, and y `[n]` integers,
the classes from 0. All pairs of a call have the same shape and kind of x.

Choices:
  * A masked array is refused, not filled: only the user knows which value
    stands for a missing one. TensorFlow silently drops the masks of TFF's
    `TestClientData`, so the private arrays from which it was built are checked.
  * Prediction refuses the inputs that training refuses, with the same function:
    a value that is not finite would give a meaningless label.
"""

from collections.abc import Callable
from collections.abc import Sequence

import numpy as np

from tff_shift.data import examples
from tff_shift.data import partition
from tff_shift.data import table

Pair = tuple[np.ndarray, np.ndarray]


def read(
  groups: Sequence[Sequence[Pair]],
  name_of: Callable[[int, int], str],
  *,
  num_classes: int | None = None,
  feature_names: Sequence[str] = (),
  allow_empty: bool = False,
) -> table.Table:
  """Validates and joins pairs; warns of features without a scale.

  Args:
    groups: For each client and time, or for each client in a list of one, the
      pair.
    name_of: Maps the two indices of a pair to its name in messages.
    num_classes: The number of classes. None: inferred, see
      `table.num_classes_of`.
    feature_names: The names of the columns of x. Empty: they have none.
    allow_empty: Whether a pair may have no examples.

  Returns:
    The table, sorted by client and time; `time` is the second index. Clients,
    times and classes are named by their numbers.

  Raises:
    ValueError: If a pair is not valid; one line that names it.
  """
  xs, ys, names = [], [], []
  for client, pairs in enumerate(groups):
    for time, pair in enumerate(pairs):
      name = name_of(client, time)
      try:
        x, y = pair
      except (TypeError, ValueError) as error:
        raise ValueError(f"{name}: arrays (x, y) are wanted") from error
      xs.append(examples.as_array(x, f"x of {name}"))
      ys.append(examples.as_array(y, f"y of {name}"))
      names.append(name)
  if not xs:
    raise ValueError("there must be at least one client")
  is_image, shape = xs[0].dtype.kind in "iu", xs[0].shape[1:]
  dtype = examples.input_type(is_image)

  def check(x, y, name, num_classes):
    examples.checked(
      x,
      y,
      name,
      shape=shape,
      dtype=dtype,
      num_classes=num_classes,
      allow_empty=allow_empty,
    )

  for x, y, name in zip(xs, ys, names, strict=True):
    if x.ndim < 1 or (x.dtype.kind in "iu") != is_image:
      raise ValueError(
        f"x of {name}: {'integers' if is_image else 'floating-point numbers'}"
        f" [n, ...] wanted as in {names[0]}, got {x.dtype} {list(x.shape)};"
        " images go from 0 to 255, as uint8"
      )
    if (x.shape[1:], y.shape) != (
      shape,
      x.shape[:1],
    ) or y.dtype.kind not in "iu":
      check(x, y, name, num_classes=np.iinfo(np.int32).max)
  sizes = np.array(list(map(len, ys)))
  ends = np.cumsum(sizes)

  def place_of(row):
    at = int(np.searchsorted(ends, row, side="right"))
    return f"y of {names[at]}", row - int(ends[at] - sizes[at])

  x, y = (np.concatenate(arrays) for arrays in (xs, ys))
  if num_classes is None:
    num_classes = table.num_classes_of(y, place_of)
  partition.check_positive_integer("num_classes", num_classes)
  try:
    check(x, y, "examples", num_classes)
    if not allow_empty and not sizes.all():
      raise ValueError
  except ValueError:
    # Pair by pair, for the name in the message.
    for arrays in zip(xs, ys, names, strict=True):
      check(*arrays, num_classes)
    raise
  examples.check_precision([x], "x")
  x = x.astype(dtype, copy=False)
  examples.warn_of_unscaled([x], feature_names)
  num_times = [len(pairs) for pairs in groups]
  of_client = np.repeat(np.arange(len(groups), dtype=np.int32), num_times)
  of_time = np.concatenate([np.arange(n, dtype=np.int32) for n in num_times])
  return table.Table(
    x,
    y.astype(np.int32, copy=False),
    table.Schema(
      classes=tuple(map(str, range(num_classes))),
      features=tuple(feature_names) or None,
      num_clients=len(groups),
      times=tuple(map(str, range(max(num_times)))),
    ),
    np.repeat(of_client, sizes),
    np.repeat(of_time, sizes),
  )
