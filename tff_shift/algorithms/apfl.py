"""APFL: a client predicts with a mixture of its own model and the shared one.

Adaptive Personalized Federated Learning (Deng, Kamani, Mahdavi; 2020),
Algorithm 1.

The global model is FedAvg's. A client keeps a model v of its own and a number
alpha; each local step, on one batch, moves its copy w of the global model, v,
and alpha, all from the values before the step:

    vbar  = alpha v + (1 - alpha) w
    w     <- w - eta grad f(w)
    v     <- v - eta alpha grad f(vbar)
    alpha <- alpha - eta' <grad f(vbar), v - w>, cut to [0, 1]

It predicts with vbar, made of its v and the server's w. At alpha = 0 that is
FedAvg, at 1 a model that was never shared.

What leaves a client: the change of w, and the mean training loss of w. v and
alpha do not.

Written from the equations as they are generally quoted and from FedTorch, a
public program by authors of the paper. Where they leave a choice:
  * v starts as the model that the client receives first, alpha at 0.5; a client
    that never took part predicts with the server's model.
  * f is the loss without weight decay: of v the equation above is the whole
    step, at alpha = 0 v stays, and only w decays, as in FedAvg. FedTorch's
    optimizers decay both by the full rate: `personal_weight_decay`.
  * alpha moves at each step, by plain gradient descent whatever the optimizer
    of v and w, at their learning rate. FedTorch moves it once a round, and
    starts it at 0.5 too.
  * Models are mixed weight by weight, as in the equations. FedTorch mixes the
    logits of the two models: `mixture=logits`.
"""

import dataclasses
from collections.abc import Callable
from typing import Any
from typing import NamedTuple

import tensorflow as tf

from tff_shift.algorithms import fed_avg
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
    "The alpha that a client starts with, the share of its own model in the"
    " mixture: 0 is the shared model alone, 1 its own alone.",
    minimum=0,
    maximum=1,
  )
  adapt_mixture: bool = hyperparameters.hparam(
    True, "Whether alpha is learned; else it stays."
  )
  mixture_learning_rate: float = hyperparameters.hparam(
    0.0, "The learning rate of alpha. 0: that of the models.", minimum=0
  )
  mixture: str = hyperparameters.hparam(
    "weights",
    "What is mixed: weights, those of the two models, or logits, what the two"
    " predict.",
    choices=("weights", "logits"),
  )
  personal_weight_decay: bool = hyperparameters.hparam(
    False,
    "Whether weight_decay shrinks the client's own model too, at the full rate"
    " and whatever alpha is, as in FedTorch; else only the shared model decays,"
    " as in the published steps.",
  )


class ClientState(NamedTuple):
  """What a client keeps.

  Attributes:
    personal: The weights of its own model v, `SplitWeights`.
    alpha: The share of v in the mixture, a float32 scalar.
  """

  personal: Any
  alpha: Any


class Models(NamedTuple):
  """The weights that a client trains: of w and of v, each `SplitWeights`."""

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
    alpha: The share of the personal one, a float32 scalar.
    x: The examples, [num_examples, ...].

  Returns:
    The logits, [num_examples, num_classes] float32.
  """

  def mix(own, shared):
    return alpha * own + (1.0 - alpha) * shared

  if mixture == "logits":
    with modes.of_model("personal"):
      own = predict(models.personal, x)
    # The step that trains w moves its running statistics.
    with modes.apart():
      shared = predict(models.shared, x)
    return mix(own, shared)
  mixed = tf.nest.map_structure(mix, models.personal, models.shared)
  # v predicts in no other way, so its running statistics are the mixture's.
  with modes.of_model("personal"):
    return predict(mixed, x)


def train_client(
  model: split_model.SplitModel,
  hparams: HParams,
  weights: split_model.SplitWeights,
  state: ClientState,
  data: local_training.ClientData,
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
    The change of the shared weights, which is that of `fed_avg`, and the
    client's new state.
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
    # The mixture trains v alone.
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
    # What is reported is the loss of w, as in `fed_avg`: the other counts in
    # the gradient only.
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
  """The functions of APFL; see `algorithm.AlgorithmSpec`."""

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
    train_client=lambda weights, state, data, round_num: train_client(
      model, hparams, weights, state, data, round_num
    ),
    predict_as_client=predict_as_client,
  )
