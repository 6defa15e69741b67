"""FedTent: Tent, whose scales and shifts the server averages.

No paper of its own. Tent: Fully Test-Time Adaptation by Entropy Minimization
(Wang, Shelhamer, Liu, Olshausen, Darrell; ICLR 2021, openreview:uXl3bZLkr3c),
EATA and SAR, see `tent`, as federated methods: a client takes its steps from
the server's scales and shifts, and the server adds the mean of the updates. It
is to Tent what Fed-ADE's FixLR is to local adaptation at a fixed rate.

What leaves a client: the update of scales and shifts, two numbers per channel,
the number of its unlabelled examples, and the mean entropy of its predictions.
The optimizer's moments stay.

Choices:
  * A client keeps the moments of its own steps, although the server averages
    what they move.
  * A client weighs as much as it has unlabelled examples, as in Fed-ADE.
  * Statistics of batch normalisation are not shared: each batch has its own.
"""

import dataclasses

import tensorflow as tf

from tff_shift.algorithms import tent
from tff_shift.algorithms.parts import adaptation
from tff_shift.learning import algorithm
from tff_shift.learning import hyperparameters
from tff_shift.models import split_model

SCENARIOS = tent.SCENARIOS

RUNNING_STATISTICS = algorithm.FIXED


@dataclasses.dataclass(frozen=True)
class HParams(tent.HParams):
  """Hyper-parameters of FedTent: Tent's, and the clients' weights."""

  client_weighting: str = hyperparameters.hparam(
    "num_examples",
    "A client's weight in the server's mean: num_examples, the number of"
    " unlabelled examples, or uniform.",
    choices=("uniform", "num_examples"),
    published=True,
  )


def build(
  model: split_model.SplitModel, hparams: HParams
) -> algorithm.AlgorithmSpec:
  """Builds the spec of FedTent; see `algorithm.AlgorithmSpec`.

  The server's weights are those that adapt, at first the pre-trained ones. A
  client's state is a `tent.Memory`.
  """
  functions = tent.make(model, hparams)

  def train_client(weights, memory, data, round_num):
    del round_num
    adapted, memory, loss = functions.adapt(weights, memory, data)
    return algorithm.ClientResult(
      update=tf.nest.map_structure(tf.subtract, adapted, weights),
      client_state=memory,
      loss=loss,
    )

  return algorithm.AlgorithmSpec(
    initial_weights=functions.initial_weights,
    initial_client_state=lambda seed, weights: functions.initial_memory(seed),
    train_client=train_client,
    predict_as_client=lambda weights, memory, data, examples: (
      functions.predict(weights, data, examples)
    ),
    predicts_batches=functions.predicts_batches,
    examples_type=adaptation.data_type(model),
    num_examples=adaptation.num_stream_examples,
  )
