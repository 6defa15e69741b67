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

Choices:
  * The driver writes the rates into the clients' states, so that one FixLR
    serves all. Permuted rates keep their number of rounds. FixLR at Fed-ADE's
    own rates, not permuted, reproduces its results bit for bit.
"""

import dataclasses

import numpy as np

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
  is_present: np.ndarray,
  *,
  run_seed: int,
  rounds_per_step: int,
  participation: float,
  repeats_cohorts: bool,
) -> np.ndarray:
  """Counts the rounds in which each client takes part.

  Clients are sampled as in `online_adaptation.run`.

  Args:
    is_present: Whether a client has examples at a time step,
      [num_timesteps, num_clients] bool.
    run_seed: The run's seed.
    rounds_per_step: The number of rounds per time step.
    participation: The client fraction per round.
    repeats_cohorts: Whether each time step has the cohorts of the first one.

  Returns:
    [num_timesteps, num_clients] int64.
  """
  counts = np.zeros(is_present.shape, np.int64)
  for round_num in range(len(is_present) * rounds_per_step):
    step = round_num // rounds_per_step
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
  """
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
