"""FedCTTA: clients that answer alike on noise share what they have adapted.

FedCTTA: A Collaborative Approach to Continual Test-Time Adaptation in Federated
Learning (Rajib, Iftee, Hossain, Rahman, Mistry, Amin, Ali; IJCNN 2025,
arXiv:2505.13643).

Each client has its own model, at first the pre-trained one. In a round

  1. a client takes a step on the mean entropy of its predictions for the batch
     of the time step, on all weights;
  2. it computes its indicator g_i, the mean of its logits for random noise, and
     sends it with its model;
  3. the server mixes a model for each client,

         w_i <- sum_j a_ij w_j,    a_ij = softmax over j of exp(cos(g_i, g_j)).

The noise is the same for all clients of a round. exp within the softmax, from
the authors' program, keeps weights close to each other: a client with the
cosine 1 counts 1.64 times as much as one with 0.8, and 5.6 times as much as one
with 0.

Published reading: a batch is predicted after the adaptation to it, with the
mixed model (scored=after). With batch normalisation it is normalised by its own
moments, in the step and in the prediction, and predicted as one.

What leaves a client: in plaintext, its model and its mean logits for noise; the
mean loss. Its examples stay.

The server broadcasts the mixed models of all clients in one table, of which
each client reads its own entry: memory grows with the number of clients.

Choices:
  * In the authors' program each client draws noise of its own, so that outputs
    for different inputs are compared. Noise is uniform for images and tokens,
    normal for features.
  * The indicator is a moving mean over rounds, 9/10 old, as in the program.
  * The text minimises the entropy; the program takes the cross-entropy to the
    model's own predicted labels, objective=pseudo.
  * Only the participants of a round are mixed. Others keep their models.
  * The optimizer's moments are kept from batch to batch, as in the program.
  * Dropout is off, and regularizers do not count.
  * mixing=uniform is an ablation: the plain mean of the adapted models.

Written from the abstract and the program of the paper, not from its text.
"""

import dataclasses
from typing import Any
from typing import NamedTuple

import tensorflow as tf

from tff_shift._util import draws
from tff_shift.algorithms.parts import adaptation
from tff_shift.algorithms.parts import stream_steps
from tff_shift.algorithms.parts import test_time_adaptation
from tff_shift.learning import algorithm
from tff_shift.learning import hyperparameters
from tff_shift.learning import local_training
from tff_shift.learning import randomness
from tff_shift.learning import sizes
from tff_shift.learning.aggregators import client_slots
from tff_shift.learning.aggregators import factories
from tff_shift.models import split_model

SCENARIOS = ("online_adaptation",)

RUNNING_STATISTICS = algorithm.FIXED

AGGREGATION_REQUIREMENTS = factories.AggregationRequirements(
  no_clipping="the server mixes whole models, not updates",
  per_client_values="the server mixes a model for each client",
  no_server_optimizer="the server mixes a model for each client",
)


@dataclasses.dataclass(frozen=True)
class HParams(adaptation.ScoredAfterHParams, stream_steps.StreamHParams):
  """Hyper-parameters of FedCTTA."""

  optimizer: str = hyperparameters.hparam(
    "adam",
    "Optimizer of these steps; its moments are kept between batches.",
    choices=("sgd", "adam"),
    published=True,
  )
  learning_rate: float = hyperparameters.hparam(
    1e-5,
    "Learning rate of these steps; 0: nothing moves.",
    minimum=0,
    published=True,
  )
  objective: str = hyperparameters.hparam(
    "entropy",
    "The loss of a step: entropy, the mean entropy of predictions; pseudo, the"
    " cross-entropy to the model's own predicted labels.",
    choices=("entropy", "pseudo"),
    published=True,
  )
  mixing: str = hyperparameters.hparam(
    "similarity",
    "The weights of models in a mixture: similarity, by the cosine of outputs"
    " for noise; uniform, the plain mean of all participants.",
    choices=("similarity", "uniform"),
  )
  noise_examples: int = hyperparameters.hparam(
    64, "Noise inputs per round for the indicators.", minimum=1
  )
  indicator_memory: float = hyperparameters.hparam(
    0.9,
    "The fraction of the indicator that a round keeps; 0: only the last round"
    " counts.",
    minimum=0,
    maximum=1,
  )


class Weights(NamedTuple):
  """The server's weights.

  Attributes:
    models: The mixed `SplitWeights` of each client, with a first axis of
      num_clients; zeros for clients outside of the cohort.
    written: The last round, from 1, in which a client took part, [num_clients]
      float32; 0: never.
    noise_seed: The seed of the noise, int32 [2].
  """

  models: Any
  written: Any
  noise_seed: Any


class ClientState(NamedTuple):
  """A client's state.

  Attributes:
    weights: The `SplitWeights` of its model.
    moments: What its optimizer remembers.
    indicator: g, [num_classes] float32; zeros before the first round.
    loss: The loss of its last round, a float32 scalar.
  """

  weights: Any
  moments: Any
  indicator: Any
  loss: Any


class Sent(NamedTuple):
  """What a client sends.

  Attributes:
    weights: The `SplitWeights` of its adapted model.
    indicator: g, [num_classes] float32.
  """

  weights: Any
  indicator: Any


