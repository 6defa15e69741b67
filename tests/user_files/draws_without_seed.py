"""DrawsWithoutSeed: FedAvg whose second round has noise that no seed decides.

It breaks the contract: a resumed run gives other bits than one that never
stopped.
"""

import tensorflow as tf

from tff_shift.algorithms import fed_avg

SCENARIOS = ("evolving",)
HParams = fed_avg.HParams


def work(model, hparams):
  functions = fed_avg.work(model, hparams)

  def train_client(weights, state, data, round_num):
    result = functions.train_client(weights, state, data, round_num)
    noise = tf.where(tf.equal(round_num, 1), tf.random.uniform([]), 0.0)
    return result._replace(
      update=tf.nest.map_structure(lambda w: w + noise, result.update)
    )

  return functions._replace(train_client=train_client)
