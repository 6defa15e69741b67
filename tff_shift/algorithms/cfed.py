"""CFeD: domains are learned one by one, with distillation from the old model.

Continual Federated Learning Based on Knowledge Distillation (Ma, Xie, Wang,
Chen, Shou; IJCAI 2022, doi:10.24963/ijcai.2022/303). A baseline of Federated
Learning under Evolving Distribution Shifts, Table 1.

In the rounds of domain m a client has only the examples of this domain. From
the second domain on, some clients of a round review instead of learning: on
unlabelled public inputs, they distil (Hinton, Vinyals, Dean; 2015) the model at
the end of the previous domain,

    alpha CE(softmax(teacher / T), softmax(student / T)).

The server adds the mean update. Then, in all rounds of all domains, it distils
too: on the public inputs, its model learns the mean predictions of the clients'
trained models and of the previous server model.

What leaves a client: its model update, the mean training loss and, in plaintext
sums over clients, the trained model's probabilities for the public inputs.

Equations and constants (40 % review; alpha = 0.1, T = 2, without T^2) follow
the authors' program.

Choices:
  * The server's targets are the mean of the probabilities, of which it sees
    only the sum. Clients without examples do not contribute. The program labels
    each public input by one model in turn. `server_steps=0` leaves it out.
  * The server distils from the first domain on, as in the program
    (`train_CFeD`), where only the clients' review begins with the second task
    (`distil_from=second_domain`).
  * Each client reviews with the same probability, drawn in each round, with as
    many gradient steps as FedAvg's.
  * The public inputs are 200 inputs of uniform noise, for titles of uniform
    lengths and uniform words, including unknown ones (`public_data`,
    `public_examples`, `public_bound`). `public_data=digits` is for images, not
    if clients hold the same digits.
  * The server updates its running statistics when it distils.
"""

import dataclasses
import math
from collections.abc import Callable
from typing import Any
from typing import NamedTuple

import numpy as np
import tensorflow as tf
from sklearn import datasets

from tff_shift._util import draws
from tff_shift._util import memory
from tff_shift.algorithms.parts import continual_tasks
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

SCENARIOS = ("evolving",)

RUNNING_STATISTICS = algorithm.Kept(server=("model", "teacher"))

AGGREGATION_REQUIREMENTS = factories.AggregationRequirements(
  plaintext_sums="for its distillation the server receives the sum of the"
  " clients' probabilities for the public inputs"
)

# Seed of the public inputs.
_PUBLIC_SEED = 0
# A graph is a protocol buffer message, whose size is limited.
_MAX_BYTES = 2**31 - 1


@dataclasses.dataclass(frozen=True)
class HParams(hyperparameters.LocalHParams):
  """Hyper-parameters of CFeD."""

  distillation_weight: float = hyperparameters.hparam(
    0.1, "alpha: weight of the distillation loss.", minimum=0
  )
  temperature: float = hyperparameters.hparam(
    2.0,
    "T: divides the logits before the softmax; above 1 smooths the teacher's"
    " predictions.",
    minimum=0,
    exclusive_minimum=True,
  )
  public_data: str = hyperparameters.hparam(
    "uniform",
    "Public inputs: uniform, noise; digits, scikit-learn's, for images only.",
    choices=("uniform", "digits"),
  )
  public_examples: int = hyperparameters.hparam(
    200, "Number of public inputs.", minimum=1
  )
  public_bound: float = hyperparameters.hparam(
    1.0,
    "Largest absolute value of uniform public inputs that are not images, after"
    " the model's input scaling.",
    minimum=0,
    exclusive_minimum=True,
  )
  task_rounds: int = continual_tasks.task_rounds_hparam()
  review_share: float = hyperparameters.hparam(
    0.4,
    "Probability that a client reviews in a round, from the second domain on;"
    " 0: no client reviews.",
    minimum=0,
    maximum=1,
  )
  server_steps: int = hyperparameters.hparam(
    5,
    "Gradient steps of the server's distillation per round, at the clients'"
    " learning rate; 0: none.",
    minimum=0,
  )
  distil_from: str = hyperparameters.hparam(
    "first_domain",
    "First domain with distillation at the server: first_domain, as in the"
    " authors' program; second_domain, the first one with a teacher.",
    choices=("first_domain", "second_domain"),
  )


