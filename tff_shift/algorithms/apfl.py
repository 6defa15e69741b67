"""APFL: a client predicts with a mixture of its own model and the shared one.

Adaptive Personalized Federated Learning (Deng, Kamani, Mahdavi; 2020,
arXiv:2003.13461), Algorithm 1.

The global model is FedAvg's. A client keeps a personal model v and a number
alpha. Each local step, on one batch, updates its copy w of the global model, v,
and alpha, all from the values before the step:

    vbar  = alpha v + (1 - alpha) w
    w     <- w - eta grad f(w)
    v     <- v - eta alpha grad f(vbar)
    alpha <- alpha - eta' <grad f(vbar), v - w>, clipped to [0, 1]

It predicts with vbar of its v and the server's w. With alpha = 0 this is
FedAvg, with 1 a purely local model.

What leaves a client: the update of w, and the mean training loss of w. v and
alpha stay.

Written from the equations as generally quoted and from FedTorch, a public
program by authors of the paper.

Choices:
  * alpha starts at 0.5 (`mixture_weight`) and is learned. It is updated at each
    step, by plain gradient descent for any optimizer, at the models' learning
    rate; FedTorch updates it once per round (`mixture_learning_rate`,
    `adapt_mixture`).
  * The weights are mixed; FedTorch mixes the logits (`mixture=logits`).
    Predictions use the server's current weights.
  * v starts as the first model that the client receives, and takes a step for
    each step of w, on the same batch.
  * Algorithm 1 has no weight decay; FedTorch's two optimizers decay both w and
    v. w decays, as in FedAvg. v does not: alpha grad f(vbar) is its whole step,
    so v does not change at alpha = 0 (`personal_weight_decay`).
  * Running statistics of v are those of the mixture, because v predicts only as
    a part of it.
"""

import dataclasses
from collections.abc import Callable
from typing import Any
from typing import NamedTuple

import tensorflow as tf

from tff_shift.algorithms import fed_avg
from tff_shift.data import client_dataset
from tff_shift.learning import algorithm
from tff_shift.learning import evaluation
from tff_shift.learning import hyperparameters
from tff_shift.learning import local_training
from tff_shift.learning import randomness
from tff_shift.models import modes
from tff_shift.models import split_model

SCENARIOS = ("evolving", "guidance")

RUNNING_STATISTICS = algorithm.TWO_MODELS


@dataclasses.dataclass(frozen=True)
class HParams(hyperparameters.LocalHParams):
  """Hyper-parameters of APFL."""

  mixture_weight: float = hyperparameters.hparam(
    0.5,
    "Initial alpha, the weight of the personal model in the mixture: 0: the"
    " shared model only; 1: the personal model only.",
    minimum=0,
    maximum=1,
  )
  adapt_mixture: bool = hyperparameters.hparam(
    True, "Whether alpha is learned; otherwise it is constant."
  )
  mixture_learning_rate: float = hyperparameters.hparam(
    0.0, "Learning rate of alpha. 0: the models' learning rate.", minimum=0
  )
  mixture: str = hyperparameters.hparam(
    "weights",
    "What is mixed: weights, of the two models; or logits, of their"
    " predictions.",
    choices=("weights", "logits"),
  )
  personal_weight_decay: bool = hyperparameters.hparam(
    False,
    "Whether weight_decay also applies to the personal model, at the full rate"
    " for any alpha, as in FedTorch; otherwise only to the shared model, as"
    " published.",
  )


class ClientState(NamedTuple):
  """The state of a client.

  Attributes:
    personal: The weights of its personal model v, `SplitWeights`.
    alpha: The weight of v in the mixture, a float32 scalar.
  """

  personal: Any
  alpha: Any


class Models(NamedTuple):
  """The weights that a client trains, w and v, each `SplitWeights`."""

  shared: Any
  personal: Any


