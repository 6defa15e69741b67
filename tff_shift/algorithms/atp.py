"""ATP: learns by federation which tensors of a model adapt, and how far.

Adaptive Test-Time Personalization for Federated Learning (Bao, Wei, Wang, He;
NeurIPS 2023, arXiv:2310.18816).

The model w of all clients does not change. For a batch x without labels it has
an unsupervised direction h, with a part for each tensor i:

    h_i = grad_i of the mean entropy of the predictions for x   (weights)
    h_i = running statistic - moment of x          (batch normalisation)

and the adapted model has w'_i = w_i - alpha_i h_i. The rates alpha, one number
per tensor, are learned where there are labels. For each batch (x, y), from the
same w, a client steps along the exact gradient (h does not depend on alpha):

    alpha_i <- alpha_i + eta <grad_i CE(w'; x, y), h_i> / sqrt(size of tensor i)

The server averages the clients' rates, all with the same weight. Rates start at
0, which is the model without adaptation, and may become negative. A client then
adapts to its unlabelled batch with the current rates: from w for each batch
(ATP-batch), or by the mean of h over its batches so far (ATP-online).

Published reading: a batch is predicted after the adaptation to it
(scored=after).

What leaves a client: the change of the rates, a number per tensor, and the mean
loss of the adapted models on labelled batches. Directions, adapted models and
label estimates stay.

Choices:
  * Labelled shift: the published method learns on labelled clients whose data
    are shifted themselves. Here labelled examples are from before deployment.
    Batches are therefore drawn with replacement from them so that classes have
    the estimated distribution of the stream (the weights of eq. 4 of Fed-ADE:
    Adaptive Learning Rate for Federated Post-adaptation under Distribution
    Shift; Park, Joe, Kim, Im, Kwon; 2026). `labelled_classes=own` takes the
    examples as they are. Neither contains covariate shift: for shifted images
    with unshifted labelled data the method has nothing to learn from.
  * Rates are learned while the stream runs, a pass over the labelled examples
    each round; published are 200 rounds before the first test batch.
    `--rounds_per_step` and `--local_epochs` give more.
  * ATP-online averages directions and applies the current rates to the mean;
    the authors' program averages adapted models, which for fixed rates is the
    same.
  * Moments are collected while the model normalises by its running statistics,
    as in the program. An adapted variance is at least 1e-5; the program cuts it
    to 0, and then divides by the square root of the layer's epsilon. The
    gradient ignores the bound in both.
  * The rate of 0.1 is for a ResNet-18. A network with batch normalisation that
    was trained on 150 digits diverges at 0.1 in the second round: the gradient
    of a rate is a product of two gradients (`learning_rate`).
"""

import dataclasses
from collections.abc import Callable
from collections.abc import Sequence
from typing import Any
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from tff_shift._util import draws
from tff_shift.algorithms.parts import adaptation
from tff_shift.algorithms.parts import test_time_adaptation
from tff_shift.learning import algorithm
from tff_shift.learning import evaluation
from tff_shift.learning import hyperparameters
from tff_shift.learning import local_training
from tff_shift.learning import randomness
from tff_shift.models import modes
from tff_shift.models import split_model

SCENARIOS = ("online_adaptation",)

# Of the pre-trained model; adapted statistics are made for a prediction.
RUNNING_STATISTICS = algorithm.FIXED

_SMALLEST_VARIANCE = 1e-5


@dataclasses.dataclass(frozen=True)
class HParams(
  adaptation.ScoredAfterHParams,
  adaptation.LabelShiftHParams,
  hyperparameters.LocalHParams,
):
  """Hyper-parameters of ATP."""

  learning_rate: float = hyperparameters.hparam(
    0.1,
    "eta: the learning rate of the adaptation rates; 0: they stay 0, and the"
    " model does not adapt.",
    minimum=0,
    published=True,
  )
  batch_size: int = hyperparameters.hparam(
    20, "Labelled examples per batch.", minimum=1, published=True
  )
  local_epochs: int = hyperparameters.hparam(
    1,
    "Passes per round over as many examples as a client has labelled, rounded"
    " up to whole batches; 0: use local_steps.",
    minimum=0,
    published=True,
  )
  history: str = hyperparameters.hparam(
    "batch",
    "The direction of an adaptation: batch, that of the batch of the time step"
    " (ATP-batch); online, the mean over the time steps so far (ATP-online).",
    choices=("batch", "online"),
  )
  labelled_classes: str = hyperparameters.hparam(
    "estimated",
    "The classes of the labelled batches: estimated, drawn with the estimated"
    " label distribution of the stream; own, as in the labelled examples.",
    choices=("estimated", "own"),
  )


