"""pFedMe: personal models within a Moreau envelope around the shared one.

Personalized Federated Learning with Moreau Envelopes (Dinh, Tran, Nguyen;
NeurIPS 2020, arXiv:2006.08848), Algorithm 1.

Client i has a copy w_i of the server's model and a personal model theta_i. It
takes R local rounds, each on one batch, with K steps on the personal model:

    K times   theta <- theta - eta_p (grad F_i(theta) + lambda (theta - w_i))
    then      w_i <- w_i - eta lambda (w_i - theta)

It predicts with theta_i. The server moves by beta towards the mean of w_i:

    w <- (1 - beta) w + beta mean w_i

With beta = 0 or lambda = 0 the server model never changes, bit for bit.

theta_i stays about grad F_i / lambda from w_i, so that a batch moves w_i by
about eta grad F_i: the server model learns as FedAvg's at the learning rate
eta, and eta_p decides only how exact theta_i is. The published eta = 0.005
belongs to R = 20 and 800 rounds. For fewer, take FedAvg's learning rate for
eta, at most 1 / lambda, where w_i becomes theta_i.

What leaves a client: beta times the update of w_i, and the mean training loss
of theta, including the proximal term. theta_i stays.

Written from the steps of the authors' program.

Choices:
  * R is the number of local steps. A round thus takes K R gradients.
  * In a round, theta starts at the received w and is kept from batch to batch,
    as in the program; the paper leaves the start open. A client that has not
    taken part predicts with the server model.
  * eta_p is `learning_rate`, for any optimizer. Weight decay applies to theta;
    the program has one of 0.001.
  * Clients predict with theta_i. The program's personal accuracy is that of
    w_i, which overwrites theta_i, and PFLlib's is that of the server model.
  * On scikit-learn's digits (ten clients of 100 examples, a perceptron of width
    64, batches of 20, plain steps, seed 0, accuracy on the other 797), IID, 60
    rounds of 5 batches, clients and server: FedAvg at 0.05 has 92.3 and 92.3 %,
    at 0.005 48.6 and 48.6; pFedMe as published (eta 0.005) 47.4 and 49.6, with
    20 batches 58.5 and 76.7, with `server_beta=2` 53.3 and 55.6; with eta 0.05
    87.3 and 92.6, with lambda 1 76.1 and 83.2, with 20 batches 96.3 and 96.7.
  * The default eta (`outer_rate`) is the published one. On IID clients the
    personal model is worse than w: it fits the last batch.
"""

import dataclasses

import tensorflow as tf

from tff_shift.algorithms import fed_avg
from tff_shift.algorithms import fed_prox
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
  """Hyper-parameters of pFedMe."""

  moreau_lambda: float = hyperparameters.hparam(
    15.0,
    "lambda: how strongly the personal model is pulled towards the client's"
    " copy of the server model. 0: the server model never changes; plain"
    " gradient steps diverge before lambda times the learning rate reaches 2:"
    " the curvature of the loss adds to lambda. The authors use 15.",
    minimum=0,
  )
  personal_steps: int = hyperparameters.hparam(
    5,
    "K: gradient steps of the personal model on each batch; a round takes K"
    " times local_steps. The authors use 5.",
    minimum=1,
  )
  outer_rate: float = hyperparameters.hparam(
    0.005,
    "eta: learning rate of the client's copy of the server model, which moves"
    " by eta times lambda of its distance to the personal model: about as"
    " fed_avg at this rate. The authors use 0.005 with 20 local steps and 800"
    " rounds.",
    minimum=0,
    exclusive_minimum=True,
  )
  server_beta: float = hyperparameters.hparam(
    1.0,
    "beta: how far the server moves towards the mean of the clients' copies. 0:"
    " it never changes; 1: to the mean; above 1: beyond it. The authors use 1,"
    " and 2 where tuned.",
    minimum=0,
  )


def train_client(
  model: split_model.SplitModel,
  hparams: HParams,
  weights: split_model.SplitWeights,
  data: client_dataset.ClientDataset,
  round_num,
) -> algorithm.ClientResult:
  """Trains the personal model, and moves the copy of the server model.

  Args:
    model: The model.
    hparams: Hyper-parameters.
    weights: The server's weights.
    data: The client's data.
    round_num: The round, an int32 scalar.

  Returns:
    The update of the copy times beta, and the personal model.
  """
  num_batches = local_training.num_local_steps(
    hparams, data, round_num
  ) * local_training.num_domains(data)
  seed = randomness.fold(data.seed, randomness.Purpose.TRAIN, round_num)
  batches = local_training.pooled_batches(
    data, num_batches, hparams.batch_size, seed
  )
  inner_steps = hparams.personal_steps

  def follow(copy, personal):
    fraction = hparams.outer_rate * hparams.moreau_lambda
    return tf.nest.map_structure(
      lambda w, theta: w - fraction * (w - tf.stop_gradient(theta)),
      copy,
      personal,
    )

  def loss_fn(personal, step, copy):
    # K steps on the batch before this one are done.
    is_next = (step > 0) & tf.equal(step % inner_steps, 0)
    copy = tf.nest.map_structure(
      lambda moved, w: tf.where(is_next, moved, w), follow(copy, personal), copy
    )
    batch = batches(step // inner_steps)
    pull = fed_prox.proximal_term(hparams.moreau_lambda, copy)
    loss = local_training.classification_loss(model.predict, pull)
    return loss(personal, batch), copy

  result = local_training.train(
    loss_fn,
    weights,
    num_batches * inner_steps,
    hparams,
    seed=seed,
    carry=weights,
    round_num=round_num,
  )
  copy = follow(result.carry, result.weights)
  # The personal model is trained in the place of the server's.
  modes.keep_as("personal")
  return algorithm.ClientResult(
    update=tf.nest.map_structure(
      lambda w, received: hparams.server_beta * (w - received), copy, weights
    ),
    client_state=result.weights,
    loss=result.loss,
  )


def build(
  model: split_model.SplitModel, hparams: HParams
) -> algorithm.AlgorithmSpec:
  """Builds the spec of pFedMe; see `algorithm.AlgorithmSpec`.

  A client's state is its personal model, with which it predicts only.
  """

  @local_training.allows_padding
  def predict_as_client(weights, personal, data, examples):
    del weights, data
    with modes.of_model("personal"):
      return evaluation.predict(model, personal, examples.x)

  return fed_avg.build(model, hparams)._replace(
    initial_client_state=lambda seed, weights: weights,
    train_client=local_training.allows_padding(
      lambda weights, _, data, round_num: train_client(
        model, hparams, weights, data, round_num
      )
    ),
    predict_as_client=predict_as_client,
  )
