"""LeaksAnExample: FedAvg whose clients send their first example with an update.

It breaks the contract: no example leaves a client.
"""

import tensorflow as tf

from tff_shift.algorithms import fed_avg
from tff_shift.learning import aggregation

SCENARIOS = ("evolving",)
AGGREGATION_NEEDS = aggregation.Needs(in_the_open="it shows an example")
HParams = fed_avg.HParams


def work(model, hparams):
  functions = fed_avg.work(model, hparams)

  def train_client(weights, state, data, round_num):
    result = functions.train_client(weights, state, data, round_num)
    return result._replace(contribution=data.x[0])

  return functions._replace(
    train_client=train_client,
    update_server=lambda weights, update, contribution, round_num: (
      tf.nest.map_structure(tf.add, weights, update)
    ),
  )
