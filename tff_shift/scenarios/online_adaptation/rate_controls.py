"""Ablations of Fed-ADE: its learning rates, without their dependence on shift.

A method that sets rates by a measured shift may win because of its mean rate,
or because rates vary at all. Two ablations distinguish these. Each runs FixLR,
whose updates are Fed-ADE's, with rates from a finished run of Fed-ADE with the
same seed and schedule:

    fix_lr_mean        a constant rate, the mean of Fed-ADE's
    fed_ade_shuffled   Fed-ADE's rates, permuted over clients and steps

The rate of a client at a time step is the one in its state at the end of the
step. It equals the rate used in the step unless a step has several rates, as
with `compare=rounds` and more than one round per step.
"""

import dataclasses

import numpy as np

from tff_shift._util import arguments
from tff_shift.algorithms import fix_lr
from tff_shift.algorithms.parts import two_phase_adaptation
from tff_shift.data import partition
from tff_shift.simulation.engine import rounds

NAMES = ("fix_lr_mean", "fed_ade_shuffled")


def fixed_rate(
  hparams: two_phase_adaptation.TwoPhaseHParams,
) -> fix_lr.HParams:
  """Returns FixLR with another algorithm's updates; its rate is a dummy."""
  return fix_lr.HParams(
    **{
      field.name: getattr(hparams, field.name)
      for field in dataclasses.fields(two_phase_adaptation.TwoPhaseHParams)
    }
  )


def num_rounds(
  num_timesteps: int,
  num_clients: int,
  *,
  run_seed: int,
  rounds_per_step: int,
  participation: float,
  is_present: np.ndarray | None = None,
  repeats_cohorts: bool = False,
) -> np.ndarray:
  """Counts the rounds in which each client takes part.

  Clients are sampled as in `online_adaptation.run`.

  Args:
    num_timesteps: The number of time steps.
    num_clients: The number of clients.
    run_seed: The run's seed.
    rounds_per_step: The number of rounds per time step.
    participation: The client fraction per round.
    is_present: Whether a client has examples at a time step,
      [num_timesteps, num_clients] bool. None: all have.
    repeats_cohorts: Whether each time step has the cohorts of the first one.

  Returns:
    [num_timesteps, num_clients] int64.

  Raises:
    ValueError: If an argument is not allowed.
  """
  num_timesteps = arguments.integer("num_timesteps", num_timesteps)
  num_clients = arguments.integer("num_clients", num_clients)
  rounds_per_step = arguments.integer("rounds_per_step", rounds_per_step)
  counts = np.zeros([num_timesteps, num_clients], np.int64)
  present = np.arange(num_clients)
  for round_num in range(num_timesteps * rounds_per_step):
    step = round_num // rounds_per_step
    if is_present is not None:
      present = np.flatnonzero(is_present[step])
    chosen = rounds.sample_clients(
      len(present),
      participation,
      run_seed,
      round_num % rounds_per_step if repeats_cohorts else round_num,
    )
    counts[step, present[chosen]] += 1
  return counts


def prescribe(
  name: str, rates: np.ndarray, counts: np.ndarray, seed: int
) -> np.ndarray:
  """Computes the rates of an ablation, a pure function of its arguments.

  Args:
    name: One of `NAMES`.
    rates: The rates of a run, [num_timesteps, num_clients] float32.
    counts: The result of `num_rounds`. Rates without a round are ignored; NaN,
      of an absent client, becomes 0.
    seed: Seed of the permutation.

  Returns:
    Rates of the shape and type of `rates`. The mean rate over the clients'
    rounds is preserved up to rounding; permuted rates also preserve the number
    of rounds at each rate.

  Raises:
    ValueError: If there is no such ablation, the shapes of rates and counts
      differ, or there are no rounds.
  """
  if name not in NAMES:
    raise ValueError(f"no control {name!r}; there are {', '.join(NAMES)}")
  if rates.shape != counts.shape or not counts.any():
    raise ValueError(
      f"counts must have the shape of rates, {list(rates.shape)}, and a round,"
      f" got {list(counts.shape)} with {int(counts.sum())} rounds"
    )
  rates = np.where(np.isnan(rates), np.float32(0), rates)
  if name == "fix_lr_mean":
    mean = np.average(rates.astype(np.float64), weights=counts)
    return np.full_like(rates, mean)
  generator = partition.generator("shuffled rates", seed)
  permuted = rates.copy()
  # Only among equal counts, since a rate counts in each of its rounds.
  for count in np.unique(counts):
    positions = counts == count
    permuted[positions] = generator.permutation(rates[positions])
  return permuted