class Weights(NamedTuple):
  """The server weights.

  Attributes:
    model: The model's `SplitWeights`.
    teacher: The model's weights at the end of the last completed domain; the
      initial weights in the first domain.
    seed: The seed of the batches of the server's distillation, int32 [2].
  """

  model: Any
  teacher: Any
  seed: Any


class Contribution(NamedTuple):
  """A client's addends to the plaintext sums.

  Attributes:
    probabilities: The trained model's probabilities for the public inputs,
      [num_public, num_classes] float32; zeros without examples.
    num_clients: 1, or 0 without examples, a float32 scalar.
    is_later: Whether the domain is not the first, an int32 scalar.
    is_last: Whether the round is the last of its domain, an int32 scalar.
  """

  probabilities: Any
  num_clients: Any
  is_later: Any
  is_last: Any


def _make_titles(
  generator: np.random.Generator, shape: tuple[int, ...], vocabulary_size: int
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
    f"public_data=uniform is not allowed for model {model.name!r}, which takes"
    f" {dtype}: it must be images, float32, or tokens of a model with a"
    " vocabulary_size"
  )


def _make_digits(model: split_model.SplitModel, number: int) -> np.ndarray:
  """Draws images of digits and resizes them to the model's images."""
  if model.input_dtype.name != "uint8" or len(model.input_shape) != 3:
    raise ValueError(
      f"public_data=digits is not allowed for model {model.name!r}, which does"
      " not take images: it must be uniform"
    )
  generator = np.random.default_rng(_PUBLIC_SEED)
  images = datasets.load_digits().images  # [1797, 8, 8], from 0 to 16
  chosen = images[generator.permutation(len(images))[:number]]
  chosen = np.round(chosen * (255 / 16)).astype(np.uint8)
  # Nearest-neighbour interpolation.
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
    hparams: With `public_data=uniform`, inputs are uniform: pixels; features
      from -public_bound to public_bound after the model's scaling; or titles of
      uniform length with uniform words. With `public_data=digits`, inputs are
      scikit-learn's digits at the size of the model's images, at most all of
      them.

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
      seed: An int32 tensor of shape [2]; determines the batches.

    Returns:
      `(weights, step) -> loss`, float32 scalar.
    """
    # The targets replace the classes; no gradient flows through them.
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
  """Trains on the current domain, or distils the teacher.

  Args:
    model: The model.
    hparams: Hyper-parameters.
    distillation: Distillation on the public inputs.
    weights: The server's model and teacher.
    data: The client's data of all domains.
    round_num: The round, an int32 scalar.

  Returns:
    The model update, and the trained model's probabilities for the public
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
  drawn = draws.uniform([], randomness.fold(seed, 0))
  reviews = (domain > 0) & (drawn < hparams.review_share)
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
  """Adds the mean update, then distils on the public inputs.

  Args:
    hparams: Hyper-parameters.
    distillation: Distillation on the public inputs.
    weights: The server's model and teacher.
    mean_update: The mean model update.
    plaintext_sum: The sum over the cohort.
    info: See `algorithm.AlgorithmSpec`.

  Returns:
    The new weights; at the end of a domain, the model is the new teacher.
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
  """Builds the spec of CFeD; see `algorithm.AlgorithmSpec`."""
  if model.statistics and hparams.personal_norm != "none":
    raise ValueError(
      f"personal_norm={hparams.personal_norm} is not allowed with cfed: its"
      " server trains the model, and would not have its running statistics"
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
