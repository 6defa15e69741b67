"""CFeD: domains come one by one, and the old model is a teacher.

Continual Federated Learning Based on Knowledge Distillation (Ma, Xie, Wang,
Chen, Shou; IJCAI 2022). A baseline of Federated Learning under Evolving
Distribution Shifts, Table 1.

In the rounds of domain m a client has the examples of this domain alone. From
the second domain on, some of the clients of a round review instead of learning:
on public inputs without classes they distil (Hinton, Vinyals, Dean; 2015) from
the model of the end of the domain before,

    alpha CE(softmax(teacher / T), softmax(student / T)).

The server adds the mean of the changes. Then, in all rounds of all domains, it
distils too: its model learns what the models of the round and the one before it
say of the public inputs.

What leaves a client: the change of all weights, the mean training loss, and the
sum over the clients of their probabilities of the public inputs, where the
model is theirs as trained. They are sent in the open.

Equations and numbers (40 % review; alpha = 0.1, T = 2, without T^2) are those
of the authors' program. Decisions:
  * The tasks are the source domains, in equal parts of the rounds. A round has
    as many gradient steps as FedAvg's, whoever reviews.
  * The program's server distils in the first domain too, where no client
    reviews yet; `distil_from=second_domain` leaves it out there.
  * Who reviews is drawn for each client and round.
  * The server's targets are the mean of the probabilities. The program labels
    each input by one model in turn, which would show the server what single
    clients answer. A client without examples has no part in it.
  * The public inputs: the paper names some for its data sets, the FedEvolve
    paper names none. Uniform noise here, a small number of inputs that are
    constants of the computation; `public_data=digits` for images (not where
    clients hold these very digits).
"""

import dataclasses
import math
from collections.abc import Callable
from typing import Any
from typing import NamedTuple

import numpy as np
import tensorflow as tf
from sklearn import datasets

from tff_shift import memory
from tff_shift.data import client_dataset
from tff_shift.data.texts import text
from tff_shift.learning import algorithm
from tff_shift.learning import evaluation
from tff_shift.learning import hyperparameters
from tff_shift.learning import local_training
from tff_shift.learning import randomness
from tff_shift.learning.aggregators import factories
from tff_shift.models import modes
from tff_shift.models import split_model
from tff_shift.techniques import continual_tasks

SCENARIOS = ("evolving",)

RUNNING_STATISTICS = algorithm.Kept(server=("model", "teacher"))

AGGREGATION_REQUIREMENTS = factories.AggregationRequirements(
  plaintext_sums="for its distillation the server is told the sum of the"
  " clients' probabilities of the public inputs"
)

# Seed of the public inputs.
_PUBLIC_SEED = 0
# A graph is a message of protobuf, whose size is limited.
_MAX_BYTES = 2**31 - 1


@dataclasses.dataclass(frozen=True)
class HParams(hyperparameters.LocalHParams):
  """Hyper-parameters of CFeD."""

  distillation_weight: float = hyperparameters.hparam(
    0.1, "alpha: weight of the loss of distillation.", minimum=0
  )
  temperature: float = hyperparameters.hparam(
    2.0,
    "T, by which logits are divided before softmax; above 1 evens out what the"
    " teacher says.",
    minimum=0,
    exclusive_minimum=True,
  )
  public_data: str = hyperparameters.hparam(
    "uniform",
    "The public inputs: uniform noise, or for images digits (scikit-learn's).",
    choices=("uniform", "digits"),
  )
  public_examples: int = hyperparameters.hparam(
    200, "The number of public inputs.", minimum=1
  )
  public_bound: float = hyperparameters.hparam(
    1.0,
    "Public inputs that are no images are uniform up to this size.",
    minimum=0,
    exclusive_minimum=True,
  )
  task_rounds: int = continual_tasks.task_rounds_hparam()
  review_share: float = hyperparameters.hparam(
    0.4,
    "Probability that a client reviews in a round, from the second domain on;"
    " 0: all learn.",
    minimum=0,
    maximum=1,
  )
  server_steps: int = hyperparameters.hparam(
    5,
    "Gradient steps of the server's distillation in a round, at the rate of the"
    " clients; 0 is none.",
    minimum=0,
  )
  distil_from: str = hyperparameters.hparam(
    "first_domain",
    "Where the server's distillation begins: first_domain, in all rounds, as in"
    " the authors' program; second_domain, when there is a teacher.",
    choices=("first_domain", "second_domain"),
  )


