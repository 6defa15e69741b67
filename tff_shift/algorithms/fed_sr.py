"""FedSR: a regularised representation, sampled from a Gaussian per example.

FedSR: A Simple and Effective Domain Generalization Method for Federated
Learning (Nguyen, Torr, Lim; NeurIPS 2022, openreview:mrt90D00aQX). A baseline
of Federated Learning under Evolving Distribution Shifts, Table 1.

The backbone maps an example to a Gaussian with mean mu and standard deviation
sigma; the head classifies a sample z = mu + sigma * noise. A client minimises

    CE(head(z)) + alpha_L2R |z| + alpha_CMI KL(N(C mu, (C sigma)^2) || r(z | y))

averaged over the batch. The first penalty bounds the information of z about x,
the second its information about x given the class: r(z | y) = N(r_mu[y],
softplus(r_sigma[y])^2) is a Gaussian for each class. A model predicts with the
mean of the probabilities of several samples z.

What leaves a client: the update of the model and of the layer for sigma, and
the mean training loss. The Gaussians of the classes and C stay.

Equations follow the authors' program: the norm |z| is not squared; r and C are
trained with the model and stay with the client, starting at r_mu = 0, r_sigma =
1 and C = 1.

mu is the model's embedding, and sigma = softplus(A mu + b) comes from an
additional linear layer.

Choices:
  * The authors double the last layer of the backbone, which here ends in a ReLU
    or a mean. mu is the model's embedding, and the layer for sigma starts at
    zeros; `head=classifier` moves the cut. With sigma 0 and without penalties
    it is FedAvg, bit for bit.
  * Class Gaussians and C stay at the client, as in the program; Table 7 of the
    FedEvolve paper seems to count them as sent. It gives the weights of the
    penalties and no other setting.
  * Client and server predict with the mean of 20 draws (`num_samples`). They
    are the same for all examples, clients and rounds, so that a prediction
    depends on its example alone, and a client predicts as the server does.
  * For a negative C, for which the program's logarithm is NaN, the absolute
    value.
"""

import dataclasses
from typing import Any
from typing import NamedTuple

import tensorflow as tf

from tff_shift._util import draws
from tff_shift.data import client_dataset
from tff_shift.learning import algorithm
from tff_shift.learning import evaluation
from tff_shift.learning import hyperparameters
from tff_shift.learning import local_training
from tff_shift.learning import randomness
from tff_shift.learning import safe_norms
from tff_shift.learning import sizes
from tff_shift.models import split_model

SCENARIOS = ("evolving", "guidance")

RUNNING_STATISTICS = algorithm.ONE_MODEL

# Seed of the noise in predictions.
_PREDICTION_SEED = (0, 0)
# A standard deviation of 0 has no logarithm.
_SMALLEST_DEVIATION = 1e-6


@dataclasses.dataclass(frozen=True)
class HParams(hyperparameters.LocalHParams):
  """Hyper-parameters of FedSR."""

  norm_penalty: float = hyperparameters.hparam(
    0.01,
    "alpha_L2R: weight of the norm of the representation; 0: none.",
    minimum=0,
  )
  class_penalty: float = hyperparameters.hparam(
    0.001,
    "alpha_CMI: weight of the divergence of a representation's Gaussian from"
    " its class's Gaussian; 0: none.",
    minimum=0,
  )
  num_samples: int = hyperparameters.hparam(
    20,
    "Samples of the representation over which predicted probabilities are"
    " averaged; 0: the head classifies the mean.",
    minimum=0,
  )
  head: str = hyperparameters.hparam(
    "last_layer",
    "The head after the representation: last_layer, only the last linear layer;"
    " classifier, the model's whole head.",
    choices=split_model.HEADS,
  )


class Weights(NamedTuple):
  """The server weights.

  Attributes:
    model: The model's `SplitWeights`.
    deviation: Kernel [size, size] and bias [size] of the layer for sigma.
  """

  model: Any
  deviation: Any


class ClassGaussians(NamedTuple):
  """A client's state: the Gaussians r(z | y), and C.

  Attributes:
    mean: r_mu, [num_classes, size] float32.
    deviation: r_sigma, before softplus, [num_classes, size] float32.
    scale: C, a float32 scalar.
  """

  mean: Any
  deviation: Any
  scale: Any


def represent(
  model: split_model.SplitModel, weights: Weights, x
) -> tuple[tf.Tensor, tf.Tensor]:
  """Returns mu and sigma of examples, each [batch, size] float32."""
  kernel, bias = weights.deviation
  mean = model.embed(weights.model.backbone, x)
  return mean, tf.nn.softplus(tf.matmul(mean, kernel) + bias)


