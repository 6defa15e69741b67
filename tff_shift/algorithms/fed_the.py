"""FedTHE: mixes a shared and a personal head for each test example.

Test-Time Robust Personalization for Federated Learning (Jiang, Lin; ICLR 2023,
arXiv:2205.10920), with FedTHE+ as `--plus`; a baseline in Table 1 of Federated
Learning under Evolving Distribution Shifts.

Clients train the backbone phi and the head h with the balanced softmax; the
server averages them. On the fixed features of the received phi, a client trains
a linear head q_k without bias and computes its descriptor r_k, the mean of its
features; the server averages the r_k to r. For a test example i with feature
z_i, logits g_i of h and l_i of q_k, it predicts the logits u_g g_i + u_l l_i:

    h_i  = alpha z_i + (1 - alpha) h_{i-1}, from h_1 = z_1
    z'_i = beta z_i + (1 - beta) h_i
    s_i  = cos(softmax g_i, softmax l_i)
    L_i  = s_i H(softmax(u_g g_i + u_l l_i))
           + (1 - s_i) (u_g |z'_i - r| + u_l |z'_i - r_k|)

with (u_g, u_l) the softmax of two variables, initially equal, on which Adam
minimises L_i. FedTHE+ then minimises the entropy of the mean prediction for
augmentations of the example over all weights (MEMO, see
`test_time_adaptation`), and resets them after the example. The server predicts
with h.

What leaves a client: the update of phi and h, its descriptor r_k, and the mean
loss of phi and h. The personal head stays.

Choices:
  * A client predicts with the received backbone, the personal head after one
    more epoch on it, and the descriptor under it: the state from which the next
    round would train, bit for bit, as in the authors' program
    (`personal_epochs`). The mean descriptor is one round older. It and the
    personal head start at zero.
  * The 20 steps of Adam at ten times the learning rate are taken for each
    example separately, and end when its gradient is below 1e-5
    (`ensemble_steps`, `ensemble_learning_rate`). The program takes means over
    batches, drops the first example of each batch from the history, and ends
    per batch.
  * The mean descriptor has the weights of the server's mean. It is unweighted
    in the program, as by default here.
  * A class that a client lacks counts as one example in the balanced softmax:
    the program adds one to all counts (`class_counts`).
"""

import dataclasses
from typing import Any
from typing import NamedTuple

import tensorflow as tf

from tff_shift.algorithms import fed_avg
from tff_shift.algorithms.parts import augmentations
from tff_shift.algorithms.parts import balanced_softmax
from tff_shift.algorithms.parts import test_time_adaptation
from tff_shift.learning import algorithm
from tff_shift.learning import evaluation
from tff_shift.learning import hyperparameters
from tff_shift.learning import local_training
from tff_shift.learning import randomness
from tff_shift.learning import sizes
from tff_shift.learning.aggregators import factories
from tff_shift.models import split_model

SCENARIOS = ("evolving",)

RUNNING_STATISTICS = algorithm.ONE_MODEL

AGGREGATION_REQUIREMENTS = factories.AggregationRequirements(
  no_clipping="the server computes the mean of the clients' descriptors from"
  " the mean update, which clipping changes"
)

# Adam stops for an example when the norm of its gradient is smaller.
_SMALLEST_GRADIENT = 1e-5
# The number of examples whose mixtures are optimised in one batch.
_MIXTURE_BATCH = 256


@dataclasses.dataclass(frozen=True)
class HParams(hyperparameters.LocalHParams):
  """Hyper-parameters of FedTHE and FedTHE+."""

  gamma: float = balanced_softmax.gamma_hparam()
  class_counts: str = balanced_softmax.class_counts_hparam("at_least_one")
  personal_epochs: int = hyperparameters.hparam(
    1,
    "Epochs of the personal head on the client's features; 0: it does not"
    " change.",
    minimum=0,
  )
  history_rate: float = hyperparameters.hparam(
    0.1,
    "alpha: weight of an example in the history of features; 1: no history.",
    minimum=0,
    maximum=1,
  )
  feature_share: float = hyperparameters.hparam(
    0.1,
    "beta: weight of an example's own feature against the history; 1: no"
    " history.",
    minimum=0,
    maximum=1,
  )
  ensemble_steps: int = hyperparameters.hparam(
    20,
    "Maximum number of Adam steps on an example's mixture; 0: both heads have"
    " equal weights.",
    minimum=0,
  )
  ensemble_learning_rate: float = hyperparameters.hparam(
    0.0,
    "Learning rate of the mixture. 0: ten times learning_rate.",
    minimum=0,
  )
  plus: bool = hyperparameters.hparam(
    False, "Whether a client adapts all weights to each example (FedTHE+)."
  )
  plus_steps: int = hyperparameters.hparam(
    3, "Gradient steps of FedTHE+ per example; 0: FedTHE.", minimum=0
  )
  plus_learning_rate: float = hyperparameters.hparam(
    0.0005, "Learning rate of the steps of FedTHE+.", minimum=0
  )
  plus_augmentations: int = hyperparameters.hparam(
    16, "Augmentations of an example in FedTHE+.", minimum=1
  )


