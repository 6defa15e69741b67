"""DP-FTRL: a private mean whose noise is correlated between rounds.

Practical and Private (Deep) Learning without Sampling or Shuffling (Kairouz,
McMahan, Song, Thakkar, Thakurta, Xu; ICML 2021, arXiv:2103.00039). Rounds are
the leaves of a binary tree. Each node has Gaussian noise of standard deviation
z C, for noise multiplier z and clipping norm C. N_t, the noise in the sum of
the updates of rounds 1 to t, is a weighted sum of the nodes in these rounds
(Efficient Use of Differentially Private Binary Trees, Honaker; 2015). With x_t
the sum of the clipped updates of round t, the result of a round is

    (x_t + N_t - N_(t-1)) / num_clients, N_0 = 0.                            (1)

The server adds up the results, so the noise in its weights is N_t: its variance
grows with log t, and not with t as that of independent noise. The first noise
of a restarted tree does not replace N_t, but adds to it. The nodes are those of
tensorflow-privacy; `privacy_accounting.account_tree` computes epsilon.

Choices:
  * The noise is that of a sum of residuals (`TreeResidualSumQuery`), not the
    cumulative sum that tensorflow-privacy also offers: the server adds results.
  * The tree's seed is drawn from TensorFlow's generator: tensorflow-privacy
    takes the clock, which can be guessed. It is part of the state, so that a
    resumed run has the same noise.
  * The norm is fixed: TFF's adaptive norm changes only at a restart and spends
    a part of the budget that the accountant does not know.
  * `in_turn` is the sampling of the paper: an order that is drawn once. A round
    in which no client counts is no leaf, as with the other aggregators.
"""

import tensorflow as tf
import tensorflow_federated as tff
import tensorflow_privacy as tfp

from tff_shift.learning import randomness
from tff_shift.learning.aggregators import update_noise

# Every draw adds 1 for each tensor; the seeds stay far below 2**63.
_SEEDS = 2**62


class _NoiseGenerator(tfp.tree_aggregation.GaussianNoiseGenerator):
  """Noise of a seed in the graph; without one, the seed cannot be guessed.

  tensorflow-privacy's generator takes the time.
  """

  def __init__(self, stddev, specs, given=None):
    super().__init__(stddev, specs)
    self._given = given

  def initialize(self):
    if self._given is None:
      seeds = tf.random.uniform([2], maxval=_SEEDS, dtype=tf.int64)
    else:
      seeds = tf.random.stateless_uniform(
        [2], self._given, maxval=_SEEDS, dtype=tf.int64
      )
    return self.make_state(seeds, super().initialize().stddev)


class TreeFactory(tff.aggregators.UnweightedAggregationFactory):
  """Aggregates by Equation (1)."""

  def __init__(
    self, noise: update_noise.Noise, clipping_norm: float, restart: int
  ):
    """Stores the parameters.

    Args:
      noise: The noise of a node, and the divisor of the sum.
      clipping_norm: C.
      restart: The number of rounds after which the tree restarts; 0: never.
    """
    self._noise = noise
    self._norm = float(clipping_norm)
    self._restart = restart

  def create(self, value_type: tff.Type) -> tff.templates.AggregationProcess:
    """Creates the process.

    Args:
      value_type: The type of an update.

    Returns:
      The process. Its state has the seed of the noise, drawn at random.
    """
    query = self._query(value_type)
    return tff.aggregators.DifferentiallyPrivateFactory(query).create(
      value_type
    )

  def seeded(
    self,
    value_type: tff.Type,
    process: tff.templates.AggregationProcess,
    number: int,
  ) -> tff.Computation:
    """Makes the noise a function of a seed.

    Whoever knows the seed can subtract the noise.

    Args:
      value_type: The type of an update.
      process: A process whose state is that of `create`.
      number: Processes of other numbers have other noise.

    Returns:
      `(state, seed) -> state`: an initial state, int32 [2] seed.
    """
    state_type = process.initialize.type_signature.result.member

    @tff.tensorflow.computation(state_type, randomness.SEED_TYPE)
    def with_seed(state, seed):
      seed = randomness.fold(seed, randomness.Purpose.NOISE, number)
      # The nodes of the first leaf are drawn with the state.
      drawn = self._query(value_type, seed).initial_global_state()
      return drawn, *list(state)[1:]

    return with_seed

  def _query(self, value_type, seed=None):
    specs = tff.types.type_to_tf_tensor_specs(value_type)
    query = tfp.TreeResidualSumQuery(
      specs,
      _NoiseGenerator(self._noise.multiplier * self._norm, specs, seed),
      lambda record, norm: tf.clip_by_global_norm(record, norm)[0],
      self._norm,
    )
    if self._restart:
      indicator = tfp.restart_query.PeriodicRoundRestartIndicator(self._restart)
      query = tfp.RestartQuery(query, indicator)
    return tfp.NormalizedQuery(query, float(self._noise.num_clients))
