"""Pure functions of weights, of which models are composed.

A part has the name, shape and initializer of each of its weights. It is made
from a Keras model (`keras_parts`) or written by hand.
"""

import dataclasses
from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from tff_shift._util import draws
from tff_shift.data import examples
from tff_shift.models import modes

# The first number that is folded into a model's seed, for each part of the
# model.
BACKBONE, HEAD, CLIENT_BRANCH = range(3)
# Their names.
STREAMS = ("backbone", "head", "client_branch")

Path = tuple[int, ...]
Initializer = Callable[[tuple[int, ...], tf.Tensor], tf.Tensor]


def paths(stream: int, count: int, start: int = 0) -> tuple[Path, ...]:
  """Returns the seed paths of consecutively drawn weights.

  Args:
    stream: `BACKBONE`, `HEAD` or `CLIENT_BRANCH`.
    count: The number of weights.
    start: The position of the first.

  Returns:
    A path for each weight: see `Part`.
  """
  return tuple((stream, start + position) for position in range(count))


@dataclasses.dataclass(frozen=True)
class Part:
  """A pure function of weights, with the weights' names and initializers.

  Attributes:
    function: `(weights, x, frozen) -> y`. Weights are a tuple of float32
      tensors, `frozen` is like the attribute of this name.
    names: A name for each weight, `<layer>/<weight>`.
    initializers: For each weight `(shape, seed) -> float32 tensor`; the seed is
      an int32 tensor of shape [2].
    shapes: The shape of each weight.
    paths: For each weight the numbers that are folded into the model's seed to
      give the seed of its initializer. A weight that moves to another part
      keeps its path, and therefore its initial value.
    frozen: The weights of the function that are never trained: a tuple of
      arrays or tensors, or of nested structures of them.
    source: The origin of the part, for the module that made it.
    statistics: The initial running statistics of batch normalisation, float32
      arrays by name, `<part of the model>/<layer>/<weight>`.
    normalizers: The names of the weights, a subset of `names`, that scale and
      shift after batch normalisation.
  """

  function: Callable[[Any, tf.Tensor, Any], tf.Tensor]
  names: tuple[str, ...]
  initializers: tuple[Initializer, ...]
  shapes: tuple[tuple[int, ...], ...]
  paths: tuple[Path, ...]
  frozen: tuple[Any, ...] = ()
  source: Any = None
  # Arrays cannot be compared, and a dictionary has no hash.
  statistics: Mapping[str, Any] = dataclasses.field(
    default_factory=dict, compare=False
  )
  normalizers: tuple[str, ...] = ()

  @property
  def num_parameters(self) -> int:
    """The number of weights, without the frozen ones."""
    return sum(int(np.prod(shape)) for shape in self.shapes)

  def initial_weights(self, seed) -> tuple[tf.Tensor, ...]:
    """Draws the weights; seed is the model's, an int32 tensor of shape [2]."""
    weights = []
    for initializer, shape, path in zip(
      self.initializers, self.shapes, self.paths, strict=True
    ):
      own_seed = seed
      for number in path:
        own_seed = draws.fold_in(own_seed, number)
      weights.append(initializer(shape, own_seed))
    return tuple(weights)

  def __call__(self, weights, x) -> tf.Tensor:
    """Applies the function to a tuple of weights and a batch."""
    if self.statistics and modes.statistics() is None:
      with modes.with_statistics(self.statistics, are_fixed=True):
        return self.function(weights, x, self.frozen)
    return self.function(weights, x, self.frozen)

  def with_frozen(self, values) -> "Part":
    """Returns the part with other frozen weights, of the same structure."""
    return dataclasses.replace(self, frozen=tuple(values))

  def with_values(self, values: Mapping[str, Any], prefix: str) -> "Part":
    """Returns the part with given initial weights instead of drawn ones."""
    initializers = []
    for name, shape in zip(self.names, self.shapes, strict=True):
      value = given(values, f"{prefix}/{name}", shape, prefix)
      initializers.append(constant(value))
    statistics = {
      name: given(values, name, np.shape(old), prefix)
      for name, old in self.statistics.items()
    }
    for name, value in statistics.items():
      if name.endswith("variance") and np.any(value < 0):
        raise ValueError(f"{name!r} is a variance and has numbers below 0")
    return dataclasses.replace(
      self, initializers=tuple(initializers), statistics=statistics
    )


def require(
  values: Mapping[str, Any], keys: Iterable[str], prefix: str
) -> None:
  """Refuses values if one is missing; the prefix is the name of a part."""
  for key in keys:
    if key not in values:
      raise ValueError(
        f"weight {key!r} is missing; give all weights of {prefix!r} or none"
      )


def given(
  values: Mapping[str, Any], key: str, shape: tuple[int, ...], prefix: str
) -> np.ndarray:
  """Returns a validated weight from outside.

  Args:
    values: The weights by name.
    key: The name of the weight.
    shape: The required shape.
    prefix: The part, all of whose weights must be given.

  Returns:
    The weight, float32.

  Raises:
    ValueError: If it is missing, of another shape, not numeric, or not finite.
  """
  require(values, [key], prefix)
  value = _as_float32(values[key], key)
  if value.shape != shape:
    raise ValueError(
      f"weight {key!r} has shape {value.shape}, and the model takes {shape}"
    )
  largest = examples.largest_root(np.float32)
  place = examples.first_beyond(value, largest)
  if place is not None and not np.isfinite(value[place]):
    raise ValueError(f"weight {key!r} has numbers that are not finite")
  if place is not None:
    raise ValueError(
      f"weight {key!r} has {value[place]:g} at {list(place)}; numbers must"
      f" lie between -{largest:.2g} and {largest:.2g}, so that their"
      " squares are finite as float32"
    )
  return value


def _as_float32(value: Any, key: str) -> np.ndarray:
  """Casts a weight from outside."""
  value = np.asarray(value)
  if value.dtype.kind not in "fiu" and value.dtype != tf.bfloat16:
    raise ValueError(f"weight {key!r} holds {value.dtype}, and no numbers")
  with np.errstate(over="ignore"):  # Overflows are refused.
    return value.astype(np.float32)


def constant(value: np.ndarray) -> Initializer:
  """Returns the initializer that gives a value for every seed."""
  return lambda shape, seed: tf.constant(value)


def identity() -> Part:
  """Returns a part without weights that changes nothing."""
  return Part(
    function=lambda weights, x, frozen: x,
    names=(),
    initializers=(),
    shapes=(),
    paths=(),
  )


def compose(first: Part, second: Part) -> Part:
  """Returns the part `second(first(x))` with the weights of both, in order.

  Args:
    first: A part.
    second: A part that takes the output of the first.

  Returns:
    The part. Initial weights do not change.

  Raises:
    ValueError: If both have a weight of the same name.
  """
  twice = sorted(set(first.names) & set(second.names))
  if twice:
    raise ValueError(
      f"two parts both have a weight {twice[0]!r}; give their layers different"
      " names"
    )
  size, frozen_size = len(first.names), len(first.frozen)

  def function(weights, x, frozen):
    between = first.function(weights[:size], x, frozen[:frozen_size])
    return second.function(weights[size:], between, frozen[frozen_size:])

  return Part(
    function=function,
    names=first.names + second.names,
    initializers=first.initializers + second.initializers,
    shapes=first.shapes + second.shapes,
    paths=first.paths + second.paths,
    frozen=first.frozen + second.frozen,
    statistics={**first.statistics, **second.statistics},
    normalizers=first.normalizers + second.normalizers,
  )