class Tensors(NamedTuple):
  """What adapts: a model's tensors, or a direction in their structure.

  Attributes:
    weights: The weights of the model.
    statistics: The running statistics of batch normalisation, in the order of
      `SplitModel.statistics`; () without.
  """

  weights: split_model.SplitWeights
  statistics: Any


class ClientState(NamedTuple):
  """A client's state.

  Attributes:
    direction: h of the last time step, or the mean over time steps.
    num_timesteps: The number of time steps of the mean, a float32 scalar.
    timestep: The last time step, an int32 scalar; 0: none yet.
  """

  direction: Tensors
  num_timesteps: Any
  timestep: Any


def move(tensors: Any, rates, direction: Any) -> Any:
  """Returns w' = w - alpha h, with a rate per tensor.

  Args:
    tensors: w, a nested structure of float32 tensors.
    rates: alpha, [num_tensors] float32, in the order of flattening.
    direction: h, in the structure of w.
  """
  flat = tf.nest.flatten(tensors), tf.nest.flatten(direction)
  return tf.nest.pack_sequence_as(
    tensors,
    [
      w - rates[place] * h
      for place, (w, h) in enumerate(zip(*flat, strict=True))
    ],
  )


def learn_rates(
  rates,
  sizes: Sequence[int],
  direction_of: Callable[[Any], Any],
  loss_of: Callable[[Any, Any, Any], tf.Tensor],
  num_steps,
  hparams: hyperparameters.LocalHParams,
  round_num: Any = None,
) -> local_training.TrainingResult:
  """Learns rates from labelled batches, each adapted to from the same w.

  Args:
    rates: The initial alpha, [num_tensors] float32.
    sizes: The size of each tensor, in the order of the rates.
    direction_of: `(step) -> h` of the batch of a step.
    loss_of: `(alpha, h, step) -> loss` of the adapted model, w - alpha h, on
      the labels of the same batch.
    num_steps: The number of batches, an int32 scalar.
    hparams: Optimizer and eta.
    round_num: The round, for a schedule of eta.

  Returns:
    A `TrainingResult` whose weights are the learned rates.
  """
  lengths = np.sqrt(np.array(sizes, np.float32))

  def loss_fn(current, step, carry):
    direction = tf.nest.map_structure(tf.stop_gradient, direction_of(step))
    return loss_of(current, direction, step), carry

  def differentiate(gradient_at, trained):
    # The gradient by alpha_i is -<grad_i CE, h_i>.
    found = gradient_at(trained)
    scaled = tuple(each / lengths for each in found.gradients)
    return found._replace(gradients=scaled)

  return local_training.train(
    loss_fn,
    rates,
    num_steps,
    hparams,
    seed=None,
    round_num=round_num,
    differentiate=differentiate,
  )


def predict(model: split_model.SplitModel, tensors: Tensors, x) -> tf.Tensor:
  """Predicts a batch with weights and running statistics."""
  with modes.with_statistics(
    dict(zip(model.statistics, tensors.statistics, strict=True)), are_fixed=True
  ):
    return model.predict(tensors.weights, x)


def find_direction(
  model: split_model.SplitModel, tensors: Tensors, x
) -> Tensors:
  """Computes h at some tensors.

  Args:
    model: The model.
    tensors: Its weights and running statistics.
    x: A batch without labels, [n, ...].

  Returns:
    h, in the structure of the tensors.
  """
  with tf.GradientTape(watch_accessed_variables=False) as tape:
    tape.watch(tensors.weights)
    with modes.observing_moments() as moments:
      logits = predict(model, tensors, x)
    entropies = test_time_adaptation.entropy(tf.nn.log_softmax(logits))
    loss = tf.reduce_mean(entropies)
  gradients = tape.gradient(
    loss, tensors.weights, unconnected_gradients=tf.UnconnectedGradients.ZERO
  )
  return Tensors(
    # The gradient of an embedding table is an IndexedSlices.
    tf.nest.map_structure(tf.convert_to_tensor, gradients),
    tuple(
      running - moments[name]
      for name, running in zip(
        model.statistics, tensors.statistics, strict=True
      )
    ),
  )


@tf.custom_gradient
def _at_least(value, smallest):
  """Returns the maximum; the gradient passes as if there were no bound."""
  return tf.maximum(value, smallest), lambda upstream: (upstream, None)


