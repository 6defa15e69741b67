"""Drift of any kind in your own images, by the settings of ANDA.

ANDA is "A Non-IID Data generator supporting Any kind" (github.com/
alfredoLimo/ANDA, 05d0dfb), by which the program of Feroma draws its clients.
This is its mode `trDR_teDR`: the steps of a client have distributions from a
bank, such as A-A-B-B-A, and the last one has another that it never had. The
kinds, with ANDA's names:

    covariate (Px)          all images of a step are rotated and coloured
    label (Py)              a step has a few classes only
    concept (Px_y)          a few classes exchange their labels
    class_conditional (Py_x)
                            the images of a few classes are rotated and coloured

ANDA calls exchanged labels a change of P(x|y), and changed images of some
classes one of P(y|x). Exchanged labels change P(y|x) for an image, too, and
changed images of a class are its P(x|y).

Differences from ANDA:
  * Rotations are exact, by multiples of 90 degrees.
  * The examples of the last step are none of the steps before, from one array.
    ANDA takes them from a test split.
  * Without ANDA's replication of examples; but as there, `label` shows all of a
    client's examples of the classes in each of its steps.
"""

import itertools
import math
from collections.abc import Callable
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from tff_shift._util import arguments
from tff_shift.data import partition

KINDS = ("covariate", "label", "concept", "class_conditional")

# ANDA's defaults.
_CLASSES = {"label": 2, "concept": 3, "class_conditional": 2}
_COLORS = {"covariate": 3, "class_conditional": 2}
_BANK_SIZE = 10
# The bank of concepts has all permutations, 720 of six classes.
_MOST_EXCHANGED = 6
# The channel that a colour fills: red, blue, green.
_CHANNELS = (0, 2, 1)

# What a distribution does to the images and labels of a step.
Change = Callable[[np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]]


class Drift(NamedTuple):
  """Drifting clients.

  Attributes:
    arrays: `x`, `y`, `domain` and `client`, for `numpy.savez` and `--dataset`.
    distributions: The number of the distribution of each client in each step,
      `[num_clients, num_steps + 1]`, without the labelled step.
  """

  arrays: dict[str, np.ndarray]
  distributions: np.ndarray


def drift(
  x: np.ndarray,
  y: np.ndarray,
  *,
  kind: str,
  num_clients: int,
  num_steps: int = 10,
  max_distributions: int = 2,
  continual: bool = False,
  num_rotations: int = 2,
  num_colors: int | None = None,
  num_classes_changed: int | None = None,
  labelled_fraction: float = 0.0,
  seed: int = 0,
) -> Drift:
  """Deals images to clients and lets their distributions drift.

  Args:
    x: Images, `[n, height, width, 1 or 3]` uint8; square for four rotations.
    y: Classes, `[n]` integers from 0.
    kind: One of `KINDS`.
    num_clients: The number of clients, which get equal parts at random.
    num_steps: The number of steps before the last one.
    max_distributions: The largest number of distributions of a client in them.
    continual: Whether a client never returns to an earlier distribution.
    num_rotations: 1, 2 (0 and 180 degrees) or 4. (covariate, class_conditional)
    num_colors: 1 (none), 2 (red, blue) or 3 (and green): a channel is filled,
      and grey images get three. Default: 3 (covariate), 2 (class_conditional).
    num_classes_changed: The number of classes of a step (label), that exchange
      labels (concept; at most 6) or whose images change (class_conditional).
      Default: 2, 3, 2.
    labelled_fraction: The fraction of a client's images that precede the steps
      unchanged, as domain 0: those before deployment in `online_adaptation`.
    seed: Seed of all draws.

  Returns:
    The clients; domains are numbered from 0, and the last one is the unseen
    distribution.

  Raises:
    ValueError: If an argument is not allowed, or a step would be empty.
  """
  x, y = np.asarray(x), np.asarray(y)
  if x.dtype != np.uint8 or x.ndim != 4 or x.shape[-1] not in (1, 3):
    raise ValueError(
      "x must be images [n, height, width, 1 or 3] of dtype uint8, got"
      f" {list(x.shape)} of dtype {x.dtype}"
    )
  if y.shape != x.shape[:1] or not np.issubdtype(y.dtype, np.integer):
    raise ValueError(
      f"y must be {len(x)} integers, a class for each image, got"
      f" {list(y.shape)} of dtype {y.dtype}"
    )
  kind = arguments.choice("kind", kind, KINDS)
  num_clients = arguments.integer("num_clients", num_clients)
  num_steps = arguments.integer("num_steps", num_steps)
  labelled = arguments.number("labelled_fraction", labelled_fraction)
  if not 0 <= labelled < 1:
    raise ValueError(
      f"labelled_fraction must be at least 0 and below 1, got {labelled:g}"
    )
  random = partition.generator("anda", seed)
  bank = _bank(
    kind,
    random,
    np.unique(y),
    _turns(num_rotations, x),
    num_colors,
    num_classes_changed,
  )
  max_distributions = arguments.integer(
    "max_distributions", max_distributions, maximum=len(bank) - 1
  )
  # All images get three channels, also those that no colour changes.
  if x.shape[-1] == 1 and any(change.colors for change in bank):
    x = np.repeat(x, 3, axis=-1)
  parts = np.array_split(random.permutation(len(x)), num_clients)
  first = int(labelled > 0)
  found = []
  drawn = []
  for client, part in enumerate(parts):
    *sequence, unseen = _sequence(
      random, len(bank), num_steps, max_distributions, continual
    )
    drawn.append([*sequence, unseen])
    before, *steps = _steps(
      kind, part, round(labelled * len(part)), num_steps, y, bank, drawn[-1]
    )
    if first:
      found.append((client, 0, x[before], y[before]))
    for time, (positions, number) in enumerate(
      zip(steps, drawn[-1], strict=True), first
    ):
      if not len(positions):
        raise ValueError(
          f"client {client} would have no image in step {time}; use fewer"
          " clients or steps, or more images"
        )
      found.append((client, time, *bank[number](x[positions], y[positions])))
  clients, times, images, labels = zip(*found, strict=True)
  sizes = [len(each) for each in labels]
  return Drift(
    {
      "x": np.concatenate(images),
      "y": np.concatenate(labels).astype(np.int32),
      "domain": np.repeat(np.array(times, np.int32), sizes),
      "client": np.repeat(np.array(clients, np.int32), sizes),
    },
    np.array(drawn, np.int32),
  )


