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
"""

# Decisions: BUILD_NOTES, "Execution, checkpoints, aggregation".

import tensorflow as tf
import tensorflow_federated as tff
import tensorflow_privacy as tfp

from tff_shift.learning.aggregators import update_noise

# Every draw adds 1 for each tensor; the seeds stay far below 2**63.
_SEEDS = 2**62


class _NoiseGenerator(tfp.tree_aggregation.GaussianNoiseGenerator):
  """Noise whose seed cannot be guessed; tensorflow-privacy's is the time."""

  def initialize(self):
    seeds = tf.random.uniform([2], maxval=_SEEDS, dtype=tf.int64)
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
      The process. Its state has the seed of the noise.
    """
    specs = tff.types.type_to_tf_tensor_specs(value_type)
    query = tfp.TreeResidualSumQuery(
      specs,
      _NoiseGenerator(self._noise.multiplier * self._norm, specs),
      lambda record, norm: tf.clip_by_global_norm(record, norm)[0],
      self._norm,
    )
    if self._restart:
      indicator = tfp.restart_query.PeriodicRoundRestartIndicator(self._restart)
      query = tfp.RestartQuery(query, indicator)
    query = tfp.NormalizedQuery(query, float(self._noise.num_clients))
    return tff.aggregators.DifferentiallyPrivateFactory(query).create(
      value_type
    )