class Weights(NamedTuple):
  """What the server holds.

  Attributes:
    model: The model's `SplitWeights`.
    teacher: Those of the end of the last domain that is over; the initial ones
      before there is any.
    seed: The seed of the batches with which the server distils, int32 [2].
  """

  model: Any
  teacher: Any
  seed: Any


class Contribution(NamedTuple):
  """What is added up over clients.

  Attributes:
    probabilities: Of the public inputs, [num_public, num_classes] float32;
      zeros of a client without examples.
    num_clients: One, or zero without examples, a float32 scalar.
    is_later: Whether the domain is not the first, an int32 scalar.
    is_last: Whether the round is the last of its domain, an int32 scalar.
  """

  probabilities: Any
  num_clients: Any
  is_later: Any
  is_last: Any


def _make_titles(
  generator: np.random.Generator, shape: tuple[int, int], vocabulary_size: int
) -> np.ndarray:
  """Draws titles [number, length] int32 of at least one word."""
  number, length = shape
  words = generator.integers(text.UNKNOWN, vocabulary_size, shape, np.int32)
  lengths = generator.integers(1, length, (number, 1), endpoint=True)
  return np.where(np.arange(length) < lengths, words, np.int32(text.PADDING))


def _make_uniform(
  model: split_model.SplitModel, number: int, bound: float
) -> np.ndarray:
  """Draws uniform public inputs."""
  generator = np.random.default_rng(_PUBLIC_SEED)
  shape = (number, *model.input_shape)
  num_bytes = math.prod(shape) * model.input_dtype.size
  if num_bytes > _MAX_BYTES:
    raise ValueError(
      f"public_examples={number}: {memory.described(num_bytes)} of inputs"
      f" {list(model.input_shape)}; a graph can hold 2 GiB, or"
      f" {_MAX_BYTES * number // num_bytes} of them"
    )
  dtype = model.input_dtype.name
  if dtype == "uint8":
    return generator.integers(0, 256, shape, np.uint8)
  if dtype == "float32":
    numbers = generator.uniform(-bound, bound, shape)
    return model.input_scaling.undone(numbers).astype(np.float32)
  if model.vocabulary_size is not None:
    return _make_titles(generator, shape, model.vocabulary_size)
  raise ValueError(
    f"public_data=uniform is not for model {model.name!r}, which takes"
    f" {dtype}: it must be images, float32, or tokens of a model that says its"
    " vocabulary_size"
  )


def _make_digits(model: split_model.SplitModel, number: int) -> np.ndarray:
  """Draws images of digits and resizes them to the model's images."""
  if model.input_dtype.name != "uint8" or len(model.input_shape) != 3:
    raise ValueError(
      f"public_data=digits is not for model {model.name!r}, which takes no"
      " images: it must be uniform"
    )
  generator = np.random.default_rng(_PUBLIC_SEED)
  images = datasets.load_digits().images  # [1797, 8, 8], from 0 to 16
  chosen = images[generator.permutation(len(images))[:number]]
  chosen = np.round(chosen * (255 / 16)).astype(np.uint8)
  # The nearest pixel of the digit.
  rows, columns = (
    np.arange(size) * there // size
    for size, there in zip(model.input_shape, chosen.shape[1:3], strict=False)
  )
  resized = chosen[:, rows[:, np.newaxis], columns, np.newaxis]
  return np.repeat(resized, model.input_shape[-1], axis=-1)


