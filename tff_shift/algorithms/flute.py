"""FLUTE: personal heads, regularised towards the geometry of a simplex.

Federated Representation Learning in the Under-Parameterized Regime (Liu, Shen,
Yang; ICML 2024, arXiv:2406.04596). A baseline of Federated Learning under
Evolving Distribution Shifts, Table 1.

The backbone phi is averaged, and each client keeps its head. Let W be the last
layer's weights [classes, size], y the 0/1 vector of the client's classes and C
the number of all classes. A client minimises

    CE + lambda_1 R(W) + lambda_2 |W|_F^2 + lambda_3 |phi(x)|^2,

    R(W) = | W W^T / |W W^T|_F - (C - 1)^(-1/2) (I - 11^T / C) * (y y^T) |_F,

first over the head on the received phi (without the last term), then over both.
R is the distance of W from a simplex of equal angles, to which the last layer
"collapses" when a network is trained to convergence.

What leaves a client: the update of phi, and the mean training loss of the steps
on all weights. The head and the client's classes stay; with `share_head` the
head is sent as well.

Equations and numbers are those of the authors' program.

Choices:
  * The program's step of the server on the heads is a sum over clients that
    does not couple them. Each client therefore takes the same step on its own
    head, which does not leave the client, at the program's rate of 0.5 over 20
    clients. In the program the step is off by default (`simplex_rate=0`).
  * |phi(x)|^2 is a mean over the batch, as the cross-entropy; the program sums
    (`feature_norm=sum`). With the sum, all features became 0 on circle (Adam at
    5e-4 and at 3e-3).
  * The FedEvolve paper prints a server accuracy, but the server has no head:
    there is none, unless `share_head` sends the mean of the heads. Clients'
    predictions are bit-identical with it.
"""

import dataclasses

import tensorflow as tf

from tff_shift.algorithms import fed_rep
from tff_shift.data import client_dataset
from tff_shift.learning import algorithm
from tff_shift.learning import evaluation
from tff_shift.learning import hyperparameters
from tff_shift.learning import local_training
from tff_shift.learning import randomness
from tff_shift.learning import safe_norms
from tff_shift.models import split_model

SCENARIOS = ("evolving", "guidance")

RUNNING_STATISTICS = algorithm.ONE_MODEL


@dataclasses.dataclass(frozen=True)
class HParams(hyperparameters.LocalHParams):
  """Hyper-parameters of FLUTE; `local_steps` train all weights."""

  head_steps: int = hyperparameters.hparam(
    5,
    "Local iterations for the head, before those for all weights; 0: none.",
    minimum=0,
  )
  simplex_penalty: float = hyperparameters.hparam(
    0.25,
    "lambda_1: weight of the head's distance R from a simplex; 0: none.",
    minimum=0,
  )
  head_penalty: float = hyperparameters.hparam(
    0.0025, "lambda_2: weight of |W|^2 of the head; 0: none.", minimum=0
  )
  feature_penalty: float = hyperparameters.hparam(
    0.0005,
    "lambda_3: weight of |phi(x)|^2 over a batch; 0: none.",
    minimum=0,
  )
  feature_norm: str = hyperparameters.hparam(
    "mean",
    "Reduction of |phi(x)|^2 over a batch: mean, or sum (the program).",
    choices=("mean", "sum"),
  )
  simplex_rate: float = hyperparameters.hparam(
    0.025,
    "Rate of the step on R at the end of a round (the server's step; in the"
    " authors' program 0.5 over the number of clients); 0: none.",
    minimum=0,
  )
  share_head: bool = hyperparameters.hparam(
    False,
    "Whether heads are also sent and averaged, only for the server's"
    " predictions; clients' predictions do not change.",
  )


def simplex_distance(kernel, present) -> tf.Tensor:
  """Computes R(W), the distance of a last layer from a simplex.

  Args:
    kernel: W transposed, [size, num_classes] float32.
    present: The 0/1 vector y of the client's classes, [num_classes] float32.

  Returns:
    A float32 scalar.
  """
  num_classes = int(kernel.shape[1])
  products = tf.matmul(kernel, kernel, transpose_a=True)  # W W^T
  simplex = (tf.eye(num_classes) - 1.0 / num_classes) / (num_classes - 1) ** 0.5
  wanted = simplex * present[:, tf.newaxis] * present
  return safe_norms.length(products / safe_norms.length(products) - wanted)