def adapt(
  model: split_model.SplitModel, tensors: Tensors, rates, direction: Tensors
) -> Tensors:
  """Returns w' = w - alpha h with variances that can be divided by.

  Args:
    model: The model.
    tensors: w.
    rates: alpha, [num_tensors] float32.
    direction: h.
  """
  adapted = move(tensors, rates, direction)

  def bounded(name, value, before):
    if not name.endswith("variance"):
      return value
    # A variance of the model itself may be below the bound.
    return _at_least(value, tf.minimum(before, _SMALLEST_VARIANCE))

  return adapted._replace(
    statistics=tuple(
      map(bounded, model.statistics, adapted.statistics, tensors.statistics)
    )
  )


def labelled_batches(
  hparams: HParams, data: adaptation.AdaptationData, classes, num_steps, seed
) -> Callable[[Any], local_training.Batch]:
  """Draws the labelled batches of a round.

  Args:
    hparams: The size of a batch, and how its classes are drawn.
    data: The client's data.
    classes: The estimated label distribution of the stream, [num_classes].
    num_steps: The number of batches, an int32 scalar.
    seed: An int32 tensor of shape [2].

  Returns:
    `(step) -> Batch`.
  """
  if hparams.labelled_classes == "own":
    return local_training.pooled_batches(
      data.labelled, num_steps, hparams.batch_size, seed
    )
  weights = tf.gather(adaptation.class_weights(classes, data.y), data.y)
  # No labelled example may be of an estimated class.
  weights = tf.where(tf.reduce_sum(weights) > 0, weights, tf.ones_like(weights))

  def draw(step):
    places = draws.categories(
      hparams.batch_size, weights, randomness.fold(seed, step)
    )
    return local_training.Batch(
      tf.gather(data.x, places), tf.gather(data.y, places)
    )

  return draw


def build(
  model: split_model.SplitModel, hparams: HParams
) -> algorithm.AlgorithmSpec:
  """Builds the spec of ATP; see `algorithm.AlgorithmSpec`.

  The initial weights of the model are the pre-trained ones, w. The server's
  weights are the rates, [num_tensors] float32: of the weights in the order of
  `weight_names()`, then of the running statistics. A client's state is a
  `ClientState`.
  """

  def start(seed):
    return Tensors(
      model.initial_weights(seed),
      tuple(map(tf.convert_to_tensor, model.statistics.values())),
    )

  def initial_client_state(seed, rates):
    del rates
    return ClientState(
      tf.nest.map_structure(tf.zeros_like, start(seed)),
      tf.constant(0.0),
      tf.constant(0),
    )

  def observe(state, tensors, data):
    """Takes the direction of the client's batch into its state."""
    new = find_direction(model, tensors, data.stream_x)
    # Rounds of the same time step have the same batch and count once.
    is_new = tf.not_equal(state.timestep, data.timestep)
    number = state.num_timesteps + tf.cast(is_new, tf.float32)
    if hparams.history == "online":
      new = tf.nest.map_structure(
        lambda mean, h: tf.where(is_new, mean + (h - mean) / number, mean),
        state.direction,
        new,
      )
    return ClientState(new, number, data.timestep)

  def train_client(rates, state, data, round_num):
    tensors = start(data.seed)
    labelled = data.labelled
    num_steps = local_training.num_local_steps(hparams, labelled, round_num)
    classes = adaptation.estimate_classes(model, hparams, tensors.weights, data)
    batch_of = labelled_batches(
      hparams,
      data,
      classes,
      num_steps,
      randomness.fold(data.seed, randomness.Purpose.TRAIN, round_num),
    )

    def loss_of(current, direction, step):
      batch = batch_of(step)
      adapted = adapt(model, tensors, current, direction)
      return local_training.cross_entropy(
        predict(model, adapted, batch.x), batch.y
      )

    trained = learn_rates(
      rates,
      [each.shape.num_elements() for each in tf.nest.flatten(tensors)],
      lambda step: find_direction(model, tensors, batch_of(step).x),
      loss_of,
      num_steps,
      hparams,
      round_num,
    )
    return algorithm.ClientResult(
      update=trained.weights - rates,
      client_state=observe(state, tensors, data),
      loss=trained.loss,
    )

  def predict_as_client(rates, state, data, examples):
    adapted = adapt(model, start(data.seed), rates, state.direction)
    return evaluation.predict_in_batches(
      lambda x: predict(model, adapted, x), examples.x, model.num_classes
    )

  return algorithm.AlgorithmSpec(
    initial_weights=lambda seed: tf.zeros(
      [len(tf.nest.flatten(model.weight_names())) + len(model.statistics)]
    ),
    initial_client_state=initial_client_state,
    train_client=train_client,
    predict_as_client=predict_as_client,
    examples_type=adaptation.data_type(model),
    num_examples=adaptation.num_stream_examples,
  )