def draw_noise(model: split_model.SplitModel, number: int, seed) -> tf.Tensor:
  """Draws random inputs of a model, [number, ...] of its input dtype.

  Raises:
    ValueError: If the model takes tokens of an unknown vocabulary; one line.
  """
  shape = [number, *model.input_shape]
  if model.input_dtype.is_floating:
    return draws.normal(shape, seed)
  end = 256 if model.input_dtype.is_unsigned else model.vocabulary_size
  if end is None:
    raise ValueError(
      f"fed_ctta is not allowed with model {model.name!r}: noise needs the size"
      " of its vocabulary, which it does not tell"
    )
  return tf.cast(draws.integers(shape, seed, 0, end), model.input_dtype)


def mixture_weights(indicators, mixing: str) -> tf.Tensor:
  """Returns a_ij, [n, n] float32; rows sum to 1.

  Args:
    indicators: g of each participant, [n, num_classes] float32.
    mixing: See `HParams`.
  """
  directions = tf.math.l2_normalize(indicators, axis=1)
  cosines = tf.matmul(directions, directions, transpose_b=True)
  if mixing == "uniform":
    cosines = tf.zeros_like(cosines)
  return tf.nn.softmax(tf.exp(cosines))


def mix(sent: Sent, mixing: str) -> split_model.SplitWeights:
  """Mixes a model for each participant.

  Args:
    sent: A `Sent` with a first axis of n participants.
    mixing: See `HParams`.

  Returns:
    `SplitWeights` with a first axis of n.
  """
  shares = mixture_weights(sent.indicator, mixing)
  return tf.nest.map_structure(
    lambda each: tf.tensordot(shares, each, axes=1), sent.weights
  )


def build(
  model: split_model.SplitModel, hparams: HParams, num_clients: int
) -> algorithm.AlgorithmSpec:
  """Builds the spec of FedCTTA; see `algorithm.AlgorithmSpec`.

  The initial weights of the model are the pre-trained ones. A client's state is
  a `ClientState`. A `client_id` must be below `num_clients`.
  """
  sizes.check_copies(
    "noise_examples", hparams.noise_examples, model.input_shape
  )

  def initial_weights(seed):
    return Weights(
      tf.nest.map_structure(
        lambda w: tf.zeros([num_clients, *w.shape]), model.initial_weights(seed)
      ),
      tf.zeros([num_clients]),
      seed,
    )

  def initial_client_state(seed, weights):
    del weights
    own = model.initial_weights(seed)
    return ClientState(
      own,
      local_training.initial_moments(own, hparams.training),
      tf.zeros([model.num_classes]),
      tf.constant(0.0),
    )

  def predict(weights, x):
    with stream_steps.normalizing(model, hparams):
      return model.predict(weights, x)

  def loss_of(logits):
    if hparams.objective == "pseudo":
      return local_training.cross_entropy(
        logits, tf.argmax(logits, axis=1, output_type=tf.int32)
      )
    entropies = test_time_adaptation.entropy(tf.nn.log_softmax(logits))
    return tf.reduce_mean(entropies)

  def train_client(weights, state, data, round_num):
    trained = stream_steps.descend(
      lambda current: loss_of(predict(current, data.stream_x)),
      state.weights,
      state.moments,
      data,
      hparams,
    )
    noise = draw_noise(
      model,
      hparams.noise_examples,
      randomness.fold(weights.noise_seed, round_num),
    )
    outputs = tf.reduce_mean(predict(trained.weights, noise), axis=0)
    is_first = tf.reduce_all(tf.equal(state.indicator, 0.0))
    kept = tf.where(is_first, 0.0, hparams.indicator_memory)
    indicator = kept * state.indicator + (1.0 - kept) * outputs
    return algorithm.ClientResult(
      update=(),
      client_state=ClientState(
        trained.weights, trained.moments, indicator, trained.loss
      ),
      loss=trained.loss,
      plaintext_sum=client_slots.place(
        Sent(trained.weights, indicator), data.client_id
      ),
    )

  def update_server(weights, mean_update, slots, info):
    del mean_update
    present = tf.where(slots.present > 0)  # [n, 1]
    sent = tf.nest.map_structure(
      lambda rows: tf.gather_nd(rows, present), slots.values
    )
    models = tf.nest.map_structure(
      lambda before, rows: tf.scatter_nd(
        present, rows, tf.shape(before, tf.int64)
      ),
      weights.models,
      mix(sent, hparams.mixing),
    )
    written = tf.where(
      slots.present > 0,
      tf.cast(info.round_num + 1, tf.float32),
      weights.written,
    )
    return Weights(models, written, weights.noise_seed)

  def personalize_client(weights, state, data, round_num):
    own, written = tf.nest.map_structure(
      lambda rows: tf.gather(rows, data.client_id),
      (weights.models, weights.written),
    )
    # False for a diverged client, whose model does not reach the server.
    is_there = tf.equal(written, tf.cast(round_num + 1, tf.float32))
    received = tf.nest.map_structure(
      lambda new, old: tf.where(is_there, new, old), own, state.weights
    )
    return algorithm.PersonalResult(
      state._replace(weights=received), state.loss
    )

  return algorithm.AlgorithmSpec(
    initial_weights=initial_weights,
    initial_client_state=initial_client_state,
    train_client=train_client,
    update_server=update_server,
    personalize_client=personalize_client,
    predict_as_client=lambda weights, state, data, examples: (
      stream_steps.predict(model, hparams, state.weights, examples)
    ),
    predicts_batches=stream_steps.normalizes_by_batch(model, hparams),
    examples_type=adaptation.data_type(model),
    num_examples=adaptation.num_stream_examples,
    fixed_weights=("noise_seed",),
    max_clients=num_clients,
  )