def make_public_inputs(
  model: split_model.SplitModel, hparams: HParams
) -> np.ndarray:
  """Makes the public inputs, the same for all clients and the server.

  Args:
    model: The model.
    hparams: With `public_data=uniform`: uniform numbers; for a model that takes
      neither images nor tokens, from -public_bound to public_bound after the
      model has scaled them; for a model of tokens, titles of uniform length and
      uniform words. With `public_data=digits`: scikit-learn's digits at the
      size of the model's images, at most all of them.

  Returns:
    `[public_examples, ...]` in the model's dtype.

  Raises:
    ValueError: If the model does not take such inputs, or a graph cannot hold
      them.
  """
  if hparams.public_data == "digits":
    return _make_digits(model, hparams.public_examples)
  return _make_uniform(model, hparams.public_examples, hparams.public_bound)


@dataclasses.dataclass(frozen=True)
class Distillation:
  """Distillation on public inputs.

  Attributes:
    model: The model of teacher and student.
    hparams: Temperature, weight of the loss and batch size.
    x: The public inputs, [num_public, ...], constants of the graph.
  """

  model: split_model.SplitModel
  hparams: HParams
  x: np.ndarray

  def probabilities(self, weights) -> tf.Tensor:
    """Returns softmax(logits / T), [num_public, num_classes] float32."""
    logits = evaluation.predict(self.model, weights, tf.constant(self.x))
    return tf.nn.softmax(
      tf.ensure_shape(logits, [len(self.x), self.model.num_classes])
      / self.hparams.temperature
    )

  def loss(self, targets, num_steps, seed) -> Callable[[Any, Any], tf.Tensor]:
    """Makes the loss alpha CE(targets, softmax(logits / T)) of batches.

    Args:
      targets: The teacher's probabilities, [num_public, num_classes] float32.
      num_steps: The number of batches, an int32 scalar.
      seed: An int32 tensor of shape [2]; fixes the batches.

    Returns:
      `(weights, step) -> loss`, float32 scalar.
    """
    # The targets take the place of classes; no gradient goes through them.
    public = client_dataset.ClientDataset(
      tf.constant(self.x),
      tf.stop_gradient(targets),
      domain_sizes=np.array([len(self.x)], np.int32),
      num_examples=np.int32(len(self.x)),
      seed=seed,
    )
    batches = local_training.pooled_batches(
      public, num_steps, self.hparams.batch_size, seed
    )

    def loss_fn(weights, step):
      batch = batches(step)
      logits = self.model.predict(weights, batch.x)
      losses = tf.nn.softmax_cross_entropy_with_logits(
        batch.y, logits / self.hparams.temperature
      )
      return self.hparams.distillation_weight * tf.reduce_mean(losses)

    return loss_fn


def train_client(
  model: split_model.SplitModel,
  hparams: HParams,
  distillation: Distillation,
  weights: Weights,
  data: client_dataset.ClientDataset,
  round_num,
) -> algorithm.ClientResult:
  """Learns the current domain, or reviews what was learned before.

  Args:
    model: The model.
    hparams: Hyper-parameters.
    distillation: Distillation on the public inputs.
    weights: The server's model and teacher.
    data: The client's data of all domains.
    round_num: The round, an int32 scalar.

  Returns:
    The change of the model, and what the trained model says of the public
    inputs; there is no personal state.
  """
  num_domains = tf.size(data.domain_sizes)
  domain, following = (
    continual_tasks.current_domain(hparams.task_rounds, number, num_domains)
    for number in (round_num, round_num + 1)
  )
  current = continual_tasks.of_domain(data, domain)
  num_steps = continual_tasks.num_steps(hparams, data, current, round_num)
  seed = randomness.fold(data.seed, randomness.Purpose.TRAIN, round_num)
  draw = tf.random.stateless_uniform([], randomness.fold(seed, 0))
  reviews = (domain > 0) & (draw < hparams.review_share)
  batches = local_training.pooled_batches(
    current, num_steps, hparams.batch_size, seed
  )
  with modes.of_model("teacher"):
    taught = distillation.probabilities(weights.teacher)
  review = distillation.loss(taught, num_steps, randomness.fold(seed, 1))

  def learn(now, step):
    batch = batches(step)
    return local_training.cross_entropy(model.predict(now, batch.x), batch.y)

  def loss_fn(now, step, carry):
    loss = modes.cond(
      reviews, lambda: review(now, step), lambda: learn(now, step)
    )
    return loss, carry

  result = local_training.train(
    loss_fn, weights.model, num_steps, hparams, seed=seed, round_num=round_num
  )
  counts = tf.cast(tf.minimum(tf.size(data.y), 1), tf.float32)
  return algorithm.ClientResult(
    update=tf.nest.map_structure(tf.subtract, result.weights, weights.model),
    client_state=(),
    loss=result.loss,
    plaintext_sum=Contribution(
      counts * distillation.probabilities(result.weights),
      counts,
      tf.cast(domain > 0, tf.int32),
      tf.cast(following > domain, tf.int32),
    ),
    has_trained=tf.size(current.y) > 0,
  )


