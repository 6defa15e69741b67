"""FedALA: clients learn a mixing weight of the global model for each weight.

FedALA: Adaptive Local Aggregation for Personalized Federated Learning (Zhang,
Hua, Wang, Song, Xue, Ma, Guan; AAAI 2023, arXiv:2212.01197), Algorithm 1. A
baseline of Beyond Aggregation: Guiding Clients in Heterogeneous Federated
Learning, Table 1.

A client i keeps its model theta_i as it last trained it, and W_i, a number from
0 to 1 for each weight of the last p layers. From the global model theta_g it
starts at

    theta = theta_i + (theta_g - theta_i) * W_i

in these layers and from theta_g in all others. W_i starts at 1. Before it is
used, it is updated by the gradient of the loss at theta, with everything else
fixed, on a fraction of the client's examples:

    W_i <- clip(W_i - eta grad_theta L * (theta_g - theta_i), 0, 1)

When theta_g and theta_i first differ, this is repeated until the losses have
converged, and afterwards once per round. From theta the client trains all
weights; the server adds the mean difference to theta_g, as in FedAvg.

What leaves a client: its model update relative to theta_g, and the mean
training loss. theta_i and W_i stay.

Written from the steps of the authors' program. Only the last p layers
of theta_i are kept; the others are not needed.

`variant=program` is the computation of the FedDRM authors' program. There W
stays 1, because its loss uses a copy of theta without gradients: local training
starts from theta_g, as in FedAvg, and clients predict with their own trained
models, theta_i.

Choices:
  * W is of the last layer (p = 1), learned on 80 % of the examples. Clients
    predict with the model from which the next round starts; this is where the
    authors evaluate. With rate 0 for W it is FedAvg, bit for bit.
  * "Until convergence" is more than ten passes, and a standard deviation of the
    last ten losses below 0.1, as in the authors' program; at most 30 passes
    (`ala_threshold`, `ala_max_passes`).
  * Batches of the passes over W are full and random, new in each round, the
    same in all passes. They update no running statistics: the program uses a
    copy of the model for them.
  * Local training has 10 steps, as in all methods; the passes over W come on
    top, as in the authors' program. `variant=program` has 5: half of that
    program's ten steps learn its W. With 5 the published method loses 5 points
    of system and 3 of average accuracy (results/guidance.md).
"""

import contextlib
import dataclasses
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
from tff_shift.learning import weight_masks
from tff_shift.models import modes
from tff_shift.models import split_model

SCENARIOS = ("evolving", "guidance")

RUNNING_STATISTICS = algorithm.TWO_MODELS

# The number of losses in the test of convergence.
_WINDOW = 10


@dataclasses.dataclass(frozen=True)
class HParams(hyperparameters.LocalHParams):
  """Hyper-parameters of FedALA."""

  variant: str = hyperparameters.variant_hparam(hyperparameters.FED_DRM_PROGRAM)
  ala_layers: int = hyperparameters.hparam(
    1,
    "p: number of last layers that a client mixes; the others are the global"
    " model's. 0: all.",
    minimum=0,
  )
  ala_rate: float = hyperparameters.hparam(
    1.0,
    "eta: learning rate of W, with plain gradient steps. 0: W stays 1, and the"
    " method is FedAvg.",
    minimum=0,
  )
  ala_share: float = hyperparameters.hparam(
    0.8,
    "Fraction of a client's examples used to learn W, rounded up to whole"
    " batches.",
    minimum=0,
    maximum=1,
    exclusive_minimum=True,
  )
  ala_threshold: float = hyperparameters.hparam(
    0.1,
    "The first passes over W end when the standard deviation of the last ten"
    " losses is below this; 0: only ala_max_passes ends them.",
    minimum=0,
  )
  ala_max_passes: int = hyperparameters.hparam(
    30, "Maximum number of first passes over W.", minimum=1
  )


class ClientState(NamedTuple):
  """The state of a client, for the layers that it mixes.

  Attributes:
    personal: theta_i, a tuple of float32 tensors.
    mixture: W_i, a tuple of float32 tensors.
    is_settled: Whether the first passes over W_i are done, int32: 0 or 1.
  """

  personal: Any
  mixture: Any
  is_settled: Any


def _mix(model, hparams: HParams, weights, state: ClientState):
  """Computes theta, bit-identical to theta_g (`weights`) where W_i is 1."""
  chosen = model.last_layers(hparams.ala_layers)
  mixed = tf.nest.map_structure(
    lambda g, v, w: w * g + (1.0 - w) * v,
    weight_masks.take(weights, chosen),
    state.personal,
    state.mixture,
  )
  return weight_masks.put(weights, chosen, mixed)