def step_to_simplex(head, present, rate: float):
  """Takes the server's step on a head.

  Args:
    head: The last layer's weights, the kernel first.
    present: The 0/1 vector of the client's classes, see `simplex_distance`.
    rate: The rate of the step.

  Returns:
    The head; its bias does not change.
  """
  kernel, *bias = head
  with tf.GradientTape() as tape:
    tape.watch(kernel)
    distance = simplex_distance(kernel, present)
  return (kernel - rate * tape.gradient(distance, kernel), *bias)


def train_client(
  model: split_model.SplitModel,
  hparams: HParams,
  backbone,
  head,
  data: client_dataset.ClientDataset,
  round_num,
) -> local_training.TrainingResult:
  """Trains the head, then all weights, then takes the server's step.

  Args:
    model: The model; its head is its last layer.
    hparams: Hyper-parameters.
    backbone: The server's backbone.
    head: The client's head.
    data: The client's data.
    round_num: The round, an int32 scalar.

  Returns:
    The trained `SplitWeights`, and the mean loss of the steps on all weights.
  """
  seed = randomness.fold(data.seed, randomness.Purpose.TRAIN, round_num)
  counts = tf.reduce_sum(tf.one_hot(data.y, model.num_classes), axis=0)
  present = tf.cast(counts > 0, tf.float32)
  num_domains = local_training.num_domains(data)
  over_batch = getattr(tf, f"reduce_{hparams.feature_norm}")

  def train(weights, num_steps, part, trainable, feature_penalty):
    def loss_of(current, batch):
      features = model.embed(current.backbone, batch.x)
      loss = local_training.cross_entropy(
        model.classify(current.head, features), batch.y
      )
      kernel = current.head[0]
      if hparams.simplex_penalty:
        loss += hparams.simplex_penalty * simplex_distance(kernel, present)
      if hparams.head_penalty:
        loss += hparams.head_penalty * tf.reduce_sum(tf.square(kernel))
      if feature_penalty:
        squares = tf.reduce_sum(tf.square(features), axis=1)
        loss += feature_penalty * over_batch(squares)
      return loss

    return local_training.train_on_batches(
      loss_of,
      weights,
      data,
      num_steps,
      randomness.fold(seed, part),
      hparams,
      trainable=trainable,
      round_num=round_num,
    )

  with_head = train(
    split_model.SplitWeights(backbone, head),
    fed_rep.num_head_steps(hparams.head_steps, data),
    0,
    model.weights_of("head"),
    0.0,
  )
  steps = local_training.num_local_steps(hparams, data, round_num)
  result = train(
    with_head.weights, steps * num_domains, 1, None, hparams.feature_penalty
  )
  if not hparams.simplex_rate:
    return result
  new_head = step_to_simplex(result.weights.head, present, hparams.simplex_rate)
  return result._replace(weights=result.weights._replace(head=new_head))


def build(
  model: split_model.SplitModel, hparams: HParams
) -> algorithm.AlgorithmSpec:
  """Builds the spec of FLUTE; see `algorithm.AlgorithmSpec`.

  A client's state is its head; the server holds the backbone, and with
  `share_head` the mean of the last heads.
  """
  model = split_model.with_head(model, "last_layer")
  shares_head = hparams.share_head

  def with_own_head(weights, head):
    backbone = weights.backbone if shares_head else weights
    return split_model.SplitWeights(backbone, head)

  def train(weights, head, data, round_num):
    own = with_own_head(weights, head)
    result = train_client(
      model, hparams, own.backbone, own.head, data, round_num
    )
    trained = result.weights if shares_head else result.weights.backbone
    return algorithm.ClientResult(
      # The head's update is relative to the server's mean head: added to it,
      # the mean update gives the mean of the new heads.
      update=tf.nest.map_structure(tf.subtract, trained, weights),
      client_state=result.weights.head,
      loss=result.loss,
    )

  def predict_as_server(weights, _, examples):
    return evaluation.predict(model, weights, examples.x)

  return algorithm.AlgorithmSpec(
    initial_weights=(
      model.initial_weights if shares_head else model.initial_backbone
    ),
    initial_client_state=lambda seed, weights: model.initial_head(seed),
    starts_alike=True,
    train_client=train,
    predict_as_client=lambda weights, head, _, examples: evaluation.predict(
      model, with_own_head(weights, head), examples.x
    ),
    predict_as_server=predict_as_server if shares_head else None,
  )