def update_server(
  hparams: HParams,
  distillation: Distillation,
  weights: Weights,
  mean_update: split_model.SplitWeights,
  plaintext_sum: Contribution,
  info: algorithm.UpdateInfo,
) -> Weights:
  """Adds the mean update, and distils.

  Args:
    hparams: Hyper-parameters.
    distillation: Distillation on the public inputs.
    weights: The server's model and teacher.
    mean_update: The mean change of the model.
    plaintext_sum: The sum over the clients of the round.
    info: See `algorithm.AlgorithmSpec`.

  Returns:
    The new model and, where a domain is over, the same as the new teacher.
  """
  updated = info.step(weights.model, mean_update)
  targets = plaintext_sum.probabilities
  targets += distillation.probabilities(weights.model)
  targets /= plaintext_sum.num_clients + 1.0
  num_steps = tf.constant(hparams.server_steps)
  if hparams.distil_from == "second_domain":
    num_steps *= tf.minimum(plaintext_sum.is_later, 1)
  seed = randomness.fold(weights.seed, randomness.Purpose.TRAIN, info.round_num)
  loss = distillation.loss(targets, num_steps, seed)
  updated = local_training.train(
    lambda now, step, carry: (loss(now, step), carry),
    updated,
    num_steps,
    hparams,
    seed=seed,
    round_num=info.round_num,
  ).weights
  is_over = plaintext_sum.is_last > 0
  modes.keep_as("teacher", is_over)
  return weights._replace(
    model=updated,
    teacher=tf.nest.map_structure(
      lambda new, old: tf.where(is_over, new, old), updated, weights.teacher
    ),
  )


def build(
  model: split_model.SplitModel, hparams: HParams
) -> algorithm.AlgorithmSpec:
  """The functions of CFeD; see `algorithm.AlgorithmSpec`."""
  if model.statistics and hparams.personal_norm != "none":
    raise ValueError(
      f"personal_norm={hparams.personal_norm} is not allowed with cfed: its"
      " server trains a model, whose running statistics it would not have"
    )
  distillation = Distillation(
    model, hparams, make_public_inputs(model, hparams)
  )

  def initial_weights(seed):
    weights = model.initial_weights(seed)
    return Weights(weights, weights, seed)

  def predict(weights, x):
    return evaluation.predict(model, weights.model, x)

  return algorithm.AlgorithmSpec(
    initial_weights=initial_weights,
    train_client=lambda weights, _, data, round_num: train_client(
      model, hparams, distillation, weights, data, round_num
    ),
    update_server=lambda *arguments: update_server(
      hparams, distillation, *arguments
    ),
    predict_as_client=lambda weights, _, data, examples: predict(
      weights, examples.x
    ),
    predict_as_server=lambda weights, _, examples: predict(weights, examples.x),
    fixed_weights=("seed",),
  )
