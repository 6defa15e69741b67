"""The privacy guarantee of noise in the clients' sums, by Renyi divergences.

Renyi Differential Privacy of the Sampled Gaussian Mechanism (Mironov, Talwar,
Zhang; 2019); for clients drawn without replacement Subsampled Renyi
Differential Privacy and Analytical Moments Accountant (Wang, Balle,
Kasiviswanathan; AISTATS 2019). Computed by the library dp-accounting. For trees
of noise Practical and Private (Deep) Learning without Sampling or Shuffling
(Kairouz et al.; ICML 2021), Appendix D.

Choices:
  * Two epsilons are stored. The one that holds for the run's cohorts is called
    epsilon: a fixed cohort size without replacement, or Poisson sampling
    (`--client_sampling=poisson`), as in the literature. A round without clients
    or examples adds noise, since its absence would tell who takes part.
  * Delta is at least 1e-30: the accountant's largest order is 1024, and for
    smaller deltas epsilon would depend on the orders instead of the noise. A
    multiplier is at most 10,000: accounting for more takes minutes or fails.
  * Cohorts follow from the seeds, which are in config.json, also with `dp`, so
    that runs can be repeated and resumed. An epsilon that relies on the
    sampling of clients therefore holds only against those who do not know the
    seeds; the printed line states this.
  * For trees epsilon assumes nothing about cohorts but the least distance of
    two rounds of a client. The exact worst case is a dynamic programme in
    tensorflow-privacy, which took 4 s for 1,000 rounds of a client that are 20
    apart, and over 100 s for 2,000 rounds 100 apart. Each level of the tree is
    therefore bounded in closed form: 2,076 instead of 1,968 squared norms in
    the first case.
"""

import math
from typing import NamedTuple

from tff_shift._util import arguments

# The accountant's largest order is 1024: for smaller deltas the limited orders
# add more than 0.07 to every epsilon.
LEAST_DELTA = 1e-30

# A delta above this is a guarantee for few clients only: it is the probability
# with which the guarantee may fail altogether.
LARGE_DELTA = 1e-3

# What two neighbouring runs differ in.
ADD_OR_REMOVE = "adding or removing a client"
REPLACE = "replacing a client"
ZERO_OUT = "replacing a client's updates by zeros"


class Guarantee(NamedTuple):
  """The privacy guarantee for the weights of a whole run.

  An observer of all weights of a run can detect a client's participation only
  as well as (epsilon, delta)-differential privacy allows.

  Attributes:
    epsilon: The one that holds for the cohorts of the run.
    relation: What it is for, `REPLACE` or `ADD_OR_REMOVE`.
    fixed_size_epsilon: For replacing a client by another, if exactly this
      fraction of the clients takes part in each round.
    poisson_epsilon: For adding or removing a client, if each client takes part
      in a round independently with the sampling probability.
    delta: The delta of all.
    sampling_probability: Clients per round over number of clients, q.
    noise_multiplier: Standard deviation of the noise in a sum, over the norm to
      which a client's addend is clipped.
    num_rounds: The number of rounds.
  """

  epsilon: float
  relation: str
  fixed_size_epsilon: float
  poisson_epsilon: float
  delta: float
  sampling_probability: float
  noise_multiplier: float
  num_rounds: int


class TreeGuarantee(NamedTuple):
  """The privacy guarantee of noise in a tree, for the weights of a run.

  It needs no random cohorts: a client may be in any rounds that are at least
  `separation` apart.

  Attributes:
    epsilon: For replacing all updates of a client by zeros.
    replacement_epsilon: For replacing a client by another.
    delta: The delta of both.
    separation: The least difference of two rounds of a client.
    max_rounds: The most rounds that a client can be in.
  """

  epsilon: float
  replacement_epsilon: float
  delta: float
  separation: int
  max_rounds: int