class Weights(NamedTuple):
  """The server weights: phi and h, and r, [embedding_size] float32."""

  model: split_model.SplitWeights
  descriptor: Any


class Personal(NamedTuple):
  """A client's own part: q_k, [embedding_size, num_classes], and r_k."""

  head: Any
  descriptor: Any


class MixtureInputs(NamedTuple):
  """The inputs of the optimisation of examples' mixtures.

  Attributes:
    logits: g, of the shared head, [num_examples, num_classes] float32.
    personal_logits: l, of the personal head, [num_examples, num_classes]
      float32.
    distances: |z' - r| and |z' - r_k|, [num_examples, 2] float32.
  """

  logits: Any
  personal_logits: Any
  distances: Any


def smooth_features(
  features, history_rate: float, feature_share: float, domain_sizes, seed
) -> tf.Tensor:
  """Computes z' from the features and the history of earlier examples.

  Args:
    features: z, [num_examples, size] float32, domain by domain.
    history_rate: alpha.
    feature_share: beta.
    domain_sizes: The number of examples of each domain, [num_domains] int32.
    seed: An int32 tensor of shape [2]; determines the order of the examples.

  Returns:
    z', [num_examples, size] float32.
  """

  def move(history, feature, domain, place):
    del domain, place
    has_started, mean = history
    moved = history_rate * feature + (1.0 - history_rate) * mean
    mean = tf.where(has_started, moved, feature)
    smoothed = feature_share * feature + (1.0 - feature_share) * mean
    return smoothed, (tf.constant(True), mean)

  size = features.shape[1]
  return test_time_adaptation.adapt_each(
    features,
    (tf.constant(False), tf.zeros([size])),
    move,
    domain_sizes=domain_sizes,
    width=size,
    seed=seed,
  )


def mix_logits(mixtures, logits, personal_logits) -> tf.Tensor:
  """Computes u_g g + u_l l.

  Args:
    mixtures: (u_g, u_l) of each example, [..., 2] float32.
    logits: g, [..., num_classes] float32.
    personal_logits: l, [..., num_classes] float32.

  Returns:
    [..., num_classes] float32.
  """
  return mixtures[..., :1] * logits + mixtures[..., 1:] * personal_logits


def _find_in_batch(
  inputs: MixtureInputs, num_steps: int, learning_rate: float
) -> tf.Tensor:
  """Optimises the mixtures of a batch of static size."""
  cosine = tf.reduce_sum(
    tf.math.l2_normalize(tf.nn.softmax(inputs.logits), axis=1)
    * tf.math.l2_normalize(tf.nn.softmax(inputs.personal_logits), axis=1),
    axis=1,
  )

  def loss_fn(numbers, step, carry):
    del step
    mixtures = tf.nn.softmax(numbers)
    mixed = mix_logits(mixtures, inputs.logits, inputs.personal_logits)
    entropy = test_time_adaptation.entropy(tf.nn.log_softmax(mixed))
    distance = tf.reduce_sum(mixtures * inputs.distances, axis=1)
    # Examples stay independent: each addend depends on one example, and Adam
    # scales each variable separately.
    return tf.reduce_sum(cosine * entropy + (1.0 - cosine) * distance), carry

  def stop_where_flat(gradient_at, numbers):
    gradient = gradient_at(numbers)
    is_moving, reached = gradient.carry
    # Adam's momentum still moves a stopped example: keep its values here.
    reached = tf.where(is_moving[:, tf.newaxis], numbers[0], reached)
    slope = tf.norm(gradient.gradients[0], axis=1)
    return gradient._replace(
      carry=(is_moving & (slope >= _SMALLEST_GRADIENT), reached)
    )

  start = tf.zeros_like(inputs.distances)
  result = local_training.train(
    loss_fn,
    start,
    num_steps,
    hyperparameters.LocalHParams(optimizer="adam", learning_rate=learning_rate),
    seed=None,
    carry=(tf.ones_like(start[:, 0], tf.bool), start),
    differentiate=stop_where_flat,
  )
  is_moving, reached = result.carry
  return tf.nn.softmax(
    tf.where(is_moving[:, tf.newaxis], result.weights, reached)
  )


