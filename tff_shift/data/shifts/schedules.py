"""Schedules of distribution shift: the weight omega(t) of Fed-ADE.

"Fed-ADE", section G.2: the distribution at time step t is
`(1 - omega(t)) Q_0 + omega(t) Q_T` (eq. 1), with omega(t) in [0, 1]. Step 0 is
the state of pre-training, so omega(0) = 0 in every schedule; adaptation runs
over the steps 1 to T.

- linear: t / T.
- sine: |sin(pi t / sqrt(T))|. The paper prints it without the absolute value,
  so that every other arch would be negative.
- square: alternates between 0 and 1, starting at 0, with sqrt(T) / 2 steps
  each: floor(t / (sqrt(T) / 2)) mod 2. If sqrt(T) / 2 is not a whole number,
  the lengths of the phases differ by one step and have this mean.
- bernoulli: starts at 0 and flips to 1 - omega(t - 1) with probability
  1 / sqrt(T) at every step from 1 to T. The paper prints that it keeps its
  value with this probability, so that it would flip at nearly every step, at
  odds with "a scale proportional to sqrt(T)" in the same sentence;
  `bernoulli_flip="as_printed"` follows the print.
"""

# Decisions: BUILD_NOTES, "Streams that drift: Fed-ADE".

import math

import numpy as np

from tff_shift import arguments
from tff_shift.data import partition

BERNOULLI_FLIPS = ("inverse_sqrt", "as_printed")


def names() -> tuple[str, ...]:
  """Returns the names of the schedules, in the order of the paper."""
  return ("linear", "sine", "square", "bernoulli")


def omega(
  name: str,
  num_timesteps: int,
  *,
  seed: partition.Seed = 0,
  bernoulli_flip: str = "inverse_sqrt",
) -> np.ndarray:
  """Computes the weight of the target distribution at every time step.

  Args:
    name: One of `names()`.
    num_timesteps: Number of time steps T of adaptation.
    seed: Seed of the flips of `bernoulli`, such as `(run seed, client)` for a
      schedule per client; the other schedules are deterministic.
    bernoulli_flip: "inverse_sqrt": `bernoulli` flips with probability
      1 / sqrt(T); "as_printed": it keeps its value with that probability.

  Returns:
    `[num_timesteps + 1]` float64 in [0, 1]; entry t is omega(t), entry 0 is 0.

  Raises:
    ValueError: If there is no schedule or kind of flip of this name,
      `num_timesteps` is below 1, or the seed is not made of non-negative
      integers.
  """
  partition.check_positive_integer("num_timesteps", num_timesteps)
  arguments.choice("schedule", name, names())
  arguments.choice("bernoulli_flip", bernoulli_flip, BERNOULLI_FLIPS)
  steps = np.arange(num_timesteps + 1)
  root = math.sqrt(num_timesteps)
  if name == "linear":
    weights = steps / num_timesteps
  elif name == "sine":
    weights = np.abs(np.sin(np.pi * steps / root))
  elif name == "square":
    # 2 t / sqrt(T), since halving the root first could round twice.
    weights = np.floor(2 * steps / root) % 2
  else:
    flip = 1 / root if bernoulli_flip == "inverse_sqrt" else 1 - 1 / root
    rng = partition.generator("bernoulli schedule", seed)
    flips = rng.random(num_timesteps) < flip
    weights = np.concatenate([[0.0], np.cumsum(flips) % 2])
  return weights.clip(0, 1)
