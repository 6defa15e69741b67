"""LeaksAndDraws: FedAvg that breaks the contract in two ways.

Clients send their first example with an update, where no example may leave a
client. And the second round has noise that no seed decides, so that a resumed
run gives other bits than one that never stopped.
"""

import tensorflow as tf

from tff_shift.algorithms import fed_avg
from tff_shift.learning.aggregators import factories

SCENARIOS = ("evolving",)
AGGREGATION_REQUIREMENTS = factories.AggregationRequirements(
  plaintext_sums="it shows an example"
)
HParams = fed_avg.HParams


def build(model, hparams):
  functions = fed_avg.build(model, hparams)

  def train_client(weights, state, data, round_num):
    result = functions.train_client(weights, state, data, round_num)
    noise = tf.where(tf.equal(round_num, 1), tf.random.uniform([]), 0.0)
    return result._replace(
      update=tf.nest.map_structure(lambda w: w + noise, result.update),
      plaintext_sum=data.x[0],
    )

  return functions._replace(
    train_client=train_client,
    update_server=lambda weights, update, plaintext_sum, info: (
      tf.nest.map_structure(tf.add, weights, update)
    ),
  )
