"""Control variates, as a user would write them: a whole algorithm with state.

SCAFFOLD: Stochastic Controlled Averaging for Federated Learning (Karimireddy,
Kale, Mohri, Reddi, Stich, Suresh; ICML 2020), Algorithm 1 with option II.

    python -m tff_shift.testing examples/control_variates.py
    python -m experiments.evolving --import=examples/control_variates.py \
        --algorithm=fed_avg,control_variates --dataset=rotated_digits

What leaves a client: its model update, the change of its control variate (the
shape of the model), and the mean training loss.
"""

import dataclasses
from typing import Any
from typing import NamedTuple

import tensorflow as tf

from tff_shift.learning import algorithm
from tff_shift.learning import evaluation
from tff_shift.learning import hyperparameters
from tff_shift.learning import local_training
from tff_shift.learning import randomness
from tff_shift.learning.aggregators import factories

SCENARIOS = ("evolving", "guidance", "dynamic_personalization")
AGGREGATION_REQUIREMENTS = factories.AggregationRequirements(
  no_clipping="a norm would cover model updates and control variates together",
)


@dataclasses.dataclass(frozen=True)
class HParams(hyperparameters.LocalHParams):
  """Hyper-parameters of local training, and the server's learning rate."""

  server_rate: float = hyperparameters.hparam(
    1.0,
    "eta_g: the server's learning rate, a factor of the mean update.",
    minimum=0,
    exclusive_minimum=True,
  )


class Shared(NamedTuple):
  """What the server sends.

  Attributes:
    model: The model's weights x.
    control: The server's control variate c, of the same shapes.
  """

  model: Any
  control: Any


def build(model, hparams, num_clients):
  """Builds the spec of SCAFFOLD; see `algorithm.AlgorithmSpec`.

  A client's state is its control variate c_i.

  Args:
    model: The model.
    hparams: The hyper-parameters.
    num_clients: N, the number of all clients.
  """
  if hparams.optimizer != "sgd" or hparams.momentum:
    raise ValueError(
      "control_variates needs --optimizer=sgd without --momentum: otherwise the"
      " way of a client is not its mean gradient times the learning rate"
    )

  def zeros(weights):
    return tf.nest.map_structure(tf.zeros_like, weights)

  def initial_weights(seed):
    weights = model.initial_weights(seed)
    return Shared(weights, zeros(weights))

  def train_client(shared, control, data, round_num):
    num_steps = local_training.num_local_steps(hparams, data, round_num)
    num_steps *= local_training.num_domains(data)
    # The gradient of <c - c_i, y> is c - c_i.
    correction = tf.nest.map_structure(tf.subtract, shared.control, control)

    def linear(weights):
      pairs = zip(
        tf.nest.flatten(correction), tf.nest.flatten(weights), strict=True
      )
      return tf.add_n([tf.reduce_sum(one * other) for one, other in pairs])

    result = local_training.train_on_pool(
      model.predict,
      shared.model,
      data,
      num_steps,
      randomness.fold(data.seed, randomness.Purpose.TRAIN, round_num),
      hparams,
      penalty=linear,
      round_num=round_num,
    )
    update = tf.nest.map_structure(tf.subtract, result.weights, shared.model)
    # A client without examples takes no step, and its result does not count.
    way = local_training.scheduled_rate(hparams, round_num) * tf.cast(
      tf.maximum(num_steps, 1), tf.float32
    )
    # c_i - c + (x - y) / (K eta)
    new_control = tf.nest.map_structure(
      lambda difference, moved: -difference - moved / way, correction, update
    )
    return algorithm.ClientResult(
      update=Shared(
        update, tf.nest.map_structure(tf.subtract, new_control, control)
      ),
      client_state=new_control,
      loss=result.loss,
    )

  def update_server(shared, mean_update, plaintext_sum, info):
    fraction = info.num_counted / num_clients
    return Shared(
      tf.nest.map_structure(
        lambda x, mean: x + hparams.server_rate * mean,
        shared.model,
        mean_update.model,
      ),
      tf.nest.map_structure(
        lambda c, mean: c + fraction * mean, shared.control, mean_update.control
      ),
    )

  return algorithm.AlgorithmSpec(
    initial_weights=initial_weights,
    initial_client_state=lambda seed, shared: zeros(shared.model),
    train_client=train_client,
    update_server=update_server,
    predict_as_client=lambda shared, control, data, examples: (
      evaluation.predict(model, shared.model, examples.x)
    ),
    predict_as_server=lambda shared, summary, examples: evaluation.predict(
      model, shared.model, examples.x
    ),
  )
