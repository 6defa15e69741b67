"""PerFedAvg: a server model that is good after one step on a client's data.

Personalized Federated Learning with Theoretical Guarantees: A Model-Agnostic
Meta-Learning Approach (Fallah, Mokhtari, Ozdaglar; NeurIPS 2020,
arXiv:2002.07948), Algorithm 1.

Client i has the loss f_i. The server model minimises the mean over clients of
the loss after one gradient step,

    F_i(w) = f_i(w - alpha grad f_i(w)).

A local step draws three batches D, D' and D'':

    w' = w - alpha grad f_i(w; D)
    w <- w - beta (I - alpha H_i(w; D'')) grad f_i(w'; D')

H_i is the Hessian of f_i. `hessian` says how its product with v = grad
f_i(w'; D') is computed:

    exact:         by differentiating the gradient, as Algorithm 1 has it
    hessian_free:  (grad f_i(w + delta v; D'') - grad f_i(w - delta v; D'')) /
                   (2 delta), as in the paper's experiments
    first_order:   left out, as in the paper's experiments

The server averages updates, as in FedAvg. A client predicts with the server
model after `adaptation_steps` steps at the rate alpha on its own training data.
With alpha = 0 it is FedAvg, bit for bit.

What leaves a client: its model update, and the mean training loss of w' on D'.
The adapted model stays.

The gradient of a network with ReLU jumps. `exact` ignores the jumps, whereas
`hessian_free` divides them by delta and may diverge: prefer `exact`, or a delta
of about 0.1 and a small alpha.

A local step takes 4 gradients with hessian_free, 2 with first_order. With exact
it takes 3 and the product, which costs about as much as one more.

Choices:
  * beta is `learning_rate`, for any optimizer. Weight decay is added to the
    gradient of F_i. The steps at the rate alpha are plain gradient steps.
  * The batches D' are those of FedAvg. D and D'' are drawn from the same
    examples in other random orders.
  * A client that predicts adapts to batches of `batch_size` of its training
    data. CharlieDinh's program (github.com/CharlieDinh/pFedMe) adapts to
    labelled batches of the test data. Here no label of the predicted data is
    used.
  * Exact is the default, as in Algorithm 1. In the setting with two concepts of
    `clustered_fl` it has 87.5 % with alpha = 0.01, first_order 81.1 %,
    hessian_free 74.3 % (delta 0.001) and 89.5 % (delta 0.1). With alpha = 0.1
    exact has 93.0 %, first_order 63.3 %, and hessian_free diverges with both:
    at delta = 0.001 single updates are up to five times as long as the exact
    ones.
"""

import dataclasses

import tensorflow as tf

from tff_shift.algorithms import fed_avg
from tff_shift.algorithms import fed_avg_ft
from tff_shift.data import client_dataset
from tff_shift.learning import algorithm
from tff_shift.learning import evaluation
from tff_shift.learning import hyperparameters
from tff_shift.learning import local_training
from tff_shift.learning import randomness
from tff_shift.models import split_model

SCENARIOS = ("evolving", "guidance", "dynamic_personalization")
RUNNING_STATISTICS = algorithm.ONE_MODEL


@dataclasses.dataclass(frozen=True)
class HParams(hyperparameters.LocalHParams):
  """Hyper-parameters of PerFedAvg; `learning_rate` is beta."""

  inner_rate: float = hyperparameters.hparam(
    0.01,
    "alpha: learning rate of the step for which the server model is trained,"
    " and with which a client adapts it before it predicts. 0: fed_avg.",
    minimum=0,
  )
  hessian: str = hyperparameters.hparam(
    "exact",
    "The product of Hessian and gradient: exact (Algorithm 1); hessian_free,"
    " from a difference of two gradients; first_order, left out.",
    choices=("exact", "hessian_free", "first_order"),
  )
  hessian_delta: float = hyperparameters.hparam(
    0.001,
    "delta of hessian_free: the distance of the two gradients, as a multiple of"
    " the gradient. Small: nearer to exact where the gradient has no jumps, as"
    " it has with ReLU; a jump counts 1 / delta times. FL-bench uses 0.001.",
    minimum=0,
    exclusive_minimum=True,
  )
  adaptation_steps: int = hyperparameters.hparam(
    1,
    "Gradient steps at inner_rate on a client's training data before it"
    " predicts; 0: it predicts with the server model. The paper takes 1.",
    minimum=0,
  )

  def check_together(self) -> None:
    """Refuses a delta that has no effect."""
    super().check_together()
    hyperparameters.refuse_ignored(
      self, "hessian_delta", "hessian", "hessian_free"
    )


