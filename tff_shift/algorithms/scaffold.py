"""SCAFFOLD: control variates correct the drift of clients.

SCAFFOLD: Stochastic Controlled Averaging for Federated Learning (Karimireddy,
Kale, Mohri, Reddi, Stich, Suresh; ICML 2020, arXiv:1910.06378), Algorithm 1.

The server has a control variate c beside its model x, and client i has c_i. All
start at 0. From y = x, a client takes K steps

    y <- y - eta (grad F_i(y) - c_i + c)

and then estimates its gradient anew, by one of two options:

    I.   c_i+ = grad F_i(x)
    II.  c_i+ = c_i - c + (x - y) / (K eta)

The server takes means over the cohort S of the N clients:

    x <- x + eta_g mean_S (y - x)
    c <- c + |S| / N mean_S (c_i+ - c_i)

c is thus the mean of c_i over all clients, also over those that never took
part. The first round is FedAvg's, bit for bit. A single client has c = c_i, and
the method is FedAvg up to rounding.

What leaves a client: its model update, the change of its control variate (the
shape of the model), and the mean training loss without the correction. c_i
stays. The server sends c beside the model.

Written from the algorithm as generally quoted.

Choices:
  * Option II, with eta_g = 1, as in the paper's experiments.
  * Option I takes one pass over all examples of the client, in training mode,
    after the steps. It costs as many gradients as an epoch.
  * K is the number of steps that the client took, so that II also holds for
    stragglers and for clients with few examples; eta is the round's rate.
  * Weight decay is part of the gradient, in both options.
  * Momentum and adaptive optimizers are refused: with them (x - y) / (K eta) is
    no mean gradient. So are weights by number of examples: c would not stay
    a mean of c_i.
  * N counts clients that never train. They slow c, and change no fixed point.
"""

import dataclasses
from typing import Any
from typing import NamedTuple

import tensorflow as tf

from tff_shift.algorithms import fed_avg
from tff_shift.algorithms.parts import gradient_corrections
from tff_shift.learning import algorithm
from tff_shift.learning import hyperparameters
from tff_shift.learning import local_training
from tff_shift.learning.aggregators import factories
from tff_shift.models import split_model

SCENARIOS = ("evolving", "guidance", "dynamic_personalization")
RUNNING_STATISTICS = algorithm.ONE_MODEL

AGGREGATION_REQUIREMENTS = factories.AggregationRequirements(
  no_clipping="a norm would cover model updates and control variates together,"
  " and c would no longer be the mean of the clients' control variates",
  no_server_optimizer="the server has its own learning rate, server_rate, and"
  " keeps a control variate",
)


@dataclasses.dataclass(frozen=True)
class HParams(hyperparameters.LocalHParams):
  """Hyper-parameters of SCAFFOLD."""

  server_rate: float = hyperparameters.hparam(
    1.0,
    "eta_g: the server's learning rate, a factor of the mean update. The"
    " paper's experiments use 1.",
    minimum=0,
    exclusive_minimum=True,
  )
  control: str = hyperparameters.hparam(
    "steps",
    "How a client estimates its control variate: steps, from the mean of its"
    " gradients in the round (option II); gradient, from the gradient of all"
    " its examples at the received model (option I, one more epoch).",
    choices=("steps", "gradient"),
  )

  def check_together(self) -> None:
    """Refuses what makes control variates something other than gradients."""
    super().check_together()
    if self.optimizer != "sgd" or self.momentum:
      wrong = f"optimizer={self.optimizer} with momentum={self.momentum}"
      raise ValueError(
        f"{wrong} is not allowed for scaffold: a client's steps would not be"
        " its gradients times the learning rate; it must be sgd without"
        " momentum"
      )
    gradient_corrections.check_equal_clients(
      "scaffold", self, "the control variate"
    )


class Shared(NamedTuple):
  """What the server sends.

  Attributes:
    model: The model's weights x, `SplitWeights`.
    control: The server's control variate c, in the same structure.
  """

  model: Any
  control: Any


def _zeros(weights):
  return tf.nest.map_structure(tf.zeros_like, weights)


def build(
  model: split_model.SplitModel, hparams: HParams, num_clients: int
) -> algorithm.AlgorithmSpec:
  """Builds the spec of SCAFFOLD; see `algorithm.AlgorithmSpec`.

  A client's state is its control variate c_i.

  Args:
    model: The model.
    hparams: The hyper-parameters.
    num_clients: N, the number of all clients.
  """
  plain = fed_avg.build(model, hparams)

  def initial_weights(seed):
    weights = model.initial_weights(seed)
    return Shared(weights, _zeros(weights))

  @local_training.allows_padding
  def train_client(shared, control, data, round_num):
    # c - c_i
    correction = tf.nest.map_structure(tf.subtract, shared.control, control)
    result = fed_avg.train_client(
      model,
      hparams,
      shared.model,
      data,
      round_num,
      differentiate=gradient_corrections.add(correction),
    )
    if hparams.control == "gradient":
      found = gradient_corrections.gradient_of_all(
        model.predict, hparams, shared.model, data, round_num
      )
      new_control = tf.nest.map_structure(
        lambda w, gradient: hparams.weight_decay * w + gradient,
        shared.model,
        found.gradient,
      )
    else:
      num_steps = local_training.num_local_steps(
        hparams, data, round_num
      ) * local_training.num_domains(data)
      # A client without examples takes no step, and its result does not count.
      # A schedule may end at a rate of 0: then nothing is learned of the
      # gradient.
      distance = local_training.scheduled_rate(hparams, round_num) * tf.cast(
        tf.maximum(num_steps, 1), tf.float32
      )
      new_control = tf.nest.map_structure(
        lambda own, difference, moved: tf.where(
          distance > 0, -difference - moved / distance, own
        ),
        control,
        correction,
        result.update,
      )
    return algorithm.ClientResult(
      update=Shared(
        result.update, tf.nest.map_structure(tf.subtract, new_control, control)
      ),
      client_state=new_control,
      loss=result.loss,
    )

  def update_server(shared, mean_update, plaintext_sum, info):
    del plaintext_sum
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

  return plain._replace(
    initial_weights=initial_weights,
    initial_client_state=lambda seed, shared: _zeros(shared.model),
    train_client=train_client,
    update_server=update_server,
    predict_as_client=local_training.allows_padding(
      lambda shared, _, data, examples: (
        plain.predict_as_client(shared.model, (), data, examples)
      )
    ),
    predict_as_server=lambda shared, summary, examples: (
      plain.predict_as_server(shared.model, summary, examples)
    ),
  )
