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
  no_clipping="one norm would cover updates and control variates",
)


@dataclasses.dataclass(frozen=True)
class HParams(hyperparameters.LocalHParams):
  """Hyper-parameters of local training and of the server."""

  server_rate: float = hyperparameters.hparam(
    1.0,
    "eta_g: the server's learning rate, a factor of the mean update.",
    minimum=0,
    exclusive_minimum=True,
  )


class Shared(NamedTuple):
  """The values that the server broadcasts.

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
      "control_variates needs --optimizer=sgd without --momentum:"
      " otherwise the model update is not the mean gradient times the"
      " learning rate"
    )

  map_structure = tf.nest.map_structure

  def zeros(weights):
    return map_structure(tf.zeros_like, weights)

  def initial_weights(seed):
    weights = model.initial_weights(seed)
    return Shared(weights, zeros(weights))

  def train_client(shared, control, data, round_num):
    num_steps = local_training.num_local_steps(hparams, data, round_num)
    num_steps *= local_training.num_domains(data)
    # The gradient of <c - c_i, y> is c - c_i.
    correction = map_structure(tf.subtract, shared.control, control)

    def linear(weights):
      products = map_structure(tf.multiply, correction, weights)
      sums = map_structure(tf.reduce_sum, products)
      return tf.add_n(tf.nest.flatten(sums))

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
    update = map_structure(tf.subtract, result.weights, shared.model)
    # A client without examples takes no step and does not count.
    rate = local_training.scheduled_rate(hparams, round_num)
    scale = rate * tf.cast(tf.maximum(num_steps, 1), tf.float32)
    # c_i - c + (x - y) / (K eta)
    new_control = map_structure(
      lambda difference, delta: -difference - delta / scale,
      correction,
      update,
    )
    change = map_structure(tf.subtract, new_control, control)
    return algorithm.ClientResult(
      update=Shared(update, change),
      client_state=new_control,
      loss=result.loss,
    )

  def update_server(shared, mean_update, plaintext_sum, info):
    fraction = info.num_counted / num_clients
    return Shared(
      map_structure(
        lambda x, mean: x + hparams.server_rate * mean,
        shared.model,
        mean_update.model,
      ),
      map_structure(
        lambda c, mean: c + fraction * mean,
        shared.control,
        mean_update.control,
      ),
    )

  def predict(shared, examples):
    return evaluation.predict(model, shared.model, examples.x)

  return algorithm.AlgorithmSpec(
    initial_weights=initial_weights,
    initial_client_state=lambda seed, shared: zeros(shared.model),
    train_client=train_client,
    update_server=update_server,
    predict_as_client=lambda shared, control, data, examples: (
      predict(shared, examples)
    ),
    predict_as_server=lambda shared, summary, examples: (
      predict(shared, examples)
    ),
  )