def find_mixtures(
  inputs: MixtureInputs, num_steps: int, learning_rate: float
) -> tf.Tensor:
  """Optimises the mixture of each example independently of the others.

  Args:
    inputs: Logits and distances of the examples.
    num_steps: The maximum number of steps.
    learning_rate: The learning rate of Adam.

  Returns:
    (u_g, u_l), [num_examples, 2] float32; each row sums to 1.
  """
  return test_time_adaptation.in_full_batches(
    lambda batch: _find_in_batch(batch, num_steps, learning_rate),
    inputs,
    _MIXTURE_BATCH,
    width=2,
  )


def build(
  model: split_model.SplitModel, hparams: HParams
) -> algorithm.AlgorithmSpec:
  """Builds the spec of FedTHE; see `algorithm.AlgorithmSpec`.

  The head is the last linear layer. A client's state is its personal head.
  """
  model = split_model.with_head(model, "last_layer")
  if hparams.plus:
    augmentations.check_images("fed_the with --plus", model)
    sizes.check_copies(
      "plus_augmentations", hparams.plus_augmentations, model.input_shape
    )

  def embed(weights, x):
    return evaluation.predict_in_batches(
      lambda batch: model.embed(weights.model.backbone, batch),
      x,
      model.embedding_size,
    )

  def personalize(weights, head, data, round_num):
    """Trains q_k and computes r_k with the received weights."""
    features = embed(weights, data.x)
    steps = local_training.epoch_steps(data, hparams.batch_size)
    trained = local_training.train_on_pool(
      lambda own_head, features: features @ own_head,
      head,
      data._replace(x=features),
      hparams.personal_epochs * steps,
      randomness.fold(data.seed, randomness.Purpose.PERSONALIZE, round_num),
      hparams,
      round_num=round_num,
    )
    num_examples = tf.cast(data.num_examples, tf.float32)
    descriptor = tf.reduce_sum(features, axis=0) / tf.maximum(num_examples, 1.0)
    return Personal(trained.weights, descriptor)

  def train_client(weights, head, data, round_num):
    personal = personalize(weights, head, data, round_num)
    shift = balanced_softmax.shift(
      data.y, model.num_classes, hparams.gamma, hparams.class_counts
    )
    generic = fed_avg.train_client(
      model,
      hparams,
      weights.model,
      data,
      round_num,
      predict=lambda current, x: model.predict(current, x) + shift,
    )
    return generic._replace(
      update=Weights(generic.update, personal.descriptor - weights.descriptor),
      client_state=personal.head,
    )

  def predict_adapted(weights, personal, mixtures, examples, seed):
    """Predicts with weights adapted to each example (FedTHE+)."""

    def predict(current, x, mixture):
      shared, head = current
      features = model.embed(shared.backbone, x)
      return mix_logits(
        mixture, model.classify(shared.head, features), features @ head
      )

    def adapt_and_predict(nothing, example, domain, place):
      del domain, place
      x, mixture = example
      adapted = test_time_adaptation.descend_marginal_entropy(
        lambda current, x: predict(current, x, mixture),
        (weights.model, personal.head),
        lambda step: augmentations.augment(
          # The draws depend on the image as well.
          x,
          randomness.fold(seed, step),
          hparams.plus_augmentations,
        ),
        hparams.plus_steps,
        hyperparameters.LocalHParams(learning_rate=hparams.plus_learning_rate),
      )
      return predict(adapted, x[tf.newaxis], mixture)[0], nothing

    return test_time_adaptation.adapt_each(
      (examples.x, mixtures),
      (),
      adapt_and_predict,
      domain_sizes=examples.domain_sizes,
      width=model.num_classes,
    )

  def predict_as_client(weights, personal, data, examples):
    seed = randomness.fold(data.seed, randomness.Purpose.TEST_TIME)
    features = embed(weights, examples.x)
    smoothed = smooth_features(
      features,
      hparams.history_rate,
      hparams.feature_share,
      examples.domain_sizes,
      seed,
    )
    descriptors = weights.descriptor, personal.descriptor
    inputs = MixtureInputs(
      model.classify(weights.model.head, features),
      features @ personal.head,
      tf.norm(smoothed[:, tf.newaxis] - tf.stack(descriptors), axis=2),
    )
    mixtures = find_mixtures(
      inputs,
      hparams.ensemble_steps,
      hparams.ensemble_learning_rate or 10.0 * hparams.learning_rate,
    )
    if hparams.plus:
      return predict_adapted(weights, personal, mixtures, examples, seed)
    return mix_logits(mixtures, inputs.logits, inputs.personal_logits)

  return algorithm.AlgorithmSpec(
    initial_weights=lambda seed: Weights(
      model.initial_weights(seed), tf.zeros([model.embedding_size])
    ),
    initial_client_state=lambda seed, weights: tf.zeros(
      [model.embedding_size, model.num_classes]
    ),
    train_client=train_client,
    prepare_client=personalize,
    predict_as_client=predict_as_client,
    predict_as_server=lambda weights, _, examples: evaluation.predict(
      model, weights.model, examples.x
    ),
  )