def learn_mixture(
  model: split_model.SplitModel,
  hparams: HParams,
  weights: split_model.SplitWeights,
  state: ClientState,
  data: client_dataset.ClientDataset,
  round_num,
) -> ClientState:
  """Updates W_i, once or until its losses have converged.

  Args:
    model: The model.
    hparams: Hyper-parameters.
    weights: The server's weights.
    state: The client's state.
    data: The client's data.
    round_num: The round, an int32 scalar.

  Returns:
    The state with the new W_i; the old state if the client has no examples, or
    theta_i is theta_g.
  """
  share = hparams.ala_share / hparams.batch_size
  num_examples = tf.cast(tf.size(data.y), tf.float32)
  num_steps = tf.cast(tf.math.ceil(share * num_examples), tf.int32)
  seed = randomness.fold(data.seed, randomness.Purpose.PERSONALIZE, round_num)
  batches = local_training.pooled_batches(
    data, num_steps, hparams.batch_size, seed
  )
  # Plain gradient descent for any optimizer of the model.
  plain = dataclasses.replace(
    hparams, optimizer="sgd", momentum=0.0, weight_decay=0.0
  )

  def loss_fn(mixture, step, _):
    batch = batches(step)
    theta = _mix(model, hparams, weights, state._replace(mixture=mixture))
    loss = local_training.cross_entropy(model.predict(theta, batch.x), batch.y)
    return loss, loss

  def pass_once(number, mixture, losses):
    # Only the mixture is learned; its model is trained afterwards.
    with modes.apart():
      result = local_training.train(
        loss_fn,
        mixture,
        num_steps,
        plain,
        seed=seed,
        carry=tf.constant(0.0),
        learning_rate=hparams.ala_rate,
        project=lambda moved: tuple(tf.clip_by_value(w, 0, 1) for w in moved),
      )
    losses = tf.concat([losses[1:], result.carry[tf.newaxis]], axis=0)
    return number + 1, result.weights, losses

  received = weight_masks.take(weights, model.last_layers(hparams.ala_layers))
  differ = tf.nest.map_structure(
    lambda g, v: tf.reduce_any(tf.not_equal(g, v)), received, state.personal
  )
  can_learn = tf.reduce_any(differ) & (num_steps > 0)
  num_passes = tf.where(state.is_settled > 0, 1, hparams.ala_max_passes)

  def goes_on(number, _, losses):
    spread = tf.math.reduce_std(losses)
    have_settled = (number > _WINDOW) & (spread < hparams.ala_threshold)
    return can_learn & (number < num_passes) & ~have_settled

  _, mixture, _ = tf.while_loop(
    goes_on,
    pass_once,
    (tf.constant(0), state.mixture, tf.zeros([_WINDOW])),
    parallel_iterations=1,
  )
  is_settled = tf.where(can_learn, 1, state.is_settled)
  return state._replace(mixture=mixture, is_settled=is_settled)


def build(
  model: split_model.SplitModel, hparams: HParams
) -> algorithm.AlgorithmSpec:
  """Builds the spec of FedALA; see `algorithm.AlgorithmSpec`."""
  learns = hparams.variant == "published"
  # The program keeps the whole model, and no W.
  chosen = model.last_layers(hparams.ala_layers if learns else 0)

  def initial_client_state(_, weights):
    personal = weight_masks.take(weights, chosen)
    ones = tuple(map(tf.ones_like, personal)) if learns else ()
    return ClientState(personal, ones, tf.constant(0))

  def start(weights, state, data, round_num):
    if not learns:
      return state, weights
    state = learn_mixture(model, hparams, weights, state, data, round_num)
    return state, _mix(model, hparams, weights, state)

  def train_client(weights, state, data, round_num):
    state, theta = start(weights, state, data, round_num)
    result = fed_avg.train_client(model, hparams, theta, data, round_num)
    trained = tf.nest.map_structure(tf.add, theta, result.update)
    modes.keep_as("personal")
    return result._replace(
      update=tf.nest.map_structure(
        lambda change, ours, theirs: change + (ours - theirs),
        result.update,
        theta,
        weights,
      ),
      client_state=state._replace(personal=weight_masks.take(trained, chosen)),
    )

  def prepare_client(weights, state, data, round_num):
    if learns:
      return start(weights, state, data, round_num)[1]
    return weight_masks.put(weights, chosen, state.personal)

  def predict_as_client(_, theta, data, examples):
    del data
    with contextlib.nullcontext() if learns else modes.of_model("personal"):
      return evaluation.predict(model, theta, examples.x)

  return fed_avg.build(model, hparams)._replace(
    initial_client_state=initial_client_state,
    train_client=train_client,
    prepare_client=prepare_client,
    predict_as_client=predict_as_client,
  )
