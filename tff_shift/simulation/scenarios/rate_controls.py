"""Controls of Fed-ADE: its rates, without what they follow.

A method that sets rates by a measured shift may win by its mean rate, or by
rates that vary, whatever they vary with. Two runs tell these apart, each of
FixLR, whose updates are Fed-ADE's, at rates that come from a finished run of
Fed-ADE of the same seed and schedule:

    fix_lr_mean        its mean rate, for each client at each step
    fed_ade_shuffled   its rates, dealt out anew over clients and steps

The rates of a client at a time step are what the client holds at the end of the
step. They are those that the step was run at unless a step has several rates,
as with `compare=rounds` and more than one round a step.
"""

import dataclasses

import numpy as np

from tff_shift import arguments
from tff_shift.algorithms import fix_lr
from tff_shift.data import partition
from tff_shift.simulation.engine import rounds
from tff_shift.techniques import two_phase_adaptation

NAMES = ("fix_lr_mean", "fed_ade_shuffled")


def fixed_rate(
  hparams: two_phase_adaptation.TwoPhaseHParams,
) -> fix_lr.HParams:
  """Returns FixLR with the updates of another algorithm; its rate is any."""
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
) -> np.ndarray:
  """Counts in how many rounds each client takes part.

  Clients are drawn as in `online_adaptation.run`.

  Args:
    num_timesteps: The number of time steps.
    num_clients: The number of clients.
    run_seed: See `online_adaptation.Adaptation`.
    rounds_per_step: See `online_adaptation.Adaptation`.
    participation: See `online_adaptation.Adaptation`.

  Returns:
    [num_timesteps, num_clients] int64.

  Raises:
    ValueError: If an argument is not allowed.
  """
  num_timesteps = arguments.integer("num_timesteps", num_timesteps)
  num_clients = arguments.integer("num_clients", num_clients)
  rounds_per_step = arguments.integer("rounds_per_step", rounds_per_step)
  counts = np.zeros([num_timesteps, num_clients], np.int64)
  for round_num in range(num_timesteps * rounds_per_step):
    chosen = rounds.sample_clients(
      num_clients, participation, run_seed, round_num
    )
    counts[round_num // rounds_per_step, chosen] += 1
  return counts


def prescribe(
  name: str, rates: np.ndarray, counts: np.ndarray, seed: int
) -> np.ndarray:
  """Computes the rates of a control, a pure function of its arguments.

  Args:
    name: One of `NAMES`.
    rates: The rates of a run, [num_timesteps, num_clients] float32.
    counts: See `num_rounds`. Rates that no round was run at do not count.
    seed: What rates are dealt out by.

  Returns:
    Rates of the shape and type of `rates`. Rounds of clients are run at the
    same mean rate as before, to within rounding; where rates are dealt out
    anew, as many at each rate as before.

  Raises:
    ValueError: There is no such control, or rates and counts do not go together
      or are of no round.
  """
  if name not in NAMES:
    raise ValueError(f"no control {name!r}; there are {', '.join(NAMES)}")
  if rates.shape != counts.shape or not counts.any():
    raise ValueError(
      f"counts must have the shape of rates, {list(rates.shape)}, and a round,"
      f" got {list(counts.shape)} with {int(counts.sum())} rounds"
    )
  if name == "fix_lr_mean":
    mean = np.average(rates.astype(np.float64), weights=counts)
    return np.full_like(rates, mean)
  generator = partition.generator("shuffled rates", seed)
  dealt = rates.copy()
  # Among those who take part equally often, for a rate counts each time.
  for count in np.unique(counts):
    places = counts == count
    dealt[places] = generator.permutation(rates[places])
  return dealt
