"""Pure functions of weights, which models are composed of.

A part says of each of its weights what it is called, what shape it has and how
it starts. It may come from a Keras model (`keras_parts`) or be written by hand.
"""

import dataclasses
from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from tff_shift.data import examples
from tff_shift.models import modes

# What is folded into a model's seed before anything else, for each part that
# a model is built of.
BACKBONE, HEAD, CLIENT_BRANCH = range(3)
# What they are called in names.
STREAMS = ("backbone", "head", "client_branch")

Path = tuple[int, ...]
Initializer = Callable[[tuple[int, ...], tf.Tensor], tf.Tensor]


def paths(stream: int, count: int, start: int = 0) -> tuple[Path, ...]:
  """Returns the paths of weights that are drawn one after the other.

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
  """A pure function of weights, with what names and initialises these.

  Attributes:
    function: `(weights, x, frozen) -> y`. Weights are a tuple of float32
      tensors, `frozen` is like the attribute of this name.
    names: A name for each weight, `<layer>/<weight>`.
    initializers: For each weight `(shape, seed) -> float32 tensor`; the seed is
      an int32 tensor of shape [2].
    shapes: The shape of each weight.
    paths: For each weight the numbers that are folded into the model's seed,
      one after the other, to give the seed of its initializer. It goes with a
      weight that moves to another part, so that its start stays the same.
    frozen: What the function takes and nothing trains: a tuple of arrays or
      tensors, or of nested structures of them.
    source: What the part was made of, for the module that made it.
    statistics: The running statistics of batch normalisation that a part starts
      with, float32 arrays by name, `<part of the model>/<layer>/<weight>`.
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
  # Arrays are not compared, nor has a dictionary a hash.
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
        own_seed = tf.random.experimental.stateless_fold_in(own_seed, number)
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
    """Returns the part with initial weights that are given, not drawn."""
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
        raise ValueError(f"{name!r} has numbers below 0, and is a variance")
    return dataclasses.replace(
      self, initializers=tuple(initializers), statistics=statistics
    )


def require(
  values: Mapping[str, Any], keys: Iterable[str], prefix: str
) -> None:
  """Refuses values of which one is missing; the prefix is that of a part."""
  for key in keys:
    if key not in values:
      raise ValueError(
        f"weight {key!r} is missing; give all weights of {prefix!r} or none"
      )


def given(
  values: Mapping[str, Any], key: str, shape: tuple[int, ...], prefix: str
) -> np.ndarray:
  """Returns a weight that comes from outside, checked.

  Args:
    values: The weights by name.
    key: The name of the weight.
    shape: The shape that it must have.
    prefix: The part, all of whose weights must be there.

  Returns:
    The weight, float32.

  Raises:
    ValueError: If it is missing, of another shape, no number, or not finite.
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
  """Casts a weight that comes from outside."""
  value = np.asarray(value)
  if value.dtype.kind not in "fiu" and value.dtype != tf.bfloat16:
    raise ValueError(f"weight {key!r} holds {value.dtype}, and no numbers")
  with np.errstate(over="ignore"):  # What overflows is refused.
    return value.astype(np.float32)


def constant(value: np.ndarray) -> Initializer:
  """Returns the initializer that gives a value whatever the seed."""
  return lambda shape, seed: tf.constant(value)


def identity() -> Part:
  """Returns the part that has no weights and changes nothing."""
  return Part(
    function=lambda weights, x, frozen: x,
    names=(),
    initializers=(),
    shapes=(),
    paths=(),
  )


def compose(first: Part, second: Part) -> Part:
  """Returns the part `second(first(x))` of the weights of both, in order.

  Args:
    first: A part.
    second: A part that takes what the first gives.

  Returns:
    The part. Each weight starts as it does in the part that it is from.

  Raises:
    ValueError: If both have a weight of one name.
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