def account(
  *,
  noise_multiplier: float,
  num_clients: int,
  clients_per_round: int,
  num_rounds: int,
  delta: float = 0.0,
  is_poisson: bool = False,
) -> Guarantee:
  """Accounts for the privacy of a run.

  Args:
    noise_multiplier: See `Guarantee`; at 0 both epsilons are infinite.
    num_clients: The number of clients.
    clients_per_round: The number of clients in a round, at least 1; for Poisson
      sampling the expected number.
    num_rounds: The number of rounds.
    delta: The delta for which epsilon is computed; 0: `num_clients ** -1.1`.
    is_poisson: Whether each client takes part independently. Otherwise cohorts
      have a fixed size.

  Returns:
    The guarantee.

  Raises:
    ValueError: If delta or the noise is outside of the accountant's range, or
      delta is 0 with one client; one line that names it.
  """
  noise_multiplier = _checked_noise(noise_multiplier)
  delta = _checked_delta(delta, num_clients)
  # Takes 0.3 s to import, and command lines import this module.
  import dp_accounting

  probability = clients_per_round / num_clients
  relation = dp_accounting.NeighboringRelation

  def epsilon(neighbours, event):
    return _epsilon(
      event,
      num_rounds,
      delta,
      neighbours,
      noise_multiplier,
      f"{clients_per_round} of {num_clients} clients in a round",
    )

  # Replacing a client changes the sum by up to twice the norm.
  gaussian, halved = (
    dp_accounting.GaussianDpEvent(noise_multiplier / moved) for moved in (1, 2)
  )
  poisson = epsilon(
    relation.ADD_OR_REMOVE_ONE,
    dp_accounting.PoissonSampledDpEvent(probability, gaussian),
  )
  fixed_size = epsilon(
    relation.REPLACE_ONE,
    dp_accounting.SampledWithoutReplacementDpEvent(
      num_clients, clients_per_round, halved
    ),
  )
  return Guarantee(
    epsilon=poisson if is_poisson else fixed_size,
    relation=ADD_OR_REMOVE if is_poisson else REPLACE,
    fixed_size_epsilon=fixed_size,
    poisson_epsilon=poisson,
    delta=delta,
    sampling_probability=probability,
    noise_multiplier=noise_multiplier,
    num_rounds=num_rounds,
  )


def account_tree(
  *,
  noise_multiplier: float,
  num_clients: int,
  num_rounds: int,
  separation: int = 1,
  restart: int = 0,
  delta: float = 0.0,
) -> TreeGuarantee:
  """Accounts for the privacy of a run with the noise of `tree_noise`.

  All nodes of all trees are one Gaussian mechanism. Replacing a client's
  updates by zeros moves a node by at most c C, if the client is in c of its
  rounds. So its noise multiplier is z / sqrt(sum over the nodes of c^2). The
  sum is bounded from above, level by level: a node of s rounds has
  c <= ceil(s / separation).

  Args:
    noise_multiplier: z, the standard deviation of the noise of a node over the
      clipping norm; at 0 both epsilons are infinite.
    num_clients: The number of clients.
    num_rounds: The number of rounds.
    separation: The least difference of two rounds of a client, at least 1.
    restart: The number of rounds after which the tree restarts; 0: never.
    delta: The delta for which epsilon is computed; 0: `num_clients ** -1.1`.

  Returns:
    The guarantee.

  Raises:
    ValueError: As `account`.
  """
  noise_multiplier = _checked_noise(noise_multiplier)
  delta = _checked_delta(delta, num_clients)
  import dp_accounting

  length = min(restart or num_rounds, num_rounds)
  trees, rest = divmod(num_rounds, length)
  total = trees * _tree_moves(length, separation) + _tree_moves(
    rest, separation
  )

  def epsilon(moved):
    return _epsilon(
      dp_accounting.GaussianDpEvent(
        noise_multiplier / (moved * math.sqrt(total))
      ),
      1,
      delta,
      dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE,
      noise_multiplier,
      f"{num_rounds} rounds",
    )

  return TreeGuarantee(
    epsilon=epsilon(1),
    # An update moves by up to twice the norm.
    replacement_epsilon=epsilon(2),
    delta=delta,
    separation=separation,
    max_rounds=-(-num_rounds // separation),
  )


def _tree_moves(num_leaves: int, separation: int) -> int:
  """Bounds the sum of c^2 over the nodes of a tree, see `account_tree`."""
  total, size = 0, 1
  while size <= num_leaves:
    most = -(-size // separation)
    # The client is in no more rounds than there are, in all nodes of a level.
    in_level = min(-(-num_leaves // separation), num_leaves // size * most)
    total += in_level * most
    size *= 2
  return total


def _checked_noise(noise_multiplier: float) -> float:
  return arguments.number(
    "noise_multiplier", noise_multiplier, "at least 0", lambda z: z >= 0
  )


def _checked_delta(delta: float, num_clients: int) -> float:
  """Returns delta, or its default."""
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
  return delta or num_clients**-1.1


def _epsilon(
  event, count, delta, neighbours, noise_multiplier, setting: str
) -> float:
  """Returns the epsilon of `count` compositions of an event."""
  import dp_accounting

  if not noise_multiplier:
    return math.inf
  accountant = dp_accounting.rdp.RdpAccountant(neighboring_relation=neighbours)
  try:
    accountant.compose(event, count)
    found = float(accountant.get_epsilon(delta))
  # Raised if rounding makes a sum negative, or a number is too large for a
  # float.
  except (ValueError, ArithmeticError):
    found = math.nan
  if not math.isfinite(found):
    raise ValueError(
      f"noise_multiplier={noise_multiplier:g} is not allowed with {setting}:"
      " the accountant of epsilon does not support such a"
      f" {'large' if noise_multiplier > 1 else 'small'} value"
    )
  return found
