"""The privacy guarantee of noise in the clients' sums, by Renyi divergences.

Renyi Differential Privacy of the Sampled Gaussian Mechanism (Mironov, Talwar,
Zhang; 2019); for clients drawn without replacement Subsampled Renyi
Differential Privacy and Analytical Moments Accountant (Wang, Balle,
Kasiviswanathan; AISTATS 2019). Computed by the library dp-accounting.
"""

import math
from typing import NamedTuple

from tff_shift import arguments

# The accountant's largest order is 1024: for smaller deltas the limited orders
# add more than 0.07 to every epsilon.
LEAST_DELTA = 1e-30


class Guarantee(NamedTuple):
  """The privacy guarantee for the weights of a whole run.

  An observer of all weights of a run can detect a client's participation only
  as well as (epsilon, delta)-differential privacy allows.

  Attributes:
    epsilon: For adding or removing a client, if each client takes part in a
      round independently with the sampling probability (Poisson sampling).
    replacement_epsilon: For replacing a client by another, if exactly this
      fraction of the clients takes part in each round.
    delta: The delta of both.
    sampling_probability: Clients per round over number of clients, q.
    noise_multiplier: Standard deviation of the noise in a sum, over the norm to
      which a client's addend is clipped.
    num_rounds: The number of rounds.
  """

  epsilon: float
  replacement_epsilon: float
  delta: float
  sampling_probability: float
  noise_multiplier: float
  num_rounds: int


def account(
  *,
  noise_multiplier: float,
  num_clients: int,
  clients_per_round: int,
  num_rounds: int,
  delta: float = 0.0,
) -> Guarantee:
  """Accounts for the privacy of a run.

  Args:
    noise_multiplier: See `Guarantee`; at 0 both epsilons are infinite.
    num_clients: The number of clients.
    clients_per_round: The number of clients in a round, at least 1.
    num_rounds: The number of rounds.
    delta: The delta for which epsilon is computed; 0: `num_clients ** -1.1`.

  Returns:
    The guarantee.

  Raises:
    ValueError: If delta or the noise is outside of the accountant's range, or
      delta is 0 with one client; one line that names it.
  """
  noise_multiplier = arguments.number(
    "noise_multiplier", noise_multiplier, "at least 0", lambda z: z >= 0
  )
  delta = arguments.number(
    "dp_delta",
    delta,
    f"from {LEAST_DELTA:g} to below 1, or 0",
    lambda value: not value or LEAST_DELTA <= value < 1,
  )
  if not delta and num_clients == 1:
    raise ValueError(
      "dp_delta=0 is not allowed with one client: it must be above 0"
    )
  # Takes 0.3 s to import, and command lines import this module.
  import dp_accounting

  delta = delta or num_clients**-1.1
  probability = clients_per_round / num_clients
  relation = dp_accounting.NeighboringRelation

  def epsilon(neighbours, event):
    if not noise_multiplier:
      return math.inf
    accountant = dp_accounting.rdp.RdpAccountant(
      neighboring_relation=neighbours
    )
    try:
      accountant.compose(event, num_rounds)
      found = float(accountant.get_epsilon(delta))
    # Raised if rounding makes a sum negative, or a number is too large for a
    # float.
    except (ValueError, ArithmeticError):
      found = math.nan
    if not math.isfinite(found):
      raise ValueError(
        f"noise_multiplier={noise_multiplier:g} is not allowed with"
        f" {clients_per_round} of {num_clients} clients in a round: the"
        " accountant of epsilon does not support such a"
        f" {'large' if noise_multiplier > 1 else 'small'} value"
      )
    return found

  # Replacing a client changes the sum by up to twice the norm.
  gaussian, halved = (
    dp_accounting.GaussianDpEvent(noise_multiplier / moved) for moved in (1, 2)
  )
  return Guarantee(
    epsilon=epsilon(
      relation.ADD_OR_REMOVE_ONE,
      dp_accounting.PoissonSampledDpEvent(probability, gaussian),
    ),
    replacement_epsilon=epsilon(
      relation.REPLACE_ONE,
      dp_accounting.SampledWithoutReplacementDpEvent(
        num_clients, clients_per_round, halved
      ),
    ),
    delta=delta,
    sampling_probability=probability,
    noise_multiplier=noise_multiplier,
    num_rounds=num_rounds,
  )