def predict_mixture(
  predict: Callable[[Any, Any], tf.Tensor],
  mixture: str,
  models: Models,
  alpha,
  x,
) -> tf.Tensor:
  """Predicts with alpha of the personal and 1 - alpha of the shared model.

  Args:
    predict: `(weights, x) -> logits`.
    mixture: What is mixed, see `HParams.mixture`.
    models: The two models.
    alpha: The weight of the personal model, a float32 scalar.
    x: The examples, [num_examples, ...].

  Returns:
    The logits, [num_examples, num_classes] float32.
  """

  def mix(own, shared):
    return alpha * own + (1.0 - alpha) * shared

  if mixture == "logits":
    with modes.of_model("personal"):
      own = predict(models.personal, x)
    # The step that trains w updates its running statistics.
    with modes.apart():
      shared = predict(models.shared, x)
    return mix(own, shared)
  mixed = tf.nest.map_structure(mix, models.personal, models.shared)
  # v predicts only in the mixture, so its running statistics are the mixture's.
  with modes.of_model("personal"):
    return predict(mixed, x)


def train_client(
  model: split_model.SplitModel,
  hparams: HParams,
  weights: split_model.SplitWeights,
  state: ClientState,
  data: client_dataset.ClientDataset,
  round_num,
) -> algorithm.ClientResult:
  """Trains both models, and alpha, on one client's examples.

  Args:
    model: The model.
    hparams: Hyper-parameters.
    weights: The server's weights.
    state: The client's own model and alpha.
    data: The client's data.
    round_num: The round, an int32 scalar.

  Returns:
    The update of the shared weights, equal to `fed_avg`'s, and the client's new
    state.
  """
  seed = randomness.fold(data.seed, randomness.Purpose.TRAIN, round_num)
  num_steps = local_training.num_local_steps(
    hparams, data, round_num
  ) * local_training.num_domains(data)
  batches = local_training.pooled_batches(
    data, num_steps, hparams.batch_size, seed
  )
  rate = hparams.mixture_learning_rate or local_training.scheduled_rate(
    hparams, round_num
  )

  def loss_fn(models, step, alpha):
    batch = batches(step)
    loss = local_training.cross_entropy(
      model.predict(models.shared, batch.x), batch.y
    )
    # The mixture trains v only.
    fixed = models._replace(
      shared=tf.nest.map_structure(tf.stop_gradient, models.shared)
    )
    with tf.GradientTape(watch_accessed_variables=False) as tape:
      tape.watch(alpha)
      mixture_loss = local_training.cross_entropy(
        predict_mixture(model.predict, hparams.mixture, fixed, alpha, batch.x),
        batch.y,
      )
    if hparams.adapt_mixture:
      # d/d alpha f(vbar) = <grad f(vbar), v - w>.
      slope = tape.gradient(mixture_loss, alpha)
      alpha = tf.clip_by_value(alpha - rate * slope, 0.0, 1.0)
    # The reported loss is w's, as in `fed_avg`: the other one only adds its
    # gradient.
    return loss + (mixture_loss - tf.stop_gradient(mixture_loss)), alpha

  result = local_training.train(
    loss_fn,
    Models(weights, state.personal),
    num_steps,
    hparams,
    seed=seed,
    carry=state.alpha,
    decays=Models(
      tf.nest.map_structure(lambda w: True, weights),
      tf.nest.map_structure(
        lambda w: hparams.personal_weight_decay, state.personal
      ),
    ),
    round_num=round_num,
  )
  return algorithm.ClientResult(
    update=tf.nest.map_structure(tf.subtract, result.weights.shared, weights),
    client_state=ClientState(result.weights.personal, result.carry),
    loss=result.loss,
  )


def build(
  model: split_model.SplitModel, hparams: HParams
) -> algorithm.AlgorithmSpec:
  """Builds the spec of APFL; see `algorithm.AlgorithmSpec`."""

  @local_training.allows_padding
  def predict_as_client(weights, state, data, examples):
    del data
    return predict_mixture(
      lambda mixed, x: evaluation.predict(model, mixed, x),
      hparams.mixture,
      Models(weights, state.personal),
      state.alpha,
      examples.x,
    )

  return fed_avg.build(model, hparams)._replace(
    initial_client_state=lambda seed, weights: ClientState(
      weights, tf.constant(hparams.mixture_weight, tf.float32)
    ),
    train_client=local_training.allows_padding(
      lambda weights, state, data, round_num: train_client(
        model, hparams, weights, state, data, round_num
      )
    ),
    predict_as_client=predict_as_client,
  )