class _Distribution(NamedTuple):
  """A distribution of the bank.

  Attributes:
    turns: Quarter turns of the images.
    colors: The channel that is filled, or nothing.
    classes: The classes whose images change. None: all.
    labels: The labels that take the place of others.
    kept: The classes of a step. None: all.
  """

  turns: int = 0
  colors: tuple[int, ...] = ()
  classes: np.ndarray | None = None
  labels: dict[int, int] | None = None
  kept: np.ndarray | None = None

  def __call__(self, x, y):
    """Returns the changed images and labels."""
    chosen = np.ones(len(y), bool)
    if self.classes is not None:
      chosen = np.isin(y, self.classes)
    changed = x.copy()
    changed[chosen] = np.rot90(x[chosen], self.turns, axes=(1, 2))
    for channel in self.colors:
      changed[chosen, ..., channel] = 255
    labels = y.copy()
    for old, new in (self.labels or {}).items():
      labels[y == old] = new
    return changed, labels


def _turns(num_rotations: int, x: np.ndarray) -> list[int]:
  """Returns the quarter turns of the rotations."""
  if num_rotations not in (1, 2, 4):
    raise ValueError(f"num_rotations must be 1, 2 or 4, got {num_rotations!r}")
  if num_rotations == 4 and x.shape[1] != x.shape[2]:
    raise ValueError(
      f"num_rotations=4 needs square images, got {x.shape[1]} x {x.shape[2]}"
    )
  return [number * 4 // num_rotations for number in range(num_rotations)]


def _bank(
  kind: str,
  random: np.random.Generator,
  classes: np.ndarray,
  turns: Sequence[int],
  num_colors: int | None,
  num_classes_changed: int | None,
) -> list[_Distribution]:
  """Draws the distributions among which clients drift."""
  if kind not in _COLORS and num_colors is not None:
    raise ValueError(f"num_colors does not apply to kind={kind!r}")
  if kind not in _CLASSES and num_classes_changed is not None:
    raise ValueError(f"num_classes_changed does not apply to kind={kind!r}")
  if num_colors is None:
    num_colors = _COLORS.get(kind, 1)
  num_colors = arguments.integer("num_colors", num_colors, maximum=3)
  colors: list[tuple[int, ...]] = [()]
  if num_colors > 1:
    colors = [(channel,) for channel in _CHANNELS[:num_colors]]
  patterns = [_Distribution(turn, color) for turn in turns for color in colors]
  if kind == "covariate":
    return patterns
  if num_classes_changed is None:
    num_classes_changed = _CLASSES[kind]
  maximum = len(classes)
  if kind == "concept":
    maximum = min(maximum, _MOST_EXCHANGED)
  size = arguments.integer(
    "num_classes_changed", num_classes_changed, maximum=maximum
  )
  if kind == "concept":
    changed = np.sort(random.choice(classes, size, replace=False)).tolist()
    return [
      _Distribution(labels=dict(zip(changed, order, strict=True)))
      for order in itertools.permutations(changed)
    ]
  sets = set()
  while len(sets) < min(_BANK_SIZE, math.comb(len(classes), size)):
    sets.add(tuple(np.sort(random.choice(classes, size, replace=False))))
  if kind == "label":
    return [_Distribution(kept=np.array(each)) for each in sorted(sets)]
  return [
    patterns[random.integers(len(patterns))]._replace(classes=np.array(each))
    for each in sorted(sets)
  ]


def _sequence(
  random: np.random.Generator,
  size: int,
  num_steps: int,
  max_distributions: int,
  continual: bool,
) -> list[int]:
  """Draws a client's distributions, the unseen one last."""
  unseen = int(random.integers(size))
  bank = [number for number in range(size) if number != unseen]
  drawn: list[int] = []
  while len(drawn) < num_steps:
    if len(set(drawn)) == max_distributions:
      drawn.append(drawn[-1] if continual else int(random.choice(drawn)))
      continue
    if drawn and continual:
      bank = [each for each in bank if each not in drawn or each == drawn[-1]]
    drawn.append(int(random.choice(bank)))
  return [*drawn, unseen]


def _steps(
  kind: str,
  part: np.ndarray,
  num_labelled: int,
  num_steps: int,
  y: np.ndarray,
  bank: Sequence[_Distribution],
  drawn: Sequence[int],
) -> list[np.ndarray]:
  """Returns the positions of the labelled step and of each other one."""
  steps = np.array_split(part[num_labelled:], num_steps + 1)
  if kind == "label":
    sources = np.concatenate(steps[:-1])
    steps = [
      positions[np.isin(y[positions], bank[number].kept)]
      for positions, number in zip(
        [sources] * num_steps + steps[-1:], drawn, strict=True
      )
    ]
  return [part[:num_labelled], *steps]
