"""FedEM: a client predicts with its own mixture of several server models.

Federated Multi-Task Learning under a Mixture of Distributions (Marfoq, Neglia,
Bellet, Kameni, Vidal; NeurIPS 2021, arXiv:2108.10252), Algorithm 1.

The data of each client come from a mixture of K distributions, the same ones
for all clients, with weights pi_i of client i. The server has a model w_k of
each. In a round, with l_k(x) the loss of w_k on the example x, a client

  1. computes to which model each example belongs (E-step),

         q_k(x) = pi_ik exp(-l_k(x)) / sum_j pi_ij exp(-l_j(x))
         pi_ik <- mean over its examples of q_k(x)

  2. trains each w_k on all examples, weighted by q_k (M-step),

         mean over the examples of q_k(x) l_k(x)

and the server adds the mean update of each model. A client predicts with the
mixture of probabilities

    sum_k pi_ik softmax f(x; w_k),

with the pi_i of one more E-step on its training data with the current models.
With K = 1 rounds are those of FedAvg, bit for bit.

What leaves a client: its updates of all K models, and the mean training loss,
the sum over k of the M-step's. pi_i and q stay.

Choices, and differences from the authors' program
(github.com/omarfoq/FedEM):
  * q is computed once a round, before training, over all training examples, as
    in the program.
  * All models take the same batches.
  * The mean is over the cohort. The program averages over all clients, where
    the others count with the received model: then the step shrinks with the
    client fraction. The paper weights clients by their numbers of examples:
    `client_weighting=num_examples`.
  * pi_i starts uniform. A client that has not trained yet predicts with the
    pi_i of a single E-step from there.
  * The first models are drawn from different seeds, as in the program.
"""

import dataclasses
from typing import Any
from typing import NamedTuple

import tensorflow as tf

from tff_shift.algorithms.parts import model_stack
from tff_shift.data import client_dataset
from tff_shift.learning import algorithm
from tff_shift.learning import evaluation
from tff_shift.learning import hyperparameters
from tff_shift.learning import local_training
from tff_shift.learning import randomness
from tff_shift.models import split_model

SCENARIOS = ("evolving", "guidance", "dynamic_personalization")


@dataclasses.dataclass(frozen=True)
class HParams(hyperparameters.LocalHParams):
  """Hyper-parameters of FedEM."""

  num_models: int = model_stack.num_models_hparam(3)


class Expectation(NamedTuple):
  """The result of an E-step.

  Attributes:
    q: The weight of each example in the loss of each model, [num_examples,
      num_models] float32, with sums 1.
    pi: The weight of each model in the client's mixture, [num_models] float32.
  """

  q: Any
  pi: Any


def expect(pi, losses) -> Expectation:
  """Takes the E-step.

  Args:
    pi: The weights of the mixture before, [num_models] float32.
    losses: The loss of each model on each example, [num_models, num_examples]
      float32.

  Returns:
    The `Expectation`; without examples, pi is as before.
  """
  # The only model has weight 1 exactly; by `tf.nn.softmax`, 1 - 2**-24 for some
  # examples on processors whose reciprocals it approximates.
  q = tf.exp(tf.nn.log_softmax(tf.math.log(pi) - tf.transpose(losses), axis=1))
  number = tf.shape(q)[0]
  mean = tf.reduce_sum(q, axis=0) / tf.cast(tf.maximum(number, 1), tf.float32)
  return Expectation(q, tf.where(number > 0, mean, pi))


def mix(pi, logits) -> tf.Tensor:
  """Computes the logarithm of the mixture of probabilities.

  Args:
    pi: [num_models] float32.
    logits: The logits of each model, [num_models, num_examples, num_classes].

  Returns:
    [num_examples, num_classes] float32.
  """
  log_pi = tf.math.log(pi)[:, tf.newaxis, tf.newaxis]
  return tf.reduce_logsumexp(
    log_pi + tf.nn.log_softmax(logits, axis=-1), axis=0
  )


def train_client(
  model: split_model.SplitModel,
  hparams: HParams,
  models: Any,
  expected: Expectation,
  data: client_dataset.ClientDataset,
  round_num,
) -> algorithm.ClientResult:
  """Takes the M-step.

  Args:
    model: The model.
    hparams: Local training.
    models: The server's models, weights with a first axis of num_models.
    expected: The client's E-step.
    data: The client's data.
    round_num: The round, an int32 scalar.

  Returns:
    The update of all models; the client's state is its new pi.
  """
  separate = tuple(
    model_stack.take(models, k) for k in range(hparams.num_models)
  )

  def loss(separate, batch):
    return tf.add_n(
      [
        local_training.cross_entropy(
          model.predict(weights, batch.x), batch.y, batch.weights[:, k]
        )
        for k, weights in enumerate(separate)
      ]
    )

  steps = local_training.num_local_steps(hparams, data, round_num)
  result = local_training.train_on_batches(
    loss,
    separate,
    data,
    steps * local_training.num_domains(data),
    randomness.fold(data.seed, randomness.Purpose.TRAIN, round_num),
    hparams,
    example_weights=expected.q,
    round_num=round_num,
  )
  updates = tf.nest.map_structure(tf.subtract, result.weights, separate)
  return algorithm.ClientResult(
    update=tf.nest.map_structure(lambda *each: tf.stack(each), *updates),
    client_state=expected.pi,
    loss=result.loss,
  )


def predict(
  model: split_model.SplitModel, hparams: HParams, models: Any, pi, x
) -> tf.Tensor:
  """Predicts with a client's mixture of the server's models, see `mix`."""
  logits = [
    evaluation.predict(model, model_stack.take(models, k), x)
    for k in range(hparams.num_models)
  ]
  return mix(pi, tf.stack(logits))


def build(
  model: split_model.SplitModel, hparams: HParams
) -> algorithm.AlgorithmSpec:
  """Builds the spec of FedEM; see `algorithm.AlgorithmSpec`.

  The server weights are those of the model with a first axis of num_models. A
  client's state is its pi, [num_models] float32. The server has no pi to
  predict with.
  """
  num_models = hparams.num_models
  model_stack.check_starts("fed_em", model, num_models)

  def e_step(models, pi, data):
    return expect(pi, model_stack.example_losses(model, models, data))

  return algorithm.AlgorithmSpec(
    initial_weights=lambda seed: model_stack.initial_models(
      model, num_models, seed
    ),
    initial_client_state=lambda seed, models: tf.fill(
      [num_models], 1.0 / num_models
    ),
    train_client=lambda models, pi, data, round_num: train_client(
      model, hparams, models, e_step(models, pi, data), data, round_num
    ),
    prepare_client=lambda models, pi, data, _: e_step(models, pi, data).pi,
    predict_as_client=lambda models, pi, data, examples: predict(
      model, hparams, models, pi, examples.x
    ),
  )