def _add(weights, factor: float, direction):
  """Returns weights + factor * direction, of tuples of tensors."""
  return tuple(w + factor * d for w, d in zip(weights, direction, strict=True))


def train_client(
  model: split_model.SplitModel,
  hparams: HParams,
  weights: split_model.SplitWeights,
  data: client_dataset.ClientDataset,
  round_num,
) -> algorithm.ClientResult:
  """Takes steps on the loss after a step.

  Args:
    model: The model.
    hparams: Hyper-parameters.
    weights: The server's weights.
    data: The client's data.
    round_num: The round, an int32 scalar.

  Returns:
    The update of the weights; there is no personal state.
  """
  alpha = hparams.inner_rate
  seed = randomness.fold(data.seed, randomness.Purpose.TRAIN, round_num)
  num_steps = local_training.num_local_steps(hparams, data, round_num)
  num_steps *= local_training.num_domains(data)

  def draw(seed):
    return local_training.pooled_batches(
      data, num_steps, hparams.batch_size, seed
    )

  # D, D' and D''; D' are the batches of FedAvg.
  inner, outer, curvature = (
    draw(randomness.fold(seed, 0)),
    draw(seed),
    draw(randomness.fold(seed, 1)),
  )
  loss_of = local_training.classification_loss(model.predict)

  def loss_fn(current, step, carry, batches):
    return loss_of(current, batches(step)), carry

  def hessian_product(gradient_at, trained, vector):
    if hparams.hessian == "exact":
      with tf.GradientTape(watch_accessed_variables=False) as tape:
        tape.watch(trained)
        slope = gradient_at(trained, curvature).gradients
      return tape.gradient(
        slope,
        trained,
        output_gradients=vector,
        unconnected_gradients=tf.UnconnectedGradients.ZERO,
      )
    delta = hparams.hessian_delta
    above, below = (
      gradient_at(_add(trained, distance, vector), curvature).gradients
      for distance in (delta, -delta)
    )
    return tuple(
      (one - other) / (2 * delta)
      for one, other in zip(above, below, strict=True)
    )

  def differentiate(gradient_at, trained):
    if not alpha:
      return gradient_at(trained, outer)
    first = gradient_at(trained, inner).gradients
    found = gradient_at(_add(trained, -alpha, first), outer)
    if hparams.hessian == "first_order":
      return found
    product = hessian_product(gradient_at, trained, found.gradients)
    return found._replace(gradients=_add(found.gradients, -alpha, product))

  result = local_training.train(
    loss_fn,
    weights,
    num_steps,
    hparams,
    seed=seed,
    round_num=round_num,
    differentiate=differentiate,
  )
  return algorithm.ClientResult(
    update=tf.nest.map_structure(tf.subtract, result.weights, weights),
    client_state=(),
    loss=result.loss,
  )


def build(
  model: split_model.SplitModel, hparams: HParams
) -> algorithm.AlgorithmSpec:
  """Builds the spec of PerFedAvg; see `algorithm.AlgorithmSpec`."""
  plain = dataclasses.replace(
    hparams, optimizer="sgd", momentum=0.0, weight_decay=0.0
  )

  @local_training.allows_padding
  def prepare_client(weights, _, data, round_num):
    del round_num
    # A client without examples has no batches.
    return fed_avg_ft.fine_tune(
      model,
      plain,
      hparams.adaptation_steps * local_training.has_examples(data),
      weights,
      data,
      learning_rate=hparams.inner_rate,
    )

  return fed_avg.build(model, hparams)._replace(
    train_client=local_training.allows_padding(
      lambda weights, _, data, round_num: train_client(
        model, hparams, weights, data, round_num
      )
    ),
    prepare_client=prepare_client,
    predict_as_client=local_training.allows_padding(
      lambda _, adapted, data, examples: evaluation.predict(
        model, adapted, examples.x
      )
    ),
  )
