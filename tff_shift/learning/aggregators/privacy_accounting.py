"""What noise in the clients' sums guarantees, by Renyi divergences.

Renyi Differential Privacy of the Sampled Gaussian Mechanism (Mironov, Talwar,
Zhang; 2019); for clients drawn without replacement Subsampled Renyi
Differential Privacy and Analytical Moments Accountant (Wang, Balle,
Kasiviswanathan; AISTATS 2019). Computed by the library dp-accounting.
"""

import math
from typing import NamedTuple

from tff_shift import arguments

# The accountant's largest order is 1024: below this delta it adds more than
# 0.07 to every epsilon, which then tells of the orders and not of the noise.
LEAST_DELTA = 1e-30


class Guarantee(NamedTuple):
  """What the noise guarantees for the weights of a whole run.

  Who sees all of a run's weights can tell whether a client was there no better
  than (epsilon, delta)-differential privacy allows.

  Attributes:
    epsilon: For a client more or less, if each takes part in a round
      independently with the sampling probability (Poisson sampling).
    replacement_epsilon: For a client replaced by another, if exactly that share
      of the clients takes part in a round.
    delta: The delta of both.
    sampling_probability: Clients in a round over clients, q.
    noise_multiplier: Standard deviation of the noise in a sum, over the norm to
      which a client's part of it is clipped.
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
    num_clients: The number of clients there are.
    clients_per_round: The number of them in a round, at least 1.
    num_rounds: The number of rounds.
    delta: The delta that epsilon is computed for; 0: `num_clients ** -1.1`.

  Returns:
    The guarantee.

  Raises:
    ValueError: If delta or the noise is out of the accountant's range, or there
      is but one client and no delta; one line that names it.
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
    # Of a sum that rounding has made negative, or of a number that is too large
    # for a float.
    except (ValueError, ArithmeticError):
      found = math.nan
    if not math.isfinite(found):
      raise ValueError(
        f"noise_multiplier={noise_multiplier:g} is not allowed with"
        f" {clients_per_round} of {num_clients} clients in a round: the"
        " accountant of epsilon cannot compute with so"
        f" {'much' if noise_multiplier > 1 else 'little'} noise"
      )
    return found

  # A client that is replaced moves the sum by up to twice the norm.
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
