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

Two programs draw schedules of these names in another way, see `SOURCES`:

- program: the program that the authors released (github.com/h2w1/Fed-ADE,
  commit ad36802), whose steps are t = 0..N with N = T - 1. With
  L = floor(sqrt(N)): linear t / N; sine (1 + sin(2 pi (t mod L) / L)) / 2,
  which starts at 1/2; square floor(t / floor(L / 2)) mod 2; bernoulli, the
  state after t flips of probability 1 / sqrt(T), but with new draws at each
  step: weights of different steps are independent, and 1 with probability
  (1 - (1 - 2 / sqrt(T))^t) / 2. Each client has its own.
- online_label_shift: Adapting to Online Label Shift with Provable Guarantees
  (Bai, Zhang, Zhao, Sugiyama, Zhou; NeurIPS 2022) and Online Label Shift:
  Optimal Dynamic Regret meets Practical Algorithms (Baby, Garg, Yen,
  Balakrishnan, Lipton, Wang; NeurIPS 2023), as in the latter's program
  (github.com/acmi-lab/OnlineLabelShift): the phases of square have sqrt(T)
  steps, not half as many; the others are as here.
"""

import math

import numpy as np

from tff_shift._util import arguments
from tff_shift.data import partition

BERNOULLI_FLIPS = ("inverse_sqrt", "as_printed")
SOURCES = ("paper", "program", "online_label_shift")


def names() -> tuple[str, ...]:
  """Returns the names of the schedules, in the order of the paper."""
  return ("linear", "sine", "square", "bernoulli")


def omega(
  name: str,
  num_timesteps: int,
  *,
  seed: partition.Seed = 0,
  bernoulli_flip: str = "inverse_sqrt",
  source: str = "paper",
) -> np.ndarray:
  """Computes the weight of the target distribution at every time step.

  Args:
    name: One of `names()`.
    num_timesteps: Number of time steps T of adaptation.
    seed: Seed of the flips of `bernoulli`, such as `(run seed, client)` for a
      schedule per client; the other schedules are deterministic.
    bernoulli_flip: "inverse_sqrt": `bernoulli` flips with probability
      1 / sqrt(T); "as_printed": it keeps its value with that probability.
    source: Whose schedules these are, one of `SOURCES`.

  Returns:
    `[num_timesteps + 1]` float64 in [0, 1]; entry t is omega(t), entry 0 is 0.

  Raises:
    ValueError: If there is no schedule, kind of flip or source of this name,
      `num_timesteps` is below 1, the seed is not made of non-negative integers,
      or a flip as printed is asked of a program.
  """
  partition.check_positive_integer("num_timesteps", num_timesteps)
  arguments.choice("schedule", name, names())
  arguments.choice("bernoulli_flip", bernoulli_flip, BERNOULLI_FLIPS)
  arguments.choice("source", source, SOURCES)
  if source != "paper" and bernoulli_flip != "inverse_sqrt":
    raise ValueError(
      f"bernoulli_flip={bernoulli_flip} is not allowed with source={source},"
      " which defines the flips"
    )
  if source == "program":
    return _omega_of_program(name, num_timesteps, seed)
  steps = np.arange(num_timesteps + 1)
  root = math.sqrt(num_timesteps)
  if name == "linear":
    weights = steps / num_timesteps
  elif name == "sine":
    weights = np.abs(np.sin(np.pi * steps / root))
  elif name == "square" and source == "online_label_shift":
    weights = np.floor(steps / root) % 2
  elif name == "square":
    # 2 t / sqrt(T), since halving the root first could round twice.
    weights = np.floor(2 * steps / root) % 2
  else:
    flip = 1 / root if bernoulli_flip == "inverse_sqrt" else 1 - 1 / root
    rng = partition.generator("bernoulli schedule", seed)
    flips = rng.random(num_timesteps) < flip
    weights = np.concatenate([[0.0], np.cumsum(flips) % 2])
  return weights.clip(0, 1)


def is_per_client(name: str, source: str) -> bool:
  """Returns whether each client has its own schedule."""
  return source == "program" and name == "bernoulli"


def _omega_of_program(
  name: str, num_timesteps: int, seed: partition.Seed
) -> np.ndarray:
  """Computes the weights of the authors' program, see the module."""
  # Before the first of the program's steps is the state of pre-training.
  steps = np.arange(num_timesteps)
  weights: np.ndarray
  last = num_timesteps - 1
  period = max(math.isqrt(last), 1)
  if name == "linear":
    weights = steps / max(last, 1)
  elif name == "sine":
    angles = 2 * np.pi * (steps % period) / period
    weights = (1 + np.sin(angles)) / 2
  elif name == "square":
    weights = 1.0 * (steps // max(period // 2, 1) % 2)
  else:
    odds = 1 - 2 / math.sqrt(num_timesteps)
    rng = partition.generator("independent bernoulli schedule", seed)
    weights = 1.0 * (rng.random(num_timesteps) < (1 - odds**steps) / 2)
  return np.concatenate([[0.0], weights]).clip(0, 1)