def divergence(mean, deviation, other_mean, other_deviation) -> tf.Tensor:
  """Computes KL(N(mean, deviation^2) || N(other_mean, other_deviation^2)).

  The dimensions are independent. Standard deviations are at least 1e-6.

  Args:
    mean: [batch, size] float32.
    deviation: [batch, size] float32, at least 0.
    other_mean: [batch, size] float32.
    other_deviation: [batch, size] float32, at least 0.

  Returns:
    [batch] float32.
  """
  deviation, other_deviation = (
    tf.maximum(each, _SMALLEST_DEVIATION)
    for each in (deviation, other_deviation)
  )
  squares = tf.square(deviation) + tf.square(mean - other_mean)
  return tf.reduce_sum(
    tf.math.log(other_deviation)
    - tf.math.log(deviation)
    + squares / (2.0 * tf.square(other_deviation))
    - 0.5,
    axis=1,
  )


def train_client(
  model: split_model.SplitModel,
  hparams: HParams,
  weights: Weights,
  gaussians: ClassGaussians,
  data: client_dataset.ClientDataset,
  round_num,
) -> algorithm.ClientResult:
  """Trains the model and the client's Gaussians, in as many steps as FedAvg.

  Args:
    model: The model.
    hparams: Hyper-parameters.
    weights: The server's weights.
    gaussians: The client's state.
    data: The client's data.
    round_num: The round, an int32 scalar.

  Returns:
    The update of the weights, and the trained Gaussians.
  """
  seed = randomness.fold(data.seed, randomness.Purpose.TRAIN, round_num)
  num_steps = local_training.num_local_steps(hparams, data, round_num)
  num_steps *= local_training.num_domains(data)
  # The same batches as in FedAvg.
  batches = local_training.pooled_batches(
    data, num_steps, hparams.batch_size, seed
  )
  noise_seed = randomness.fold(seed, 0)

  def loss_fn(current, step, carry):
    shared, own = current
    batch = batches(step)
    mean, deviation = represent(model, shared, batch.x)
    z = mean + deviation * draws.normal(
      tf.shape(mean), randomness.fold(noise_seed, step)
    )
    loss = local_training.cross_entropy(
      model.classify(shared.model.head, z), batch.y
    )
    if hparams.norm_penalty:
      loss += hparams.norm_penalty * tf.reduce_mean(
        safe_norms.length(z, axis=1)
      )
    if hparams.class_penalty:
      loss += hparams.class_penalty * tf.reduce_mean(
        divergence(
          own.scale * mean,
          tf.abs(own.scale) * deviation,
          tf.gather(own.mean, batch.y),
          tf.nn.softplus(tf.gather(own.deviation, batch.y)),
        )
      )
    return loss, carry

  result = local_training.train(
    loss_fn,
    (weights, gaussians),
    num_steps,
    hparams,
    seed=seed,
    round_num=round_num,
  )
  trained, own = result.weights
  return algorithm.ClientResult(
    update=tf.nest.map_structure(tf.subtract, trained, weights),
    client_state=own,
    loss=result.loss,
  )


def predict(
  model: split_model.SplitModel, hparams: HParams, weights: Weights, x
) -> tf.Tensor:
  """Predicts the classes of examples.

  Args:
    model: The model.
    hparams: `num_samples` is used.
    weights: The server's weights.
    x: The examples, [num_examples, ...].

  Returns:
    The logarithms of the mean probabilities over samples of the representation
    or, without samples, the logits of its mean; [num_examples, num_classes].
  """
  num_samples, size = hparams.num_samples, model.embedding_size
  noise = draws.normal([num_samples, 1, size], _PREDICTION_SEED)

  def predict_batch(batch):
    mean, deviation = represent(model, weights, batch)
    if not num_samples:
      return model.classify(weights.model.head, mean)
    z = tf.reshape(mean + deviation * noise, [-1, size])
    logits = model.classify(weights.model.head, z)  # [samples * batch, classes]
    logs = tf.reshape(
      tf.nn.log_softmax(logits), [num_samples, -1, model.num_classes]
    )
    return tf.reduce_logsumexp(logs, axis=0) - tf.math.log(float(num_samples))

  return evaluation.predict_in_batches(predict_batch, x, model.num_classes)


def build(
  model: split_model.SplitModel, hparams: HParams
) -> algorithm.AlgorithmSpec:
  """Builds the spec of FedSR; see `algorithm.AlgorithmSpec`."""
  model = split_model.with_head(model, hparams.head)
  size = model.embedding_size
  sizes.check_copies("num_samples", hparams.num_samples, [size])
  by_class = (model.num_classes, size)
  return algorithm.AlgorithmSpec(
    initial_weights=lambda seed: Weights(
      model.initial_weights(seed), (tf.zeros([size, size]), tf.zeros([size]))
    ),
    initial_client_state=lambda seed, weights: ClassGaussians(
      tf.zeros(by_class), tf.ones(by_class), tf.constant(1.0)
    ),
    train_client=lambda weights, gaussians, data, round_num: train_client(
      model, hparams, weights, gaussians, data, round_num
    ),
    predict_as_client=lambda weights, gaussians, data, examples: predict(
      model, hparams, weights, examples.x
    ),
    predict_as_server=lambda weights, summary, examples: predict(
      model, hparams, weights, examples.x
    ),
  )
